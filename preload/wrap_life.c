/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that create, duplicate and close descriptors, and registrations with epoll. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/util.h"
#include "fdtable.h"
#include "real.h"

/* A descriptor made on a thread of ours: not for the application, and not for what it executes (libfabric sets CLOEXEC on none). */
static int ours(int fd)
{
	if (fd >= 0) {
		REAL(fcntl)(fd, F_SETFD, FD_CLOEXEC);
		vr_fd_hide(fd, true);
	}
	return fd;
}

static int fresh(int fd) /* a number that came back from the kernel: what the table says of it is stale */
{
	struct vr_sock *s;
	sigset_t set;

	if (fd >= 0 && vr_is_sock(vr_fd(fd)) && (s = vr_sock_lock(fd, &set))) {
		vr_sock_forget(fd, s);
		vr_sock_unlock(s, &set);
	}
	return fd;
}

VR_EXPORT int socket(int domain, int type, int protocol)
{
	int fd = REAL(socket)(domain, type, protocol);

	return vr_internal_thread ? ours(fd) : fresh(fd);
}

VR_EXPORT int epoll_create(int size)
{
	int fd = REAL(epoll_create)(size);

	return vr_internal_thread ? ours(fd) : fresh(fd);
}

VR_EXPORT int eventfd(unsigned value, int flags)
{
	int fd = REAL(eventfd)(value, flags);

	return vr_internal_thread ? ours(fd) : fresh(fd);
}

static int both(int r, int fds[2])
{
	for (int i = 0; r == 0 && i < 2; i++)
		vr_internal_thread ? ours(fds[i]) : fresh(fds[i]);
	return r;
}

VR_EXPORT int socketpair(int domain, int type, int protocol, int fds[2])
{
	return both(REAL(socketpair)(domain, type, protocol, fds), fds);
}

VR_EXPORT int pipe(int fds[2])
{
	return both(REAL(pipe)(fds), fds);
}

VR_EXPORT int pipe2(int fds[2], int flags)
{
	return both(REAL(pipe2)(fds, flags), fds);
}

VR_EXPORT int epoll_create1(int flags)
{
	int fd = REAL(epoll_create1)(flags);

	return vr_internal_thread ? ours(fd) : fresh(fd);
}

static bool tcp_socket(int fd)
{
	int type = 0, proto = 0;
	socklen_t len = sizeof(int);

	return !REAL(getsockopt)(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_STREAM &&
	       !REAL(getsockopt)(fd, SOL_SOCKET, SO_PROTOCOL, &proto, &len) && proto == IPPROTO_TCP;
}

static bool local_address(int fd, struct vr_addr *a)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	return !REAL(getsockname)(fd, (struct sockaddr *)&ss, &len) && vr_addr_from_sockaddr(a, (struct sockaddr *)&ss, len);
}

static void candidate(int fd, enum vr_side side, enum vr_protocol proto, const struct vr_addr *local, const struct vr_addr *peer)
{
	struct vr_sock *s = (unsigned)fd < VR_FD_MAX ? vr_sock_new(VR_KIND_CANDIDATE) : NULL;
	unsigned wait = vr_engine_config()->connect_wait_ms;
	socklen_t len = sizeof(s->cookie);

	if (!s)
		return;
	s->side = side;
	s->protocol = proto;
	s->local = *local;
	s->peer = *peer;
	s->deadline = wait ? vr_now_ms() + wait : 0;
	s->unknown = REAL(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &s->cookie, &len) != 0;
	vr_count(VR_CTR_CONNECTIONS, 1);
	vr_fd_set(fd, s);
}

