/* SPDX-License-Identifier: Apache-2.0 */
#include "util.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

int64_t vr_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void vr_random(void *p, size_t n)
{
	int saved = errno;

	if (getrandom(p, n, GRND_NONBLOCK) != (ssize_t)n) {
		struct timespec t;
		uint8_t *b = p;

		clock_gettime(CLOCK_REALTIME, &t);
		for (size_t i = 0; i < n; i++)
			b[i] = (uint8_t)(((uint64_t)t.tv_nsec * 2654435761u + i * 40503u) >> (i % 24));
	}
	errno = saved;
}

void vr_lock(pthread_mutex_t *m, sigset_t *saved)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, saved);
	pthread_mutex_lock(m);
}

void vr_unlock(pthread_mutex_t *m, const sigset_t *saved)
{
	pthread_mutex_unlock(m);
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}
