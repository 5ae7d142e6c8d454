/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread and the calls by which the preload layer reaches it. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"
#include "util.h"

_Thread_local bool vr_internal_thread __attribute__((tls_model("initial-exec")));

struct vr_engine vr_engine = {
	.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .epoll = -1, .wake = -1, .no_fabric = VR_REASON_NONE,
};

struct vr_handover_item {
	struct vr_handover_item *next;
	struct vr_ticket t;
	struct vr_handover h;
};

/* ---- handles: what a 32-bit immediate names ---- */

#define HANDLES (1u << 16)
static struct { void *owner; uint16_t gen; bool session; } handles[HANDLES]; /* index 0 is never used */
static uint32_t handle_at = 1;

uint32_t vr_handle_new(void *owner, bool session)
{
	for (uint32_t i = 0; i < HANDLES; i++) {
		uint32_t at = (handle_at + i) % HANDLES;

		if (at && !handles[at].owner) {
			handle_at = at + 1;
			handles[at].owner = owner;
			handles[at].session = session;
			handles[at].gen = (uint16_t)((handles[at].gen + 1) & ((1u << VR_HANDLE_GEN_BITS) - 1));
			return (uint32_t)handles[at].gen << VR_HANDLE_INDEX_BITS | at;
		}
	}
	return 0;
}

void *vr_handle_get(uint32_t handle, bool session)
{
	uint32_t at = handle & ((1u << VR_HANDLE_INDEX_BITS) - 1);

	if (at >= HANDLES || handles[at].session != session || handles[at].gen != handle >> VR_HANDLE_INDEX_BITS)
		return NULL;
	return handles[at].owner;
}

void vr_handle_free(uint32_t handle)
{
	uint32_t at = handle & ((1u << VR_HANDLE_INDEX_BITS) - 1);

	if (at && at < HANDLES)
		handles[at].owner = NULL;
}

/* ---- descriptors ---- */

void vr_engine_hide(int fd, bool hidden)
{
	vr_gauge(VR_GAUGE_HIDDEN_FDS, hidden ? 1 : -1);
	if (vr_engine.host && vr_engine.host->hide_fd)
		vr_engine.host->hide_fd(fd, hidden);
}

int vr_engine_close(int fd)
{
	if (fd >= 0) {
		vr_engine_hide(fd, false);
		close(fd);
	}
	return -1;
}

void vr_engine_watch(int fd, struct vr_io *io, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.ptr = io};

	if (epoll_ctl(vr_engine.epoll, EPOLL_CTL_ADD, fd, &ev))
		vr_err("epoll_ctl: %s", strerror(errno));
}

static void wake(void)
{
	uint64_t one = 1;

	(void)!write(vr_engine.wake, &one, sizeof(one));
}

/* ---- fabric ---- */

struct vr_endpoint *vr_endpoint_for(const struct vr_addr *local, enum vr_reason *why)
{
	struct vr_engine *e = &vr_engine;
	struct vr_endpoint *ep;

	for (ep = e->endpoints; ep; ep = ep->next)
		if (vr_addr_same_ip(&ep->local, local))
			return ep;
	if (e->no_fabric != VR_REASON_NONE && vr_now_ms() < e->fabric_retry_at) {
		*why = e->no_fabric;
		return NULL;
	}
	ep = calloc(1, sizeof(*ep));
	if (ep)
		ep->fabric = vr_fabric_ops->open(e->cfg.provider, local, why);
	if (!ep || !ep->fabric) {
		free(ep);
		e->no_fabric = *why;
		e->fabric_retry_at = vr_now_ms() + 60000;
		return NULL;
	}
	e->no_fabric = VR_REASON_NONE;
	ep->local = *local;
	ep->io = (struct vr_io){VR_IO_FABRIC, ep};
	vr_pool_init(&ep->tx, ep->fabric, e->cfg.ring_size, false, true);
	vr_pool_init(&ep->words, ep->fabric, 64, false, false);
	vr_engine_watch(vr_fabric_ops->wait_fd(ep->fabric), &ep->io, EPOLLIN);
	ep->next = e->endpoints;
	e->endpoints = ep;
	return ep;
}

