/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump between the application's socket pair, the hidden TCP connection and the rings. Each direction begins on TCP and moves
 * to the fabric once, at the stream offset that its first record names (docs/architecture.md).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "log.h"
#include "util.h"

#define CHUNK_MAX (512u << 10)     /* payload of a record: below 256 KiB throughput falls (facts of libfabric 1.17) */
#define BOUNCE (256u << 10)        /* TCP mode: bytes moved at a time */
#define LAZY_RING_BYTES (64u << 10) /* TCP bytes after which a Vortex server offers a ring for the client's direction too */
#define RUN_BYTES (4u << 20)       /* fairness: bytes a connection may move in one turn */

static uint8_t bounce[BOUNCE]; /* engine thread only */

/* ---- application -> peer ---- */

static bool keep_left(uint8_t **left, size_t *off, size_t *len, const uint8_t *p, size_t n)
{
	free(*left);
	*left = malloc(n);
	if (!*left)
		return false;
	memcpy(*left, p, n);
	*off = 0;
	*len = n;
	return true;
}

static bool out_start_fabric(struct vr_conn *c)
{
	enum vr_reason why;

	if (c->out.fabric)
		return true;
	if (!c->matched || !c->session || !c->out.to.size || !c->out.word || !c->peer_handle_known || c->out.tried)
		return false;
	if (c->out.to.size > c->session->ring_size) /* more than was agreed in HELLO: our ring could not mirror it */
		return false;
	c->out.ring = vr_ring_get(&c->session->ep->tx, &why);
	if (!c->out.ring) {
		c->out.tried = true;
		vr_stats_reason(c->side, why);
		return false;
	}
	vr_gauge(VR_GAUGE_RINGS_TX, 1);
	c->out.fabric = true;
	return true;
}

/* Post what is in the transmit ring and not yet posted. */
static void out_post(struct vr_conn *c)
{
	struct vr_endpoint *ep = c->session ? c->session->ep : NULL;

	while (ep && c->session->state == VR_SESSION_UP && c->out.posted < c->out.head) {
		size_t at = (size_t)(c->out.posted & (c->out.to.size - 1));
		struct vr_record *r = (struct vr_record *)(c->out.ring->p + at);
		int rc = vr_fabric_ops->write(ep->fabric, c->session->fabric_peer, vr_piece_mem(c->out.ring), vr_piece_off(c->out.ring) + at,
					      sizeof(*r) + r->len, c->out.to.addr + at, c->out.to.key,
					      vr_imm(VR_IMM_DATA, c->peer_handle), (void *)(uintptr_t)c->handle);

		if (rc == -EAGAIN) {
			vr_conn_queue_retry(c);
			return;
		}
		if (rc) {
			vr_info("RDMA write: %s", strerror(-rc));
			vr_stats_reason(c->side, VR_REASON_FABRIC_FAILED);
			vr_conn_reset(c, true);
			return;
		}
		c->out.writes++;
		ep->writes++;
		c->out.posted += vr_record_span(r->len);
		vr_count(VR_CTR_FABRIC_WRITES, 1);
	}
}

static uint64_t ring_room(const struct vr_conn *c)
{
	uint64_t end = c->out.to.size - (c->out.head & (c->out.to.size - 1)), room = c->out.to.size - (c->out.head - c->out.credit);

	return end < room ? end : room;
}

static void put_record(struct vr_conn *c, uint32_t len, uint32_t flags)
{
	struct vr_record *r = (struct vr_record *)(c->out.ring->p + (c->out.head & (c->out.to.size - 1)));

	*r = (struct vr_record){.epoch = c->epoch, .seq = c->out.seq++, .len = len, .flags = flags, .stream_off = c->out.off};
	c->out.off += len;
	c->out.head += vr_record_span(len);
}

static bool poison_eof(struct vr_conn *c, ssize_t n, int err)
{
	if (n == 0)
		return true;
	/* ECONNRESET on the pair: the application closed it with bytes unread, for which TCP sends a reset. */
	if (err == ECONNRESET || err == EPIPE)
		vr_conn_reset(c, true);
	return false;
}

static void out_eof(struct vr_conn *c)
{
	c->out.eof = true;
	if (c->shared && atomic_load(&c->shared->abort)) { /* SO_LINGER {1,0} */
		vr_conn_reset(c, true);
		return;
	}
	vr_conn_say_fin(c);
}

