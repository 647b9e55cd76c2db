// SPDX-License-Identifier: Apache-2.0
/* depth N: burns CPU on every processor, N frames below main; one process a processor. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static volatile uint64_t sink;

__attribute__((noinline)) static void descend(int left)
{
	volatile char pad[48];

	pad[0] = (char)left;
	if (left > 0)
		descend(left - 1);
	else
		for (;;)
			sink++;
	sink += (uint64_t)pad[0];
}

int main(int argc, char **argv)
{
	int depth = argc > 1 ? atoi(argv[1]) : 10;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	for (long i = 1; i < processors; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			descend(depth);
		}
	puts("ready");
	fflush(stdout);
	descend(depth);
	return 0;
}
