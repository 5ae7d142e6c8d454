/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine as the preload layer sees it. Everything behind this header runs on the engine's own thread (progress
 * thread), which is started by the first TCP socket that connects or listens; libfabric is loaded by the first
 * eligible one. All functions may be called from any application thread; they block no longer than a short mutex hold
 * (signals are blocked meanwhile) unless said otherwise, and preserve errno.
 */
#ifndef VR_ENGINE_H
#define VR_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "addr.h"
#include "allowlist.h"
#include "config.h"
#include "reasons.h"
#include "stats.h"

/* True on threads of ours (engine, resolver): their calls pass through the interposer untouched. Initial-exec TLS: never allocates. */
extern _Thread_local bool vr_internal_thread __attribute__((tls_model("initial-exec")));

/* The preload layer's services for the engine: core/ calls down only, so these are handed in once. */
struct vr_host_ops {
	/* hide_fd - fd belongs to us from now on (true) or no longer (false): the application cannot close it. */
	void (*hide_fd)(int fd, bool hidden);
};

/* State shared by the engine and the wrappers of one upgraded connection. Lives until both have let go (vr_shared_put). */
struct vr_shared {
	_Atomic uint32_t refs;
	_Atomic uint32_t reset;  /* set by the engine: the connection was reset; 1 = ECONNRESET still to be told, 2 = told */
	_Atomic uint32_t abort;  /* set by the wrapper of close(): SO_LINGER {1,0}, the peer must see a reset */
	_Atomic uint32_t peer_gone; /* set by the engine: TCP would answer getpeername() with ENOTCONN */
};
struct vr_shared *vr_shared_new(void); /* refs = 1; NULL when out of memory. From a type-stable pool, no malloc. */
void vr_shared_get(struct vr_shared *s);
void vr_shared_put(struct vr_shared *s);

/* vr_engine_init - from the constructor: keep the configuration and the host's services. Starts nothing. */
void vr_engine_init(const struct vr_config *cfg, const struct vr_host_ops *ops);
/* vr_engine_config - the configuration given to vr_engine_init; never NULL afterwards. */
const struct vr_config *vr_engine_config(void);
/* vr_engine_start - make sure the allowlist is loaded and the thread runs (no libfabric yet); idempotent, cheap afterwards.
 * VR_REASON_NONE, or OFF, FORKED, INTERNAL. Reports configuration errors on its first call. May block for the read of a small file. */
enum vr_reason vr_engine_start(void);

/* vr_engine_listen - an eligible listening socket: advertise service address `local` (ip may be any). Returns an id > 0, 0 if it cannot. */
uint32_t vr_engine_listen(const struct vr_addr *local);
/* vr_engine_unlisten - the listening socket was closed (the last of its descriptors). Ids of a forked parent are ignored. */
void vr_engine_unlisten(uint32_t id);

/* vr_engine_prepare - connect() to an eligible peer has begun: start a session in the background unless one is up, starting or backing off. */
void vr_engine_prepare(const struct vr_addr *peer);

/* What vr_engine_admit grants: memory reserved for one connection. */
struct vr_ticket {
	enum vr_side side;
	enum vr_protocol protocol;
	struct vr_addr local, peer;
	uint64_t reserved;   /* bytes of the memory budget */
	uint64_t session_id; /* client: the session to use; server: 0, the peer's OPEN names it */
};
/*
 * vr_engine_admit - may this connection be swapped now? Fills *t and returns VR_REASON_NONE, or says why not. A client whose session is
 * still coming up waits for it until `deadline_ms` (CLOCK_MONOTONIC milliseconds; 0 = do not wait). The caller then calls vr_engine_attach
 * or vr_engine_cancel with the ticket.
 */
enum vr_reason vr_engine_admit(enum vr_side side, enum vr_protocol protocol, const struct vr_addr *local,
			       const struct vr_addr *peer, int64_t deadline_ms, struct vr_ticket *t);
void vr_engine_cancel(const struct vr_ticket *t);

struct vr_handover {
	int app_fd;         /* the application's number, now one end of the pair; engine uses it only through a verified dup */
	ino_t app_ino;      /* inode of the application's end */
	int pump_fd;        /* our end of the pair: nonblocking, cloexec, already hidden; the engine owns and closes it */
	int tcp_fd;         /* the TCP socket: nonblocking, cloexec, already hidden; the engine owns and closes it */
	uint64_t sent;      /* bytes of the stream the application had already written to TCP */
	uint64_t received;  /* bytes it had already read from TCP (the pair may hold more, see vr_handover.moved) */
	uint64_t moved;     /* bytes read from TCP at the swap and put into the pair for the application */
	struct vr_shared *shared; /* the engine takes its own reference */
};
/* vr_engine_attach - hand a swapped connection over; cannot fail (the connection is at least proxied over its TCP socket). */
void vr_engine_attach(const struct vr_ticket *t, const struct vr_handover *h);
/* vr_engine_declined - an accepted connection from an eligible peer stays on TCP for this reason: tell the client if it asks. */
void vr_engine_declined(const struct vr_addr *local, const struct vr_addr *peer, enum vr_reason reason);

/* vr_engine_drain - the process is about to end: deliver what the application has written, as TCP would. Blocks until every upgraded
 * connection's bytes were taken by the peer or timeout_ms passed. Called by exit, _exit and the destructor; idempotent. */
void vr_engine_drain(unsigned timeout_ms);
/* vr_engine_prefork / parent / child - pthread_atfork handlers. The child has no engine: it may only use the pairs it inherited. */
void vr_engine_prefork(void);
void vr_engine_parent(void);
void vr_engine_child(void);
/* vr_engine_pid - the process the engine belongs to. */
pid_t vr_engine_pid(void);
/* vr_engine_getenv - the value that code on our threads should see for a libfabric or rdma-core variable the user has not set
 * (FI_MR_CACHE_MONITOR=disabled...), or NULL. Pure. */
const char *vr_engine_getenv(const char *name);

#endif
