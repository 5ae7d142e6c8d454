/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <string.h>

/* One walker serves both directions, so that encoder and decoder cannot disagree about a layout. */
struct walker {
	uint8_t *w;       /* encoding: where to write */
	const uint8_t *r; /* decoding: where to read */
	size_t left;
	bool bad;
};

static void walk_uint(struct walker *k, void *field, size_t size)
{
	uint64_t v = 0;

	if (k->bad || k->left < size) {
		k->bad = true;
		return;
	}
	k->left -= size;
	if (k->w) {
		switch (size) {
		case 1: v = *(uint8_t *)field; break;
		case 2: v = *(uint16_t *)field; break;
		case 4: v = *(uint32_t *)field; break;
		default: v = *(uint64_t *)field; break;
		}
		for (size_t i = 0; i < size; i++)
			*k->w++ = (uint8_t)(v >> (8 * (size - 1 - i)));
		return;
	}
	for (size_t i = 0; i < size; i++)
		v = v << 8 | *k->r++;
	switch (size) {
	case 1: *(uint8_t *)field = (uint8_t)v; break;
	case 2: *(uint16_t *)field = (uint16_t)v; break;
	case 4: *(uint32_t *)field = (uint32_t)v; break;
	default: *(uint64_t *)field = v; break;
	}
}

static void walk_bytes(struct walker *k, void *field, size_t size)
{
	if (k->bad || k->left < size) {
		k->bad = true;
		return;
	}
	k->left -= size;
	if (k->w) {
		memcpy(k->w, field, size);
		k->w += size;
	} else {
		memcpy(field, k->r, size);
		k->r += size;
	}
}

#define U(f) walk_uint(k, &(f), sizeof(f))

static void walk_window(struct walker *k, struct vr_wire_window *w)
{
	U(w->size);
	U(w->addr);
	U(w->key);
}

static void walk_addr(struct walker *k, struct vr_addr *a)
{
	walk_bytes(k, a->ip, sizeof(a->ip));
	U(a->port);
}

static void walk_hello(struct walker *k, struct vr_msg *m)
{
	uint8_t len = (uint8_t)strnlen(m->provider, sizeof(m->provider) - 1);

	U(m->magic);
	U(m->version);
	U(m->reason);
	if (m->reason || (k->r && (m->magic != VR_WIRE_MAGIC || m->version != VR_WIRE_VERSION)))
		return; /* a refusal ends here, and so does what another version may lay out otherwise */
	U(m->features);
	U(m->token);
	U(len);
	if (len >= sizeof(m->provider))
		k->bad = true;
	walk_bytes(k, m->provider, len);
	U(m->addr_format);
	U(m->name_len);
	if (m->name_len > sizeof(m->name))
		k->bad = true;
	walk_bytes(k, m->name, m->name_len);
	U(m->handle);
	walk_window(k, &m->credit);
	U(m->ring.size);
	U(m->ports);
	if (m->ports > VR_HELLO_PORTS)
		k->bad = true;
	for (unsigned i = 0; !k->bad && i < m->ports; i++)
		U(m->port[i]);
}

static void walk_payload(struct walker *k, struct vr_msg *m)
{
	switch (m->type) {
	case VR_MSG_HELLO:
		walk_hello(k, m);
		break;
	case VR_MSG_OPEN:
		U(m->conn_id);
		U(m->epoch);
		walk_addr(k, &m->local);
		walk_addr(k, &m->peer);
		U(m->protocol);
		walk_window(k, &m->ring);
		walk_window(k, &m->credit);
		break;
	case VR_MSG_ACCEPT:
		U(m->conn_id);
		U(m->handle);
		walk_window(k, &m->ring);
		walk_window(k, &m->credit);
		break;
	case VR_MSG_REJECT:
		U(m->conn_id);
		U(m->reason);
		break;
	case VR_MSG_RING:
		U(m->conn_id);
		walk_window(k, &m->ring);
		break;
	case VR_MSG_FIN:
		U(m->conn_id);
		U(m->offset);
		break;
	case VR_MSG_RESET:
	case VR_MSG_DONE:
		U(m->conn_id);
		break;
	case VR_MSG_PING:
	case VR_MSG_PONG:
		U(m->token);
		break;
	case VR_MSG_BYE:
		U(m->reason);
		break;
	default: /* READY has no payload */
		break;
	}
}

size_t vr_msg_encode(const struct vr_msg *m, uint8_t *buf)
{
	struct walker k = {.w = buf + VR_MSG_HEADER, .left = VR_MSG_MAX};
	size_t n;

	walk_payload(&k, (struct vr_msg *)m); /* with k.w set the walker only reads *m */
	n = (size_t)(k.w - buf) - VR_MSG_HEADER;
	buf[0] = (uint8_t)(n >> 8);
	buf[1] = (uint8_t)n;
	buf[2] = m->type;
	buf[3] = 0;
	return n + VR_MSG_HEADER;
}

int vr_msg_decode(struct vr_msg *m, const uint8_t *buf, size_t n)
{
	struct walker k = {0};
	size_t len;

	if (n < VR_MSG_HEADER)
		return 0;
	len = (size_t)buf[0] << 8 | buf[1];
	if (len > VR_MSG_MAX || buf[2] == 0)
		return -1;
	if (n < VR_MSG_HEADER + len)
		return 0;
	memset(m, 0, sizeof(*m));
	m->type = buf[2];
	k.r = buf + VR_MSG_HEADER;
	k.left = len;
	walk_payload(&k, m);
	if (k.bad)
		return -1;
	return (int)(VR_MSG_HEADER + len); /* bytes a later version appends are skipped */
}