static void out_run_fabric(struct vr_conn *c, size_t *budget)
{
	size_t chunk = c->out.to.size / 4 < CHUNK_MAX ? c->out.to.size / 4 : CHUNK_MAX;

	while (!c->ended && !c->out.eof && c->p_in && *budget) {
		uint64_t room = ring_room(c);
		size_t want;
		ssize_t n;

		if (room < VR_RECORD_ALIGN)
			break; /* a credit wakes us; but what is in the ring may still have to be posted */
		if (room < 2 * VR_RECORD_ALIGN) {
			if (c->out.to.size - (c->out.head & (c->out.to.size - 1)) >= 2 * VR_RECORD_ALIGN)
				break;
			put_record(c, 0, VR_RECORD_PAD);
			continue;
		}
		want = room - VR_RECORD_ALIGN < chunk ? (size_t)room - VR_RECORD_ALIGN : chunk;
		n = recv(c->pump_fd, c->out.ring->p + (c->out.head & (c->out.to.size - 1)) + VR_RECORD_ALIGN, want, MSG_DONTWAIT);
		if (n > 0) {
			put_record(c, (uint32_t)n, 0);
			vr_count(VR_CTR_FABRIC_TX, (uint64_t)n);
			*budget -= (size_t)n < *budget ? (size_t)n : *budget;
			out_post(c);
		} else if (n < 0 && errno == EINTR) {
			continue;
		} else if (n < 0 && errno == EAGAIN) {
			c->p_in = false;
		} else {
			if (poison_eof(c, n, errno))
				out_eof(c);
		}
	}
	if (!c->ended && !c->p_in && !c->out.eof && vr_engine.draining)
		out_eof(c);
	if (!c->ended && c->out.eof && !c->out.fin_queued && ring_room(c) >= VR_RECORD_ALIGN) {
		put_record(c, 0, VR_RECORD_FIN);
		c->out.fin_queued = true;
	}
	if (!c->ended)
		out_post(c);
	if (!c->ended && c->out.fin_queued && c->out.credit == c->out.head)
		c->out.done = true;
}

static void out_run_tcp(struct vr_conn *c, size_t *budget)
{
	for (;;) {
		ssize_t n;

		while (c->out.left_len && c->h_out) {
			n = send(c->tcp_fd, c->out.left + c->out.left_off, c->out.left_len, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0 && errno == EAGAIN) {
				c->h_out = false;
				break;
			}
			if (n < 0) {
				vr_conn_reset(c, true);
				return;
			}
			c->out.left_off += (size_t)n;
			c->out.left_len -= (size_t)n;
			c->out.off += (size_t)n;
			vr_count(VR_CTR_TCP_TX, (uint64_t)n);
		}
		if (c->out.left_len)
			return;
		if (c->out.eof) {
			shutdown(c->tcp_fd, SHUT_WR);
			c->out.done = true;
			return;
		}
		if (!c->p_in || !*budget)
			break;
		if (out_start_fabric(c))
			return; /* everything from out.off on goes to the ring */
		n = recv(c->pump_fd, bounce, sizeof(bounce), MSG_DONTWAIT);
		if (n > 0) {
			*budget -= (size_t)n < *budget ? (size_t)n : *budget;
			if (!keep_left(&c->out.left, &c->out.left_off, &c->out.left_len, bounce, (size_t)n)) {
				vr_conn_reset(c, true);
				return;
			}
		} else if (n < 0 && errno == EAGAIN) {
			c->p_in = false;
		} else if (n == 0 || errno != EINTR) {
			if (poison_eof(c, n, errno))
				out_eof(c);
			if (c->ended)
				return;
		}
	}
	if (!c->p_in && vr_engine.draining && !c->out.eof) {
		out_eof(c);
		if (!c->ended) {
			shutdown(c->tcp_fd, SHUT_WR);
			c->out.done = true;
		}
	}
}

/* ---- peer -> application ---- */

/* Give bytes to the application; how many it took, -1 when the connection was reset meanwhile. */
static ssize_t to_app(struct vr_conn *c, const void *p, size_t n)
{
	while (c->p_out) {
		ssize_t k = send(c->pump_fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (k >= 0)
			return k;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN) { /* the application has closed: as TCP would, answer data with a reset */
			vr_conn_reset(c, true);
			return -1;
		}
		c->p_out = false;
	}
	return 0;
}

