/* SPDX-License-Identifier: Apache-2.0 */
/* The decision whether a candidate is upgraded, and the swap of its descriptor. */
#include "fdtable.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/log.h"
#include "core/util.h"
#include "core/vortex.h"
#include "real.h"

#define PAIR_BUFFER (1 << 20) /* only the sender's SO_SNDBUF counts on a pair; 1 to 4 MiB was best (docs/architecture.md) */
#define MOVE_MAX (64 << 10)   /* what TCP already holds is put into the pair at the swap, up to this */

static void gather(uint8_t first[8], uint64_t have, const struct iovec *iov, int niov, size_t n)
{
	for (int i = 0; i < niov && n && have < 8; i++)
		for (size_t k = 0; k < iov[i].iov_len && n && have < 8; k++, n--)
			first[have++] = ((const uint8_t *)iov[i].iov_base)[k];
}

bool vr_read_caller(void *to, const void *from, size_t n)
{
	struct iovec l = {to, n}, r = {(void *)from, n};
	int saved = errno;
	ssize_t k = process_vm_readv(getpid(), &l, 1, &r, 1, 0);
	bool ok = k == (ssize_t)n;

	if (k < 0 && errno != EFAULT) { /* not permitted here (seccomp) */
		memcpy(to, from, n);
		ok = true;
	}
	errno = saved;
	return ok;
}

/* What the caller is about to write, up to 8 bytes in all. Its pointers are not checked yet and may be bad, for which the answer is EFAULT
 * and no crash: so the kernel reads them. How many bytes were added. */
static size_t peek_caller(uint8_t first[8], uint64_t have, const struct iovec *iov, int niov)
{
	struct iovec into = {first + have, 8 - have};
	ssize_t n;

	if (niov <= 0)
		return 0;
	n = process_vm_readv(getpid(), &into, 1, iov, niov < 8 ? (unsigned long)niov : 8, 0);
	if (n >= 0 || errno == EFAULT)
		return n > 0 ? (size_t)n : 0;
	/* not permitted here (seccomp) */
	n = 0;
	for (int i = 0; i < niov && n < 8; i++)
		n += (ssize_t)(iov[i].iov_len < 8 ? iov[i].iov_len : 8);
	gather(first, have, iov, niov, SIZE_MAX);
	return (uint64_t)n < 8 - have ? (size_t)n : (size_t)(8 - have);
}

static enum vr_sniff sniff(const uint8_t *first, uint64_t have)
{
	return vr_vortex_sniff(first, have < 8 ? (size_t)have : 8);
}

static void drop(int fd, struct vr_sock *s, enum vr_reason why)
{
	vr_stats_reason(s->side, why);
	if (s->side == VR_SIDE_SERVER)
		vr_engine_declined(&s->local, &s->peer, why);
	vr_sock_forget(fd, s);
}

/* MORE: undecided, leave the call to TCP. REQUEST: yes. OTHER: never. */
static enum vr_sniff judge(int fd, struct vr_sock *s, int dir, const struct iovec *iov, int niov)
{
	int request = s->side == VR_SIDE_CLIENT; /* direction in which the request travels: index 1 is out */
	uint8_t first[8];
	uint64_t have = s->count[request];

