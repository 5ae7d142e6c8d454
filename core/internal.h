/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine's files share: the engine, sessions, connections. Engine thread only, except where `engine.lock` is named. */
#ifndef VR_INTERNAL_H
#define VR_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine.h"
#include "pool.h"
#include "wire.h"

enum vr_io_kind { VR_IO_WAKE, VR_IO_FABRIC, VR_IO_CTL, VR_IO_CTL_CLIENT, VR_IO_LISTENER, VR_IO_SESSION, VR_IO_PUMP, VR_IO_TCP };
struct vr_io { /* what an epoll event points at */
	enum vr_io_kind kind;
	void *owner;
};

struct vr_endpoint { /* a fabric endpoint and what belongs to it */
	struct vr_endpoint *next;
	struct vr_addr local; /* the address it was opened for */
	struct vr_fabric *fabric;
	struct vr_pool tx;    /* transmit rings */
	struct vr_pool words; /* what credits and probes are written from */
	struct vr_io io;
	uint64_t writes;   /* posted and not completed */
};

struct vr_peer { /* what a client remembers of a service address; never freed, guarded by engine.lock */
	struct vr_peer *next;
	struct vr_addr addr;
	enum { VR_PEER_IDLE, VR_PEER_WANTED, VR_PEER_TRYING, VR_PEER_UP, VR_PEER_FAILED } state;
	enum vr_reason reason; /* FAILED: why */
	int64_t retry_at;
	unsigned backoff_ms;
	uint64_t session_id;
};

enum vr_session_state { VR_SESSION_CONNECTING, VR_SESSION_HELLO, VR_SESSION_PROBING, VR_SESSION_UP, VR_SESSION_DEAD };
struct vr_session {
	struct vr_session *next;
	uint64_t id;
	enum vr_side side;
	enum vr_session_state state;
	int fd;
	struct vr_io io;
	struct vr_addr peer_ip;   /* of the control connection */
	struct vr_peer *peer;     /* client */
	uint16_t service_port;    /* server: the port this control listener stands for */
	struct vr_endpoint *ep;
	uint64_t fabric_peer;
	struct vr_pool rings, words;
	uint64_t ring_size;       /* the smaller of both sides' */
	struct vr_piece *probe_word, *probe_source;
	uint32_t probe_handle;    /* ours */
	struct vr_msg hello;      /* the peer's */
	bool probe_sent, probe_seen, ready_sent, ready_seen;
	int64_t deadline, last_heard, last_sent, idle_since, free_at;
	uint64_t ping_seq, pong_seq;
	uint8_t in[VR_MSG_HEADER + VR_MSG_MAX];
	size_t in_len;
	uint8_t *out;
	size_t out_len, out_cap;
	unsigned conns;           /* connections bound to it */
};

struct vr_conn {
	struct vr_conn *next, *prev;
	struct vr_conn *run_next;
	bool queued, zombie, attached;
	uint32_t handle;
	struct vr_session *session; /* NULL: unmatched or the session died */
	enum vr_side side;
	enum vr_protocol protocol;
	struct vr_addr local, peer;
	uint32_t id, epoch;
	uint64_t reserved;
	struct vr_shared *shared;
	int app_fd, pump_fd, tcp_fd;
	ino_t app_ino;
	struct vr_io pump_io, tcp_io;
	bool p_in, p_out, h_in, h_out, p_hup, h_eof, h_err; /* readiness, edge-triggered */
	bool matched;      /* the peer swapped its end too: ends are announced, TCP's EOF alone is none */
	bool peer_done, done_sent, reset, app_gone;
	bool ended;        /* both directions are over or the connection was reset */
	int64_t gone_at;
	uint64_t barrier;  /* PING sequence after which a missing FIN means the peer died; 0 none */
	uint32_t peer_handle;
	bool peer_handle_known;
	struct {
		bool fabric, eof, fin_queued, done, tried;
		uint64_t off;                   /* stream offset of the next byte */
		uint8_t *left; size_t left_off, left_len; /* TCP mode: read from the application, not yet written */
		struct vr_piece *ring;
		struct vr_piece *word;          /* where the peer writes its credit */
		struct vr_wire_window to;       /* the peer's ring */
		uint64_t head, posted, credit;  /* ring positions, monotonic */
		uint32_t seq;
		unsigned writes;                /* of records and credits: posted, not completed */
	} out;
	struct {
		bool fabric, fin, eof_told, done, offered;
		uint64_t off;                   /* stream offset of the next byte to take */
		uint64_t fin_off;
		uint8_t *left; size_t left_off, left_len; /* TCP mode: read from TCP, not yet given to the application */
		struct vr_piece *ring;
		uint64_t size;                  /* of the ring */
		struct vr_piece *word;          /* what our credit is written from */
		struct vr_wire_window credit;   /* where to write our credit */
		uint64_t pos, credited;         /* ring positions */
		uint32_t arrived, seq, part;    /* records announced, next sequence, bytes taken of the current one */
		bool credit_due;
	} in;
};

