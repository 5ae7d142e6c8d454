/* SPDX-License-Identifier: Apache-2.0 */
/* The input is an environment, one variable a line without its VORTEX_RDMA prefix: whatever it says, the configuration stays in its ranges. */
#include <string.h>

#include "config.h"
#include "fuzz.h"

#define VARS 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vr_config c;
	char *env[VARS + 1] = {0}, *text = malloc(size * 14 + 64), *at = text;
	unsigned n = 0;
	uint64_t v;

	for (size_t i = 0; i < size && n < VARS;) {
		const uint8_t *end = memchr(data + i, '\n', size - i);
		size_t len = end ? (size_t)(end - data) - i : size - i;

		env[n++] = at;
		at = stpcpy(at, "VORTEX_RDMA");
		memcpy(at, data + i, len);
		at[len] = 0;
		at += len + 1;
		i += len + 1;
	}
	vr_config_load(&c, env);
	MUST(memchr(c.allowlist, 0, sizeof(c.allowlist)) && memchr(c.provider, 0, sizeof(c.provider)) && memchr(c.log_file, 0, sizeof(c.log_file)) &&
	     memchr(c.errors, 0, sizeof(c.errors)));
	MUST(c.allowlist[0] && c.provider[0]);
	MUST(c.control_offset && c.control_offset >= -65535 && c.control_offset <= 65535);
	MUST(c.connect_wait_ms <= 60000);
	MUST(c.ring_size >= 64 << 10 && c.ring_size <= 1 << 30 && !(c.ring_size & (c.ring_size - 1)));
	MUST(c.memory >= 1 << 20 && c.memory <= 1ull << 40);
	if (n && strchr(env[0], '='))
		(void)vr_config_parse_size(strchr(env[0], '=') + 1, &v);
	free(text);
	return 0;
}
