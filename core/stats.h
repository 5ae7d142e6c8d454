/* SPDX-License-Identifier: Apache-2.0 */
/* Counters: one list, relaxed atomics, readable at any time. `vortexctl stats` prints them by these names. */
#ifndef VR_STATS_H
#define VR_STATS_H

#include <stdatomic.h>
#include <stdint.h>
#include <stddef.h>
#include "reasons.h"

/* X(symbol, "name", "help"); gauges may fall, counters never do. */
#define VR_COUNTERS(X)                                                                       \
	X(CONNECTIONS, "connections_seen", "TCP connections to or from eligible peers")      \
	X(UPGRADED, "connections_upgraded", "connections whose descriptor was swapped and that agreed with the peer") \
	X(SWAPPED, "connections_swapped", "connections whose descriptor was swapped")        \
	X(CLOSED, "connections_closed", "swapped connections that have ended")               \
	X(RESETS, "connections_reset", "swapped connections that ended in a reset")          \
	X(FABRIC_TX, "fabric_bytes_sent", "application bytes written into peers' rings")     \
	X(FABRIC_RX, "fabric_bytes_received", "application bytes taken from our rings")      \
	X(TCP_TX, "tcp_bytes_sent", "application bytes of swapped connections sent over TCP") \
	X(TCP_RX, "tcp_bytes_received", "application bytes of swapped connections received over TCP") \
	X(FABRIC_WRITES, "fabric_writes", "RDMA writes posted")                              \
	X(CREDITS_TX, "credits_sent", "credit updates sent")                                 \
	X(CREDITS_RX, "credits_received", "credit updates received")                         \
	X(SESSIONS_OPENED, "sessions_opened", "sessions that came up")                       \
	X(SESSIONS_FAILED, "sessions_failed", "attempts that did not come up")               \
	X(SESSIONS_CLOSED, "sessions_closed", "sessions that came up and have ended")        \
	X(CONTROL_CONNECTS, "control_connects", "control connections tried")                 \
	X(CONTROL_ACCEPTS, "control_accepts", "control connections accepted")                \
	X(PROTOCOL_ERRORS, "protocol_errors", "malformed or impossible messages from peers") \
	X(LATE_COMPLETIONS, "late_completions", "fabric events for connections already gone") \
	X(ALLOWLIST_RELOADS, "allowlist_reloads", "times a changed allowlist was put in force")

#define VR_GAUGES(X)                                                                         \
	X(OPEN, "connections_open", "swapped connections now")                               \
	X(SESSIONS, "sessions_open", "sessions now up")                                      \
	X(RINGS_RX, "rings_rx", "receive rings in use")                                      \
	X(RINGS_TX, "rings_tx", "transmit rings in use")                                     \
	X(MEMORY, "memory_bytes", "bytes of VORTEX_RDMA_MEMORY in use (slabs)")              \
	X(REGISTRATIONS, "registrations", "memory registrations now")                        \
	X(HIDDEN_FDS, "hidden_fds", "descriptors of ours that the application does not see") \
	X(LISTENERS, "control_listeners", "control listeners now")

enum vr_counter {
#define X(sym, name, help) VR_CTR_##sym,
	VR_COUNTERS(X)
#undef X
	VR_CTR_COUNT
};
enum vr_gauge {
#define X(sym, name, help) VR_GAUGE_##sym,
	VR_GAUGES(X)
#undef X
	VR_GAUGE_COUNT
};
enum vr_side { VR_SIDE_CLIENT, VR_SIDE_SERVER };

struct vr_stats {
	_Atomic uint64_t counter[VR_CTR_COUNT];
	_Atomic int64_t gauge[VR_GAUGE_COUNT];
	_Atomic uint64_t reason[2][VR_REASON_COUNT];  /* by our side of the connection: [client/server] */
	_Atomic uint64_t peer_reason[VR_REASON_COUNT]; /* reasons that peers gave in REJECT */
};
extern struct vr_stats vr_stats;

static inline void vr_count(enum vr_counter c, uint64_t n)
{
	atomic_fetch_add_explicit(&vr_stats.counter[c], n, memory_order_relaxed);
}
static inline void vr_gauge(enum vr_gauge g, int64_t d)
{
	atomic_fetch_add_explicit(&vr_stats.gauge[g], d, memory_order_relaxed);
}
/* vr_stats_reason - count a connection of ours that stays on or returns to TCP, and log it once in a while (1st, 10th, 100th... of its kind). Any thread. */
void vr_stats_reason(enum vr_side side, enum vr_reason reason);
/* vr_stats_peer_reason - count a reason that a peer gave. */
void vr_stats_peer_reason(unsigned reason);
/* vr_stats_reset - zero all (forked child, tests). */
void vr_stats_reset(void);
/*
 * vr_stats_print - the text form of the stats protocol, lines "key value\n" ("connections_upgraded 12", "reason.client.no-shim 3",
 * "reason.peer.memory-budget 1"; zero reasons are left out). Returns the length written (< size), always NUL-terminated.
 */
size_t vr_stats_print(char *buf, size_t size);

#endif
