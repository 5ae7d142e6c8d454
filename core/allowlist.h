/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allowlist file (docs/allowlist.md): lines `allow|deny HOST [port=LIST] [protocol=vortex|any]`, first match wins,
 * default deny, a missing file denies all. HOST: IPv4/IPv6 address, CIDR block, `*`, or host name (resolved in
 * the background). LIST: 4005 or 4005,5000-5010. No port=: every port. `#` starts a comment.
 */
#ifndef VR_ALLOWLIST_H
#define VR_ALLOWLIST_H

#include <stdbool.h>
#include <stddef.h>
#include "addr.h"

enum vr_protocol { VR_PROTO_NONE, VR_PROTO_VORTEX, VR_PROTO_ANY };

struct vr_rules; /* an immutable parsed rule set */

struct vr_rules_error {
	unsigned line, column; /* 1-based; 0 when the file could not be read */
	char text[256];        /* what was found and what was expected */
};

/* vr_rules_parse - parse text (need not end in NUL or newline); NULL and *err on the first error. Free with vr_rules_free. */
struct vr_rules *vr_rules_parse(const char *text, size_t len, struct vr_rules_error *err);
void vr_rules_free(struct vr_rules *r);
/* vr_rules_match - the verdict for a peer's address with the service port in a->port: VR_PROTO_NONE = stay on TCP.
 * A deny rule whose host name is not resolved (yet) matches everything on its ports: the safe side. */
enum vr_protocol vr_rules_match(const struct vr_rules *r, const struct vr_addr *a);
/* vr_rules_port - could any peer be allowed on this service port? (Decides whether to advertise it.) */
bool vr_rules_port(const struct vr_rules *r, unsigned port);
/* vr_rules_names - number of host names in the set that need resolving. */
size_t vr_rules_names(const struct vr_rules *r);
/* vr_rules_resolve - a copy of r with all names resolved by getaddrinfo (blocking: background thread only);
 * a name that cannot be resolved keeps its previous addresses. NULL when out of memory. */
struct vr_rules *vr_rules_resolve(const struct vr_rules *r);

/*
 * The process's live list. Readers take no lock and never block: the set is published by an atomic pointer, a
 * reader count keeps the old one alive.
 */
/* vr_allowlist_load - read the file now (blocking file I/O, no DNS); logs errors. Safe from any thread; first call wins, later ones are no-ops. */
void vr_allowlist_load(const char *path);
/* vr_allowlist_poll - re-read when the file changed (device, inode, size, mtime; follows symlinks); an erroneous file keeps
 * the last good rules and is reported once. A file that vanished denies all. Engine thread only. Returns true if new rules were put in force. */
bool vr_allowlist_poll(void);
/* vr_allowlist_match, vr_allowlist_port - as for rules, on the set in force; nothing loaded: NONE/false. Any thread, also signal handlers. */
enum vr_protocol vr_allowlist_match(const struct vr_addr *a);
bool vr_allowlist_port(unsigned port);
/* vr_allowlist_names - host names in the set in force. */
size_t vr_allowlist_names(void);
/* vr_allowlist_resolve - resolve the names of the set in force and publish the result unless a reload came in between. Blocking; resolver thread only. */
void vr_allowlist_resolve(void);
/* vr_allowlist_child - reset reader count and locks in a forked child. */
void vr_allowlist_child(void);

#endif