struct vr_piece *vr_ring_get(struct vr_pool *p, enum vr_reason *why)
{
	struct vr_piece *x = vr_pool_get(p, vr_engine.cfg.memory, why);
	bool any = false;

	if (x || *why != VR_REASON_MEMORY_BUDGET)
		return x;
	for (struct vr_endpoint *ep = vr_engine.endpoints; ep; ep = ep->next)
		any |= vr_pool_trim(&ep->tx);
	/* a ring goes back to its pool only when both sides have said that they will not write any more (or after the quarantine) */
	for (struct vr_session *s = vr_engine.sessions; s; s = s->next)
		if (s->state != VR_SESSION_DEAD)
			any |= vr_pool_trim(&s->rings);
	return any ? vr_pool_get(p, vr_engine.cfg.memory, why) : NULL;
}

static void fabric_event(struct vr_endpoint *ep, const struct vr_event *ev)
{
	uint32_t handle = vr_imm_handle(ev->imm);
	struct vr_session *s;
	struct vr_conn *c;

	switch (ev->type) {
	case VR_EVENT_REMOTE:
		if (vr_imm_kind(ev->imm) == VR_IMM_PROBE) {
			s = vr_handle_get(handle, true);
			if (s && s->state != VR_SESSION_DEAD)
				vr_session_probe_seen(s);
			return;
		}
		c = vr_handle_get(handle, false);
		if (!c || c->ended) {
			vr_count(VR_CTR_LATE_COMPLETIONS, 1);
		} else if (vr_imm_kind(ev->imm) == VR_IMM_CREDIT) {
			vr_conn_credit(c);
		} else if (c->in.ring) {
			c->in.arrived++;
			vr_conn_queue(c);
		} else {
			vr_count(VR_CTR_PROTOCOL_ERRORS, 1);
		}
		return;
	case VR_EVENT_DONE:
	case VR_EVENT_ERROR:
		if (!ev->ctx)
			return;
		if (ep->writes)
			ep->writes--;
		c = vr_handle_get((uint32_t)(uintptr_t)ev->ctx, false);
		if (c)
			vr_conn_write_done(c, ev->type == VR_EVENT_ERROR ? (ev->err ? ev->err : EIO) : 0);
		return;
	}
}

/* ---- the thread ---- */

static void take_inbox(void)
{
	struct vr_engine *e = &vr_engine;
	struct vr_handover_item *list, *fifo = NULL;
	sigset_t set;

	vr_lock(&e->lock, &set);
	list = e->inbox;
	e->inbox = NULL;
	vr_unlock(&e->lock, &set);
	while (list) {
		struct vr_handover_item *i = list;

		list = i->next;
		i->next = fifo;
		fifo = i;
	}
	while (fifo) {
		struct vr_handover_item *i = fifo;

		fifo = i->next;
		vr_conn_attach(&i->t, &i->h);
		free(i);
	}
}

