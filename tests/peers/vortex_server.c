/* SPDX-License-Identifier: Apache-2.0 */
/* vortex-server --listen ADDR:PORT --port-file FILE: serves generated pieces as dfdaemon does: edge-triggered epoll, one send of header and
 * metadata, the content by the sendfile system call itself (no libc symbol), shutdown, close. Ends on SIGTERM. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "vortex_peer.h"

struct piece { struct piece *next; uint64_t size; unsigned seed; int fd; uint32_t crc; };
struct conn { int fd; size_t got, sent, answer_len; uint8_t request[REQUEST], answer[256]; struct piece *piece; off_t off; int state; };

static struct piece *pieces;
static volatile sig_atomic_t stop;
static void on_term(int sig) { stop = sig; }

static ssize_t raw_sendfile(int out, int in, off_t *off, size_t n)
{
#if defined(__x86_64__)
	register size_t r10 __asm__("r10") = n;
	long r;

	__asm__ volatile("syscall" : "=a"(r) : "0"((long)SYS_sendfile), "D"((long)out), "S"((long)in), "d"(off), "r"(r10)
			 : "rcx", "r11", "memory");
	if (r < 0) {
		errno = (int)-r;
		return -1;
	}
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_sendfile, x0 __asm__("x0") = out, x1 __asm__("x1") = in;
	register off_t *x2 __asm__("x2") = off;
	register size_t x3 __asm__("x3") = n;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory", "cc");
	if (x0 < 0) {
		errno = (int)-x0;
		return -1;
	}
	return x0;
#else
	return syscall(SYS_sendfile, out, in, off, n);
#endif
}

static struct piece *piece_for(uint64_t size, unsigned seed)
{
	static uint8_t buf[1 << 20];
	struct piece *p;
	uint32_t x = seed * 2654435761u + 12345;

	for (p = pieces; p; p = p->next)
		if (p->size == size && p->seed == seed)
			return p;
	p = calloc(1, sizeof(*p));
	p->size = size;
	p->seed = seed;
	p->fd = memfd_create("piece", MFD_CLOEXEC);
	p->crc = (uint32_t)crc32(0, NULL, 0);
	for (uint64_t at = 0; at < size;) {
		size_t n = size - at < sizeof(buf) ? (size_t)(size - at) : sizeof(buf);

		for (size_t i = 0; i < n; i++) {
			x = x * 1664525u + 1013904223u;
			buf[i] = (uint8_t)(x >> 24);
		}
		p->crc = (uint32_t)crc32(p->crc, buf, (uInt)n);
		if (write(p->fd, buf, n) != (ssize_t)n)
			exit(3);
		at += n;
	}
	p->next = pieces;
	return pieces = p;
}

static void prepare(struct conn *c)
{
	static const char parent[] = "127.0.0.1-vortex-server-of-the-tests";
	char id[65];
	unsigned long long size;
	unsigned seed;
	uint8_t *a = c->answer, *m;
	uint32_t number;

	memcpy(id, c->request + 6, 64);
	id[64] = 0;
	c->piece = NULL;
	c->off = 0;
	c->sent = 0;
	a[0] = c->request[0];
	if (sscanf(id, "size=%llu;seed=%u;", &size, &seed) != 2) { /* Error: code, message */
		a[1] = 255;
		a[6] = 1;
		memcpy(a + 7, "unknown task", 12);
		put32(a + 2, 13);
		c->answer_len = 19;
		return;
	}
	c->piece = piece_for(size, seed);
	number = get32(c->request + 70);
	a[1] = (uint8_t)(c->request[1] + 1);
	m = a + 10;
	put32(m, number);
	put64(m + 4, (uint64_t)number * size);
	put64(m + 12, size);
	put32(m + 20, 14);
	sprintf((char *)m + 24, "crc32:%08x", c->piece->crc);
	m += 38;
	put32(m, sizeof(parent) - 1);
	memcpy(m + 4, parent, sizeof(parent) - 1);
	m += 4 + sizeof(parent) - 1;
	*m = 1; /* traffic type: remote peer */
	put64(m + 1, 7); /* cost */
	put64(m + 9, (uint64_t)time(NULL));
	m += 17;
	put32(a + 6, (uint32_t)(m - (a + 10)));
	put32(a + 2, 4 + (uint32_t)(m - (a + 10)));
	c->answer_len = (size_t)(m - a);
}

static int failed(ssize_t n) { return n < 0 && errno != EAGAIN && errno != EINTR; }

static size_t rate; /* bytes a second, 0: no limit. One thread serves all, so they share it. */
static enum { BY_SENDFILE, BY_SEND, BY_WRITEV } mode;

