/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

static const char *lookup(char *const *env, const char *name)
{
	size_t n = strlen(name);

	for (; env && *env; env++)
		if (!strncmp(*env, name, n) && (*env)[n] == '=')
			return *env + n + 1;
	return NULL;
}

static void bad(struct vr_config *c, const char *name, const char *value, const char *expected)
{
	size_t at = strlen(c->errors);
	char shown[81];

	snprintf(shown, sizeof(shown), "%s", value);
	for (char *p = shown; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 127)
			*p = '?';
	snprintf(c->errors + at, sizeof(c->errors) - at, "%s=%s: expected %s; the default is used\n", name, shown, expected);
}

static bool digits(const char **s, uint64_t max, uint64_t *out)
{
	const char *p = *s;
	uint64_t v = 0;

	for (; *p >= '0' && *p <= '9'; p++) {
		if (v > (max - (uint64_t)(*p - '0')) / 10)
			return false;
		v = v * 10 + (uint64_t)(*p - '0');
	}
	if (p == *s)
		return false;
	*s = p;
	*out = v;
	return true;
}

bool vr_config_parse_size(const char *s, uint64_t *out)
{
	uint64_t v;
	unsigned shift = 0;

	if (!digits(&s, UINT64_MAX, &v))
		return false;
	switch (*s | 32) {
	case 'k': shift = 10; break;
	case 'm': shift = 20; break;
	case 'g': shift = 30; break;
	default: break;
	}
	if (shift)
		s++;
	if (*s || v > UINT64_MAX >> shift)
		return false;
	*out = v << shift;
	return true;
}

static bool word(const char *v, const char *a, const char *b, const char *c, const char *d)
{
	return !strcmp(v, a) || !strcmp(v, b) || !strcmp(v, c) || !strcmp(v, d);
}

static void size_variable(struct vr_config *c, char *const *env, const char *name, uint64_t min, uint64_t max, const char *expected,
			  size_t *out)
{
	const char *v = lookup(env, name);
	uint64_t n;

	if (!v || !*v)
		return;
	if (!vr_config_parse_size(v, &n) || n < min || n > max)
		bad(c, name, v, expected);
	else
		*out = (size_t)n;
}

static void text_variable(struct vr_config *c, char *const *env, const char *name, char *out, size_t size)
{
	const char *v = lookup(env, name);

	if (!v || !*v)
		return;
	if (strlen(v) >= size)
		bad(c, name, v, "a shorter text");
	else
		strcpy(out, v);
}

void vr_config_load(struct vr_config *c, char *const *env)
{
	static const char *const levels[] = {"off", "error", "warn", "info", "debug"};
	const char *v;
	uint64_t n;

	if (!env)
		env = environ;
	memset(c, 0, sizeof(*c));
	c->on = true;
	strcpy(c->allowlist, "/etc/vortex-rdma/allowlist");
	strcpy(c->provider, "verbs;ofi_rxm");
	c->control_offset = 10;
	c->ring_size = 4u << 20;
	c->memory = 1u << 30;

	v = lookup(env, "VORTEX_RDMA");
	if (v && *v) {
		if (word(v, "off", "0", "false", "no"))
			c->on = false;
		else if (!word(v, "on", "1", "true", "yes"))
			bad(c, "VORTEX_RDMA", v, "on or off");
	}
	text_variable(c, env, "VORTEX_RDMA_ALLOWLIST", c->allowlist, sizeof(c->allowlist));
	text_variable(c, env, "VORTEX_RDMA_PROVIDER", c->provider, sizeof(c->provider));
	text_variable(c, env, "VORTEX_RDMA_LOG_FILE", c->log_file, sizeof(c->log_file));
	v = lookup(env, "VORTEX_RDMA_CONTROL_OFFSET");
	if (v && *v) {
		const char *p = *v == '-' ? v + 1 : v;

		if (digits(&p, 65535, &n) && !*p && n)
			c->control_offset = *v == '-' ? -(int)n : (int)n;
		else
			bad(c, "VORTEX_RDMA_CONTROL_OFFSET", v, "a number from -65535 to 65535, not 0");
	}
	v = lookup(env, "VORTEX_RDMA_CONNECT_WAIT_MS");
	if (v && *v) {
		const char *p = v;

		if (digits(&p, 60000, &n) && !*p)
			c->connect_wait_ms = (unsigned)n;
		else
			bad(c, "VORTEX_RDMA_CONNECT_WAIT_MS", v, "milliseconds from 0 to 60000");
	}
	size_variable(c, env, "VORTEX_RDMA_RING_SIZE", 65536, 1u << 30, "a size from 64K to 1G", &c->ring_size);
	size_variable(c, env, "VORTEX_RDMA_MEMORY", 1u << 20, 1ull << 40, "a size from 1M to 1024G", &c->memory);
	while (c->ring_size & (c->ring_size - 1))
		c->ring_size += c->ring_size & -c->ring_size; /* round up to a power of two */
	c->log_level = c->log_file[0] ? VR_LOG_INFO : VR_LOG_ERROR;
	v = lookup(env, "VORTEX_RDMA_LOG");
	if (v && *v) {
		int found = -1;

		for (int i = 0; i < 5; i++)
			if (!strcmp(v, levels[i]))
				found = i;
		if (found >= 0)
			c->log_level = found;
		else
			bad(c, "VORTEX_RDMA_LOG", v, "off, error, warn, info or debug");
	}
}
