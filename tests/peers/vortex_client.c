/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vortex-client --connect ADDR:PORT --pieces N --concurrency N --sizes A,B,...: fetches pieces as dfdaemon does. Edge-triggered epoll, registered
 * right after connect() said EINPROGRESS and through a copy of the epoll descriptor; a short read means "wait for an edge", as in
 * tokio; the write half is shut down before the content is read. Checks number, length and CRC32 of every piece and that the
 * connection then ends. One connection a piece, or --requests-per-connection N (the server then runs with --keep). One JSON line at the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "vortex_peer.h"

static const char *address = "127.0.0.1:4005";
static int pieces = 1, tag, split, unknown, nonblocking = 1, half_close = 1, delay_ms, requests = 1, timeout_ms = 60000;
static uint64_t sizes[64] = {4 << 20};
static int nsizes = 1;
static size_t read_size = 512 << 10;
static uint64_t rate;
static _Atomic int next_piece, ok, errors;
static _Atomic uint64_t bytes;

struct stream {
	int fd, ep, reg;        /* reg: the copy of ep by which fd was registered */
	int readable, writable; /* cleared by EAGAIN and by short reads and writes, set by edges */
	int closed;             /* no edge follows the last one: from then on it stays readable */
	uint8_t *buf;
	double start;
	uint64_t taken;         /* of content, for the rate */
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Wait until *flag is set by an edge; -1 with ETIMEDOUT. */
static int ready(struct stream *s, const int *flag)
{
	double until = now() + timeout_ms / 1000.0;

	while (!*flag) {
		struct epoll_event e;
		double left = until - now();
		int n = left > 0 ? epoll_wait(s->ep, &e, 1, (int)(left * 1000) + 1) : 0;

		if (n < 0 && errno != EINTR)
			return -1;
		if (n == 0) {
			errno = ETIMEDOUT;
			return -1;
		}
		if (n == 1) {
			s->closed |= (e.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
			s->readable |= s->closed || (e.events & EPOLLIN);
			s->writable |= (e.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
		}
	}
	return 0;
}

static ssize_t get(struct stream *s, void *p, size_t n)
{
	for (;;) {
		ssize_t k;

		if (nonblocking && ready(s, &s->readable))
			return -1;
		k = recv(s->fd, p, n, 0);
		if (k < 0 && errno == EAGAIN && nonblocking) {
			s->readable = 0;
			continue;
		}
		if (k > 0 && (size_t)k < n)
			s->readable = s->closed;
		return k;
	}
}

static int get_all(struct stream *s, uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = get(s, p, n);

		if (k <= 0)
			return -1;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

static int put_all(struct stream *s, const uint8_t *p, size_t n)
{
	while (n) {
		size_t part = split && (size_t)split < n ? (size_t)split : n;
		ssize_t k;

		if (nonblocking && ready(s, &s->writable))
			return -1;
		k = send(s->fd, p, part, MSG_NOSIGNAL);
		if (k < 0 && errno == EAGAIN && nonblocking) {
			s->writable = 0;
			continue;
		}
		if (k <= 0)
			return -1;
		if ((size_t)k < part)
			s->writable = 0;
		p += k;
		n -= (size_t)k;
		if (split)
			usleep(1000);
	}
	return 0;
}

static const char *content(struct stream *s, uint64_t size, const char *digest)
{
	uint32_t crc = (uint32_t)crc32(0, NULL, 0);
	char want[16];

	for (uint64_t got = 0; got < size;) {
		ssize_t k = get(s, s->buf, size - got < read_size ? (size_t)(size - got) : read_size);
		double ahead;

		if (k <= 0)
			return k == 0 ? "too short" : strerror(errno);
		crc = (uint32_t)crc32(crc, s->buf, (uInt)k);
		got += (uint64_t)k;
		bytes += (uint64_t)k;
		s->taken += (uint64_t)k;
		ahead = rate ? (double)s->taken / (double)rate - (now() - s->start) : 0;
		if (ahead > 0)
			usleep((useconds_t)(ahead * 1e6));
	}
	snprintf(want, sizeof(want), "crc32:%08x", crc);
	return memcmp(digest, want, 14) ? "CRC" : NULL;
}

/* One request and its answer. last: shut the write half down before the content, as dfdaemon does. */
static const char *fetch(struct stream *s, int number, int last)
{
	uint64_t size = sizes[number % nsizes];
	uint8_t request[REQUEST] = {0}, header[6], meta[4 + META_MAX];
	uint32_t n;

	request[0] = (uint8_t)number;
	request[1] = (uint8_t)tag;
	put32(request + 2, 68);
	snprintf((char *)request + 6, 64, unknown ? "nothing" : "size=%llu;seed=%d;", (unsigned long long)size, number % 7);
	put32(request + 70, (uint32_t)number);
	if (put_all(s, request, REQUEST))
		return "request";
	if (get_all(s, header, 6))
		return strerror(errno);
	n = get32(header + 2);
	if (unknown)
		return n >= 1 && n <= META_MAX && !get_all(s, meta, n) && header[1] == 255 ? NULL : "expected an Error answer";
	if (header[1] != tag + 1 || n < 4 + META_MIN || n > 4 + META_MAX)
		return "header";
	if (get_all(s, meta, 4) || get32(meta) != n - 4 || get_all(s, meta + 4, n - 4))
		return "metadata";
	if (get32(meta + 4) != (uint32_t)number || get64(meta + 16) != size || get32(meta + 24) != 14)
		return "wrong metadata";
	if (last && half_close)
		shutdown(s->fd, SHUT_WR);
	return content(s, size, (char *)meta + 28);
}

static const char *open_stream(struct stream *s)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
	struct sockaddr_storage ss;
	socklen_t len = parse_address(address, &ss), l = sizeof(int);
	int one = 1, err = 0;

	s->fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0);
	s->readable = s->writable = !nonblocking;
	s->closed = 0;
	s->taken = 0;
	s->start = now();
	if (connect(s->fd, (struct sockaddr *)&ss, len) && errno != EINPROGRESS)
		return "connect";
	if (nonblocking && (epoll_ctl(s->reg, EPOLL_CTL_ADD, s->fd, &e) || ready(s, &s->writable) ||
			    getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &l) || err))
		return "connect";
	setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(s->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
	return NULL;
}

/* The server ends the connection once it has answered; one that keeps it ends it after our shutdown. */
static const char *expect_end(struct stream *s)
{
	uint8_t b;
	ssize_t k;

	if (!half_close)
		shutdown(s->fd, SHUT_WR);
	k = get(s, &b, 1);
	return k == 0 ? NULL : k > 0 ? "more than promised" : strerror(errno);
}

static void connection(struct stream *s, int first)
{
	const char *why = open_stream(s);
	int many = pieces - first < requests ? pieces - first : requests;

	for (int i = 0; i < many; i++) {
		if (!why)
			why = fetch(s, first + i, i == many - 1);
		if (!why && i == many - 1)
			why = expect_end(s);
		if (why)
			fprintf(stderr, "piece %d: %s\n", first + i, why);
		why ? errors++ : ok++;
	}
	if (s->fd >= 0) {
		if (nonblocking)
			epoll_ctl(s->reg, EPOLL_CTL_DEL, s->fd, NULL);
		close(s->fd);
	}
}

static void *worker(void *arg)
{
	struct stream s = {.buf = malloc(read_size), .ep = epoll_create1(EPOLL_CLOEXEC)};
	int n;

	s.reg = fcntl(s.ep, F_DUPFD_CLOEXEC, 0);
	while ((n = atomic_fetch_add(&next_piece, requests)) < pieces) {
		connection(&s, n);
		if (delay_ms)
			usleep((useconds_t)delay_ms * 1000);
	}
	close(s.reg);
	close(s.ep);
	free(s.buf);
	return arg;
}

int main(int argc, char **argv)
{
	int threads = 1;
	pthread_t t[512];
	double start, s;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";

		if (!strcmp(a, "--blocking")) { nonblocking = 0; continue; }
		if (!strcmp(a, "--unknown")) { unknown = 1; continue; }
		if (!strcmp(a, "--no-half-close")) { half_close = 0; continue; }
		i++;
		if (!strcmp(a, "--connect")) address = v;
		else if (!strcmp(a, "--pieces")) pieces = atoi(v);
		else if (!strcmp(a, "--concurrency")) threads = atoi(v);
		else if (!strcmp(a, "--split")) split = atoi(v);
		else if (!strcmp(a, "--delay-ms")) delay_ms = atoi(v);
		else if (!strcmp(a, "--timeout-ms")) timeout_ms = atoi(v);
		else if (!strcmp(a, "--requests-per-connection")) requests = atoi(v);
		else if (!strcmp(a, "--read-size")) read_size = (size_t)size_of(v);
		else if (!strcmp(a, "--rate")) rate = size_of(v);
		else if (!strcmp(a, "--kind"))
			tag = !strcmp(v, "piece") ? 0 : !strcmp(v, "persistent") ? 2 : !strcmp(v, "persistent-cache") ? 4 : 6;
		else if (!strcmp(a, "--size") || !strcmp(a, "--sizes")) {
			char *copy = strdup(v), *save = NULL;

			nsizes = 0;
			for (char *w = strtok_r(copy, ",", &save); w && nsizes < 64; w = strtok_r(NULL, ",", &save))
				sizes[nsizes++] = size_of(w);
			free(copy);
		} else {
			fprintf(stderr, "unknown option %s\n", a);
			return 2;
		}
	}
	if (threads > 512)
		threads = 512;
	start = now();
	for (int i = 0; i < threads; i++)
		pthread_create(&t[i], NULL, worker, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], NULL);
	s = now() - start;
	printf("{\"pieces\":%d,\"ok\":%d,\"errors\":%d,\"bytes\":%llu,\"seconds\":%.3f,\"pieces_per_s\":%.1f,\"mb_per_s\":%.1f}\n", pieces, ok,
	       errors, (unsigned long long)bytes, s, pieces / s, (double)bytes / s / 1e6);
	return ok == pieces ? 0 : 1;
}
