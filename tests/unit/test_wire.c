/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "check_main.h"
#include "wire.h"

START_TEST(every_message_survives_the_wire)
{
	uint8_t a[VR_MSG_HEADER + VR_MSG_MAX], b[VR_MSG_HEADER + VR_MSG_MAX];

	for (unsigned type = 1; type < VR_MSG_TYPES; type++) {
		struct vr_msg m = {.type = (uint8_t)type, .magic = VR_WIRE_MAGIC, .version = VR_WIRE_VERSION, .provider = "tcp;ofi_rxm",
				   .token = 0x1122334455667788, .addr_format = 2, .name_len = 16, .handle = 77, .ring = {1, 2, 3},
				   .credit = {4, 5, 6}, .ports = 2, .port = {4005, 4006}, .conn_id = 9, .epoch = 10, .protocol = 1,
				   .offset = 1ull << 40}, d;
		size_t n = vr_msg_encode(&m, a);

		ck_assert_int_eq(vr_msg_decode(&d, a, n), (int)n);
		ck_assert_uint_eq(vr_msg_encode(&d, b), n);
		ck_assert(!memcmp(a, b, n));
		for (size_t k = 0; k < n; k++)
			ck_assert_int_eq(vr_msg_decode(&d, a, k), 0);
	}
}
END_TEST

START_TEST(noise_is_refused_or_bounded)
{
	uint8_t a[VR_MSG_HEADER + VR_MSG_MAX];
	struct vr_msg d;

	srand(1);
	for (int i = 0; i < 200000; i++) {
		int n;

		for (size_t k = 0; k < sizeof(a); k += 1 + (size_t)(i % 7))
			a[k] = (uint8_t)rand();
		a[0] &= 3;
		a[2] = (uint8_t)(rand() % (VR_MSG_TYPES + 1));
		n = vr_msg_decode(&d, a, sizeof(a));
		ck_assert(n >= -1 && n <= (int)sizeof(a));
		ck_assert(n <= 0 || (d.name_len <= sizeof(d.name) && d.ports <= VR_HELLO_PORTS));
	}
}
END_TEST

START_TEST(records_fit)
{
	ck_assert_uint_eq(vr_record_span(0), 32);
	ck_assert_uint_eq(vr_record_span(1), 64);
	ck_assert_uint_eq(vr_record_span(32), 64);
	ck_assert_uint_eq(vr_record_span(33), 96);
}
END_TEST

CHECK_MAIN("wire", every_message_survives_the_wire, noise_is_refused_or_bounded, records_fit)
