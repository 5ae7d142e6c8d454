/* SPDX-License-Identifier: Apache-2.0 */
/* replay CORPUS: without a fuzzing engine, each file of the corpus and a fixed number of seeded mutations of it go to the target. */
#include <dirent.h>
#include <string.h>

#include "fuzz.h"

#define MUTATIONS 20000
#define MAX 8192

static uint32_t seed = 12345;

static uint32_t roll(uint32_t n)
{
	seed = seed * 1664525u + 1013904223u;
	return (seed >> 8) % n;
}

static size_t mutate(uint8_t *p, size_t n)
{
	for (uint32_t times = 1 + roll(4); times; times--) {
		size_t at = n ? roll((uint32_t)n) : 0;

		switch (roll(5)) {
		case 0: /* another byte */
			if (n)
				p[at] = (uint8_t)roll(256);
			break;
		case 1: /* a bit */
			if (n)
				p[at] ^= (uint8_t)(1u << roll(8));
			break;
		case 2: /* cut */
			n = at;
			break;
		case 3: /* a byte more */
			if (n < MAX) {
				memmove(p + at + 1, p + at, n - at);
				p[at] = (uint8_t)roll(256);
				n++;
			}
			break;
		default: { /* a stretch twice */
			size_t len = n - at < 64 ? n - at : 64;

			if (n + len <= MAX) {
				memmove(p + at + len, p + at, n - at);
				n += len;
			}
		}
		}
	}
	return n;
}

int main(int argc, char **argv)
{
	static uint8_t file[MAX], work[MAX];
	DIR *d = argc == 2 ? opendir(argv[1]) : NULL;
	struct dirent *e;
	int files = 0;

	if (!d) {
		fprintf(stderr, "usage: replay CORPUS\n");
		return 2;
	}
	while ((e = readdir(d))) {
		char path[4096];
		FILE *f;
		size_t n;

		snprintf(path, sizeof(path), "%s/%s", argv[1], e->d_name);
		if (e->d_name[0] == '.' || !(f = fopen(path, "rb")))
			continue;
		n = fread(file, 1, sizeof(file), f);
		fclose(f);
		LLVMFuzzerTestOneInput(file, n);
		for (int i = 0; i < MUTATIONS; i++) {
			uint8_t *exact; /* so that a sanitizer sees a read past the end */
			size_t m;

			memcpy(work, file, n);
			m = mutate(work, n);
			exact = malloc(m ? m : 1);
			memcpy(exact, work, m);
			LLVMFuzzerTestOneInput(exact, m);
			free(exact);
		}
		files++;
	}
	closedir(d);
	printf("%d files, %d mutations of each\n", files, MUTATIONS);
	return files ? 0 : 1;
}
