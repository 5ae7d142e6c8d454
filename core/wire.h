/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire formats (docs/wire-format.md): messages of the control connection, records in a ring, the credit word and the 32-bit
 * immediate. Control messages are big endian; what lies in rings is little endian, as both supported architectures are.
 */
#ifndef VR_WIRE_H
#define VR_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "addr.h"

#define VR_WIRE_MAGIC 0x56524431u /* "VRD1" */
#ifndef VR_WIRE_VERSION           /* a test builds a library with another one */
#define VR_WIRE_VERSION 1
#endif
#define VR_MSG_HEADER 4    /* u16 payload length, u8 type, u8 zero */
#define VR_MSG_MAX 1024    /* largest payload */
#define VR_HELLO_PORTS 32

enum vr_msg_type {
	VR_MSG_HELLO = 1, VR_MSG_READY, VR_MSG_OPEN, VR_MSG_ACCEPT, VR_MSG_REJECT, VR_MSG_RING, VR_MSG_FIN, VR_MSG_RESET,
	VR_MSG_DONE, VR_MSG_PING, VR_MSG_PONG, VR_MSG_BYE, VR_MSG_TYPES
};

struct vr_wire_window { /* remotely writable memory: where, with which key, how much (0 = none) */
	uint64_t size, addr, key;
};

struct vr_msg {
	uint8_t type;
	/* HELLO */
	uint32_t magic;
	uint16_t version, reason; /* reason: also REJECT, BYE */
	uint32_t features;
	uint64_t token;           /* HELLO: random, names the process; PING, PONG: sequence */
	char provider[64];
	uint32_t addr_format;
	uint8_t name_len;
	uint8_t name[128] __attribute__((aligned(8))); /* fabric address: libfabric reads it as a sockaddr */
	uint32_t handle;          /* HELLO: probe immediate; ACCEPT: the server's handle */
	struct vr_wire_window ring, credit; /* HELLO: credit is the probe word */
	uint8_t ports;
	uint16_t port[VR_HELLO_PORTS];
	/* per connection */
	uint32_t conn_id;         /* the client's handle: names the connection within the session */
	uint32_t epoch;
	struct vr_addr local, peer; /* OPEN: as the client sees them */
	uint8_t protocol;
	uint64_t offset;          /* FIN: stream offset at which the direction ends */
};

/* vr_msg_encode - write header and payload of m into buf (VR_MSG_HEADER + VR_MSG_MAX); returns the length. */
size_t vr_msg_encode(const struct vr_msg *m, uint8_t *buf);
/* vr_msg_decode - parse one message from n bytes: > 0 length consumed, 0 more bytes are needed, -1 malformed. Unknown types above
 * VR_MSG_TYPES are returned with only `type` set, so that later versions may add some. */
int vr_msg_decode(struct vr_msg *m, const uint8_t *buf, size_t n);

/* A record in a ring. Records start on multiples of 32 and never wrap; the next begins at the next multiple of 32. */
#define VR_RECORD_ALIGN 32u
#define VR_RECORD_FIN 1u /* the stream ends at stream_off; len is 0 */
#define VR_RECORD_PAD 2u /* nothing: only 32 bytes were left before the ring's end */
struct vr_record {
	uint32_t epoch; /* of the connection, from OPEN */
	uint32_t seq;   /* 0, 1, 2... within the direction */
	uint32_t len;   /* payload bytes that follow */
	uint32_t flags;
	uint64_t stream_off; /* offset of the first payload byte in the application's stream */
	uint64_t reserved;
};
_Static_assert(sizeof(struct vr_record) == VR_RECORD_ALIGN, "record header");

/* vr_record_span - ring bytes a record with this payload takes. */
static inline uint64_t vr_record_span(uint64_t len)
{
	return (sizeof(struct vr_record) + len + VR_RECORD_ALIGN - 1) & ~(uint64_t)(VR_RECORD_ALIGN - 1);
}

/* Immediate: 2 bits kind, 12 bits generation, 18 bits index of the receiver's handle table. */
enum vr_imm_kind { VR_IMM_DATA, VR_IMM_CREDIT, VR_IMM_PROBE };
#define VR_HANDLE_INDEX_BITS 18
#define VR_HANDLE_GEN_BITS 12
static inline uint32_t vr_imm(enum vr_imm_kind k, uint32_t handle) { return (uint32_t)k << 30 | handle; }
static inline enum vr_imm_kind vr_imm_kind(uint32_t imm) { return (enum vr_imm_kind)(imm >> 30); }
static inline uint32_t vr_imm_handle(uint32_t imm) { return imm & 0x3fffffffu; }

#endif
