/* SPDX-License-Identifier: Apache-2.0 */
#include "reasons.h"

#include <stddef.h>

static const struct { const char *name, *text, *advice; } table[VR_REASON_COUNT] = {
#define X(n, sym, name, text, advice) [n] = {name, text, advice},
	VR_REASONS(X)
#undef X
};

static int known(unsigned r)
{
	return r < VR_REASON_COUNT && table[r].name;
}

const char *vr_reason_name(unsigned reason)
{
	return known(reason) ? table[reason].name : "unknown";
}

const char *vr_reason_text(unsigned reason)
{
	return known(reason) ? table[reason].text : "a reason that this release does not know";
}

const char *vr_reason_advice(unsigned reason)
{
	return known(reason) ? table[reason].advice : "";
}
