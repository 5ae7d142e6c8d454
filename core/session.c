/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: one control connection between a connecting and a listening process. HELLO both ways, then a probe word written
 * through the fabric both ways, then READY: client first, the server answers, so a server is always up before its client.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"
#include "log.h"
#include "util.h"

#define SETUP_MS 5000       /* from connect() to READY */
#define HEARTBEAT_MS 10000
#define DEAD_MS 30000       /* three heartbeats */
#define IDLE_MS 300000      /* a session without connections is closed by its client */
#define BACKOFF_MIN_MS 1000
#define BACKOFF_MAX_MS 60000
#define QUARANTINE_MS 10000 /* a dead session's rings wait this long for late writes before they are unmapped */

static struct vr_session *session_new(enum vr_side side, int fd)
{
	struct vr_session *s = calloc(1, sizeof(*s));
	int64_t now = vr_now_ms();
	int one = 1, timeout = DEAD_MS;

	if (!s)
		return NULL;
	s->id = ++vr_engine.next_session;
	s->side = side;
	s->fd = fd;
	s->deadline = now + SETUP_MS;
	s->last_heard = s->last_sent = s->idle_since = now;
	s->io = (struct vr_io){VR_IO_SESSION, s};
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof(timeout));
	s->next = vr_engine.sessions;
	vr_engine.sessions = s;
	vr_engine_hide(fd, true);
	vr_engine_watch(fd, &s->io, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	return s;
}

static void publish(struct vr_session *s, bool up)
{
	struct vr_engine *e = &vr_engine;
	sigset_t set;

	vr_lock(&e->lock, &set);
	if (up) {
		struct vr_up *u = calloc(1, sizeof(*u));

		if (u) {
			*u = (struct vr_up){s->id, s->side, s->peer_ip, s->service_port, e->up};
			e->up = u;
		}
		if (s->peer) {
			s->peer->state = VR_PEER_UP;
			s->peer->session_id = s->id;
			s->peer->backoff_ms = 0;
		}
	} else {
		for (struct vr_up **p = &e->up; *p; p = &(*p)->next)
			if ((*p)->id == s->id) {
				struct vr_up *u = *p;

				*p = u->next;
				free(u);
				break;
			}
	}
	pthread_cond_broadcast(&e->changed);
	vr_unlock(&e->lock, &set);
}

static void flush(struct vr_session *s)
{
	while (s->out_len && s->fd >= 0) {
		ssize_t n = send(s->fd, s->out, s->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0)
			return; /* EAGAIN: an OUT edge comes; an error: its event comes */
		memmove(s->out, s->out + n, s->out_len - (size_t)n);
		s->out_len -= (size_t)n;
	}
}

void vr_session_send(struct vr_session *s, const struct vr_msg *m)
{
	if (s->state == VR_SESSION_DEAD)
		return;
	if (s->out_cap - s->out_len < VR_MSG_HEADER + VR_MSG_MAX) {
		size_t cap = s->out_cap * 2 + 4 * (VR_MSG_HEADER + VR_MSG_MAX);
		uint8_t *p = realloc(s->out, cap);

		if (!p) {
			vr_session_fail(s, VR_REASON_INTERNAL);
			return;
		}
		s->out = p;
		s->out_cap = cap;
	}
	s->out_len += vr_msg_encode(m, s->out + s->out_len);
	s->last_sent = vr_now_ms();
	flush(s);
}

uint64_t vr_session_ping(struct vr_session *s)
{
	struct vr_msg m = {.type = VR_MSG_PING, .token = ++s->ping_seq};

	vr_session_send(s, &m);
	return s->ping_seq;
}

