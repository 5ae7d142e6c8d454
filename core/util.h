/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers: clocks and a mutex that is safe against signal handlers of the host program. */
#ifndef VR_UTIL_H
#define VR_UTIL_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>

/* vr_now_ms - CLOCK_MONOTONIC in milliseconds. */
int64_t vr_now_ms(void);
/* vr_random - n random bytes (getrandom; falls back to clock bits, never fails). */
void vr_random(void *p, size_t n);

/* vr_lock, vr_unlock - take a mutex with all signals blocked, so that a handler on the same thread cannot enter us while it is held. */
void vr_lock(pthread_mutex_t *m, sigset_t *saved);
void vr_unlock(pthread_mutex_t *m, const sigset_t *saved);

#endif
