// SPDX-License-Identifier: Apache-2.0
/* What harnesses share: a check that stops, and a main function for where there is no libFuzzer. */
#ifndef PYPROF_FUZZ_H
#define PYPROF_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "not so: %s\n", #condition);                               \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef FUZZ_MAIN
/* Without libFuzzer: each file as it is, then with a few bytes changed at random, always the same
 * ones. Usage: PROGRAM TURNS FILE... */

#define MAX_INPUT 65536

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

int main(int argc, char **argv)
{
	static uint8_t original[MAX_INPUT], changed[MAX_INPUT];
	uint64_t random = 88172645463325252ull;
	int turns = argc > 1 ? atoi(argv[1]) : 0;

	for (int i = 2; i < argc; i++) {
		FILE *file = fopen(argv[i], "rb");
		size_t size = file ? fread(original, 1, sizeof(original), file) : 0;

		CHECK(file && size);
		fclose(file);
		LLVMFuzzerTestOneInput(original, size);
		for (int turn = 0; turn < turns; turn++) {
			memcpy(changed, original, size);
			for (uint64_t n = 1 + next_random(&random) % 8; n; n--)
				changed[next_random(&random) % size] =
				    (uint8_t)next_random(&random);
			LLVMFuzzerTestOneInput(changed,
					       size - next_random(&random) % (size / 4 + 1));
		}
	}
	return 0;
}
#endif

#endif
