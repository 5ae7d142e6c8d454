/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that move bytes or wait for them: a candidate is judged before, and its bytes are noted after. */
#include <errno.h>
#include <sys/sendfile.h>
#include <unistd.h>

#include "fdtable.h"
#include "real.h"

/* An upgraded connection that was reset: the pair says end of file or EPIPE where TCP says ECONNRESET, once. */
static ssize_t told(int fd, ssize_t n)
{
	struct vr_sock *s = vr_fd(fd);
	uint32_t one = 1;

	if (!vr_is_sock(s) || atomic_load(&s->kind) != VR_KIND_UPGRADED || !s->shared || !atomic_load(&s->shared->reset) || !vr_fd_same(fd, s))
		return n;
	/* a kernel ECONNRESET has told it by itself */
	if ((n == 0 || (n < 0 && errno == ECONNRESET)) && atomic_compare_exchange_strong(&s->shared->reset, &one, 2) && n == 0) {
		errno = ECONNRESET;
		return -1;
	}
	return n;
}

#define OUT(fd, iov, niov, call)                                          \
	do {                                                              \
		struct vr_sock *s_ = vr_fd(fd);                           \
		if (__builtin_expect(!vr_is_sock(s_), 1))                 \
			return call;                                      \
		struct vr_call c_ = vr_call_enter(fd, s_, 1, iov, niov);  \
		ssize_t n_ = call;                                        \
		if (c_.s)                                                 \
			vr_call_leave(&c_, iov, niov, n_);                \
		return n_;                                                \
	} while (0)

#define IN(fd, iov, niov, flags, want, call)                              \
	do {                                                              \
		struct vr_sock *s_ = vr_fd(fd);                           \
		if (__builtin_expect(!vr_is_sock(s_), 1))                 \
			return call;                                      \
		struct vr_call c_ = vr_call_enter(fd, s_, 0, NULL, 0);    \
		ssize_t n_ = call;                                        \
		if (c_.s)                                                 \
			/* iov is looked at only after the kernel could */ \
			n_ > 0 && !((flags) & MSG_PEEK) ? vr_call_leave(&c_, iov, niov, n_) : vr_call_leave(&c_, NULL, 0, 0); \
		else if (n_ < 0 || (n_ == 0 && (want)))                   \
			n_ = told(fd, n_);                                \
		return n_;                                                \
	} while (0)

VR_EXPORT ssize_t send(int fd, const void *p, size_t n, int flags)
{
	struct iovec v = {(void *)p, n};

	OUT(fd, &v, 1, REAL(send)(fd, p, n, flags));
}

/* TCP ignores an address on a connected socket, the pair would refuse it. Asked after the call was judged: it may be the one that swaps. */
static bool ignores_address(int fd)
{
	struct vr_sock *s = vr_fd(fd);

	return vr_is_sock(s) && atomic_load(&s->kind) == VR_KIND_UPGRADED && vr_fd_same(fd, s);
}

VR_EXPORT ssize_t sendto(int fd, const void *p, size_t n, int flags, const struct sockaddr *to, socklen_t len)
{
	struct iovec v = {(void *)p, n};

	OUT(fd, &v, 1, to && ignores_address(fd) ? REAL(sendto)(fd, p, n, flags, NULL, 0) : REAL(sendto)(fd, p, n, flags, to, len));
}

VR_EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct msghdr copy = {0};

	/* the kernel judges a bad pointer: only what it could read is looked at */
	if (vr_is_sock(vr_fd(fd)) && !vr_read_caller(&copy, m, sizeof(copy)))
		return REAL(sendmsg)(fd, m, flags);

	bool named = copy.msg_name != NULL;

	copy.msg_name = NULL;
	copy.msg_namelen = 0;
	OUT(fd, copy.msg_iov, (int)copy.msg_iovlen, REAL(sendmsg)(fd, named && ignores_address(fd) ? &copy : m, flags));
}

VR_EXPORT ssize_t write(int fd, const void *p, size_t n)
{
	struct iovec v = {(void *)p, n};

	OUT(fd, &v, 1, REAL(write)(fd, p, n));
}

VR_EXPORT ssize_t writev(int fd, const struct iovec *v, int n)
{
	OUT(fd, v, n, REAL(writev)(fd, v, n));
}

VR_EXPORT ssize_t sendfile(int fd, int in, off_t *off, size_t n)
{
	OUT(fd, NULL, 0, REAL(sendfile)(fd, in, off, n));
}

VR_EXPORT ssize_t sendfile64(int fd, int in, off64_t *off, size_t n)
{
	OUT(fd, NULL, 0, REAL(sendfile64)(fd, in, off, n));
}

/* What moves in batches is not noted byte by byte: the counts of the kernel will disagree, and the connection stays on TCP. */
VR_EXPORT int sendmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
	OUT(fd, NULL, 0, REAL(sendmmsg)(fd, m, n, flags));
}

VR_EXPORT int recvmmsg(int fd, struct mmsghdr *m, unsigned n, int flags, struct timespec *t)
{
	IN(fd, NULL, 0, MSG_PEEK, 0, REAL(recvmmsg)(fd, m, n, flags, t));
}

VR_EXPORT ssize_t recv(int fd, void *p, size_t n, int flags)
{
	struct iovec v = {p, n};

	IN(fd, &v, 1, flags, n, REAL(recv)(fd, p, n, flags));
}