	if (s->protocol == VR_PROTO_ANY) {
		char c;

		/* A server that only waits for its first byte is early: the client may itself be waiting for the session. */
		if (s->side == VR_SIDE_SERVER && dir == 0 && !s->count[0] && !s->count[1] && REAL(recv)(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
			return VR_SNIFF_MORE;
		return VR_SNIFF_REQUEST;
	}
	memcpy(first, s->first[request], sizeof(first));
	if (dir == request && have < 8) {
		size_t more = 0;

		if (request) {
			more = peek_caller(first, have, iov, niov);
		} else {
			uint8_t peek[8];
			ssize_t n = REAL(recv)(fd, peek, 8 - have, MSG_PEEK | MSG_DONTWAIT);

			if (n > 0) {
				memcpy(first + have, peek, (size_t)n);
				more = (size_t)n;
			}
		}
		have += more;
	}
	if (s->count[!request] && have == 0)
		return VR_SNIFF_OTHER; /* the other side speaks first */
	return sniff(first, have);
}

static int int_option(int fd, int level, int name, int otherwise)
{
	int v = otherwise;
	socklen_t len = sizeof(v);

	return REAL(getsockopt)(fd, level, name, &v, &len) ? otherwise : v;
}

/* Is everything about the descriptor known? Byte counts of the kernel must agree with what passed through our wrappers. */
static enum vr_reason check(int fd, struct vr_sock *s)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (s->unknown || s->fork_gen != atomic_load(&vr_fork_gen))
		return VR_REASON_FD_STATE;
	if (REAL(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) || cookie != s->cookie)
		return VR_REASON_FD_STATE;
	for (unsigned i = 0; i < s->regs; i++)
		if (s->reg[i].ev.events & EPOLLONESHOT)
			return VR_REASON_FD_STATE;
	if ((REAL(fcntl)(fd, F_GETFL) & O_ASYNC) || int_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1) != 1 ||
	    int_option(fd, SOL_SOCKET, SO_ZEROCOPY, 0) || int_option(fd, SOL_SOCKET, SO_OOBINLINE, 0))
		return VR_REASON_SOCKET_OPTION;
	for (int i = 0; i < 8; i++) {
		struct tcp_info ti;
		int before = 0, after = 0;
		uint64_t in, out;

		memset(&ti, 0, sizeof(ti));
		len = sizeof(ti);
		if (REAL(ioctl)(fd, SIOCINQ, &before) || REAL(getsockopt)(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) || REAL(ioctl)(fd, SIOCINQ, &after))
			return VR_REASON_NOT_ESTABLISHED;
		if (ti.tcpi_state != 1 /* ESTABLISHED */ && ti.tcpi_state != 8 /* CLOSE_WAIT */)
			return VR_REASON_NOT_ESTABLISHED;
		if (before != after)
			continue; /* bytes came in between */
		out = ti.tcpi_bytes_sent - ti.tcpi_bytes_retrans + ti.tcpi_notsent_bytes;
		in = ti.tcpi_bytes_received - (uint64_t)after - (ti.tcpi_state == 8);
		if (in == s->count[0] && out == s->count[1])
			return VR_REASON_NONE;
	}
	return VR_REASON_FD_STATE;
}

static void copy_option(int from, int to, int name)
{
	char v[64];
	socklen_t len = sizeof(v);

	if (!REAL(getsockopt)(from, SOL_SOCKET, name, v, &len))
		REAL(setsockopt)(to, SOL_SOCKET, name, v, len);
}

static int lift(int fd) /* a hidden number above those the application is given; -1 leaves fd open */
{
	struct rlimit r = {1024, 1024};
	rlim_t base;
	int high;

	getrlimit(RLIMIT_NOFILE, &r);
	base = r.rlim_cur / 4 * 3 < 65536 ? r.rlim_cur / 4 * 3 : 65536;
	high = REAL(fcntl)(fd, F_DUPFD_CLOEXEC, (int)base);
	if (high >= VR_FD_MAX) {
		REAL(close)(high);
		high = -1;
	}
	return high;
}

static uint64_t move_waiting(int tcp, int pump)
{
	static _Thread_local uint8_t buf[4096] __attribute__((tls_model("initial-exec")));
	uint64_t moved = 0;

	while (moved < MOVE_MAX) {
		ssize_t n = REAL(recv)(tcp, buf, sizeof(buf), MSG_DONTWAIT | MSG_PEEK);

		/* taken from TCP only once the pair, whose buffer may be small, has it */
		if (n <= 0 || (n = REAL(send)(pump, buf, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL)) <= 0)
			break;
		REAL(recv)(tcp, buf, (size_t)n, MSG_DONTWAIT);
		moved += (uint64_t)n;
	}
	return moved;
}

