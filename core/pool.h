/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of equal pieces of registered memory: receive rings and credit words of a session, transmit rings of a fabric. Engine thread only. */
#ifndef VR_POOL_H
#define VR_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include "fabric.h"
#include "stats.h"

struct vr_slab;
struct vr_piece {
	char *p;             /* the memory */
	struct vr_slab *slab;
	struct vr_piece *next;
};

struct vr_pool {
	struct vr_fabric *fabric;
	size_t piece, slab_size; /* bytes */
	bool remote;             /* peers may write into it */
	bool budget;             /* counts against VORTEX_RDMA_MEMORY */
	struct vr_slab *slabs;
	struct vr_piece *free;
	size_t used;             /* pieces handed out */
};

/* vr_pool_init - pieces of `piece` bytes (a power of two) for f; slabs of at least 64 KiB. Allocates nothing. */
void vr_pool_init(struct vr_pool *p, struct vr_fabric *f, size_t piece, bool remote, bool budget);
/* vr_pool_get - a piece, zero-filled only when new; NULL and *why (MEMORY_BUDGET, MEMLOCK). */
struct vr_piece *vr_pool_get(struct vr_pool *p, size_t limit, enum vr_reason *why);
void vr_pool_put(struct vr_pool *p, struct vr_piece *x);
/* vr_pool_trim - give back the slabs of which no piece is in use; true if there were any. */
bool vr_pool_trim(struct vr_pool *p);
/* vr_pool_destroy - unregister and unmap all; the caller knows that no peer can write there any more. */
void vr_pool_destroy(struct vr_pool *p);
/* vr_piece_mem - registration a piece lies in; vr_piece_off - its offset there; vr_piece_remote - the peer's address for it. */
const struct vr_mem *vr_piece_mem(const struct vr_piece *x);
size_t vr_piece_off(const struct vr_piece *x);
uint64_t vr_piece_remote(const struct vr_piece *x);

#endif
