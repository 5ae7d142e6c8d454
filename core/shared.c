/* SPDX-License-Identifier: Apache-2.0 */
/* The few words that the wrappers and the engine share about one upgraded connection: a fixed, type-stable pool. */
#include <stdatomic.h>
#include <stddef.h>

#include "engine.h"

#define SHARED_MAX 65536 /* connections open at once per process; 1 MiB of zero pages, touched only when used */

static struct vr_shared pool[SHARED_MAX];
static _Atomic uint32_t hint;

struct vr_shared *vr_shared_new(void)
{
	uint32_t at = atomic_load_explicit(&hint, memory_order_relaxed);

	for (uint32_t i = 0; i < SHARED_MAX; i++) {
		struct vr_shared *s = &pool[(at + i) % SHARED_MAX];
		uint32_t none = 0;

		if (atomic_compare_exchange_strong(&s->refs, &none, 1)) {
			atomic_store_explicit(&hint, at + i + 1, memory_order_relaxed);
			atomic_store(&s->reset, 0);
			atomic_store(&s->abort, 0);
			atomic_store(&s->peer_gone, 0);
			return s;
		}
	}
	return NULL;
}

void vr_shared_get(struct vr_shared *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void vr_shared_put(struct vr_shared *s)
{
	if (s)
		atomic_fetch_sub(&s->refs, 1);
}