/* The session is over: remember why, reset what hung on it; the struct itself goes after the quarantine. */
void vr_session_fail(struct vr_session *s, enum vr_reason why)
{
	struct vr_engine *e = &vr_engine;
	bool was_up = s->state == VR_SESSION_UP;
	char name[VR_ADDR_STRLEN];
	sigset_t set;

	if (s->state == VR_SESSION_DEAD)
		return;
	vr_info("session %llu with %s ended: %s", (unsigned long long)s->id, vr_addr_format(&s->peer_ip, name, sizeof(name)),
		vr_reason_text(why));
	s->state = VR_SESSION_DEAD;
	s->free_at = vr_now_ms() + QUARANTINE_MS;
	vr_count(was_up ? VR_CTR_SESSIONS_CLOSED : VR_CTR_SESSIONS_FAILED, 1);
	if (was_up) {
		vr_gauge(VR_GAUGE_SESSIONS, -1);
		publish(s, false);
	}
	if (s->peer) {
		vr_lock(&e->lock, &set);
		s->peer->state = why == VR_REASON_NONE || was_up ? VR_PEER_IDLE : VR_PEER_FAILED;
		s->peer->reason = why;
		if (s->peer->state == VR_PEER_FAILED) {
			unsigned b = s->peer->backoff_ms * 2;

			s->peer->backoff_ms = b < BACKOFF_MIN_MS ? BACKOFF_MIN_MS : b > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : b;
			s->peer->retry_at = vr_now_ms() + s->peer->backoff_ms;
		}
		pthread_cond_broadcast(&e->changed);
		vr_unlock(&e->lock, &set);
	}
	s->fd = vr_engine_close(s->fd);
	if (s->probe_handle)
		vr_handle_free(s->probe_handle);
	s->probe_handle = 0;
	vr_conn_session_lost(s);
}

static void refuse(struct vr_session *s, enum vr_reason why)
{
	struct vr_msg m = {.type = VR_MSG_HELLO, .magic = VR_WIRE_MAGIC, .version = VR_WIRE_VERSION, .reason = (uint16_t)why};

	vr_session_send(s, &m);
	vr_session_fail(s, why);
}

static void say_hello(struct vr_session *s)
{
	struct vr_engine *e = &vr_engine;
	struct vr_msg m = {.type = VR_MSG_HELLO, .magic = VR_WIRE_MAGIC, .version = VR_WIRE_VERSION, .token = e->token};
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct vr_addr local;
	enum vr_reason why = VR_REASON_INTERNAL;
	sigset_t set;

	if (getsockname(s->fd, (struct sockaddr *)&ss, &len) || !vr_addr_from_sockaddr(&local, (struct sockaddr *)&ss, len)) {
		refuse(s, VR_REASON_INTERNAL);
		return;
	}
	s->ep = vr_endpoint_for(&local, &why);
	if (!s->ep) {
		refuse(s, why);
		return;
	}
	vr_pool_init(&s->rings, s->ep->fabric, e->cfg.ring_size, true, true);
	vr_pool_init(&s->words, s->ep->fabric, 64, true, false);
	s->probe_word = vr_pool_get(&s->words, e->cfg.memory, &why);
	s->probe_source = vr_pool_get(&s->ep->words, e->cfg.memory, &why);
	s->probe_handle = vr_handle_new(s, true);
	if (!s->probe_word || !s->probe_source || !s->probe_handle) {
		refuse(s, why);
		return;
	}
	memset(s->probe_word->p, 0, 64);
	memcpy(m.provider, e->cfg.provider, sizeof(m.provider));
	m.name_len = (uint8_t)vr_fabric_ops->name(s->ep->fabric, m.name, sizeof(m.name), &m.addr_format);
	m.handle = s->probe_handle;
	m.credit = (struct vr_wire_window){64, vr_piece_remote(s->probe_word), vr_piece_mem(s->probe_word)->key};
	m.ring.size = e->cfg.ring_size;
	vr_lock(&e->lock, &set);
	for (struct vr_listener *l = e->listeners; l && m.ports < VR_HELLO_PORTS; l = l->next)
		if (l->opened)
			m.port[m.ports++] = l->local.port;
	vr_unlock(&e->lock, &set);
	s->state = VR_SESSION_HELLO;
	vr_session_send(s, &m);
}

static void progress(struct vr_session *s)
{
	struct vr_msg ready = {.type = VR_MSG_READY};

	if (s->state != VR_SESSION_PROBING)
		return;
	if (!s->probe_sent) {
		int rc;

		memcpy(s->probe_source->p, &s->hello.token, 8);
		rc = vr_fabric_ops->write(s->ep->fabric, s->fabric_peer, vr_piece_mem(s->probe_source), vr_piece_off(s->probe_source), 8,
					  s->hello.credit.addr, s->hello.credit.key, vr_imm(VR_IMM_PROBE, s->hello.handle), NULL);

		if (rc == -EAGAIN)
			return; /* while a session is probing the engine turns every 2 ms */
		if (rc) {
			vr_session_fail(s, VR_REASON_UNREACHABLE);
			return;
		}
		s->probe_sent = true;
	}
	if (!s->probe_seen)
		return;
	if (!s->ready_sent && (s->side == VR_SIDE_CLIENT || s->ready_seen)) {
		s->ready_sent = true;
		if (s->side == VR_SIDE_CLIENT)
			vr_session_send(s, &ready);
	}
	if (!s->ready_seen || s->state != VR_SESSION_PROBING)
		return;
	s->state = VR_SESSION_UP;
	s->idle_since = vr_now_ms();
	vr_count(VR_CTR_SESSIONS_OPENED, 1);
	vr_gauge(VR_GAUGE_SESSIONS, 1);
	publish(s, true);
	vr_info("session %llu is up", (unsigned long long)s->id);
	if (s->side == VR_SIDE_SERVER) /* only now: the client upgrades at once, and must find this side up */
		vr_session_send(s, &ready);
}

