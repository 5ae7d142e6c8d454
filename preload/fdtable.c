/* SPDX-License-Identifier: Apache-2.0 */
#include "fdtable.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/util.h"
#include "real.h"

#define SOCKS 65536

_Atomic(struct vr_sock *) vr_fds[VR_FD_MAX];
_Atomic unsigned vr_fork_gen;
_Atomic int vr_fd_top = -1, vr_candidates;
static struct vr_sock pool[SOCKS]; /* zero pages until used */
static _Atomic unsigned hint;

struct vr_sock *vr_sock_new(enum vr_kind kind)
{
	unsigned at = atomic_load(&hint);

	for (unsigned i = 0; i < SOCKS; i++) {
		struct vr_sock *s = &pool[(at + i) % SOCKS];
		int none = VR_KIND_FREE;

		if (!atomic_compare_exchange_strong(&s->kind, &none, kind))
			continue;
		atomic_store(&hint, at + i + 1);
		atomic_fetch_add(&s->gen, 1);
		atomic_fetch_add(&vr_candidates, kind == VR_KIND_CANDIDATE);
		s->refs = 1;
		s->unknown = s->deciding = false;
		s->inflight = s->regs = 0;
		s->deadline = 0;
		s->count[0] = s->count[1] = 0;
		memset(s->first, 0, sizeof(s->first));
		s->shared = NULL;
		s->listener = 0;
		s->fork_gen = atomic_load(&vr_fork_gen);
		return s;
	}
	return NULL;
}

void vr_fd_set(int fd, struct vr_sock *s)
{
	int top = atomic_load(&vr_fd_top);

	while (s && fd > top && fd < VR_FD_MAX && !atomic_compare_exchange_weak(&vr_fd_top, &top, fd))
		;
	if ((unsigned)fd < VR_FD_MAX)
		atomic_store_explicit(&vr_fds[fd], s, memory_order_release);
}

struct vr_sock *vr_sock_lock(int fd, sigset_t *set)
{
	struct vr_sock *s;

	while (vr_is_sock(s = vr_fd(fd))) {
		vr_lock(&s->lock, set);
		if (vr_fd(fd) == s)
			return s;
		vr_unlock(&s->lock, set);
	}
	return NULL;
}

void vr_sock_unlock(struct vr_sock *s, const sigset_t *set)
{
	vr_unlock(&s->lock, set);
}

void vr_sock_forget(int fd, struct vr_sock *s)
{
	vr_fd_set(fd, NULL);
	if (--s->refs)
		return;
	atomic_fetch_sub(&vr_candidates, s->kind == VR_KIND_CANDIDATE);
	if (s->kind == VR_KIND_LISTENER)
		vr_engine_unlisten(s->listener);
	vr_shared_put(s->shared);
	s->shared = NULL;
	atomic_store(&s->kind, VR_KIND_FREE);
}

/* A vfork child shares our memory but has its own descriptors: what it closes is none of the parent's business. */
static bool foreign(void)
{
	return syscall(SYS_getpid) != vr_engine_pid();
}

bool vr_fd_closing(int fd)
{
	struct vr_sock *s = vr_fd(fd);
	struct linger l = {0};
	socklen_t len = sizeof(l);
	int saved = errno;
	sigset_t set;

	if (!s)
		return false;
	if (s == VR_HIDDEN)
		return true;
	if (foreign() || !(s = vr_sock_lock(fd, &set)))
		return false;
	if (s->kind == VR_KIND_CANDIDATE) {
		vr_stats_reason(s->side, VR_REASON_CLOSED_EARLY);
		if (s->side == VR_SIDE_SERVER)
			vr_engine_declined(&s->local, &s->peer, VR_REASON_CLOSED_EARLY);
	} else if (s->kind == VR_KIND_UPGRADED && s->refs == 1 && vr_fd_same(fd, s) &&
		   !REAL(getsockopt)(fd, SOL_SOCKET, SO_LINGER, &l, &len) && l.l_onoff && !l.l_linger) {
		atomic_store(&s->shared->abort, 1);
	}
	vr_sock_forget(fd, s);
	vr_sock_unlock(s, &set);
	errno = saved;
	return false;
}

void vr_fd_hide(int fd, bool hidden)
{
	vr_fd_set(fd, hidden ? VR_HIDDEN : NULL);
}

bool vr_fd_same(int fd, const struct vr_sock *s)
{
	int saved = errno;
	struct stat st;
	bool same = !fstat(fd, &st) && st.st_ino == s->ino;

	errno = saved;
	return same;
}

void vr_fd_child(void)
{
	int top = atomic_load(&vr_fd_top);

	for (int fd = 0; fd <= top; fd++) {
		struct vr_sock *s = vr_fd(fd);

		if (s == VR_HIDDEN) { /* these copies would hide the parent's death from the peer */
			REAL(close)(fd);
			vr_fd_set(fd, NULL);
		} else if (s) {
			pthread_mutex_init(&s->lock, NULL); /* its holder, if any, is not in this process */
			if (s->kind != VR_KIND_UPGRADED)
				vr_sock_forget(fd, s);
		}
	}
}