VR_EXPORT int connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	enum vr_protocol proto = VR_PROTO_NONE;
	struct vr_addr peer, local;
	int saved = errno, r;
	struct sockaddr_storage ss;
	struct vr_sock *s;
	sigset_t set;
	bool inet;

	if (vr_internal_thread || !vr_engine_config()->on)
		return REAL(connect)(fd, sa, len);
	/* the address may be unreadable, which is for the kernel to say */
	inet = sa && len >= sizeof(struct sockaddr_in) && len <= sizeof(ss) && vr_read_caller(&ss, sa, len) &&
	       vr_addr_from_sockaddr(&peer, (struct sockaddr *)&ss, len);
	/* A second attempt on the same descriptor, after a refused one: judged anew when it goes elsewhere. */
	if (inet && vr_is_sock(vr_fd(fd)) && (s = vr_sock_lock(fd, &set))) {
		if (s->kind == VR_KIND_CANDIDATE && !vr_addr_equal(&s->peer, &peer))
			vr_sock_forget(fd, s);
		vr_sock_unlock(s, &set);
	}
	if (inet && !vr_fd(fd) && tcp_socket(fd) &&
	    vr_engine_start() == VR_REASON_NONE) {
		proto = vr_allowlist_match(&peer);
		if (proto == VR_PROTO_NONE)
			vr_stats_reason(VR_SIDE_CLIENT, VR_REASON_NOT_ALLOWED);
		else
			vr_engine_prepare(&peer);
	}
	errno = saved;
	r = REAL(connect)(fd, sa, len);
	saved = errno;
	if (proto != VR_PROTO_NONE && (r == 0 || errno == EINPROGRESS) && local_address(fd, &local))
		candidate(fd, VR_SIDE_CLIENT, proto, &local, &peer);
	errno = saved;
	return r;
}

VR_EXPORT int listen(int fd, int backlog)
{
	int r = REAL(listen)(fd, backlog), saved = errno;
	struct vr_sock *s;
	struct vr_addr a;

	if (r == 0 && !vr_internal_thread && vr_engine_config()->on && (unsigned)fd < VR_FD_MAX && !vr_fd(fd) && tcp_socket(fd) &&
	    local_address(fd, &a) && vr_engine_start() == VR_REASON_NONE && vr_allowlist_port(a.port) && (s = vr_sock_new(VR_KIND_LISTENER))) {
		s->local = a;
		s->listener = vr_engine_listen(&a);
		vr_fd_set(fd, s);
	}
	errno = saved;
	return r;
}

static void accepted(int listener, int fd)
{
	struct vr_sock *l = vr_fd(listener);
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	struct vr_addr local, peer, rule;
	enum vr_protocol proto;
	int saved = errno;

	fresh(fd);
	if (vr_is_sock(l) && atomic_load(&l->kind) == VR_KIND_LISTENER && local_address(fd, &local) &&
	    !REAL(getpeername)(fd, (struct sockaddr *)&ss, &len) && vr_addr_from_sockaddr(&peer, (struct sockaddr *)&ss, len)) {
		rule = peer;
		rule.port = local.port;
		proto = vr_allowlist_match(&rule);
		if (proto == VR_PROTO_NONE)
			vr_stats_reason(VR_SIDE_SERVER, VR_REASON_NOT_ALLOWED);
		else
			candidate(fd, VR_SIDE_SERVER, proto, &local, &peer);
	}
	errno = saved;
}

VR_EXPORT int accept(int fd, struct sockaddr *sa, socklen_t *len)
{
	int r = REAL(accept)(fd, sa, len);

	if (vr_internal_thread)
		return ours(r);
	if (r >= 0)
		accepted(fd, r);
	return r;
}

VR_EXPORT int accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	int r = REAL(accept4)(fd, sa, len, flags);

	if (vr_internal_thread)
		return ours(r);
	if (r >= 0)
		accepted(fd, r);
	return r;
}

VR_EXPORT int close(int fd)
{
	if (__builtin_expect(vr_fd(fd) != NULL, 0)) {
		if (vr_internal_thread) {
			vr_fd_set(fd, NULL);
		} else if (vr_fd_closing(fd)) {
			errno = EBADF;
			return -1;
		}
	}
	return REAL(close)(fd);
}

/* Hidden descriptors are left out: the range is closed in the pieces between them. */
VR_EXPORT int close_range(unsigned first, unsigned last, int flags)
{
	int top = atomic_load(&vr_fd_top);
	unsigned from = first;

	if (vr_internal_thread || first > last || (flags & ~CLOSE_RANGE_UNSHARE))
		return REAL(close_range)(first, last, flags);
	for (unsigned fd = first; top >= 0 && fd <= last && fd <= (unsigned)top; fd++) {
		if (!vr_fd((int)fd) || !vr_fd_closing((int)fd))
			continue;
		if (fd > from && REAL(close_range)(from, fd - 1, flags))
			return -1;
		from = fd + 1;
	}
	return from <= last ? REAL(close_range)(from, last, flags) : 0;
}

