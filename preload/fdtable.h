/* SPDX-License-Identifier: Apache-2.0 */
/* What we know of the process's descriptors. A descriptor that is not ours costs one load. */
#ifndef VR_FDTABLE_H
#define VR_FDTABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include "core/engine.h"

#define VR_FD_MAX (1 << 20) /* descriptors above are left alone */
#define VR_EPOLL_MAX 4      /* registrations remembered of a candidate */

enum vr_kind { VR_KIND_FREE, VR_KIND_LISTENER, VR_KIND_CANDIDATE, VR_KIND_UPGRADED };

struct vr_sock { /* from a type-stable pool: a stale pointer is always a valid vr_sock */
	pthread_mutex_t lock;
	_Atomic int kind;
	_Atomic unsigned gen; /* changes with every use */
	unsigned refs;        /* descriptors that point here */
	enum vr_side side;
	enum vr_protocol protocol;
	struct vr_addr local, peer;
	uint32_t listener;
	/* candidate */
	uint64_t cookie;
	bool unknown;         /* dup()ed, registered in a way not recorded...: never swap */
	bool deciding;
	unsigned inflight;    /* calls on the descriptor that we are in the middle of */
	unsigned fork_gen;
	int64_t deadline;
	uint8_t first[2][8];  /* first bytes read [0] and written [1] */
	uint64_t count[2];    /* bytes read, written */
	struct { int epfd; struct epoll_event ev; } reg[VR_EPOLL_MAX];
	unsigned regs;
	/* upgraded */
	ino_t ino;
	int tcp;              /* the engine's; checked by cookie before use */
	struct vr_shared *shared;
};

#define VR_HIDDEN ((struct vr_sock *)1) /* a descriptor of ours */

extern _Atomic(struct vr_sock *) vr_fds[VR_FD_MAX];
extern _Atomic unsigned vr_fork_gen;
extern _Atomic int vr_candidates; /* how many there are: poll and select look at their arguments only if any */
extern _Atomic int vr_fd_top; /* highest number ever entered in the table */

/* vr_fd - the entry of a descriptor: NULL (not ours), VR_HIDDEN or a socket. */
static inline struct vr_sock *vr_fd(int fd)
{
	return (unsigned)fd < VR_FD_MAX ? atomic_load_explicit(&vr_fds[fd], memory_order_acquire) : NULL;
}
static inline bool vr_is_sock(const struct vr_sock *s)
{
	return s > VR_HIDDEN;
}
/* vr_sock_new - a fresh socket of this kind with one reference, not yet in the table; NULL when the pool is used up. */
struct vr_sock *vr_sock_new(enum vr_kind kind);
/* vr_fd_set - put s (or NULL) at fd. */
void vr_fd_set(int fd, struct vr_sock *s);
/* vr_sock_lock - lock the socket at fd: NULL if there is none, or VR_HIDDEN. Signals stay blocked until vr_sock_unlock. */
struct vr_sock *vr_sock_lock(int fd, sigset_t *set);
void vr_sock_unlock(struct vr_sock *s, const sigset_t *set);
/* vr_sock_forget - fd no longer refers to s (locked): drop the reference; the last one frees s (listeners are unlistened). */
void vr_sock_forget(int fd, struct vr_sock *s);
/* vr_fd_closing - fd is about to be closed or replaced by the application; true if it is one of our hidden ones. */
bool vr_fd_closing(int fd);
void vr_fd_hide(int fd, bool hidden);
/* vr_fd_child - in a forked child: our descriptors are closed, candidates forgotten (the parent may swap them), locks reset. */
void vr_fd_child(void);
/* vr_fd_same - is this upgraded socket's descriptor still what it was (it may have been closed behind our back)? */
bool vr_fd_same(int fd, const struct vr_sock *s);

/* upgrade.c */
/* vr_read_caller - n bytes at an address of the application that may be bad; false if it is. errno preserved. */
bool vr_read_caller(void *to, const void *from, size_t n);
struct vr_call { struct vr_sock *s; unsigned gen; int dir; };
/* vr_call_enter - before a call on a candidate moves bytes in direction dir (0 in, 1 out): decide, and swap if so. iov: what is to be written. */
struct vr_call vr_call_enter(int fd, struct vr_sock *s, int dir, const struct iovec *iov, int n);
/* vr_call_leave - afterwards: n bytes moved, which are now in iov (in) or were (out). errno preserved. */
void vr_call_leave(const struct vr_call *c, const struct iovec *iov, int niov, ssize_t n);
/* vr_wait_enter, vr_wait_leave - a poll or select on a candidate, which must not be swapped meanwhile. */
bool vr_wait_enter(int fd, struct vr_call *c);
/* vr_wait_pin - the same where there is no room to remember: fd is never swapped. */
void vr_wait_pin(int fd);
void vr_wait_leave(const struct vr_call *c);

#endif
