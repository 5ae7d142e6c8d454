/* SPDX-License-Identifier: Apache-2.0 */
#include "allowlist.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "stats.h"
#include "util.h"

#define RANGES 32      /* port ranges in one rule */
#define ADDRESSES 16   /* addresses kept of one host name */
#define FILE_MAX (1u << 20)

struct rule {
	bool allow, resolved;
	bool v4;                /* an IPv4 block, or * : IPv6 blocks never cover mapped IPv4 addresses */
	enum vr_protocol protocol;
	char name[256];         /* a host name; "" for an address block */
	uint8_t ip[16];
	unsigned bits;          /* of the mapped address, 0..128 */
	uint8_t address[ADDRESSES][16];
	unsigned addresses;
	struct { uint16_t lo, hi; } range[RANGES];
	unsigned ranges;        /* 0: every port */
};

struct vr_rules {
	size_t count;
	struct rule rule[];
};

/* ---- parsing ---- */

struct line {
	const char *start, *p, *end;
	unsigned number;
	struct vr_rules_error *err;
};

static bool fail(struct line *l, const char *at, const char *expected)
{
	size_t n = 0;

	while (at + n < l->end && n < 40 && at[n] != ' ' && at[n] != '\t' && at[n] != '#')
		n++;
	l->err->line = l->number;
	l->err->column = (unsigned)(at - l->start) + 1;
	if (n)
		snprintf(l->err->text, sizeof(l->err->text), "found '%.*s', expected %s", (int)n, at, expected);
	else
		snprintf(l->err->text, sizeof(l->err->text), "found the end of the line, expected %s", expected);
	return false;
}

static size_t next_word(struct line *l, const char **w)
{
	while (l->p < l->end && (*l->p == ' ' || *l->p == '\t' || *l->p == '\r'))
		l->p++;
	*w = l->p;
	while (l->p < l->end && *l->p != ' ' && *l->p != '\t' && *l->p != '\r')
		l->p++;
	return (size_t)(l->p - *w);
}

static bool parse_number(const char **p, const char *end, unsigned max, unsigned *out)
{
	unsigned v = 0;
	const char *s = *p;

	while (*p < end && **p >= '0' && **p <= '9') {
		v = v * 10 + (unsigned)(**p - '0');
		if (v > max)
			return false;
		++*p;
	}
	*out = v;
	return *p > s;
}

static bool parse_host(struct line *l, struct rule *r, const char *w, size_t n)
{
	char host[256], *slash;
	unsigned bits, max;

	if (n == 0 || n >= sizeof(host) || memchr(w, 0, n))
		return fail(l, w, "an address, an address block, a host name or *");
	memcpy(host, w, n);
	host[n] = 0;
	if (!strcmp(host, "*")) {
		r->v4 = true; /* bits 0: everything */
		return true;
	}
	slash = strchr(host, '/');
	if (slash)
		*slash = 0;
	r->ip[10] = r->ip[11] = 0xff;
	if (inet_pton(AF_INET, host, r->ip + 12) == 1) {
		max = 32;
		r->v4 = true;
	} else if (inet_pton(AF_INET6, host, r->ip) == 1) {
		max = 128;
	} else {
		memset(r->ip, 0, sizeof(r->ip));
		for (const char *c = host; *c; c++)
			if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.' || *c == '-' || *c == '_'))
				return fail(l, w + (c - host), "an address, an address block, a host name or *");
		/* digits and dots only are a mistyped address, not a name */
		if (slash || strspn(host, "0123456789.") == strlen(host))
			return fail(l, w, "an IPv4 or IPv6 address");
		snprintf(r->name, sizeof(r->name), "%s", host);
		return true;
	}
	bits = max;
	if (slash) {
		const char *p = w + (slash - host) + 1;

		if (!parse_number(&p, w + n, max, &bits) || p != w + n)
			return fail(l, w + (slash - host) + 1, max == 32 ? "a prefix length from 0 to 32" : "a prefix length from 0 to 128");
	}
	r->bits = max == 32 ? bits + 96 : bits;
	return true;
}

