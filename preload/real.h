/* SPDX-License-Identifier: Apache-2.0 */
/* The functions we stand in front of: resolved once in the constructor; a call that comes earlier resolves its own. */
#ifndef VR_REAL_H
#define VR_REAL_H

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <stddef.h>

/* X(return type, name, parameters) */
#define VR_REAL_LIST(X)                                                                                  \
	X(int, connect, (int, const struct sockaddr *, socklen_t))                                       \
	X(int, listen, (int, int))                                                                       \
	X(int, accept, (int, struct sockaddr *, socklen_t *))                                            \
	X(int, accept4, (int, struct sockaddr *, socklen_t *, int))                                      \
	X(int, socket, (int, int, int))                                                                  \
	X(int, close, (int))                                                                             \
	X(int, close_range, (unsigned, unsigned, int))                                                   \
	X(int, dup, (int))                                                                               \
	X(int, dup2, (int, int))                                                                         \
	X(int, dup3, (int, int, int))                                                                    \
	X(int, fcntl, (int, int, ...))                                                                   \
	X(int, fcntl64, (int, int, ...))                                                                 \
	X(int, ioctl, (int, unsigned long, ...))                                                         \
	X(int, epoll_ctl, (int, int, int, struct epoll_event *))                                         \
	X(int, epoll_create, (int))                                                                      \
	X(int, eventfd, (unsigned, int))                                                                 \
	X(int, socketpair, (int, int, int, int *))                                                       \
	X(int, pipe, (int *))                                                                            \
	X(int, pipe2, (int *, int))                                                                      \
	X(int, epoll_create1, (int))                                                                     \
	X(int, getsockname, (int, struct sockaddr *, socklen_t *))                                       \
	X(int, getpeername, (int, struct sockaddr *, socklen_t *))                                       \
	X(int, getsockopt, (int, int, int, void *, socklen_t *))                                         \
	X(int, setsockopt, (int, int, int, const void *, socklen_t))                                     \
	X(ssize_t, send, (int, const void *, size_t, int))                                               \
	X(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t))         \
	X(ssize_t, sendmsg, (int, const struct msghdr *, int))                                           \
	X(int, sendmmsg, (int, struct mmsghdr *, unsigned, int))                                         \
	X(ssize_t, write, (int, const void *, size_t))                                                   \
	X(ssize_t, writev, (int, const struct iovec *, int))                                             \
	X(ssize_t, sendfile, (int, int, off_t *, size_t))                                                \
	X(ssize_t, sendfile64, (int, int, off64_t *, size_t))                                            \
	X(ssize_t, recv, (int, void *, size_t, int))                                                     \
	X(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, socklen_t *))                 \
	X(ssize_t, recvmsg, (int, struct msghdr *, int))                                                 \
	X(int, recvmmsg, (int, struct mmsghdr *, unsigned, int, struct timespec *))                      \
	X(ssize_t, read, (int, void *, size_t))                                                          \
	X(ssize_t, readv, (int, const struct iovec *, int))                                              \
	X(ssize_t, __recv_chk, (int, void *, size_t, size_t, int))                                       \
	X(ssize_t, __recvfrom_chk, (int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *))   \
	X(ssize_t, __read_chk, (int, void *, size_t, size_t))                                            \
	X(int, poll, (struct pollfd *, nfds_t, int))                                                     \
	X(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))              \
	X(int, __poll_chk, (struct pollfd *, nfds_t, int, size_t))                                       \
	X(int, __ppoll_chk, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t)) \
	X(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))                            \
	X(int, pselect, (int, fd_set *, fd_set *, fd_set *, const struct timespec *, const sigset_t *))  \
	X(void, _exit, (int))

struct vr_real {
#define X(ret, name, args) ret(*name) args;
	VR_REAL_LIST(X)
#undef X
};
extern struct vr_real vr_real;

/* vr_real_resolve - fill the table; idempotent. */
void vr_real_resolve(void);

/* REAL(name) - the next definition of name. The branch is taken only by calls from before our constructor. */
#define REAL(name) (__builtin_expect(vr_real.name != NULL, 1) ? vr_real.name : (vr_real_resolve(), vr_real.name))
#define VR_EXPORT __attribute__((visibility("default")))

#endif
