/* SPDX-License-Identifier: Apache-2.0 */
/* Any text parses or is refused with a position inside it; what parses answers every question, and without rules nothing is allowed. */
#include <string.h>

#include "allowlist.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct vr_rules_error err = {0};
	struct vr_rules *r = vr_rules_parse((const char *)data, size, &err);
	struct vr_addr a;

	if (!r) {
		unsigned lines = 1;

		for (size_t i = 0; i < size; i++)
			lines += data[i] == '\n';
		MUST(err.line >= 1 && err.line <= lines && err.column >= 1 && err.column <= size + 1);
		MUST(memchr(err.text, 0, sizeof(err.text)) && err.text[0]);
		return 0;
	}
	for (unsigned i = 0; i < 4; i++) {
		enum vr_protocol p;

		memset(&a, 0, sizeof(a));
		if (i < 2)
			a.ip[10] = a.ip[11] = 0xff;
		for (unsigned k = 12; k < 16; k++)
			a.ip[k] = size > k ? data[k] : (uint8_t)(i * 10);
		a.port = (uint16_t)(4004 + i);
		p = vr_rules_match(r, &a);
		MUST(p == VR_PROTO_NONE || p == VR_PROTO_VORTEX || p == VR_PROTO_ANY);
		MUST(p == VR_PROTO_NONE || vr_rules_port(r, a.port)); /* what is allowed is advertised */
		MUST(p == VR_PROTO_NONE || memmem(data, size, "allow", 5));
	}
	(void)vr_rules_names(r);
	vr_rules_free(r);
	return 0;
}