static void in_eof(struct vr_conn *c)
{
	if (!c->in.eof_told) {
		c->in.eof_told = true;
		shutdown(c->pump_fd, SHUT_WR); /* never close: that would add HUP and fail the application's next send */
	}
	c->in.done = true;
}

static void send_credit(struct vr_conn *c)
{
	int rc;

	if (!c->session || c->session->state != VR_SESSION_UP || !c->peer_handle_known || !c->in.credit.size) {
		c->in.credit_due = true; /* ACCEPT has yet to come */
		return;
	}
	/* A write still under way may take this newer position with it, which is as true. */
	__atomic_store_n((uint64_t *)c->in.word->p, c->in.pos, __ATOMIC_RELEASE);
	rc = vr_fabric_ops->write(c->session->ep->fabric, c->session->fabric_peer, vr_piece_mem(c->in.word), vr_piece_off(c->in.word), 8,
				  c->in.credit.addr, c->in.credit.key, vr_imm(VR_IMM_CREDIT, c->peer_handle),
				  (void *)(uintptr_t)c->handle);
	if (rc == -EAGAIN) {
		c->in.credit_due = true;
		vr_conn_queue_retry(c);
		return;
	}
	c->in.credit_due = false;
	if (rc) {
		vr_stats_reason(c->side, VR_REASON_FABRIC_FAILED);
		vr_conn_reset(c, true);
		return;
	}
	c->out.writes++;
	c->session->ep->writes++;
	c->in.credited = c->in.pos;
	vr_count(VR_CTR_CREDITS_TX, 1);
}

static void bad_record(struct vr_conn *c)
{
	vr_count(VR_CTR_PROTOCOL_ERRORS, 1);
	vr_info("record out of order in a ring: connection reset");
	vr_conn_reset(c, true);
}

/* The record at the reading position, checked; copied because the peer could change it under us. */
static bool peek_record(struct vr_conn *c, struct vr_record *r)
{
	uint64_t size = c->in.size, at = c->in.pos & (size - 1);

	memcpy(r, c->in.ring->p + at, sizeof(*r));
	return r->epoch == c->epoch && r->seq == c->in.seq && vr_record_span(r->len) <= size - at;
}

static void in_run_fabric(struct vr_conn *c, size_t *budget)
{
	uint64_t size = c->in.size;
	struct vr_record r;

	while (!c->ended && c->in.arrived && !c->in.done && *budget) {
		uint64_t at = c->in.pos & (size - 1);

		if (!peek_record(c, &r) || r.stream_off + c->in.part != c->in.off || c->in.part > r.len) {
			bad_record(c);
			return;
		}
		while (c->in.part < r.len) {
			ssize_t n = to_app(c, c->in.ring->p + at + sizeof(r) + c->in.part, r.len - c->in.part);

			if (n <= 0)
				return;
			c->in.part += (uint32_t)n;
			c->in.off += (uint64_t)n;
			vr_count(VR_CTR_FABRIC_RX, (uint64_t)n);
			*budget -= (size_t)n < *budget ? (size_t)n : *budget;
		}
		c->in.pos += vr_record_span(r.len);
		c->in.seq++;
		c->in.part = 0;
		c->in.arrived--;
		if (r.flags & VR_RECORD_FIN) {
			c->in.fin = true;
			in_eof(c);
			send_credit(c); /* this is the FIN-ACK */
		} else if (c->in.pos - c->in.credited >= size / 4) {
			send_credit(c);
		}
	}
	if (!c->ended && c->in.credit_due)
		send_credit(c);
}

static void tcp_ended(struct vr_conn *c)
{
	if (!c->session || (c->in.fin && !c->in.fabric && c->in.off == c->in.fin_off)) {
		in_eof(c);
		return;
	}
	if (c->session->state != VR_SESSION_UP) { /* nobody is left to ask */
		if (c->matched || c->in.fabric)
			vr_conn_reset(c, false);
		else
			in_eof(c);
		return;
	}
	/* TCP ended but the peer did not say so on the control connection: it may have died, or its FIN is still on the way. What it sent
	 * before closing TCP comes before the answer to a PING sent now. */
	if (!c->barrier)
		c->barrier = vr_session_ping(c->session);
	else if (c->session->pong_seq < c->barrier || c->in.arrived)
		return;
	else if (c->matched)
		vr_conn_reset(c, true);
	else
		in_eof(c); /* the peer has not swapped its end: this is its own end of file */
}