static void io_event(struct vr_io *io, uint32_t ev)
{
	struct vr_conn *c = io->owner;
	uint64_t n;

	switch (io->kind) {
	case VR_IO_WAKE:
		(void)!read(vr_engine.wake, &n, sizeof(n));
		break;
	case VR_IO_FABRIC:
		break; /* all endpoints are polled every turn */
	case VR_IO_CTL:
	case VR_IO_CTL_CLIENT:
		vr_ctl_event(io, ev);
		break;
	case VR_IO_LISTENER:
		vr_session_accept(io->owner);
		break;
	case VR_IO_SESSION:
		vr_session_event(io->owner, ev);
		break;
	case VR_IO_PUMP:
		c->p_in |= (ev & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
		c->p_out |= (ev & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
		c->p_hup |= (ev & EPOLLHUP) != 0;
		vr_conn_queue(c);
		break;
	case VR_IO_TCP:
		c->h_in |= (ev & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
		c->h_out |= (ev & (EPOLLOUT | EPOLLERR)) != 0;
		c->h_err |= (ev & EPOLLERR) != 0;
		vr_conn_queue(c);
		break;
	}
}

static bool poll_fabrics(void)
{
	struct vr_event ev[32];
	bool any = false;

	for (struct vr_endpoint *ep = vr_engine.endpoints; ep; ep = ep->next) {
		int n, turns = 0;

		while (turns++ < 64 && (n = vr_fabric_ops->poll(ep->fabric, ev, 32)) > 0) {
			any = true;
			for (int i = 0; i < n; i++)
				fabric_event(ep, &ev[i]);
		}
	}
	return any;
}

static bool may_sleep(void)
{
	for (struct vr_endpoint *ep = vr_engine.endpoints; ep; ep = ep->next)
		if (!vr_fabric_ops->may_wait(ep->fabric))
			return false;
	return true;
}

static void check_drained(void)
{
	struct vr_engine *e = &vr_engine;
	bool done = true;
	sigset_t set;

	if (!e->draining) {
		vr_lock(&e->lock, &set);
		e->draining = e->drain_wanted;
		vr_unlock(&e->lock, &set);
		if (!e->draining)
			return;
		for (struct vr_conn *c = e->conns; c; c = c->next)
			vr_conn_queue(c);
		return;
	}
	if (e->run)
		return;
	for (struct vr_conn *c = e->conns; c && done; c = c->next)
		done = !c->attached || c->ended || c->out.done;
	for (struct vr_session *s = e->sessions; s && done; s = s->next)
		done = s->out_len == 0 || s->state == VR_SESSION_DEAD;
	if (done) {
		vr_lock(&e->lock, &set);
		e->drained = true;
		pthread_cond_broadcast(&e->changed);
		vr_unlock(&e->lock, &set);
	}
}

static bool spawn(void *(*fn)(void *), pthread_t *t)
{
	pthread_attr_t attr;
	sigset_t all, saved;
	bool ok;

	/* No signal of the host is ever handled on our threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 1 << 20);
	ok = pthread_create(t, &attr, fn, NULL) == 0;
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	return ok;
}

#define RESOLVE_SECONDS 30
static _Atomic unsigned rules_changed;

static void *resolver_main(void *arg)
{
	vr_internal_thread = true;
	pthread_setname_np(pthread_self(), "vortex-rdma-dns");
	for (;;) {
		unsigned seen = atomic_load(&rules_changed);

		vr_allowlist_resolve();
		for (int i = 0; i < RESOLVE_SECONDS && atomic_load(&rules_changed) == seen; i++)
			sleep(1);
	}
	return arg;
}

/* The names' thread exists only once there are names to resolve. */
static void start_resolver(void)
{
	static bool running;
	pthread_t t;

	if (!running && vr_allowlist_names())
		running = spawn(resolver_main, &t);
}

/* A turn: events, completions, new connections, sessions, the connections that have work, timers. */
static void *engine_main(void *arg)
{
	struct vr_engine *e = &vr_engine;
	struct epoll_event ev[128];
	int64_t tick = 0;

	vr_internal_thread = true;
	pthread_setname_np(pthread_self(), "vortex-rdma");
	vr_ctl_open();
	for (;;) {
		int64_t now;
		int timeout = 1000, n;
		struct vr_conn *run;

		if (e->urgent || !may_sleep())
			timeout = 0;
		else if (e->run)
			timeout = 1; /* a completion ends the wait; a connection that libfabric is setting up needs polling */
		else if (e->draining)
			timeout = 10;
		for (struct vr_session *s = e->sessions; s && timeout > 2; s = s->next)
			if (s->state == VR_SESSION_PROBING)
				timeout = 2; /* the probe waits for libfabric's own connection set-up, which needs polling */
		n = epoll_wait(e->epoll, ev, 128, timeout);
		for (int i = 0; i < n; i++)
			io_event(ev[i].data.ptr, ev[i].events);
		poll_fabrics();
		take_inbox();
		now = vr_now_ms();
		vr_session_listeners();
		vr_session_poll(now);
		run = e->run;
		e->run = NULL;
		e->urgent = false;
		while (run) {
			struct vr_conn *c = run;

			run = c->run_next;
			c->queued = false;
			vr_conn_run(c);
		}
		if (now - tick >= 1000) {
			tick = now;
			if (vr_allowlist_poll())
				atomic_fetch_add(&rules_changed, 1);
			start_resolver();
			vr_conn_poll(now);
		}
		vr_conn_free_zombies();
		check_drained();
	}
	return arg;
}

/* ---- called by the application's threads ---- */

void vr_engine_init(const struct vr_config *cfg, const struct vr_host_ops *ops)
{
	vr_engine.cfg = *cfg;
	vr_engine.host = ops;
	vr_engine.pid = getpid();
}

const struct vr_config *vr_engine_config(void)
{
	return &vr_engine.cfg;
}

static void report_config(void)
{
	char copy[sizeof(vr_engine.cfg.errors)], *save = NULL;

	snprintf(copy, sizeof(copy), "%s", vr_engine.cfg.errors);
	for (char *l = strtok_r(copy, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
		vr_err("%s", l);
}

static int lift(int fd) /* our own descriptors live high, out of the way of the application's numbers */
{
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 512);

	if (high >= 0) {
		close(fd);
		fd = high;
	}
	if (fd >= 0)
		vr_engine_hide(fd, true);
	return fd;
}

enum vr_reason vr_engine_start(void)
{
	static struct vr_io wake_io = {VR_IO_WAKE, NULL};
	struct vr_engine *e = &vr_engine;
	enum vr_reason r = VR_REASON_NONE;
	int saved = errno;
	bool first;
	sigset_t set;

	if (!e->cfg.on)
		return VR_REASON_OFF;
	if (__atomic_load_n(&e->started, __ATOMIC_ACQUIRE))
		return e->forked ? VR_REASON_FORKED : e->failed ? VR_REASON_INTERNAL : VR_REASON_NONE;
	vr_allowlist_load(e->cfg.allowlist);
	vr_lock(&e->lock, &set);
	first = !e->started;
	if (first) {
		bool was = vr_internal_thread;
		vr_internal_thread = true; /* the calls below are ours */
		vr_random(&e->token, sizeof(e->token));
		e->epoll = lift(epoll_create1(EPOLL_CLOEXEC));
		e->wake = lift(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
		if (e->epoll >= 0 && e->wake >= 0)
			vr_engine_watch(e->wake, &wake_io, EPOLLIN);
		e->failed = e->epoll < 0 || e->wake < 0 || !spawn(engine_main, &e->thread);
		vr_internal_thread = was;
		__atomic_store_n(&e->started, true, __ATOMIC_RELEASE);
	}
	if (e->failed)
		r = VR_REASON_INTERNAL;
	vr_unlock(&e->lock, &set);
	if (first)
		report_config();
	errno = saved;
	return r;
}

uint32_t vr_engine_listen(const struct vr_addr *local)
{
	struct vr_engine *e = &vr_engine;
	struct vr_listener *l = calloc(1, sizeof(*l));
	uint32_t id;
	sigset_t set;

	if (!l)
		return 0;
	l->local = *local;
	l->fd = -1;
	vr_lock(&e->lock, &set);
	id = l->id = ++e->next_listener;
	l->next = e->listeners;
	e->listeners = l;
	vr_unlock(&e->lock, &set);
	wake();
	return id;
}

void vr_engine_unlisten(uint32_t id)
{
	struct vr_engine *e = &vr_engine;
	sigset_t set;

	if (e->forked)
		return;
	vr_lock(&e->lock, &set);
	for (struct vr_listener *l = e->listeners; l; l = l->next)
		if (l->id == id)
			l->closing = true;
	vr_unlock(&e->lock, &set);
	wake();
}

static struct vr_peer *find_peer(const struct vr_addr *a)
{
	for (struct vr_peer *p = vr_engine.peers; p; p = p->next)
		if (vr_addr_equal(&p->addr, a))
			return p;
	return NULL;
}

void vr_engine_prepare(const struct vr_addr *peer)
{
	struct vr_engine *e = &vr_engine;
	int saved = errno;
	struct vr_peer *p;
	bool kick = false;
	sigset_t set;

	vr_lock(&e->lock, &set);
	p = find_peer(peer);
	if (!p && (p = calloc(1, sizeof(*p)))) {
		p->addr = *peer;
		p->next = e->peers;
		e->peers = p;
	}
	if (p && !e->forked && (p->state == VR_PEER_IDLE || (p->state == VR_PEER_FAILED && vr_now_ms() >= p->retry_at))) {
		p->state = VR_PEER_WANTED;
		kick = true;
	}
	vr_unlock(&e->lock, &set);
	if (kick)
		wake();
	errno = saved;
}

/* Wait for a session that is coming up. The lock is given back while waiting; signals are let through between the slices. */
static void wait_for_peer(struct vr_peer *p, int64_t deadline, sigset_t *set)
{
	struct vr_engine *e = &vr_engine;

	while ((p->state == VR_PEER_WANTED || p->state == VR_PEER_TRYING) && vr_now_ms() < deadline) {
		struct timespec ts;

		clock_gettime(CLOCK_REALTIME, &ts);
		ts.tv_nsec += 20000000;
		if (ts.tv_nsec >= 1000000000) {
			ts.tv_nsec -= 1000000000;
			ts.tv_sec++;
		}
		pthread_cond_timedwait(&e->changed, &e->lock, &ts);
		vr_unlock(&e->lock, set);
		vr_lock(&e->lock, set);
	}
}

enum vr_reason vr_engine_admit(enum vr_side side, enum vr_protocol protocol, const struct vr_addr *local, const struct vr_addr *peer,
			       int64_t deadline_ms, struct vr_ticket *t)
{
	struct vr_engine *e = &vr_engine;
	uint64_t need = e->cfg.ring_size * (protocol == VR_PROTO_ANY ? 2 : 1);
	enum vr_reason r = VR_REASON_NO_SESSION;
	int saved = errno;
	struct vr_peer *p;
	sigset_t set;

	*t = (struct vr_ticket){.side = side, .protocol = protocol, .local = *local, .peer = *peer};
	if (e->forked || getpid() != e->pid)
		return VR_REASON_FORKED;
	vr_lock(&e->lock, &set);
	if (side == VR_SIDE_CLIENT) {
		p = find_peer(peer);
		if (p && deadline_ms)
			wait_for_peer(p, deadline_ms, &set);
		if (p && p->state == VR_PEER_UP) {
			t->session_id = p->session_id;
			r = VR_REASON_NONE;
		} else if (p && p->state == VR_PEER_FAILED) {
			r = p->reason;
		}
	} else {
		for (struct vr_up *u = e->up; u; u = u->next)
			if (u->side == VR_SIDE_SERVER && u->port == local->port && vr_addr_same_ip(&u->ip, peer)) {
				r = VR_REASON_NONE;
				break;
			}
	}
	if (r == VR_REASON_NONE && e->reserved + need > e->cfg.memory)
		r = VR_REASON_MEMORY_BUDGET;
	if (r == VR_REASON_NONE && e->drain_wanted)
		r = VR_REASON_NOT_ESTABLISHED;
	if (r == VR_REASON_NONE) {
		t->reserved = need;
		e->reserved += need;
	}
	vr_unlock(&e->lock, &set);
	errno = saved;
	return r;
}

void vr_engine_cancel(const struct vr_ticket *t)
{
	sigset_t set;

	vr_lock(&vr_engine.lock, &set);
	vr_engine.reserved -= t->reserved;
	vr_unlock(&vr_engine.lock, &set);
}

void vr_engine_attach(const struct vr_ticket *t, const struct vr_handover *h)
{
	struct vr_engine *e = &vr_engine;
	int saved = errno;
	struct vr_handover_item *i = calloc(1, sizeof(*i));
	sigset_t set;

	vr_gauge(VR_GAUGE_HIDDEN_FDS, 2);
	if (!i) { /* out of memory: a reset is honest, a connection nobody pumps would hang */
		vr_engine_close(h->pump_fd);
		vr_engine_close(h->tcp_fd);
		vr_engine_cancel(t);
		errno = saved;
		return;
	}
	i->t = *t;
	i->h = *h;
	if (h->shared)
		vr_shared_get(h->shared);
	vr_lock(&e->lock, &set);
	i->next = e->inbox;
	e->inbox = i;
	vr_unlock(&e->lock, &set);
	wake();
	errno = saved;
}

void vr_engine_declined(const struct vr_addr *local, const struct vr_addr *peer, enum vr_reason reason)
{
	struct vr_engine *e = &vr_engine;
	sigset_t set;

	vr_lock(&e->lock, &set);
	e->declined[e->declined_at++ % 64] =
		(struct vr_declined){*local, *peer, (uint16_t)reason, vr_now_ms() + 5000};
	vr_unlock(&e->lock, &set);
}

static void final_line(void)
{
	char text[4096], line[4096];
	size_t at = 0;

	vr_stats_print(text, sizeof(text));
	for (char *p = text; *p && at < sizeof(line) - 1; p++)
		line[at++] = *p == ' ' ? '=' : *p == '\n' ? ' ' : *p;
	line[at] = 0;
	vr_info("final %s", line);
}

void vr_engine_drain(unsigned timeout_ms)
{
	struct vr_engine *e = &vr_engine;
	static _Atomic bool said;
	int saved = errno;
	int64_t until = vr_now_ms() + timeout_ms;
	sigset_t set;

	if (!__atomic_load_n(&e->started, __ATOMIC_ACQUIRE) || e->failed || e->forked || vr_internal_thread ||
	    getpid() != e->pid)
		return;
	vr_lock(&e->lock, &set);
	e->drain_wanted = true;
	wake();
	while (!e->drained && vr_now_ms() < until) {
		struct timespec ts;

		clock_gettime(CLOCK_REALTIME, &ts);
		ts.tv_nsec += 50000000;
		if (ts.tv_nsec >= 1000000000) {
			ts.tv_nsec -= 1000000000;
			ts.tv_sec++;
		}
		pthread_cond_timedwait(&e->changed, &e->lock, &ts);
	}
	vr_unlock(&e->lock, &set);
	if (!atomic_exchange(&said, true))
		final_line();
	errno = saved;
}

static sigset_t fork_set; /* written under the lock: several threads may fork */

void vr_engine_prefork(void)
{
	sigset_t set;

	vr_lock(&vr_engine.lock, &set);
	fork_set = set;
}

void vr_engine_parent(void)
{
	sigset_t set = fork_set;

	vr_unlock(&vr_engine.lock, &set);
}

/* The child has no engine thread. If the parent had started one, the child stays on TCP for good (libfabric must not be used on
 * both sides of a fork); else it may start its own. */
void vr_engine_child(void)
{
	struct vr_engine *e = &vr_engine;

	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->changed, NULL);
	pthread_sigmask(SIG_SETMASK, &fork_set, NULL);
	if (e->started)
		e->forked = true;
	e->pid = getpid();
	vr_stats_reset();
	vr_allowlist_child();
	vr_log_child();
}

const char *vr_engine_getenv(const char *name)
{
	return vr_fabric_getenv(name);
}

pid_t vr_engine_pid(void)
{
	return vr_engine.pid;
}
