/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the C test peers share: the Vortex protocol as the crate vortex-protocol 0.1.5 lays it out, all big endian.
 * Request: packet id u8, tag u8 (0, 2, 4, 6), length u32 = 68, task id (64 bytes), piece number u32.
 * Answer: packet id, tag + 1, length u32 = 4 + M, M u32 (metadata length), then M bytes: number u32, offset u64, length u64, digest
 * (u32 length + text), parent id (u32 length + text), traffic type u8, cost u64, created at i64; then the content, which no length counts.
 * Error: packet id, 255, length u32, code u8, message.
 * The task id says what the piece holds: "size=N;seed=M;", zero bytes or anything else after it. The digest is "crc32:XXXXXXXX".
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
#define META_MIN (4 + 8 + 8 + 4 + 4 + 1 + 8 + 8)
#define META_MAX 400

static inline void put32(uint8_t *p, uint32_t v) { v = htonl(v); memcpy(p, &v, 4); }
static inline uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static inline void put64(uint8_t *p, uint64_t v) { put32(p, (uint32_t)(v >> 32)); put32(p + 4, (uint32_t)v); }
static inline uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }

static inline uint64_t size_of(const char *s) /* 512, 64K, 4M, 1G */
{
	char *end;
	uint64_t v = strtoull(s, &end, 10);

	return v << (*end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0);
}

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