struct vr_listener {
	struct vr_listener *next;
	uint32_t id;
	struct vr_addr local;
	int fd;
	bool closing, opened;
	struct vr_io io;
};

struct vr_declined {
	struct vr_addr local, peer;
	uint16_t reason;
	int64_t until;
};

struct vr_engine {
	pthread_mutex_t lock; /* guards the fields up to the blank line */
	pthread_cond_t changed;
	bool started, failed, forked;
	struct vr_peer *peers;
	struct vr_handover_item *inbox;
	struct vr_listener *listeners;
	uint64_t reserved; /* bytes of the memory budget promised to connections */
	struct vr_up { uint64_t id; enum vr_side side; struct vr_addr ip; uint16_t port; struct vr_up *next; } *up; /* sessions that are up */
	struct vr_declined declined[64];
	unsigned declined_at;
	bool drain_wanted, drained;
	uint32_t next_listener;

	pid_t pid;
	pthread_t thread;
	struct vr_config cfg;
	const struct vr_host_ops *host;
	int epoll, wake;
	uint64_t token, next_session;
	struct vr_endpoint *endpoints;
	struct vr_session *sessions;
	struct vr_conn *conns, *run, *zombies;
	bool urgent; /* run holds more than connections whose write the fabric refused for now */
	bool draining;
	enum vr_reason no_fabric; /* sticky until fabric_retry_at */
	int64_t fabric_retry_at;
};
extern struct vr_engine vr_engine;

/* engine.c */
void vr_engine_watch(int fd, struct vr_io *io, uint32_t events);
void vr_engine_hide(int fd, bool hidden);
int vr_engine_close(int fd); /* unhide and close; returns -1 for assignment */
struct vr_endpoint *vr_endpoint_for(const struct vr_addr *local, enum vr_reason *why);
uint32_t vr_handle_new(void *owner, bool session); /* 0 when the table is full */
void *vr_handle_get(uint32_t handle, bool session); /* NULL: gone, of another generation or kind */
void vr_handle_free(uint32_t handle);

/* vr_ring_get - a ring; idle memory of other sessions is given back first when the budget is used up. NULL and *why. */
struct vr_piece *vr_ring_get(struct vr_pool *p, enum vr_reason *why);

/* session.c */
void vr_session_poll(int64_t now);                 /* start what is wanted, time-outs, heartbeats */
void vr_session_event(struct vr_session *s, uint32_t events);
void vr_session_accept(struct vr_listener *l);
void vr_session_listeners(void);                   /* open and close control listeners as asked */
void vr_session_send(struct vr_session *s, const struct vr_msg *m);
void vr_session_probe_seen(struct vr_session *s);
void vr_session_fail(struct vr_session *s, enum vr_reason why);
uint64_t vr_session_ping(struct vr_session *s);

/* conn.c */
struct vr_conn *vr_conn_attach(const struct vr_ticket *t, const struct vr_handover *h);
void vr_conn_message(struct vr_session *s, const struct vr_msg *m);
void vr_conn_queue(struct vr_conn *c);
void vr_conn_queue_retry(struct vr_conn *c);       /* the fabric said EAGAIN: again after a completion or a moment */
void vr_conn_reset(struct vr_conn *c, bool tell_peer); /* the application sees ECONNRESET */
void vr_conn_end_check(struct vr_conn *c);         /* over, and nobody writes any more: free it */
void vr_conn_finish_check(struct vr_conn *c);      /* both directions done? */
struct vr_wire_window vr_conn_offer_ring(struct vr_conn *c); /* size 0: no memory */
void vr_conn_say_fin(struct vr_conn *c);           /* announce an end that TCP carries */
void vr_conn_write_done(struct vr_conn *c, int err);
void vr_conn_session_lost(struct vr_session *s);   /* before s is freed */
void vr_conn_pong(struct vr_session *s);
void vr_conn_poll(int64_t now);
void vr_conn_free_zombies(void);

/* pump.c */
void vr_conn_run(struct vr_conn *c);               /* move what can be moved */
void vr_conn_credit(struct vr_conn *c);            /* a credit word was written */

/* ctl.c */
void vr_ctl_open(void);
void vr_ctl_event(struct vr_io *io, uint32_t events);

#endif
