/* SPDX-License-Identifier: Apache-2.0 */
#include "vortex.h"

enum vr_sniff vr_vortex_sniff(const uint8_t *p, size_t n)
{
	static const uint8_t length[4] = {0, 0, 0, 68};

	/* the packet id, p[0], is random */
	if (n > 1 && (p[1] > 6 || (p[1] & 1)))
		return VR_SNIFF_OTHER;
	for (size_t i = 2; i < n && i < VR_VORTEX_HEADER; i++)
		if (p[i] != length[i - 2])
			return VR_SNIFF_OTHER;
	return n < VR_VORTEX_HEADER ? VR_SNIFF_MORE : VR_SNIFF_REQUEST;
}
