/* SPDX-License-Identifier: Apache-2.0 */
#include "addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool vr_addr_from_sockaddr(struct vr_addr *a, const struct sockaddr *sa, socklen_t len)
{
	sa_family_t family; /* copied: an address from the wire may be unaligned */

	memset(a, 0, sizeof(*a));
	if (len < (socklen_t)sizeof(family))
		return false;
	memcpy(&family, sa, sizeof(family));
	if (family == AF_INET && len >= (socklen_t)sizeof(struct sockaddr_in)) {
		struct sockaddr_in in;

		memcpy(&in, sa, sizeof(in));
		memcpy(a->ip, mapped, 12);
		memcpy(a->ip + 12, &in.sin_addr, 4);
		a->port = ntohs(in.sin_port);
		return true;
	}
	if (family == AF_INET6 && len >= (socklen_t)sizeof(struct sockaddr_in6)) {
		struct sockaddr_in6 in6;

		memcpy(&in6, sa, sizeof(in6));
		memcpy(a->ip, &in6.sin6_addr, 16);
		a->port = ntohs(in6.sin6_port);
		if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr))
			a->scope = in6.sin6_scope_id;
		return true;
	}
	return false;
}

socklen_t vr_addr_to_sockaddr(const struct vr_addr *a, struct sockaddr_storage *ss)
{
	memset(ss, 0, sizeof(*ss));
	if (vr_addr_is_v4(a)) {
		struct sockaddr_in *in = (struct sockaddr_in *)ss;

		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->ip + 12, 4);
		return sizeof(*in);
	}
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ss;

	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(a->port);
	in6->sin6_scope_id = a->scope;
	memcpy(&in6->sin6_addr, a->ip, 16);
	return sizeof(*in6);
}

bool vr_addr_is_v4(const struct vr_addr *a)
{
	return !memcmp(a->ip, mapped, 12);
}

bool vr_addr_is_loopback(const struct vr_addr *a)
{
	static const uint8_t one[16] = {[15] = 1};

	return vr_addr_is_v4(a) ? a->ip[12] == 127 : !memcmp(a->ip, one, 16);
}

bool vr_addr_is_any(const struct vr_addr *a)
{
	static const uint8_t zero[16];

	return vr_addr_is_v4(a) ? !memcmp(a->ip + 12, zero, 4) : !memcmp(a->ip, zero, 16);
}

bool vr_addr_same_ip(const struct vr_addr *a, const struct vr_addr *b)
{
	return !memcmp(a->ip, b->ip, 16);
}

bool vr_addr_equal(const struct vr_addr *a, const struct vr_addr *b)
{
	return vr_addr_same_ip(a, b) && a->port == b->port;
}

const char *vr_addr_format(const struct vr_addr *a, char *buf, size_t size)
{
	char ip[INET6_ADDRSTRLEN] = "?";

	if (vr_addr_is_v4(a)) {
		inet_ntop(AF_INET, a->ip + 12, ip, sizeof(ip));
		snprintf(buf, size, "%s:%u", ip, a->port);
	} else {
		inet_ntop(AF_INET6, a->ip, ip, sizeof(ip));
		snprintf(buf, size, "[%s]:%u", ip, a->port);
	}
	return buf;
}