void vr_session_probe_seen(struct vr_session *s)
{
	s->probe_seen = !memcmp(s->probe_word->p, &vr_engine.token, 8); /* the peer sends our token back */
	progress(s);
}

static void hello(struct vr_session *s, const struct vr_msg *m)
{
	if (m->magic != VR_WIRE_MAGIC || m->version != VR_WIRE_VERSION) {
		if (s->side == VR_SIDE_SERVER)
			refuse(s, VR_REASON_VERSION);
		else
			vr_session_fail(s, VR_REASON_VERSION);
		return;
	}
	if (m->reason) {
		vr_stats_peer_reason(m->reason);
		vr_session_fail(s, m->reason == VR_REASON_VERSION || m->reason == VR_REASON_NO_COMMON_FABRIC ? (enum vr_reason)m->reason
											 : VR_REASON_PEER_DECLINED);
		return;
	}
	if (s->side == VR_SIDE_SERVER) {
		say_hello(s);
		if (s->state != VR_SESSION_HELLO)
			return;
	}
	s->hello = *m;
	{
		uint8_t name[128] __attribute__((aligned(8)));
		uint32_t format;

		vr_fabric_ops->name(s->ep->fabric, name, sizeof(name), &format);
		/* Positions in both rings of a direction must agree: the smaller size rules. */
		s->ring_size = m->ring.size < vr_engine.cfg.ring_size ? m->ring.size : vr_engine.cfg.ring_size;
		if (s->ring_size < 4096 || (s->ring_size & (s->ring_size - 1)) || strcmp(m->provider, vr_engine.cfg.provider) || m->addr_format != format || m->credit.size < 8 ||
		    vr_fabric_ops->peer_add(s->ep->fabric, m->name, m->name_len, &s->fabric_peer)) {
			vr_session_fail(s, VR_REASON_NO_COMMON_FABRIC);
			return;
		}
	}
	s->state = VR_SESSION_PROBING;
	progress(s);
}

static void message(struct vr_session *s, const struct vr_msg *m)
{
	struct vr_msg pong = {.type = VR_MSG_PONG, .token = m->token};

	if (m->type == VR_MSG_BYE) {
		vr_session_fail(s, VR_REASON_NONE);
		return;
	}
	switch (s->state) {
	case VR_SESSION_CONNECTING: /* the server waits here for HELLO */
	case VR_SESSION_HELLO:
		if (m->type == VR_MSG_HELLO)
			hello(s, m);
		else
			vr_session_fail(s, VR_REASON_VERSION);
		return;
	case VR_SESSION_PROBING:
	case VR_SESSION_UP:
		break;
	case VR_SESSION_DEAD:
		return;
	}
	switch (m->type) {
	case VR_MSG_READY:
		s->ready_seen = true;
		progress(s);
		break;
	case VR_MSG_PING:
		vr_session_send(s, &pong);
		break;
	case VR_MSG_PONG:
		s->pong_seq = m->token;
		vr_conn_pong(s);
		break;
	default:
		if (m->type < VR_MSG_TYPES)
			vr_conn_message(s, m);
		break;
	}
}

static void read_messages(struct vr_session *s)
{
	struct vr_msg m;

	while (s->state != VR_SESSION_DEAD) {
		ssize_t n = recv(s->fd, s->in + s->in_len, sizeof(s->in) - s->in_len, MSG_DONTWAIT);
		size_t used = 0;
		int k;

		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			vr_session_fail(s, s->state == VR_SESSION_UP ? VR_REASON_SESSION_LOST : VR_REASON_NO_SHIM);
			return;
		}
		s->in_len += (size_t)n;
		s->last_heard = vr_now_ms();
		while (s->state != VR_SESSION_DEAD && (k = vr_msg_decode(&m, s->in + used, s->in_len - used)) != 0) {
			if (k < 0) {
				vr_count(VR_CTR_PROTOCOL_ERRORS, 1);
				vr_session_fail(s, s->state == VR_SESSION_UP ? VR_REASON_SESSION_LOST : VR_REASON_NO_SHIM);
				return;
			}
			used += (size_t)k;
			message(s, &m);
		}
		memmove(s->in, s->in + used, s->in_len - used);
		s->in_len -= used;
	}
}

