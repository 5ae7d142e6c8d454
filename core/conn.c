/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Upgraded connections: their life, how both ends find each other, and their endings. The bytes are moved by pump.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"
#include "log.h"
#include "util.h"

#define GONE_MS 60000              /* the application closed: how long the peer may take to end its direction (tcp_fin_timeout) */

void vr_conn_queue(struct vr_conn *c)
{
	vr_engine.urgent = true;
	vr_conn_queue_retry(c);
}

void vr_conn_queue_retry(struct vr_conn *c)
{
	if (c->queued || c->zombie)
		return;
	c->queued = true;
	c->run_next = vr_engine.run;
	vr_engine.run = c;
}

static struct vr_conn *conn_new(enum vr_side side)
{
	struct vr_conn *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->side = side;
	c->app_fd = c->pump_fd = c->tcp_fd = -1;
	c->pump_io = (struct vr_io){VR_IO_PUMP, c};
	c->tcp_io = (struct vr_io){VR_IO_TCP, c};
	c->handle = vr_handle_new(c, false);
	c->next = vr_engine.conns;
	if (c->next)
		c->next->prev = c;
	vr_engine.conns = c;
	return c;
}

static void send_id(struct vr_conn *c, uint8_t type)
{
	struct vr_msg m = {.type = type, .conn_id = c->id};

	if (c->session)
		vr_session_send(c->session, &m);
}

/* ---- rings ---- */

static struct vr_wire_window window_of(struct vr_piece *p, size_t size)
{
	return p ? (struct vr_wire_window){size, vr_piece_remote(p), vr_piece_mem(p)->key} : (struct vr_wire_window){0};
}

struct vr_wire_window vr_conn_offer_ring(struct vr_conn *c)
{
	enum vr_reason why = VR_REASON_NONE;

	c->in.offered = true;
	c->in.word = vr_pool_get(&c->session->ep->words, vr_engine.cfg.memory, &why);
	c->in.ring = c->in.word ? vr_ring_get(&c->session->rings, &why) : NULL;
	if (!c->in.ring) {
		vr_stats_reason(c->side, why);
		return (struct vr_wire_window){0};
	}
	vr_gauge(VR_GAUGE_RINGS_RX, 1);
	c->in.size = c->session->ring_size;
	memset(c->in.ring->p, 0, sizeof(struct vr_record));
	return window_of(c->in.ring, c->in.size);
}

static struct vr_wire_window credit_word(struct vr_conn *c)
{
	enum vr_reason why;

	c->out.word = vr_pool_get(&c->session->words, vr_engine.cfg.memory, &why);
	if (!c->out.word)
		return (struct vr_wire_window){0};
	memset(c->out.word->p, 0, 64);
	return window_of(c->out.word, 64);
}

static bool window_ok(const struct vr_wire_window *w)
{
	return w->size == 0 || (w->size >= 4096 && w->size <= (1ull << 32) && !(w->size & (w->size - 1)));
}

/* Leave the session: rings and words go back to it. Only when neither side can still write. */
static void unbind(struct vr_conn *c)
{
	struct vr_session *s = c->session;

	if (!s)
		return;
	if (c->in.ring) {
		vr_pool_put(&s->rings, c->in.ring);
		vr_gauge(VR_GAUGE_RINGS_RX, -1);
	}
	if (c->in.word)
		vr_pool_put(&s->ep->words, c->in.word);
	if (c->out.word)
		vr_pool_put(&s->words, c->out.word);
	if (c->out.ring) {
		vr_pool_put(&s->ep->tx, c->out.ring);
		vr_gauge(VR_GAUGE_RINGS_TX, -1);
	}
	c->in.ring = c->in.word = c->out.word = c->out.ring = NULL;
	s->conns--;
	s->idle_since = vr_now_ms();
	c->session = NULL;
}

static void bind_session(struct vr_conn *c, struct vr_session *s)
{
	c->session = s;
	s->conns++;
}

/* ---- life ---- */