static bool parse_ports(struct line *l, struct rule *r, const char *p, const char *end)
{
	for (;;) {
		const char *at = p;
		unsigned lo, hi;

		if (!parse_number(&p, end, 65535, &lo) || lo == 0)
			return fail(l, at, "a port from 1 to 65535");
		hi = lo;
		if (p < end && *p == '-') {
			at = ++p;
			if (!parse_number(&p, end, 65535, &hi) || hi < lo)
				return fail(l, at, "the end of a port range, not below its start");
		}
		if (r->ranges == RANGES)
			return fail(l, at, "at most 32 ports or ranges in a rule");
		r->range[r->ranges].lo = (uint16_t)lo;
		r->range[r->ranges++].hi = (uint16_t)hi;
		if (p == end)
			return true;
		if (*p++ != ',')
			return fail(l, p - 1, "a comma or the end of the list of ports");
	}
}

/* 1 a rule, 0 an empty line, -1 an error */
static int parse_line(struct line *l, struct rule *r)
{
	const char *w;
	size_t n;

	memset(r, 0, sizeof(*r));
	r->protocol = VR_PROTO_VORTEX;
	n = next_word(l, &w);
	if (n == 0)
		return 0;
	if (n == 5 && !memcmp(w, "allow", 5))
		r->allow = true;
	else if (!(n == 4 && !memcmp(w, "deny", 4)))
		return fail(l, w, "allow or deny") - 1;
	n = next_word(l, &w);
	if (!parse_host(l, r, w, n))
		return -1;
	while ((n = next_word(l, &w)) > 0) {
		if (n > 5 && !memcmp(w, "port=", 5)) {
			if (!parse_ports(l, r, w + 5, w + n))
				return -1;
		} else if (n == 15 && !memcmp(w, "protocol=vortex", 15)) {
			r->protocol = VR_PROTO_VORTEX;
		} else if (n == 12 && !memcmp(w, "protocol=any", 12)) {
			r->protocol = VR_PROTO_ANY;
		} else {
			return fail(l, w, "port=LIST or protocol=vortex|any") - 1;
		}
	}
	return 1;
}

struct vr_rules *vr_rules_parse(const char *text, size_t len, struct vr_rules_error *err)
{
	struct vr_rules *set = calloc(1, sizeof(*set));
	const char *end = text + len;
	size_t room = 0;
	unsigned number = 0;

	memset(err, 0, sizeof(*err));
	while (set && text < end) {
		const char *nl = memchr(text, '\n', (size_t)(end - text)), *stop = nl ? nl : end;
		const char *hash = memchr(text, '#', (size_t)(stop - text));
		struct line l = {text, text, hash ? hash : stop, ++number, err};
		struct rule r;
		int k = parse_line(&l, &r);

		if (k < 0) {
			free(set);
			return NULL;
		}
		if (k > 0) {
			if (set->count == room) {
				struct vr_rules *more;

				room = room * 2 + 8;
				more = realloc(set, sizeof(*set) + room * sizeof(r));
				if (!more) {
					free(set);
					set = NULL;
					break;
				}
				set = more;
			}
			set->rule[set->count++] = r;
		}
		text = nl ? nl + 1 : end;
	}
	if (!set)
		snprintf(err->text, sizeof(err->text), "out of memory");
	return set;
}

void vr_rules_free(struct vr_rules *r)
{
	free(r);
}

/* ---- matching ---- */

static bool is_mapped(const uint8_t *ip)
{
	struct vr_addr a;

	memcpy(a.ip, ip, sizeof(a.ip));
	return vr_addr_is_v4(&a);
}

static bool in_block(const uint8_t *ip, const uint8_t *block, unsigned bits)
{
	unsigned whole = bits / 8, rest = bits % 8;

	return !memcmp(ip, block, whole) && (!rest || !((ip[whole] ^ block[whole]) & (uint8_t)(0xff << (8 - rest))));
}