static ssize_t content(struct conn *c, size_t n)
{
	static uint8_t buf[256 << 10];
	ssize_t k;

	if (rate && n > rate / 20 + 1)
		n = rate / 20 + 1;
	if (mode == BY_SENDFILE) {
		k = raw_sendfile(c->fd, c->piece->fd, &c->off, n);
	} else {
		ssize_t have = pread(c->piece->fd, buf, n < sizeof(buf) ? n : sizeof(buf), c->off);
		struct iovec v[2] = {{buf, (size_t)have / 3}, {buf + have / 3, (size_t)(have - have / 3)}};

		k = mode == BY_SEND ? send(c->fd, buf, (size_t)have, MSG_NOSIGNAL) : writev(c->fd, v, 2);
		if (k > 0)
			c->off += k;
	}
	if (rate && k > 0)
		usleep((useconds_t)((double)k / (double)rate * 1e6));
	return k;
}

/* 1 goes on, 0 is over */
static int step(struct conn *c, int keep)
{
	ssize_t n;

	for (;;) {
		if (c->state == 0) {
			size_t want = c->got < 6 ? 6 - c->got : REQUEST - c->got;

			n = recv(c->fd, c->request + c->got, want, 0);
			if (n == 0 || failed(n))
				return 0;
			if (n < 0)
				return 1;
			c->got += (size_t)n;
			if (c->got < REQUEST)
				continue;
			prepare(c);
			c->state = 1;
		}
		if (c->state == 1) {
			n = send(c->fd, c->answer + c->sent, c->answer_len - c->sent, MSG_NOSIGNAL);
			if (failed(n))
				return 0;
			if (n < 0)
				return 1;
			c->sent += (size_t)n;
			if (c->sent == c->answer_len)
				c->state = 2;
			continue;
		}
		if (c->piece && (uint64_t)c->off < c->piece->size) {
			n = content(c, (size_t)(c->piece->size - (uint64_t)c->off));
			if (failed(n))
				return 0;
			if (n < 0)
				return 1;
			continue;
		}
		if (!keep) {
			shutdown(c->fd, SHUT_WR);
			return 0;
		}
		c->state = 0;
		c->got = 0;
	}
}

int main(int argc, char **argv)
{
	const char *address = "127.0.0.1:0", *port_file = NULL;
	struct sockaddr_storage ss;
	struct sigaction sa = {.sa_handler = on_term};
	socklen_t len;
	int keep = 0, one = 1, l, ep;
	struct epoll_event ev = {.events = EPOLLIN | EPOLLET}, evs[64];

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--listen"))
			address = argv[++i];
		else if (!strcmp(argv[i], "--port-file"))
			port_file = argv[++i];
		else if (!strcmp(argv[i], "--keep"))
			keep = 1; /* answers requests until the client's end */
		else if (!strcmp(argv[i], "--rate"))
			rate = (size_t)size_of(argv[++i]);
		else if (!strcmp(argv[i], "--write-mode")) {
			i++;
			mode = !strcmp(argv[i], "send") ? BY_SEND : !strcmp(argv[i], "writev") ? BY_WRITEV : BY_SENDFILE;
		} else {
			fprintf(stderr, "unknown option %s\n", argv[i]);
			return 2;
		}
	}
	signal(SIGPIPE, SIG_IGN); /* the raw sendfile has no MSG_NOSIGNAL */
	sigaction(SIGTERM, &sa, NULL);
	len = parse_address(address, &ss);
	l = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (!len || bind(l, (struct sockaddr *)&ss, len) || listen(l, 1024)) {
		perror("listen");
		return 2;
	}
	len = sizeof(ss);
	getsockname(l, (struct sockaddr *)&ss, &len);
	if (port_file) {
		FILE *f = fopen(port_file, "w");

		fprintf(f, "%d\n", ntohs(((struct sockaddr_in *)&ss)->sin_port));
		fclose(f);
	}
	ep = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev);
	while (!stop) {
		int n = epoll_wait(ep, evs, 64, 1000);

		for (int i = 0; i < n; i++) {
			struct conn *c = evs[i].data.ptr;

			if (!c) {
				int fd;

				while ((fd = accept4(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
					struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};

					c = calloc(1, sizeof(*c));
					c->fd = fd;
					e.data.ptr = c;
					epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
				}
				continue;
			}
			if (!step(c, keep)) {
				epoll_ctl(ep, EPOLL_CTL_DEL, c->fd, NULL);
				close(c->fd);
				free(c);
			}
		}
	}
	return 0;
}
