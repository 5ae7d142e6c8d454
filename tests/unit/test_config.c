/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check_main.h"
#include "config.h"
#include "log.h"

START_TEST(defaults)
{
	static struct vr_config c;

	vr_config_load(&c, (char *[]){NULL});
	ck_assert(c.on);
	ck_assert_str_eq(c.allowlist, "/etc/vortex-rdma/allowlist");
	ck_assert_str_eq(c.provider, "verbs;ofi_rxm");
	ck_assert_int_eq(c.control_offset, 10);
	ck_assert_uint_eq(c.ring_size, 4 << 20);
	ck_assert_uint_eq(c.memory, 1 << 30);
	ck_assert_int_eq(c.log_level, VR_LOG_ERROR);
	ck_assert_str_eq(c.errors, "");
}
END_TEST

START_TEST(values_and_errors)
{
	static struct vr_config c;

	vr_config_load(&c, (char *[]){"VORTEX_RDMA_MEMORY=1\n2", NULL});
	ck_assert_ptr_eq(strchr(c.errors, '\n'), c.errors + strlen(c.errors) - 1);
	vr_config_load(&c, (char *[]){"VORTEX_RDMA=off", "VORTEX_RDMA_RING_SIZE=100K", "VORTEX_RDMA_MEMORY=2g", "VORTEX_RDMA_LOG_FILE=/x",
				      "VORTEX_RDMA_CONTROL_OFFSET=-5", "VORTEX_RDMA_CONNECT_WAIT_MS=70000", NULL});
	ck_assert(!c.on);
	ck_assert_uint_eq(c.ring_size, 128 << 10);
	ck_assert_uint_eq(c.memory, 2ull << 30);
	ck_assert_int_eq(c.control_offset, -5);
	ck_assert_uint_eq(c.connect_wait_ms, 0);
	ck_assert_int_eq(c.log_level, VR_LOG_INFO);
	ck_assert_ptr_nonnull(strstr(c.errors, "VORTEX_RDMA_CONNECT_WAIT_MS=70000: expected"));
	ck_assert_ptr_eq(strchr(c.errors, '\n'), c.errors + strlen(c.errors) - 1);
}
END_TEST

START_TEST(sizes)
{
	uint64_t v;

	ck_assert(vr_config_parse_size("64K", &v) && v == 65536);
	ck_assert(vr_config_parse_size("3", &v) && v == 3);
	ck_assert(!vr_config_parse_size("", &v));
	ck_assert(!vr_config_parse_size("4X", &v));
	ck_assert(!vr_config_parse_size("4MB", &v));
	ck_assert(!vr_config_parse_size("-4", &v));
	ck_assert(!vr_config_parse_size("99999999999999999999", &v));
	ck_assert(!vr_config_parse_size("17179869184G", &v));
}
END_TEST

CHECK_MAIN("config", defaults, values_and_errors, sizes)
