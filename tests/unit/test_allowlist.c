/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "check_main.h"
#include "allowlist.h"
#include "vortex.h"

static struct vr_addr addr(const char *ip, unsigned port)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	struct vr_addr a;

	if (inet_pton(AF_INET, ip, &in.sin_addr) == 1)
		vr_addr_from_sockaddr(&a, (struct sockaddr *)&in, sizeof(in));
	else if (inet_pton(AF_INET6, ip, &in6.sin6_addr) == 1)
		vr_addr_from_sockaddr(&a, (struct sockaddr *)&in6, sizeof(in6));
	else
		ck_abort_msg("bad address");
	return a;
}

static enum vr_protocol match(const char *text, const char *ip, unsigned port)
{
	struct vr_rules_error err;
	struct vr_rules *r = vr_rules_parse(text, strlen(text), &err);
	struct vr_addr a = addr(ip, port);
	enum vr_protocol p;

	ck_assert_msg(r != NULL, "%u:%u %s", err.line, err.column, err.text);
	p = vr_rules_match(r, &a);
	vr_rules_free(r);
	return p;
}

START_TEST(first_match_wins_and_default_denies)
{
	ck_assert_int_eq(match("", "10.0.0.1", 4005), VR_PROTO_NONE);
	ck_assert_int_eq(match("allow 10.0.0.0/8\n", "10.1.2.3", 4005), VR_PROTO_VORTEX);
	ck_assert_int_eq(match("allow 10.0.0.0/8", "11.1.2.3", 4005), VR_PROTO_NONE);
	ck_assert_int_eq(match("deny 10.0.0.1\nallow 10.0.0.0/8 # rest", "10.0.0.1", 1), VR_PROTO_NONE);
	ck_assert_int_eq(match("# c\n\nallow * port=4005,5000-5010 protocol=any\n", "9.9.9.9", 5005), VR_PROTO_ANY);
	ck_assert_int_eq(match("allow * port=4005,5000-5010\n", "9.9.9.9", 5011), VR_PROTO_NONE);
	ck_assert_int_eq(match("allow fd00::/9", "fd7f::1", 1), VR_PROTO_VORTEX);
	ck_assert_int_eq(match("allow fd00::/9", "fd80::1", 1), VR_PROTO_NONE);
	ck_assert_int_eq(match("allow ::/0", "10.0.0.1", 1), VR_PROTO_NONE);
	ck_assert_int_eq(match("allow ::/0", "2001:db8::1", 1), VR_PROTO_VORTEX);
	ck_assert_int_eq(match("allow *", "2001:db8::1", 1), VR_PROTO_VORTEX);
	ck_assert_int_eq(match("allow ::ffff:10.0.0.0/104", "10.0.0.1", 1), VR_PROTO_VORTEX);
	ck_assert_int_eq(match("allow 10.0.0.0/9", "10.128.0.0", 1), VR_PROTO_NONE);
}
END_TEST

START_TEST(an_unresolved_deny_denies_all)
{
	ck_assert_int_eq(match("deny somehost.invalid port=4005\nallow *\n", "10.0.0.1", 4005), VR_PROTO_NONE);
	ck_assert_int_eq(match("deny somehost.invalid port=4005\nallow *\n", "10.0.0.1", 4006), VR_PROTO_VORTEX);
	ck_assert_int_eq(match("allow somehost.invalid\n", "10.0.0.1", 4006), VR_PROTO_NONE);
}
END_TEST

START_TEST(errors_name_line_and_column)
{
	static const struct { const char *text; unsigned line, column; } bad[] = {
		{"allow 10.0.0.1\npermit x\n", 2, 1}, {"allow 10.0.0.0/33", 1, 16}, {"allow 10.0.0.300", 1, 7}, {"allow", 1, 6},
		{"allow * port=0", 1, 14},	      {"allow * port=5-4", 1, 16},  {"allow * port=5,,6", 1, 16}, {"allow * proto=any", 1, 9},
		{"allow h!st", 1, 8},		      {"allow * protocol=tcp", 1, 9},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct vr_rules_error err;

		ck_assert_msg(!vr_rules_parse(bad[i].text, strlen(bad[i].text), &err), "%s was accepted", bad[i].text);
		ck_assert_msg(err.line == bad[i].line && err.column == bad[i].column, "%s: %u:%u %s", bad[i].text, err.line, err.column,
			      err.text);
		ck_assert_ptr_nonnull(strstr(err.text, "expected"));
	}
}
END_TEST

START_TEST(a_nul_byte_is_no_host)
{
	struct vr_rules_error err;

	ck_assert_ptr_null(vr_rules_parse("allow *\0junk\n", 13, &err));
	ck_assert_uint_eq(err.line, 1);
}
END_TEST

START_TEST(vortex_requests_are_recognised_at_any_split)
{
	uint8_t h[6] = {77, 0, 0, 0, 0, 68};

	for (h[1] = 0; h[1] < 255; h[1]++) {
		bool request = h[1] == 0 || h[1] == 2 || h[1] == 4 || h[1] == 6;

		for (size_t n = 0; n <= 6; n++)
			ck_assert_int_eq(vr_vortex_sniff(h, n), n < 2 ? VR_SNIFF_MORE : !request ? VR_SNIFF_OTHER : n < 6 ? VR_SNIFF_MORE : VR_SNIFF_REQUEST);
	}
	h[1] = 0;
	h[5] = 69;
	ck_assert_int_eq(vr_vortex_sniff(h, 6), VR_SNIFF_OTHER);
}
END_TEST

CHECK_MAIN("allowlist", first_match_wins_and_default_denies, an_unresolved_deny_denies_all, errors_name_line_and_column, a_nul_byte_is_no_host, vortex_requests_are_recognised_at_any_split)
