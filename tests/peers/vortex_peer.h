/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the C test peers share. Requests are those of the Vortex protocol (header, 64-byte task id, piece number); the answer's metadata is a
 * subset of the protocol's: u64 offset, u64 length, u32 digest length, digest "crc32:XXXXXXXX" (big endian), then the content.
 * The task id says what the piece holds: "size=N;seed=M;".
 */
#ifndef VORTEX_PEER_H
#define VORTEX_PEER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define REQUEST 74
#define META (8 + 8 + 4 + 14)

static inline void put32(uint8_t *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static inline void put64(uint8_t *p, uint64_t v) { put32(p, (uint32_t)(v >> 32)); put32(p + 4, (uint32_t)v); }
static inline uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

/* "127.0.0.1:4005" or "[::1]:4005" */
static inline socklen_t parse_address(const char *text, struct sockaddr_storage *ss)
{
	struct sockaddr_in *in = (void *)ss;
	struct sockaddr_in6 *in6 = (void *)ss;
	const char *colon = strrchr(text, ':');
	char host[64] = "";

	memset(ss, 0, sizeof(*ss));
	if (!colon)
		return 0;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - (*text == '[' ? 2 : 0), text + (*text == '['));
	if (*text == '[') {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)atoi(colon + 1));
		return inet_pton(AF_INET6, host, &in6->sin6_addr) == 1 ? sizeof(*in6) : 0;
	}
	in->sin_family = AF_INET;
	in->sin_port = htons((uint16_t)atoi(colon + 1));
	return inet_pton(AF_INET, host, &in->sin_addr) == 1 ? sizeof(*in) : 0;
}

#endif
