/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

struct vr_slab {
	struct vr_mem mem;
	struct vr_slab *next;
	size_t used;
	struct vr_piece piece[]; /* slab_size / piece of them */
};

void vr_pool_init(struct vr_pool *p, struct vr_fabric *f, size_t piece, bool remote, bool budget)
{
	*p = (struct vr_pool){.fabric = f, .piece = piece, .remote = remote, .budget = budget};
	p->slab_size = piece < 65536 ? 65536 : piece;
}

static bool grow(struct vr_pool *p, size_t limit, enum vr_reason *why)
{
	size_t n = p->slab_size / p->piece;
	struct vr_slab *s;

	*why = VR_REASON_MEMORY_BUDGET;
	if (p->budget && (size_t)atomic_load(&vr_stats.gauge[VR_GAUGE_MEMORY]) + p->slab_size > limit)
		return false;
	s = calloc(1, sizeof(*s) + n * sizeof(s->piece[0]));
	if (!s)
		return false;
	s->mem.len = p->slab_size;
	s->mem.base = mmap(NULL, s->mem.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (s->mem.base == MAP_FAILED) {
		free(s);
		return false;
	}
	/* A forked child must neither share nor copy memory that a device writes to. */
	madvise(s->mem.base, s->mem.len, MADV_DONTFORK);
	madvise(s->mem.base, s->mem.len, MADV_HUGEPAGE);
	if (vr_fabric_ops->mem_register(p->fabric, &s->mem, p->remote)) {
		*why = VR_REASON_MEMLOCK;
		munmap(s->mem.base, s->mem.len);
		free(s);
		return false;
	}
	vr_gauge(VR_GAUGE_REGISTRATIONS, 1);
	if (p->budget)
		vr_gauge(VR_GAUGE_MEMORY, (int64_t)p->slab_size);
	for (size_t i = 0; i < n; i++) {
		s->piece[i] = (struct vr_piece){.p = (char *)s->mem.base + i * p->piece, .slab = s, .next = p->free};
		p->free = &s->piece[i];
	}
	s->next = p->slabs;
	p->slabs = s;
	return true;
}

struct vr_piece *vr_pool_get(struct vr_pool *p, size_t limit, enum vr_reason *why)
{
	struct vr_piece *x;

	if (!p->free && !grow(p, limit, why))
		return NULL;
	x = p->free;
	p->free = x->next;
	p->used++;
	x->slab->used++;
	return x;
}

void vr_pool_put(struct vr_pool *p, struct vr_piece *x)
{
	x->next = p->free;
	p->free = x;
	p->used--;
	x->slab->used--;
}

static void release(struct vr_pool *p, struct vr_slab *s)
{
	vr_fabric_ops->mem_unregister(p->fabric, &s->mem);
	munmap(s->mem.base, s->mem.len);
	vr_gauge(VR_GAUGE_REGISTRATIONS, -1);
	if (p->budget)
		vr_gauge(VR_GAUGE_MEMORY, -(int64_t)p->slab_size);
	free(s);
}

bool vr_pool_trim(struct vr_pool *p)
{
	struct vr_piece *keep = NULL, *next;
	bool any = false;

	for (struct vr_piece *x = p->free; x; x = next) {
		next = x->next;
		if (x->slab->used) {
			x->next = keep;
			keep = x;
		}
	}
	p->free = keep;
	for (struct vr_slab **at = &p->slabs; *at;) {
		struct vr_slab *s = *at;

		if (s->used) {
			at = &s->next;
			continue;
		}
		*at = s->next;
		release(p, s);
		any = true;
	}
	return any;
}

void vr_pool_destroy(struct vr_pool *p)
{
	while (p->slabs) {
		struct vr_slab *s = p->slabs;

		p->slabs = s->next;
		release(p, s);
	}
	p->free = NULL;
	p->used = 0;
}

const struct vr_mem *vr_piece_mem(const struct vr_piece *x)
{
	return &x->slab->mem;
}

size_t vr_piece_off(const struct vr_piece *x)
{
	return (size_t)(x->p - (char *)x->slab->mem.base);
}

uint64_t vr_piece_remote(const struct vr_piece *x)
{
	return x->slab->mem.remote + vr_piece_off(x);
}