static enum vr_reason swap(int fd, struct vr_sock *s, const struct vr_ticket *t)
{
	int pair[2] = {-1, -1}, tcp = -1, pump = -1, size = PAIR_BUFFER, flags = REAL(fcntl)(fd, F_GETFL), fdflags = REAL(fcntl)(fd, F_GETFD);
	enum vr_reason why = VR_REASON_FD_LIMIT;
	struct vr_handover h = {.app_fd = fd};
	struct vr_shared *shared = vr_shared_new();
	unsigned done = 0;
	struct stat st;

	if (!shared || REAL(socketpair)(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		goto fail;
	tcp = lift(fd);
	pump = lift(pair[1]);
	if (tcp < 0 || pump < 0)
		goto fail;
	why = VR_REASON_FD_STATE;
	REAL(close)(pair[1]);
	pair[1] = -1;
	for (int i = 0; i < 2; i++) {
		int end = i ? pump : pair[0];

		if (REAL(setsockopt)(end, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)))
			REAL(setsockopt)(end, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	}
	if (flags & O_NONBLOCK)
		REAL(fcntl)(pair[0], F_SETFL, O_NONBLOCK);
	copy_option(fd, pair[0], SO_RCVTIMEO);
	copy_option(fd, pair[0], SO_SNDTIMEO);
	copy_option(fd, pair[0], SO_LINGER);
	copy_option(fd, pair[0], SO_KEEPALIVE);
	if (fstat(pair[0], &st))
		goto fail;
	for (; done < s->regs; done++)
		if (REAL(epoll_ctl)(s->reg[done].epfd, EPOLL_CTL_DEL, fd, NULL))
			goto fail;
	if (REAL(dup3)(pair[0], fd, fdflags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
		goto fail;
	/* From here on the number is the pair's: nothing may fail. */
	REAL(close)(pair[0]);
	for (unsigned i = 0; i < s->regs; i++)
		REAL(epoll_ctl)(s->reg[i].epfd, EPOLL_CTL_ADD, fd, &s->reg[i].ev);
	REAL(fcntl)(tcp, F_SETFL, REAL(fcntl)(tcp, F_GETFL) | O_NONBLOCK);
	REAL(fcntl)(pump, F_SETFL, O_NONBLOCK);
	vr_fd_hide(tcp, true);
	vr_fd_hide(pump, true);
	h.app_ino = s->ino = st.st_ino;
	h.pump_fd = pump;
	h.tcp_fd = s->tcp = tcp;
	h.received = s->count[0];
	h.sent = s->count[1];
	h.moved = move_waiting(tcp, pump);
	h.shared = s->shared = shared;
	atomic_store(&s->kind, VR_KIND_UPGRADED);
	atomic_fetch_sub(&vr_candidates, 1);
	vr_engine_attach(t, &h);
	return VR_REASON_NONE;
fail:
	while (done--)
		REAL(epoll_ctl)(s->reg[done].epfd, EPOLL_CTL_ADD, fd, &s->reg[done].ev);
	for (int i = 0; i < 2; i++)
		if (pair[i] >= 0)
			REAL(close)(pair[i]);
	if (tcp >= 0)
		REAL(close)(tcp);
	if (pump >= 0)
		REAL(close)(pump);
	vr_shared_put(shared);
	return why;
}

/* Not established yet, but about to be (fast open: by this very call): the connection stays a candidate. */
static bool connecting(int fd)
{
	struct tcp_info ti = {0};
	socklen_t len = sizeof(ti);

	return int_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0) ||
	       (!REAL(getsockopt)(fd, IPPROTO_TCP, TCP_INFO, &ti, &len) && ti.tcpi_state == 2 /* SYN_SENT */);
}

/* Called with s locked; may give the lock up while it waits for a session. True when fd is still a candidate. */
static bool try_upgrade(int fd, struct vr_sock *s, sigset_t *set)
{
	struct vr_ticket t;
	enum vr_reason why = s->inflight ? VR_REASON_FD_BUSY : check(fd, s);
	unsigned gen = s->gen;

	if (why == VR_REASON_NOT_ESTABLISHED && connecting(fd))
		return true;
	if (why == VR_REASON_NONE) {
		enum vr_side side = s->side;
		enum vr_protocol proto = s->protocol;
		struct vr_addr local = s->local, peer = s->peer;
		int64_t deadline = s->deadline;

		s->deciding = true;
		vr_sock_unlock(s, set);
		why = vr_engine_admit(side, proto, &local, &peer, deadline, &t);
		vr_lock(&s->lock, set);
		if (vr_fd(fd) != s || s->gen != gen) { /* closed by another thread meanwhile */
			if (why == VR_REASON_NONE)
				vr_engine_cancel(&t);
			return false;
		}
		s->deciding = false;
		/* A server that speaks first does so before the client, who waits for the session, has one: a later call decides. */
		if (why == VR_REASON_NO_SESSION && side == VR_SIDE_SERVER && proto == VR_PROTO_ANY && vr_now_ms() < deadline)
			return true;
		if (why == VR_REASON_NONE) {
			why = s->inflight ? VR_REASON_FD_BUSY : check(fd, s);
			if (why == VR_REASON_NONE)
				why = swap(fd, s, &t);
			if (why != VR_REASON_NONE)
				vr_engine_cancel(&t);
		}
	}
	if (why != VR_REASON_NONE)
		drop(fd, s, why);
	return false;
}

struct vr_call vr_call_enter(int fd, struct vr_sock *s, int dir, const struct iovec *iov, int niov)
{
	struct vr_call c = {NULL, 0, dir};
	int saved = errno;
	sigset_t set;

	if (atomic_load(&s->kind) != VR_KIND_CANDIDATE || vr_internal_thread)
		return c;
	s = vr_sock_lock(fd, &set);
	if (!s)
		return c;
	if (s->kind == VR_KIND_CANDIDATE) {
		enum vr_sniff v = s->deciding ? VR_SNIFF_MORE : judge(fd, s, dir, iov, niov);

		if (v == VR_SNIFF_OTHER)
			drop(fd, s, VR_REASON_NOT_VORTEX);
		else if (v == VR_SNIFF_MORE || try_upgrade(fd, s, &set)) {
			s->inflight++;
			c.s = s;
			c.gen = s->gen;
		}
	}
	vr_sock_unlock(s, &set);
	errno = saved;
	return c;
}

void vr_call_leave(const struct vr_call *c, const struct iovec *iov, int niov, ssize_t n)
{
	int saved = errno;
	struct vr_sock *s = c->s;
	sigset_t set;

	vr_lock(&s->lock, &set);
	if (s->gen == c->gen && s->kind == VR_KIND_CANDIDATE) {
		s->inflight--;
		if (n > 0) {
			gather(s->first[c->dir], s->count[c->dir], iov, niov, (size_t)n);
			s->count[c->dir] += (uint64_t)n;
		}
	}
	vr_unlock(&s->lock, &set);
	errno = saved;
}

bool vr_wait_enter(int fd, struct vr_call *c)
{
	struct vr_sock *s = vr_fd(fd);
	sigset_t set;
	bool held = false;

	if (!vr_is_sock(s) || atomic_load(&s->kind) != VR_KIND_CANDIDATE || !(s = vr_sock_lock(fd, &set)))
		return false;
	if (s->kind == VR_KIND_CANDIDATE) {
		s->inflight++;
		*c = (struct vr_call){s, s->gen, 0};
		held = true;
	}
	vr_sock_unlock(s, &set);
	return held;
}

void vr_wait_pin(int fd)
{
	struct vr_sock *s;
	sigset_t set;

	if (vr_is_sock(vr_fd(fd)) && (s = vr_sock_lock(fd, &set))) {
		s->unknown = true;
		vr_sock_unlock(s, &set);
	}
}

void vr_wait_leave(const struct vr_call *c)
{
	vr_call_leave(c, NULL, 0, 0);
}