static void close_fds(struct vr_conn *c, bool rst)
{
	struct linger l = {1, 0};

	if (rst && c->tcp_fd >= 0)
		setsockopt(c->tcp_fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	if (c->pump_fd >= 0)
		c->pump_fd = vr_engine_close(c->pump_fd);
	if (c->tcp_fd >= 0)
		c->tcp_fd = vr_engine_close(c->tcp_fd);
}

static void conn_free(struct vr_conn *c)
{
	sigset_t set;

	if (c->zombie)
		return;
	close_fds(c, false);
	unbind(c);
	if (c->attached) {
		vr_count(VR_CTR_CLOSED, 1);
		vr_gauge(VR_GAUGE_OPEN, -1);
	}
	vr_lock(&vr_engine.lock, &set);
	vr_engine.reserved -= c->reserved;
	vr_unlock(&vr_engine.lock, &set);
	vr_shared_put(c->shared);
	free(c->out.left);
	free(c->in.left);
	vr_handle_free(c->handle);
	if (c->prev)
		c->prev->next = c->next;
	else
		vr_engine.conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	/* Events and run queue entries of this turn may still point here: freed at the end of the turn. */
	c->zombie = true;
	c->next = vr_engine.zombies;
	vr_engine.zombies = c;
}

void vr_conn_free_zombies(void)
{
	for (struct vr_conn **p = &vr_engine.zombies; *p;) {
		struct vr_conn *c = *p;

		if (c->queued) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		free(c);
	}
}

/* Give memory back once nobody writes any more: our writes have completed, and the peer said DONE. */
void vr_conn_end_check(struct vr_conn *c)
{
	if (!c->ended || c->out.writes)
		return;
	if (!c->session) {
		conn_free(c);
		return;
	}
	if (!c->done_sent) {
		c->done_sent = true;
		send_id(c, VR_MSG_DONE);
	}
	if (c->session && (c->peer_done || c->session->state == VR_SESSION_DEAD))
		conn_free(c);
}

void vr_conn_finish_check(struct vr_conn *c)
{
	/* a credit still to be sent may be the FIN-ACK without which the peer never ends */
	if (c->ended || !c->out.done || !c->in.done || c->in.credit_due)
		return;
	c->ended = true;
	close_fds(c, false);
	vr_conn_end_check(c);
}

/* The application must see ECONNRESET, by whatever call it comes. */
static void app_reset(struct vr_conn *c)
{
	int fd;
	struct stat st;

	if (c->pump_fd < 0)
		return;
	if (c->shared)
		atomic_store(&c->shared->reset, 1);
	/* An unread byte at our end turns our close into ECONNRESET for it. It is sent through a verified duplicate of the
	 * application's own descriptor: the number may have been reused. */
	fd = fcntl(c->app_fd, F_DUPFD_CLOEXEC, c->pump_fd);
	if (fd >= 0) {
		if (!fstat(fd, &st) && st.st_ino == c->app_ino)
			(void)!send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		c->pump_fd = vr_engine_close(c->pump_fd);
		close(fd);
	}
}

void vr_conn_reset(struct vr_conn *c, bool tell_peer)
{
	if (c->ended)
		return;
	if (tell_peer && c->session)
		send_id(c, VR_MSG_RESET);
	c->reset = c->ended = true;
	vr_count(VR_CTR_RESETS, 1);
	app_reset(c);
	close_fds(c, true);
	vr_conn_end_check(c);
}

/* ---- matching ---- */

static void matched(struct vr_conn *c)
{
	c->matched = true;
	vr_count(VR_CTR_UPGRADED, 1);
	vr_conn_queue(c);
}

static void say_open(struct vr_conn *c)
{
	struct vr_msg m = {.type = VR_MSG_OPEN, .conn_id = c->id, .epoch = c->epoch, .local = c->local, .peer = c->peer,
			   .protocol = (uint8_t)c->protocol};

	m.ring = vr_conn_offer_ring(c);
	m.credit = credit_word(c);
	vr_session_send(c->session, &m);
}

/* A direction that ends on TCP is announced, before TCP's own end can be seen, from OPEN on: the peer may be matched before we are. */
void vr_conn_say_fin(struct vr_conn *c)
{
	struct vr_msg m = {.type = VR_MSG_FIN, .conn_id = c->id, .offset = c->out.off + c->out.left_len};

	if (c->session && c->out.eof && !c->out.fabric)
		vr_session_send(c->session, &m);
}

static void say_accept(struct vr_conn *c)
{
	struct vr_msg m = {.type = VR_MSG_ACCEPT, .conn_id = c->id, .handle = c->handle};

	if (c->protocol == VR_PROTO_ANY)
		m.ring = vr_conn_offer_ring(c);
	m.credit = credit_word(c);
	vr_session_send(c->session, &m);
	vr_conn_say_fin(c);
	matched(c);
}

/* Is c, in our view, the connection that the peer sees as local, peer? */
static bool mirrors(const struct vr_conn *c, const struct vr_addr *local, const struct vr_addr *peer)
{
	return vr_addr_equal(&c->local, peer) && vr_addr_equal(&c->peer, local);
}

static void take_over(struct vr_conn *c, const struct vr_ticket *t, const struct vr_handover *h)
{
	c->attached = true;
	c->protocol = t->protocol;
	c->local = t->local;
	c->peer = t->peer;
	c->reserved = t->reserved;
	c->shared = h->shared;
	c->app_fd = h->app_fd;
	c->app_ino = h->app_ino;
	c->pump_fd = h->pump_fd;
	c->tcp_fd = h->tcp_fd;
	c->out.off = h->sent;
	c->in.off = h->received + h->moved;
	c->p_in = c->p_out = c->h_in = c->h_out = true;
	vr_engine_watch(c->pump_fd, &c->pump_io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	vr_engine_watch(c->tcp_fd, &c->tcp_io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	vr_gauge(VR_GAUGE_OPEN, 1);
	vr_count(VR_CTR_SWAPPED, 1);
	vr_count(VR_CTR_TCP_TX, h->sent);
	vr_count(VR_CTR_TCP_RX, h->received + h->moved);
	vr_conn_queue(c);
}

struct vr_conn *vr_conn_attach(const struct vr_ticket *t, const struct vr_handover *h)
{
	struct vr_conn *c = NULL;

	if (t->side == VR_SIDE_SERVER) { /* the peer's OPEN may have come first */
		for (c = vr_engine.conns; c; c = c->next)
			if (!c->attached && !c->ended && c->side == VR_SIDE_SERVER && mirrors(c, &t->peer, &t->local))
				break;
		if (c) {
			take_over(c, t, h);
			say_accept(c);
			return c;
		}
	}
	c = conn_new(t->side);
	if (!c || !c->handle) {
		/* No table entry: nothing can be served. The application sees a reset rather than a hang. */
		if (c)
			conn_free(c);
		vr_engine_close(h->pump_fd);
		vr_engine_close(h->tcp_fd);
		vr_shared_put(h->shared);
		vr_engine_cancel(t);
		return NULL;
	}
	take_over(c, t, h);
	if (t->side == VR_SIDE_CLIENT) {
		for (struct vr_session *s = vr_engine.sessions; s; s = s->next)
			if (s->id == t->session_id && s->state == VR_SESSION_UP) {
				bind_session(c, s);
				c->id = c->handle;
				vr_random(&c->epoch, sizeof(c->epoch));
				say_open(c);
			}
		if (!c->session)
			vr_stats_reason(VR_SIDE_CLIENT, VR_REASON_SESSION_LOST);
	}
	return c;
}

static struct vr_conn *by_id(struct vr_session *s, uint32_t id)
{
	struct vr_conn *c;

	if (s->side == VR_SIDE_CLIENT) {
		c = vr_handle_get(id, false);
		return c && c->session == s && c->side == VR_SIDE_CLIENT ? c : NULL;
	}
	for (c = vr_engine.conns; c; c = c->next)
		if (c->session == s && c->id == id)
			return c;
	return NULL;
}

static void on_open(struct vr_session *s, const struct vr_msg *m)
{
	struct vr_conn *c;
	uint16_t declined = 0;
	sigset_t set;

	if (s->side != VR_SIDE_SERVER || by_id(s, m->conn_id) || !window_ok(&m->ring)) {
		vr_count(VR_CTR_PROTOCOL_ERRORS, 1);
		vr_session_fail(s, VR_REASON_SESSION_LOST);
		return;
	}
	for (c = vr_engine.conns; c; c = c->next)
		if (c->attached && !c->ended && !c->session && !c->matched && c->side == VR_SIDE_SERVER && mirrors(c, &m->local, &m->peer))
			break;
	if (!c) {
		vr_lock(&vr_engine.lock, &set);
		for (unsigned i = 0; i < 64; i++) {
			struct vr_declined *d = &vr_engine.declined[i];

			if (d->until > vr_now_ms() && vr_addr_equal(&d->local, &m->peer) && vr_addr_equal(&d->peer, &m->local))
				declined = d->reason;
		}
		vr_unlock(&vr_engine.lock, &set);
		if (declined) {
			struct vr_msg r = {.type = VR_MSG_REJECT, .conn_id = m->conn_id, .reason = declined};

			vr_session_send(s, &r);
		}
		c = conn_new(VR_SIDE_SERVER); /* waits for the application's swap, or for the client's DONE */
		if (!c || !c->handle) {
			if (c)
				conn_free(c);
			vr_session_fail(s, VR_REASON_INTERNAL);
			return;
		}
		c->local = m->peer;
		c->peer = m->local;
		c->protocol = (enum vr_protocol)m->protocol;
	}
	bind_session(c, s);
	c->id = m->conn_id;
	c->epoch = m->epoch;
	c->peer_handle = m->conn_id;
	c->peer_handle_known = true;
	c->out.to = m->ring;
	c->in.credit = m->credit;
	if (c->attached)
		say_accept(c);
}

void vr_conn_message(struct vr_session *s, const struct vr_msg *m)
{
	struct vr_conn *c;

	if (m->type == VR_MSG_OPEN) {
		on_open(s, m);
		return;
	}
	c = by_id(s, m->conn_id);
	if (!c) {
		if (m->type != VR_MSG_DONE && m->type != VR_MSG_RESET && m->type != VR_MSG_FIN)
			vr_debug("message %u for connection %u, which is gone", m->type, m->conn_id);
		return;
	}
	switch (m->type) {
	case VR_MSG_ACCEPT:
		if (c->side != VR_SIDE_CLIENT || c->peer_handle_known || !window_ok(&m->ring))
			break;
		c->peer_handle = m->handle & 0x3fffffffu;
		c->peer_handle_known = true;
		c->out.to = m->ring;
		c->in.credit = m->credit;
		if (!c->ended)
			matched(c);
		return;
	case VR_MSG_REJECT:
		vr_stats_peer_reason(m->reason);
		vr_stats_reason(c->side, VR_REASON_PEER_DECLINED);
		return;
	case VR_MSG_RING:
		if (c->out.to.size || !window_ok(&m->ring))
			break;
		c->out.to = m->ring;
		vr_conn_queue(c);
		return;
	case VR_MSG_FIN:
		c->in.fin = true;
		c->in.fin_off = m->offset;
		vr_conn_queue(c);
		return;
	case VR_MSG_RESET:
		if (!c->attached) {
			c->reset = c->ended = true; /* the swap that may still come is told by its TCP connection */
		} else if (!c->ended) {
			vr_conn_run(c); /* what has arrived is delivered first */
			vr_conn_reset(c, false);
			return;
		}
		vr_conn_end_check(c);
		return;
	case VR_MSG_DONE:
		c->peer_done = true;
		if (!c->attached)
			c->ended = true;
		vr_conn_end_check(c);
		return;
	default:
		return;
	}
	vr_count(VR_CTR_PROTOCOL_ERRORS, 1);
	vr_session_fail(s, VR_REASON_SESSION_LOST);
}

void vr_conn_write_done(struct vr_conn *c, int err)
{
	if (c->out.writes)
		c->out.writes--;
	if (err && !c->ended) {
		vr_info("RDMA write failed: %s", strerror(err));
		vr_stats_reason(c->side, VR_REASON_FABRIC_FAILED);
		vr_conn_reset(c, true);
		return;
	}
	if (c->ended)
		vr_conn_end_check(c);
}

void vr_conn_session_lost(struct vr_session *s)
{
	for (struct vr_conn *c = vr_engine.conns, *next; c; c = next) {
		next = c->next;
		if (c->session != s)
			continue;
		if (!c->attached) {
			conn_free(c);
			continue;
		}
		if (!c->ended)
			vr_conn_run(c); /* what has arrived is delivered first */
		if (c->zombie)
			continue;
		if (!c->ended && ((c->out.fabric && !c->out.done) || (c->in.fabric && !c->in.done) || c->in.arrived)) {
			vr_stats_reason(c->side, VR_REASON_SESSION_LOST);
			vr_conn_reset(c, false);
		} else if (!c->ended) {
			c->matched = false; /* all on TCP: it goes on there */
			if (!c->out.writes)
				unbind(c);
			vr_conn_queue(c);
		} else {
			vr_conn_end_check(c);
		}
	}
}

void vr_conn_pong(struct vr_session *s)
{
	for (struct vr_conn *c = vr_engine.conns; c; c = c->next)
		if (c->session == s && c->barrier)
			vr_conn_queue(c);
}

void vr_conn_poll(int64_t now)
{
	for (struct vr_conn *c = vr_engine.conns, *next; c; c = next) {
		next = c->next;
		if (c->gone_at && !c->ended && now - c->gone_at > GONE_MS)
			vr_conn_reset(c, true);
	}
}