static void in_run_tcp(struct vr_conn *c, size_t *budget)
{
	struct vr_record r;

	for (;;) {
		ssize_t n;

		while (c->in.left_len) {
			n = to_app(c, c->in.left + c->in.left_off, c->in.left_len);
			if (n <= 0)
				return;
			c->in.left_off += (size_t)n;
			c->in.left_len -= (size_t)n;
		}
		if (c->in.arrived) {
			if (!peek_record(c, &r) || r.stream_off < c->in.off) {
				bad_record(c);
				return;
			}
			if (r.stream_off == c->in.off) {
				c->in.fabric = true;
				return;
			}
		}
		if (c->in.fin && c->in.off == c->in.fin_off) {
			in_eof(c);
			return;
		}
		if (!c->h_in || !*budget)
			return;
		n = recv(c->tcp_fd, bounce, sizeof(bounce), MSG_DONTWAIT);
		if (n > 0) {
			c->in.off += (uint64_t)n;
			vr_count(VR_CTR_TCP_RX, (uint64_t)n);
			*budget -= (size_t)n < *budget ? (size_t)n : *budget;
			if (!keep_left(&c->in.left, &c->in.left_off, &c->in.left_len, bounce, (size_t)n)) {
				vr_conn_reset(c, true);
				return;
			}
			if (!c->in.offered && c->matched && c->session && c->in.off >= LAZY_RING_BYTES && c->session->state == VR_SESSION_UP) {
				struct vr_msg m = {.type = VR_MSG_RING, .conn_id = c->id};

				m.ring = vr_conn_offer_ring(c);
				if (m.ring.size)
					vr_session_send(c->session, &m);
			}
		} else if (n == 0) {
			c->h_eof = true;
			tcp_ended(c);
			return;
		} else if (errno == EAGAIN) {
			c->h_in = false;
		} else if (errno != EINTR) {
			vr_conn_reset(c, true);
			return;
		}
	}
}

/* After the switch TCP carries nothing more; its end without a FIN in the ring means that the peer died. */
static void watch_tcp(struct vr_conn *c)
{
	char b;
	ssize_t n;

	if (c->h_in && !c->h_eof) {
		n = recv(c->tcp_fd, &b, 1, MSG_PEEK | MSG_DONTWAIT);
		if (n == 0)
			c->h_eof = true;
		else if (n < 0 && errno == EAGAIN)
			c->h_in = false;
		else if (n < 0 && errno != EINTR)
			c->h_err = true;
	}
	if (c->h_err)
		vr_conn_reset(c, true);
	else if (c->h_eof && !c->in.done)
		tcp_ended(c);
}

void vr_conn_run(struct vr_conn *c)
{
	size_t budget = RUN_BYTES;

	if (c->ended || !c->attached || c->zombie) {
		if (!c->zombie)
			vr_conn_end_check(c);
		return;
	}
	if (!c->in.done && !c->in.fabric)
		in_run_tcp(c, &budget);
	if (!c->ended && c->in.fabric) {
		in_run_fabric(c, &budget);
		if (!c->ended && !c->in.done)
			watch_tcp(c);
	}
	if (!c->ended && !c->out.done && !c->out.fabric)
		out_run_tcp(c, &budget);
	if (!c->ended && !c->out.done && c->out.fabric)
		out_run_fabric(c, &budget);
	if (c->ended)
		return;
	if (!c->gone_at && c->p_hup && !c->in.eof_told)
		c->gone_at = vr_now_ms();
	vr_conn_finish_check(c);
	if (!budget && !c->ended)
		vr_conn_queue(c);
}

void vr_conn_credit(struct vr_conn *c)
{
	uint64_t v;

	vr_count(VR_CTR_CREDITS_RX, 1);
	if (!c->out.word || !c->out.fabric)
		return;
	v = __atomic_load_n((uint64_t *)c->out.word->p, __ATOMIC_ACQUIRE);
	if (v < c->out.credit || v > c->out.posted) { /* older than what we have, or impossible */
		if (v > c->out.posted)
			vr_count(VR_CTR_PROTOCOL_ERRORS, 1);
		return;
	}
	c->out.credit = v;
	vr_conn_queue(c);
}
