/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target is one function; a broken promise ends the process. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(x)                                                                     \
	do {                                                                        \
		if (!(x)) {                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);     \
			abort();                                                    \
		}                                                                   \
	} while (0)

#endif
