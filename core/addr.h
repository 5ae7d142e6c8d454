/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses in one form: 16 bytes of IPv6 (IPv4 as ::ffff:a.b.c.d) and a port in host order. */
#ifndef VR_ADDR_H
#define VR_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct vr_addr {
	uint8_t ip[16]; /* network order, IPv4 mapped */
	uint16_t port;  /* host order */
	uint16_t pad;   /* always 0, so that the struct can be a hash key */
	uint32_t scope; /* IPv6 scope id of a link-local address, else 0 */
};

#define VR_ADDR_STRLEN 64

/* vr_addr_from_sockaddr - convert; false (and *a zeroed) unless AF_INET or AF_INET6 and long enough. */
bool vr_addr_from_sockaddr(struct vr_addr *a, const struct sockaddr *sa, socklen_t len);
/* vr_addr_to_sockaddr - convert back: AF_INET when mapped, else AF_INET6; returns the length used. */
socklen_t vr_addr_to_sockaddr(const struct vr_addr *a, struct sockaddr_storage *ss);
/* vr_addr_is_v4 - true for an IPv4-mapped address. */
bool vr_addr_is_v4(const struct vr_addr *a);
/* vr_addr_is_loopback - 127.0.0.0/8 or ::1. */
bool vr_addr_is_loopback(const struct vr_addr *a);
/* vr_addr_is_any - 0.0.0.0 or ::. */
bool vr_addr_is_any(const struct vr_addr *a);
/* vr_addr_same_ip - same address, whatever the port. */
bool vr_addr_same_ip(const struct vr_addr *a, const struct vr_addr *b);
/* vr_addr_equal - same address and port. */
bool vr_addr_equal(const struct vr_addr *a, const struct vr_addr *b);
/* vr_addr_format - "10.0.0.1:4005" or "[fe80::1]:4005" into buf (VR_ADDR_STRLEN is enough); returns buf. */
const char *vr_addr_format(const struct vr_addr *a, char *buf, size_t size);

#endif
