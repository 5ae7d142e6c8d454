/* SPDX-License-Identifier: Apache-2.0 */
#include "stats.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "log.h"

struct vr_stats vr_stats;

static const char *const counter_name[] = {
#define X(sym, name, help) name,
	VR_COUNTERS(X)
#undef X
};
static const char *const gauge_name[] = {
#define X(sym, name, help) name,
	VR_GAUGES(X)
#undef X
};
static const char *const side_name[] = {"client", "server"};

static int power_of_ten(uint64_t n)
{
	while (n >= 10 && n % 10 == 0)
		n /= 10;
	return n == 1;
}

void vr_stats_reason(enum vr_side side, enum vr_reason reason)
{
	uint64_t n = atomic_fetch_add(&vr_stats.reason[side][reason], 1) + 1;

	if (power_of_ten(n))
		vr_info("%s connection on TCP: %s (%s, %llu so far)%s%s", side_name[side], vr_reason_text(reason), vr_reason_name(reason),
			(unsigned long long)n, *vr_reason_advice(reason) ? "; " : "", vr_reason_advice(reason));
}

void vr_stats_peer_reason(unsigned reason)
{
	if (reason < VR_REASON_COUNT)
		atomic_fetch_add(&vr_stats.peer_reason[reason], 1);
}

void vr_stats_reset(void)
{
	memset(&vr_stats, 0, sizeof(vr_stats));
}

static void add(char *buf, size_t size, size_t *at, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void add(char *buf, size_t size, size_t *at, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(buf + *at, size - *at, fmt, ap);
	va_end(ap);
	if (n > 0)
		*at = *at + (size_t)n < size ? *at + (size_t)n : size - 1;
}

size_t vr_stats_print(char *buf, size_t size)
{
	size_t at = 0;

	buf[0] = 0;
	for (unsigned i = 0; i < VR_CTR_COUNT; i++)
		add(buf, size, &at, "%s %llu\n", counter_name[i], (unsigned long long)atomic_load(&vr_stats.counter[i]));
	for (unsigned i = 0; i < VR_GAUGE_COUNT; i++)
		add(buf, size, &at, "%s %lld\n", gauge_name[i], (long long)atomic_load(&vr_stats.gauge[i]));
	for (unsigned s = 0; s < 2; s++)
		for (unsigned r = 1; r < VR_REASON_COUNT; r++)
			if (atomic_load(&vr_stats.reason[s][r]))
				add(buf, size, &at, "reason.%s.%s %llu\n", side_name[s], vr_reason_name(r),
				    (unsigned long long)atomic_load(&vr_stats.reason[s][r]));
	for (unsigned r = 1; r < VR_REASON_COUNT; r++)
		if (atomic_load(&vr_stats.peer_reason[r]))
			add(buf, size, &at, "reason.peer.%s %llu\n", vr_reason_name(r),
			    (unsigned long long)atomic_load(&vr_stats.peer_reason[r]));
	return at;
}