void vr_session_event(struct vr_session *s, uint32_t events)
{
	if (s->state == VR_SESSION_DEAD)
		return;
	if (s->state == VR_SESSION_CONNECTING && s->side == VR_SIDE_CLIENT) {
		int err = 0;
		socklen_t len = sizeof(err);

		if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
			return;
		if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err) {
			vr_session_fail(s, VR_REASON_NO_SHIM);
			return;
		}
		say_hello(s);
	}
	if (s->state != VR_SESSION_DEAD && (events & EPOLLOUT))
		flush(s);
	if (s->state != VR_SESSION_DEAD)
		read_messages(s);
}

/* An accepted control connection: only from peers that the allowlist lets in. */
void vr_session_accept(struct vr_listener *l)
{
	for (;;) {
		struct sockaddr_storage ss;
		socklen_t len = sizeof(ss);
		struct vr_session *s;
		struct vr_addr a;
		int fd = accept4(l->fd, (struct sockaddr *)&ss, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return;
		vr_count(VR_CTR_CONTROL_ACCEPTS, 1);
		if (vr_addr_from_sockaddr(&a, (struct sockaddr *)&ss, len)) {
			a.port = l->local.port;
			if (vr_allowlist_match(&a) != VR_PROTO_NONE && (s = session_new(VR_SIDE_SERVER, fd))) {
				s->peer_ip = a;
				s->peer_ip.port = 0;
				s->service_port = l->local.port;
				continue;
			}
		}
		vr_engine_close(fd);
	}
}

static int listener_socket(const struct vr_listener *l)
{
	struct vr_addr a = l->local;
	struct sockaddr_storage ss;
	int port = a.port + vr_engine.cfg.control_offset, one = 1, fd;
	socklen_t len;

	if (port < 1 || port > 65535)
		return -1;
	a.port = (uint16_t)port;
	len = vr_addr_to_sockaddr(&a, &ss);
	fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&ss, len) || listen(fd, 128)) {
		close(fd);
		return -1;
	}
	return fd;
}

void vr_session_listeners(void)
{
	struct vr_engine *e = &vr_engine;
	unsigned failed = 0;
	int err = 0;
	sigset_t set;

	vr_lock(&e->lock, &set);
	for (struct vr_listener **p = &e->listeners; *p;) {
		struct vr_listener *l = *p;

		if (!l->opened && !l->closing) {
			l->opened = true;
			l->fd = listener_socket(l);
			if (l->fd >= 0) {
				vr_engine_hide(l->fd, true);
				l->io = (struct vr_io){VR_IO_LISTENER, l};
				vr_engine_watch(l->fd, &l->io, EPOLLIN);
				vr_gauge(VR_GAUGE_LISTENERS, 1);
			} else {
				failed = l->local.port; /* logged below: a log file may be slow, and application threads want the lock */
				err = errno;
			}
		}
		if (l->closing) {
			if (l->fd >= 0) {
				l->fd = vr_engine_close(l->fd);
				vr_gauge(VR_GAUGE_LISTENERS, -1);
			}
			*p = l->next;
			free(l);
			continue;
		}
		p = &l->next;
	}
	vr_unlock(&e->lock, &set);
	if (failed) {
		vr_info("control port for service port %u: %s", failed, strerror(err));
		vr_stats_reason(VR_SIDE_SERVER, VR_REASON_CONTROL_PORT);
	}
}

