/* SPDX-License-Identifier: Apache-2.0 */
/* vortex-client --connect ADDR:PORT --pieces N --concurrency N --sizes A,B,...: fetches pieces, one connection each, half-closes before the
 * content as dfdaemon does, checks length and CRC32 of every piece and that end of file follows; one JSON line at the end. */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "vortex_peer.h"

static const char *address = "127.0.0.1:4005";
static int pieces = 1, tag, split, unknown, nonblocking = 1, half_close = 1, delay_ms;
static uint64_t sizes[64] = {4 << 20};
static int nsizes = 1;
static size_t read_size = 512 << 10;
static uint64_t rate;
static _Atomic int next_piece, ok, errors;
static _Atomic uint64_t bytes;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int wait_for(int fd, short what)
{
	struct pollfd p = {fd, what, 0};

	return poll(&p, 1, 30000) == 1 ? 0 : -1;
}

static ssize_t get(int fd, void *p, size_t n)
{
	for (;;) {
		ssize_t k = recv(fd, p, n, 0);

		if (k < 0 && errno == EAGAIN && !wait_for(fd, POLLIN))
			continue;
		return k;
	}
}

static int get_all(int fd, uint8_t *p, size_t n)
{
	while (n) {
		ssize_t k = get(fd, p, n);

		if (k <= 0)
			return -1;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

static int put_all(int fd, const uint8_t *p, size_t n)
{
	while (n) {
		size_t part = split && (size_t)split < n ? (size_t)split : n;
		ssize_t k = send(fd, p, part, MSG_NOSIGNAL);

		if (k < 0 && errno == EAGAIN && !wait_for(fd, POLLOUT))
			continue;
		if (k <= 0)
			return -1;
		p += k;
		n -= (size_t)k;
		if (split)
			usleep(1000);
	}
	return 0;
}

static const char *fetch(int number, uint8_t *buf)
{
	uint64_t size = sizes[number % nsizes], got = 0;
	uint8_t request[REQUEST] = {0}, answer[512];
	struct sockaddr_storage ss;
	socklen_t len = parse_address(address, &ss);
	const char *why = NULL;
	uint32_t crc = (uint32_t)crc32(0, NULL, 0), n;
	char want[16];
	int one = 1, fd, err = 0;
	double start = now();

	fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0);
	if (connect(fd, (struct sockaddr *)&ss, len)) {
		socklen_t l = sizeof(err);

		if (errno != EINPROGRESS || wait_for(fd, POLLOUT) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &l) || err) {
			close(fd);
			return "connect";
		}
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	request[0] = (uint8_t)number;
	request[1] = (uint8_t)tag;
	put32(request + 2, 68);
	snprintf((char *)request + 6, 64, unknown ? "nothing" : "size=%llu;seed=%d;", (unsigned long long)size, number % 7);
	put32(request + 70, (uint32_t)number);
	if (put_all(fd, request, REQUEST)) {
		why = "request";
	} else if (get_all(fd, answer, 6)) {
		why = "header";
	} else if ((n = get32(answer + 2)) > 400 || get_all(fd, answer + 6, n)) {
		why = "metadata";
	} else if (unknown) {
		why = answer[1] == 255 ? NULL : "expected an Error answer";
	} else if (answer[1] != tag + 1 || get64(answer + 14) != size) {
		why = "wrong answer";
	} else {
		if (half_close)
			shutdown(fd, SHUT_WR);
		while (!why) {
			size_t room = size - got < read_size ? (size_t)(size - got) : read_size;
			ssize_t k = get(fd, buf, room ? room : 1);

			if (k == 0)
				break;
			if (k < 0 || room == 0) {
				why = k < 0 ? strerror(errno) : "more than promised";
				break;
			}
			crc = (uint32_t)crc32(crc, buf, (uInt)k);
			got += (uint64_t)k;
			bytes += (uint64_t)k;
			if (rate) {
				double ahead = (double)got / (double)rate - (now() - start);

				if (ahead > 0)
					usleep((useconds_t)(ahead * 1e6));
			}
			if (got == size && !half_close)
				break;
		}
		snprintf(want, sizeof(want), "%08x", crc);
		if (!why && got != size)
			why = "too short";
		else if (!why && memcmp(answer + 32, want, 8))
			why = "CRC";
	}
	close(fd);
	return why;
}

static void *worker(void *arg)
{
	uint8_t *buf = malloc(read_size);
	int n;

	while ((n = next_piece++) < pieces) {
		const char *why = fetch(n, buf);

		if (why) {
			fprintf(stderr, "piece %d: %s\n", n, why);
			errors++;
		} else {
			ok++;
		}
		if (delay_ms)
			usleep((useconds_t)delay_ms * 1000);
	}
	free(buf);
	return arg;
}

static uint64_t size_of(const char *s)
{
	char *end;
	uint64_t v = strtoull(s, &end, 10);

	return v << (*end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0);
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
