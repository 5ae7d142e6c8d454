/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The closed set of reasons why a connection stays on, or returns to, TCP.
 *
 * One line a reason: VR_REASON(NUMBER, SYMBOL, "name", "what it means", "advice").
 * Numbers are part of the wire format (REJECT and BYE carry them) and of the counters' names:
 * never reuse or renumber one, only append. docs/reasons.md is checked against this table by a test.
 */
#ifndef VR_REASONS_H
#define VR_REASONS_H

#include <stdint.h>

#define VR_REASONS(X)                                                                              \
	X(0, NONE, "none", "no reason: the connection may move", "")                               \
	X(1, OFF, "off", "VORTEX_RDMA is off", "set VORTEX_RDMA=on")                               \
	X(2, NOT_ALLOWED, "not-allowed", "the allowlist has no allow rule for this peer and port", \
	  "add a line 'allow HOST port=PORT' to the allowlist")                                    \
	X(3, NOT_VORTEX, "not-vortex", "the first bytes are no Vortex request",                    \
	  "nothing to do, or protocol=any in the allowlist rule")                                  \
	X(4, NO_SESSION, "no-session", "no session with this peer yet; one is being set up",       \
	  "VORTEX_RDMA_CONNECT_WAIT_MS makes the first connection wait for it")                    \
	X(5, NO_SHIM, "no-shim", "the peer's control port does not answer this host",              \
	  "start the peer under libvortex-rdma.so, allow this host in its allowlist, "             \
	  "open its control port in the firewall")                                                 \
	X(6, VERSION, "version", "the peer speaks another version of the protocol",                \
	  "install the same release on both hosts")                                                \
	X(7, NO_COMMON_FABRIC, "no-common-fabric", "the peer uses another provider or address format", \
	  "set the same VORTEX_RDMA_PROVIDER on both hosts")                                       \
	X(8, NO_DEVICE, "no-device", "no usable device for the provider here",                     \
	  "check `fi_info -p verbs` and `ibv_devinfo`: is a port active?")                         \
	X(9, NO_LIBFABRIC, "no-libfabric", "libfabric.so.1 could not be loaded",                   \
	  "install libfabric1")                                                                    \
	X(10, MEMLOCK, "memlock", "memory could not be registered: the locked memory limit is too small", \
	  "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=infinity)")                               \
	X(11, MEMORY_BUDGET, "memory-budget", "VORTEX_RDMA_MEMORY is used up",                     \
	  "raise VORTEX_RDMA_MEMORY or lower VORTEX_RDMA_RING_SIZE")                               \
	X(12, FD_STATE, "fd-state", "the descriptor's state is not fully known (dup, raw calls, one-shot epoll...)", \
	  "nothing to do: the connection is left alone")                                           \
	X(13, FD_BUSY, "fd-busy", "another thread is inside a call on the descriptor",             \
	  "nothing to do: the connection is left alone")                                           \
	X(14, FD_LIMIT, "fd-limit", "too few free descriptors", "raise RLIMIT_NOFILE (ulimit -n)") \
	X(15, FORKED, "forked", "this process was forked after the engine had started",            \
	  "nothing to do: forked children use TCP")                                                \
	X(16, UNREACHABLE, "fabric-unreachable", "the control connection works, the fabric does not", \
	  "check that the RDMA addresses of both hosts reach each other (rping, fi_pingpong)")     \
	X(17, SESSION_LOST, "session-lost", "the session ended while the connection was on it",    \
	  "see the peer's log")                                                                    \
	X(18, PEER_DECLINED, "peer-declined", "the peer left this connection on TCP", "see the peer's counters") \
	X(19, NOT_ESTABLISHED, "not-established", "the TCP connection is not (or no longer) established", \
	  "nothing to do")                                                                         \
	X(20, SOCKET_OPTION, "socket-option", "an option is set that an upgraded socket cannot honour", \
	  "nothing to do: the connection is left alone")                                           \
	X(21, INTERNAL, "internal", "the engine could not be started or ran into an error of its own", \
	  "see the log; please report it")                                                         \
	X(22, CONTROL_PORT, "control-port", "the control port could not be opened here",           \
	  "another program holds it: choose another VORTEX_RDMA_CONTROL_OFFSET on all hosts")      \
	X(23, FABRIC_FAILED, "fabric-failed", "the fabric failed in mid-stream; the connection was reset", \
	  "see the log of both hosts")                                                             \
	X(24, CLOSED_EARLY, "closed-early", "closed before its first bytes told what it carries", "nothing to do")

enum vr_reason {
#define X(n, sym, name, text, advice) VR_REASON_##sym = (n),
	VR_REASONS(X)
#undef X
	VR_REASON_COUNT
};

/* vr_reason_name - the short name of a reason ("no-shim"); "unknown" for a number not in the table. */
const char *vr_reason_name(unsigned reason);
/* vr_reason_text - one sentence on what the reason means; never NULL. */
const char *vr_reason_text(unsigned reason);
/* vr_reason_advice - what an operator can do about it; may be "", never NULL. */
const char *vr_reason_advice(unsigned reason);

#endif