static void dial(struct vr_peer *peer)
{
	struct vr_addr a = peer->addr;
	int port = a.port + vr_engine.cfg.control_offset;
	struct sockaddr_storage ss;
	struct vr_session *s;
	socklen_t len;
	int fd;

	vr_count(VR_CTR_CONTROL_CONNECTS, 1);
	a.port = (uint16_t)port;
	len = vr_addr_to_sockaddr(&a, &ss);
	fd = port >= 1 && port <= 65535 ? socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
	s = fd >= 0 ? session_new(VR_SIDE_CLIENT, fd) : NULL;
	if (!s) {
		sigset_t set;

		if (fd >= 0)
			close(fd);
		vr_lock(&vr_engine.lock, &set);
		peer->state = VR_PEER_FAILED;
		peer->reason = VR_REASON_INTERNAL;
		peer->retry_at = vr_now_ms() + BACKOFF_MAX_MS;
		pthread_cond_broadcast(&vr_engine.changed);
		vr_unlock(&vr_engine.lock, &set);
		return;
	}
	s->peer = peer;
	s->peer_ip = peer->addr;
	s->service_port = peer->addr.port;
	if (connect(fd, (struct sockaddr *)&ss, len) && errno != EINPROGRESS)
		vr_session_fail(s, VR_REASON_NO_SHIM);
}

/* The endpoint is opened before the first dial: without a fabric here no control connection is even tried. */
static bool fabric_ready(struct vr_peer *peer)
{
	struct sockaddr_storage ss;
	struct vr_addr local = peer->addr, probe = peer->addr;
	socklen_t len = vr_addr_to_sockaddr(&probe, &ss);
	enum vr_reason why = VR_REASON_NONE;
	sigset_t set;
	int fd;

	/* Which of our addresses would reach the peer? An unconnected datagram socket tells without sending anything. */
	fd = socket(ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		socklen_t n = sizeof(ss);

		if (!connect(fd, (struct sockaddr *)&ss, len) && !getsockname(fd, (struct sockaddr *)&ss, &n))
			vr_addr_from_sockaddr(&local, (struct sockaddr *)&ss, n);
		close(fd);
	}
	if (vr_endpoint_for(&local, &why))
		return true;
	vr_lock(&vr_engine.lock, &set);
	peer->state = VR_PEER_FAILED;
	peer->reason = why;
	peer->retry_at = vr_now_ms() + BACKOFF_MAX_MS;
	pthread_cond_broadcast(&vr_engine.changed);
	vr_unlock(&vr_engine.lock, &set);
	return false;
}

/* Without sessions an endpoint needs no memory. */
static void trim_endpoint(struct vr_endpoint *ep)
{
	for (struct vr_session *s = vr_engine.sessions; s; s = s->next)
		if (s->ep == ep)
			return;
	vr_pool_trim(&ep->tx);
	vr_pool_trim(&ep->words);
}

void vr_session_poll(int64_t now)
{
	struct vr_engine *e = &vr_engine;
	sigset_t set;

	for (;;) {
		struct vr_peer *want = NULL;

		vr_lock(&e->lock, &set);
		for (struct vr_peer *p = e->peers; p && !want; p = p->next)
			if (p->state == VR_PEER_WANTED) {
				p->state = VR_PEER_TRYING;
				want = p;
			}
		vr_unlock(&e->lock, &set);
		if (!want)
			break;
		if (fabric_ready(want))
			dial(want);
	}
	for (struct vr_session **p = &e->sessions; *p;) {
		struct vr_session *s = *p;

		if (s->state == VR_SESSION_DEAD) {
			if (now >= s->free_at && s->conns == 0) {
				vr_pool_destroy(&s->rings);
				vr_pool_destroy(&s->words);
				if (s->probe_source)
					vr_pool_put(&s->ep->words, s->probe_source);
				*p = s->next;
				if (s->ep)
					trim_endpoint(s->ep);
				free(s->out);
				free(s);
				continue;
			}
		} else if (s->state != VR_SESSION_UP) {
			progress(s);
			if (s->state != VR_SESSION_DEAD && s->state != VR_SESSION_UP && now > s->deadline)
				vr_session_fail(s, s->state == VR_SESSION_PROBING ? VR_REASON_UNREACHABLE : VR_REASON_NO_SHIM);
		} else {
			if (s->conns)
				s->idle_since = now;
			if (now - s->last_heard > DEAD_MS) {
				vr_session_fail(s, VR_REASON_SESSION_LOST);
			} else if (s->side == VR_SIDE_CLIENT && now - s->idle_since > IDLE_MS) {
				struct vr_msg bye = {.type = VR_MSG_BYE};

				vr_session_send(s, &bye);
				vr_session_fail(s, VR_REASON_NONE);
			} else if (now - s->last_sent > HEARTBEAT_MS || now - s->last_heard > HEARTBEAT_MS + 2000) {
				if (now - s->last_sent > 2000)
					vr_session_ping(s);
			}
		}
		p = &s->next;
	}
}
