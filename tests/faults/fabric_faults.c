/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fabric that misbehaves on request, linked into a second build of the library that only tests load. The variable
 * VORTEX_TEST_FABRIC holds words separated by commas:
 *   seed=N     of the random numbers (default 1)
 *   eagain=P   P per cent of the writes are refused with EAGAIN
 *   fail=N     the N-th write and every one after it fails with EIO
 *   lose=N     from the N-th write on, writes complete in an error some time later and never arrive
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/fabric.h"

static const struct vr_fabric_ops *below;
static unsigned eagain;
static unsigned long fail, lose, writes;
static unsigned seed = 1;
static struct { void *ctx; } lost[4096];
static unsigned lost_count;

static unsigned roll(void)
{
	seed = seed * 1103515245u + 12345u;
	return (seed >> 16) % 100;
}

static int faulty_write(struct vr_fabric *f, uint64_t peer, const struct vr_mem *m, size_t off, size_t len, uint64_t raddr, uint64_t rkey,
			uint32_t imm, void *ctx)
{
	if (eagain && roll() < eagain)
		return -EAGAIN;
	if (!ctx) /* the probe of a session */
		return below->write(f, peer, m, off, len, raddr, rkey, imm, ctx);
	writes++;
	if (fail && writes >= fail)
		return -EIO;
	if (lose && writes >= lose) {
		if (lost_count == sizeof(lost) / sizeof(lost[0]))
			return -EAGAIN;
		lost[lost_count++].ctx = ctx;
		return 0;
	}
	return below->write(f, peer, m, off, len, raddr, rkey, imm, ctx);
}

static int faulty_poll(struct vr_fabric *f, struct vr_event *ev, int max)
{
	if (lost_count && roll() < 10) {
		ev[0] = (struct vr_event){.type = VR_EVENT_ERROR, .ctx = lost[--lost_count].ctx, .err = EIO};
		return 1;
	}
	return below->poll(f, ev, max);
}

static bool faulty_may_wait(struct vr_fabric *f)
{
	return !lost_count && below->may_wait(f);
}

__attribute__((constructor)) static void install(void)
{
	static struct vr_fabric_ops ops;
	const char *what = getenv("VORTEX_TEST_FABRIC");
	char copy[256] = "", *save = NULL;

	if (!what)
		return;
	strncpy(copy, what, sizeof(copy) - 1);
	for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		char *v = strchr(w, '=');
		unsigned long n = v ? strtoul(v + 1, NULL, 10) : 0;

		if (!strncmp(w, "seed=", 5)) seed = (unsigned)n;
		else if (!strncmp(w, "eagain=", 7)) eagain = (unsigned)n;
		else if (!strncmp(w, "fail=", 5)) fail = n;
		else if (!strncmp(w, "lose=", 5)) lose = n;
	}
	below = vr_fabric_ops;
	ops = *below;
	ops.write = faulty_write;
	ops.poll = faulty_poll;
	ops.may_wait = faulty_may_wait;
	vr_fabric_ops = &ops;
}