static bool port_in(const struct rule *r, unsigned port)
{
	for (unsigned i = 0; i < r->ranges; i++)
		if (port >= r->range[i].lo && port <= r->range[i].hi)
			return true;
	return r->ranges == 0;
}

static bool host_in(const struct rule *r, const uint8_t *ip)
{
	if (!r->name[0])
		return in_block(ip, r->ip, r->bits) && (r->v4 || r->bits >= 96 || !is_mapped(ip));
	if (!r->resolved && !r->allow)
		return true; /* whom it denies is not known yet: the safe side */
	for (unsigned i = 0; i < r->addresses; i++)
		if (!memcmp(r->address[i], ip, 16))
			return true;
	return false;
}

enum vr_protocol vr_rules_match(const struct vr_rules *r, const struct vr_addr *a)
{
	for (size_t i = 0; r && i < r->count; i++)
		if (port_in(&r->rule[i], a->port) && host_in(&r->rule[i], a->ip))
			return r->rule[i].allow ? r->rule[i].protocol : VR_PROTO_NONE;
	return VR_PROTO_NONE;
}

bool vr_rules_port(const struct vr_rules *r, unsigned port)
{
	for (size_t i = 0; r && i < r->count; i++) {
		const struct rule *k = &r->rule[i];

		if (!port_in(k, port))
			continue;
		if (k->allow)
			return true;
		if (!k->name[0] && k->bits == 0 && k->v4)
			return false; /* deny * : nothing after it counts */
	}
	return false;
}

size_t vr_rules_names(const struct vr_rules *r)
{
	size_t n = 0;

	for (size_t i = 0; r && i < r->count; i++)
		n += r->rule[i].name[0] != 0;
	return n;
}

struct vr_rules *vr_rules_resolve(const struct vr_rules *r)
{
	size_t size = sizeof(*r) + r->count * sizeof(struct rule);
	struct vr_rules *n = malloc(size);

	if (!n)
		return NULL;
	memcpy(n, r, size);
	for (size_t i = 0; i < n->count; i++) {
		struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
		struct rule *k = &n->rule[i];
		unsigned found = 0;

		if (!k->name[0] || getaddrinfo(k->name, NULL, &hints, &list))
			continue;
		for (struct addrinfo *a = list; a && found < ADDRESSES; a = a->ai_next) {
			struct vr_addr v;

			if (vr_addr_from_sockaddr(&v, a->ai_addr, a->ai_addrlen))
				memcpy(k->address[found++], v.ip, 16);
		}
		freeaddrinfo(list);
		if (found) {
			k->addresses = found;
			k->resolved = true;
		}
	}
	return n;
}

/* ---- the list in force ---- */

static _Atomic(struct vr_rules *) live;
static _Atomic unsigned readers;
static pthread_mutex_t writer = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and publishing */
static bool loaded;
static unsigned generation; /* of the published set: a freed set's address may come again */
static char file[4096];
static struct { bool exists; dev_t dev; ino_t ino; off_t size; struct timespec mtime; } seen;

/* Readers announce themselves before they load the pointer, so once none is announced after the exchange, none can hold the old set. */
static void publish(struct vr_rules *r)
{
	struct vr_rules *old = atomic_exchange(&live, r);

	generation++;
	while (old && atomic_load(&readers))
		usleep(100);
	vr_rules_free(old);
}

