/* SPDX-License-Identifier: Apache-2.0 */
/* A verdict on the first bytes never changes when more come, and only the four request headers are requests. */
#include "fuzz.h"
#include "vortex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum vr_sniff before = VR_SNIFF_MORE;

	for (size_t n = 0; n <= size && n <= 16; n++) {
		enum vr_sniff now = vr_vortex_sniff(data, n);

		MUST(before == VR_SNIFF_MORE || now == before);
		MUST(n < VR_VORTEX_HEADER || now != VR_SNIFF_MORE);
		MUST(now != VR_SNIFF_REQUEST || (n >= VR_VORTEX_HEADER && data[1] <= 6 && data[1] % 2 == 0 && data[2] == 0 && data[3] == 0 &&
						 data[4] == 0 && data[5] == 68));
		before = now;
	}
	return 0;
}
