/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fabric behind a small table of operations, so that tests can wrap it. The one implementation, fabric.c, is
 * libfabric RDM endpoints; no other file includes libfabric's headers. All operations are for the engine's thread only.
 */
#ifndef VR_FABRIC_H
#define VR_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "addr.h"
#include "reasons.h"

struct vr_fabric; /* one endpoint on one domain */

struct vr_mem { /* registered memory */
	void *base;
	size_t len;
	uint64_t key;    /* for the peer */
	uint64_t remote; /* address the peer uses for base */
	void *desc, *mr; /* the implementation's */
};

enum vr_event_type { VR_EVENT_REMOTE, VR_EVENT_DONE, VR_EVENT_ERROR };
struct vr_event {
	enum vr_event_type type;
	uint32_t imm; /* REMOTE */
	void *ctx;    /* DONE, ERROR: as given to write; ERROR may have NULL */
	int err;      /* ERROR: positive errno */
};

struct vr_fabric_ops {
	/* open - an endpoint for `provider`, on the device that has the address `local` or else the first one; NULL and *why. Slow (100 ms). */
	struct vr_fabric *(*open)(const char *provider, const struct vr_addr *local, enum vr_reason *why);
	void (*close)(struct vr_fabric *f);
	/* name - the address for HELLO; returns its length, *format its address format. */
	size_t (*name)(struct vr_fabric *f, void *buf, size_t size, uint32_t *format);
	int (*peer_add)(struct vr_fabric *f, const void *name, size_t len, uint64_t *peer);
	/* mem_register - memory at m->base, m->len: local source of writes, and their target when remote. 0 or -errno. */
	int (*mem_register)(struct vr_fabric *f, struct vr_mem *m, bool remote);
	void (*mem_unregister)(struct vr_fabric *f, struct vr_mem *m);
	/* write - one-sided write with immediate; ctx comes back in DONE or ERROR. 0, -EAGAIN (poll, try again), -errno. */
	int (*write)(struct vr_fabric *f, uint64_t peer, const struct vr_mem *m, size_t off, size_t len, uint64_t raddr, uint64_t rkey,
		     uint32_t imm, void *ctx);
	int (*poll)(struct vr_fabric *f, struct vr_event *ev, int max); /* number of events */
	int (*wait_fd)(struct vr_fabric *f);
	bool (*may_wait)(struct vr_fabric *f); /* true: blocking on wait_fd misses nothing */
};

extern const struct vr_fabric_ops *vr_fabric_ops; /* the table in force; tests may put their own here before the engine starts */

/* vr_fabric_getenv - our defaults for variables of libfabric and rdma-core that the user left unset, or NULL. Pure, any thread. */
const char *vr_fabric_getenv(const char *name);

#endif