/* True when new rules (or none, for a vanished file) were put in force. */
static bool read_file(bool first)
{
	bool fresh = false;
	struct vr_rules_error err;
	struct vr_rules *r;
	struct stat st;
	char *text;
	ssize_t n = -1;
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* not to wait for a FIFO's writer: this may be in connect() */

	memset(&seen, 0, sizeof(seen));
	if (fd >= 0 && !fstat(fd, &st) && !S_ISREG(st.st_mode)) {
		close(fd);
		fd = -1;
		errno = EINVAL; /* a FIFO, a device, a folder */
	}
	if (fd < 0 || fstat(fd, &st)) {
		if (fd >= 0)
			close(fd);
		if (errno != ENOENT)
			vr_err("%s: %s: nothing is upgraded", file, strerror(errno));
		else
			vr_info("%s: no such file: nothing is upgraded", file);
		publish(NULL);
		return true;
	}
	seen.exists = true;
	seen.dev = st.st_dev;
	seen.ino = st.st_ino;
	seen.size = st.st_size;
	seen.mtime = st.st_mtim;
	text = malloc(FILE_MAX + 1);
	if (text) {
		size_t have = 0;

		while ((n = read(fd, text + have, FILE_MAX + 1 - have)) > 0)
			have += (size_t)n;
		if (n == 0)
			n = (ssize_t)have;
	}
	close(fd);
	if (n < 0 || n > (ssize_t)FILE_MAX) {
		vr_err("%s: cannot be read or is larger than 1 MiB: %s", file, first ? "nothing is upgraded" : "the last good rules stay in force");
	} else if (!(r = vr_rules_parse(text, (size_t)n, &err))) {
		vr_err("%s:%u:%u: %s; %s", file, err.line, err.column, err.text,
		       first ? "nothing is upgraded" : "the last good rules stay in force");
	} else {
		publish(r);
		fresh = true;
		if (!first)
			vr_count(VR_CTR_ALLOWLIST_RELOADS, 1);
	}
	free(text);
	return fresh;
}

void vr_allowlist_load(const char *path)
{
	int saved = errno;
	sigset_t set;

	vr_lock(&writer, &set);
	if (!loaded) {
		snprintf(file, sizeof(file), "%s", path);
		read_file(true);
		loaded = true;
	}
	vr_unlock(&writer, &set);
	errno = saved;
}

bool vr_allowlist_poll(void)
{
	struct stat st;
	bool there, changed, fresh = false;
	sigset_t set;

	vr_lock(&writer, &set);
	there = loaded && !stat(file, &st);
	changed = loaded && (there != seen.exists || (there && (st.st_dev != seen.dev || st.st_ino != seen.ino || st.st_size != seen.size ||
								st.st_mtim.tv_sec != seen.mtime.tv_sec ||
								st.st_mtim.tv_nsec != seen.mtime.tv_nsec)));
	if (changed)
		fresh = read_file(false);
	vr_unlock(&writer, &set);
	return fresh;
}

enum vr_protocol vr_allowlist_match(const struct vr_addr *a)
{
	enum vr_protocol p;

	atomic_fetch_add(&readers, 1);
	p = vr_rules_match(atomic_load(&live), a);
	atomic_fetch_sub(&readers, 1);
	return p;
}

bool vr_allowlist_port(unsigned port)
{
	bool ok;

	atomic_fetch_add(&readers, 1);
	ok = vr_rules_port(atomic_load(&live), port);
	atomic_fetch_sub(&readers, 1);
	return ok;
}

size_t vr_allowlist_names(void)
{
	size_t n;

	atomic_fetch_add(&readers, 1);
	n = vr_rules_names(atomic_load(&live));
	atomic_fetch_sub(&readers, 1);
	return n;
}

void vr_allowlist_resolve(void)
{
	struct vr_rules *copy = NULL, *from, *done;
	unsigned gen;
	sigset_t set;

	/* Resolve a copy: getaddrinfo may take long, and neither readers nor a reload may wait for it. */
	vr_lock(&writer, &set);
	from = atomic_load(&live);
	gen = generation;
	if (from && vr_rules_names(from) && (copy = malloc(sizeof(*from) + from->count * sizeof(struct rule))))
		memcpy(copy, from, sizeof(*from) + from->count * sizeof(struct rule));
	vr_unlock(&writer, &set);
	done = copy ? vr_rules_resolve(copy) : NULL;
	free(copy);
	if (!done)
		return;
	vr_lock(&writer, &set);
	if (generation == gen)
		publish(done);
	else
		vr_rules_free(done);
	vr_unlock(&writer, &set);
}

void vr_allowlist_child(void)
{
	pthread_mutex_init(&writer, NULL);
	atomic_store(&readers, 0);
}