VR_EXPORT ssize_t recvfrom(int fd, void *p, size_t n, int flags, struct sockaddr *from, socklen_t *len)
{
	struct iovec v = {p, n};

	IN(fd, &v, 1, flags, n, REAL(recvfrom)(fd, p, n, flags, from, len));
}

VR_EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	IN(fd, m->msg_iov, (int)m->msg_iovlen, flags, m->msg_iovlen, REAL(recvmsg)(fd, m, flags));
}

VR_EXPORT ssize_t read(int fd, void *p, size_t n)
{
	struct iovec v = {p, n};

	IN(fd, &v, 1, 0, n, REAL(read)(fd, p, n));
}

VR_EXPORT ssize_t readv(int fd, const struct iovec *v, int n)
{
	IN(fd, v, n, 0, n, REAL(readv)(fd, v, n));
}

ssize_t __recv_chk(int fd, void *p, size_t n, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *p, size_t n, size_t room, int flags, struct sockaddr *from, socklen_t *len);
ssize_t __read_chk(int fd, void *p, size_t n, size_t room);

VR_EXPORT ssize_t __recv_chk(int fd, void *p, size_t n, size_t room, int flags)
{
	struct iovec v = {p, n};

	IN(fd, &v, 1, flags, n, REAL(__recv_chk)(fd, p, n, room, flags));
}

VR_EXPORT ssize_t __recvfrom_chk(int fd, void *p, size_t n, size_t room, int flags, struct sockaddr *from, socklen_t *len)
{
	struct iovec v = {p, n};

	IN(fd, &v, 1, flags, n, REAL(__recvfrom_chk)(fd, p, n, room, flags, from, len));
}

VR_EXPORT ssize_t __read_chk(int fd, void *p, size_t n, size_t room)
{
	struct iovec v = {p, n};

	IN(fd, &v, 1, 0, n, REAL(__read_chk)(fd, p, n, room));
}

/* ---- waiting: a candidate somebody waits on is not swapped ---- */

#define HELD 64

static unsigned hold(int fd, unsigned k, struct vr_call held[HELD])
{
	if (k == HELD)
		vr_wait_pin(fd);
	else if (vr_wait_enter(fd, &held[k]))
		k++;
	return k;
}

static unsigned hold_polls(const struct pollfd *p, nfds_t n, struct vr_call held[HELD])
{
	struct pollfd some[32];
	unsigned k = 0;

	for (nfds_t at = 0; atomic_load(&vr_candidates) && at < n; at += 32) {
		nfds_t m = n - at < 32 ? n - at : 32;

		if (!vr_read_caller(some, p + at, m * sizeof(*p)))
			break;
		for (nfds_t i = 0; i < m; i++)
			k = hold(some[i].fd, k, held);
	}
	return k;
}

static unsigned hold_sets(int n, fd_set *a, fd_set *b, fd_set *c, struct vr_call held[HELD])
{
	fd_set all, one;
	unsigned k = 0;
	size_t size;

	if (!atomic_load(&vr_candidates) || n <= 0)
		return 0;
	if (n > FD_SETSIZE)
		n = FD_SETSIZE;
	size = ((size_t)n + NFDBITS - 1) / NFDBITS * sizeof(fd_mask); /* what the kernel reads: a set may be smaller than fd_set */
	FD_ZERO(&all);
	for (int i = 0; i < 3; i++) {
		fd_set *set = i == 0 ? a : i == 1 ? b : c;

		FD_ZERO(&one);
		if (set && vr_read_caller(&one, set, size))
			for (int fd = 0; fd < n; fd++)
				if (FD_ISSET(fd, &one))
					FD_SET(fd, &all);
	}
	for (int fd = 0; fd < n; fd++)
		if (FD_ISSET(fd, &all))
			k = hold(fd, k, held);
	return k;
}

#define WAIT(hold, call)                          \
	do {                                      \
		struct vr_call held[HELD];        \
		unsigned k = hold;                \
		int r_ = call;                    \
		while (k)                         \
			vr_wait_leave(&held[--k]); \
		return r_;                        \
	} while (0)

VR_EXPORT int poll(struct pollfd *p, nfds_t n, int t)
{
	WAIT(hold_polls(p, n, held), REAL(poll)(p, n, t));
}

VR_EXPORT int ppoll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *m)
{
	WAIT(hold_polls(p, n, held), REAL(ppoll)(p, n, t, m));
}

int __poll_chk(struct pollfd *p, nfds_t n, int t, size_t room);
int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *m, size_t room);

VR_EXPORT int __poll_chk(struct pollfd *p, nfds_t n, int t, size_t room)
{
	WAIT(hold_polls(p, n, held), REAL(__poll_chk)(p, n, t, room));
}

VR_EXPORT int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *m, size_t room)
{
	WAIT(hold_polls(p, n, held), REAL(__ppoll_chk)(p, n, t, m, room));
}

VR_EXPORT int select(int n, fd_set *a, fd_set *b, fd_set *c, struct timeval *t)
{
	WAIT(hold_sets(n, a, b, c, held), REAL(select)(n, a, b, c, t));
}

VR_EXPORT int pselect(int n, fd_set *a, fd_set *b, fd_set *c, const struct timespec *t, const sigset_t *m)
{
	WAIT(hold_sets(n, a, b, c, held), REAL(pselect)(n, a, b, c, t, m));
}
