// SPDX-License-Identifier: Apache-2.0
/* turns: works for 25 ms of CPU time, in a function named by -DWORK=..., for each byte that comes
 * in, and says so; ends with its standard input. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;

static uint64_t used(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

__attribute__((noinline)) void WORK(uint64_t end)
{
	while (used() < end)
		for (int i = 0; i < 100000; i++)
			sink += (uint64_t)i * 7;
	sink++; /* no tail call: the frame must stay */
}

int main(void)
{
	char byte;

	puts("ready");
	fflush(stdout);
	while (read(0, &byte, 1) == 1) {
		WORK(used() + 25000000u);
		if (write(1, &byte, 1) != 1)
			return 1;
	}
	return 0;
}
