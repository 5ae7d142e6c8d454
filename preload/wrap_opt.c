/* SPDX-License-Identifier: Apache-2.0 */
/* Questions that an AF_UNIX pair would answer differently from the TCP socket it stands for; and the environment that our threads see. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fdtable.h"
#include "real.h"

extern char **environ;

static struct vr_sock *upgraded(int fd)
{
	struct vr_sock *s = vr_fd(fd);

	return vr_is_sock(s) && atomic_load(&s->kind) == VR_KIND_UPGRADED && vr_fd_same(fd, s) ? s : NULL;
}

static int answer(const struct vr_addr *a, int family, struct sockaddr *sa, socklen_t *len)
{
	struct sockaddr_storage ss;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ss;
	socklen_t n;

	if (!sa || !len) {
		errno = EFAULT;
		return -1;
	}
	n = vr_addr_to_sockaddr(a, &ss);
	if (family == AF_INET6 && ss.ss_family == AF_INET) { /* an IPv6 socket shows mapped addresses */
		memset(&ss, 0, sizeof(ss));
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(a->port);
		memcpy(&in6->sin6_addr, a->ip, 16);
		n = sizeof(*in6);
	}
	memcpy(sa, &ss, *len < n ? *len : n);
	*len = n;
	return 0;
}

/* The hidden TCP socket, if the number is still that: the engine closes it when the connection has ended. */
static int tcp_of(const struct vr_sock *s)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);
	int saved = errno, ok = !REAL(getsockopt)(s->tcp, SOL_SOCKET, SO_COOKIE, &cookie, &len) && cookie == s->cookie;

	errno = saved;
	return ok ? s->tcp : -1;
}

static int family_of(const struct vr_sock *s)
{
	int tcp = tcp_of(s), family = vr_addr_is_v4(&s->local) ? AF_INET : AF_INET6, saved = errno;
	socklen_t len = sizeof(family);

	if (tcp >= 0)
		REAL(getsockopt)(tcp, SOL_SOCKET, SO_DOMAIN, &family, &len);
	errno = saved;
	return family;
}

VR_EXPORT int getsockname(int fd, struct sockaddr *sa, socklen_t *len)
{
	struct vr_sock *s = upgraded(fd);

	return s ? answer(&s->local, family_of(s), sa, len) : REAL(getsockname)(fd, sa, len);
}

VR_EXPORT int getpeername(int fd, struct sockaddr *sa, socklen_t *len)
{
	struct vr_sock *s = upgraded(fd);

	return s ? answer(&s->peer, family_of(s), sa, len) : REAL(getpeername)(fd, sa, len);
}

static bool of_the_pair(int level, int name) /* both keep it; the pair's is the one in force */
{
	return level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO || name == SO_LINGER || name == SO_KEEPALIVE ||
				       name == SO_ERROR || name == SO_TYPE || name == SO_ACCEPTCONN);
}

/* On the hidden socket it would keep bytes from the engine. */
static bool only_the_pair(int level, int name)
{
	return level == SOL_SOCKET && name == SO_RCVLOWAT;
}

VR_EXPORT int getsockopt(int fd, int level, int name, void *v, socklen_t *len)
{
	struct vr_sock *s = vr_fd(fd);
	int tcp = vr_is_sock(s) && (s = upgraded(fd)) && !of_the_pair(level, name) && !only_the_pair(level, name) ? tcp_of(s) : -1;

	return REAL(getsockopt)(tcp >= 0 ? tcp : fd, level, name, v, len);
}

VR_EXPORT int setsockopt(int fd, int level, int name, const void *v, socklen_t len)
{
	struct vr_sock *s = vr_fd(fd);
	int tcp = vr_is_sock(s) && !only_the_pair(level, name) && (s = upgraded(fd)) ? tcp_of(s) : -1;

	if (tcp >= 0 && of_the_pair(level, name))
		REAL(setsockopt)(tcp, level, name, v, len);
	else if (tcp >= 0)
		fd = tcp;
	return REAL(setsockopt)(fd, level, name, v, len);
}

/* Variables that libfabric reads on our threads: the user's own value, or else our default. No lookup that could allocate. */
VR_EXPORT char *getenv(const char *name)
{
	size_t n = strlen(name);

	for (char **e = environ; e && *e; e++)
		if (!strncmp(*e, name, n) && (*e)[n] == '=')
			return *e + n + 1;
	return vr_internal_thread ? (char *)vr_engine_getenv(name) : NULL;
}