VR_EXPORT void closefrom(int fd)
{
	int saved = errno;

	close_range(fd < 0 ? 0 : (unsigned)fd, UINT_MAX, 0);
	errno = saved;
}

static void duplicated(int fd, int copy)
{
	int saved = errno;
	struct vr_sock *s;
	sigset_t set;

	if (vr_is_sock(vr_fd(fd)) && !vr_internal_thread && (s = vr_sock_lock(fd, &set))) {
		if (s->kind == VR_KIND_CANDIDATE) {
			s->unknown = true; /* the copy would stay on TCP */
		} else if ((unsigned)copy < VR_FD_MAX) {
			s->refs++;
			vr_fd_set(copy, s);
		}
		vr_sock_unlock(s, &set);
	}
	errno = saved;
}

VR_EXPORT int dup(int fd)
{
	int r = REAL(dup)(fd);

	if (r >= 0)
		duplicated(fd, fresh(r));
	return r;
}

static bool onto_hidden(int fd)
{
	if (vr_internal_thread || vr_fd(fd) != VR_HIDDEN)
		return false;
	errno = EBUSY; /* dup2(2): a race with open(), which is what it looks like */
	return true;
}

VR_EXPORT int dup2(int fd, int to)
{
	int r;

	if (onto_hidden(to))
		return -1;
	if (fd != to && vr_fd(to) && REAL(fcntl)(fd, F_GETFD) >= 0)
		vr_fd_closing(to);
	r = REAL(dup2)(fd, to);
	if (r >= 0 && fd != to)
		duplicated(fd, to);
	return r;
}

VR_EXPORT int dup3(int fd, int to, int flags)
{
	int r;

	if (onto_hidden(to))
		return -1;
	if (fd != to && vr_fd(to) && REAL(fcntl)(fd, F_GETFD) >= 0)
		vr_fd_closing(to);
	r = REAL(dup3)(fd, to, flags);
	if (r >= 0)
		duplicated(fd, to);
	return r;
}

#define FCNTL(name)                                                        \
	VR_EXPORT int name(int fd, int cmd, ...)                           \
	{                                                                  \
		va_list ap;                                                \
		void *arg;                                                 \
		int r;                                                     \
		va_start(ap, cmd);                                         \
		arg = va_arg(ap, void *);                                  \
		va_end(ap);                                                \
		r = REAL(name)(fd, cmd, arg);                              \
		if (r >= 0 && (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC))  \
			duplicated(fd, fresh(r));                          \
		return r;                                                  \
	}
FCNTL(fcntl)
FCNTL(fcntl64)

VR_EXPORT int ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	return REAL(ioctl)(fd, request, arg);
}

/* Registrations of a candidate are recorded, so that the swap can move them to the new file. */
VR_EXPORT int epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct vr_sock *s = vr_fd(fd);
	int r, saved;
	unsigned i;
	sigset_t set;

	if (__builtin_expect(!vr_is_sock(s), 1) || atomic_load(&s->kind) != VR_KIND_CANDIDATE || !(s = vr_sock_lock(fd, &set)))
		return REAL(epoll_ctl)(epfd, op, fd, ev);
	r = REAL(epoll_ctl)(epfd, op, fd, ev);
	saved = errno;
	if (r == 0 && s->kind == VR_KIND_CANDIDATE) {
		for (i = 0; i < s->regs && s->reg[i].epfd != epfd; i++)
			;
		if (op == EPOLL_CTL_DEL) {
			if (i < s->regs)
				s->reg[i] = s->reg[--s->regs];
			else
				s->unknown = true;
		} else if (i == VR_EPOLL_MAX || (op == EPOLL_CTL_MOD && i == s->regs)) {
			s->unknown = true;
		} else {
			s->reg[i].epfd = epfd;
			s->reg[i].ev = *ev;
			if (i == s->regs)
				s->regs++;
		}
	}
	vr_sock_unlock(s, &set);
	errno = saved;
	return r;
}
