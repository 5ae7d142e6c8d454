/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever arrives on a control connection is refused or stays within bounds, and a message that was understood survives being sent on. */
#include <string.h>

#include "fuzz.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t a[VR_MSG_HEADER + VR_MSG_MAX], b[VR_MSG_HEADER + VR_MSG_MAX];
	size_t at = 0;

	while (at < size) {
		struct vr_msg m, again;
		int k = vr_msg_decode(&m, data + at, size - at);
		size_t n;

		if (k <= 0)
			break;
		MUST((size_t)k <= size - at && k >= VR_MSG_HEADER);
		at += (size_t)k;
		if (m.type == 0 || m.type >= VR_MSG_TYPES)
			continue;
		MUST(m.name_len <= sizeof(m.name) && m.ports <= VR_HELLO_PORTS && memchr(m.provider, 0, sizeof(m.provider)));
		n = vr_msg_encode(&m, a);
		MUST(n <= sizeof(a));
		MUST(vr_msg_decode(&again, a, n) == (int)n);
		MUST(vr_msg_encode(&again, b) == n && !memcmp(a, b, n));
	}
	return 0;
}
