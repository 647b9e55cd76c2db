// SPDX-License-Identifier: Apache-2.0
/* hostile NAME MS: gives itself and a thread that it starts the name NAME (hexadecimal digits),
 * says "ready", and both burn MS of CPU time in busy. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "known.h"

static char name[16];
static double milliseconds;

KEEP void busy(double wanted)
{
	struct timespec used;

	do {
		work(10000);
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	} while ((double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6 < wanted);
	stay();
}

static void *run(void *unused)
{
	prctl(PR_SET_NAME, name);
	busy(milliseconds);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 3)
		return 1;
	for (size_t i = 0; i < strlen(argv[1]) / 2 && i < sizeof(name) - 1; i++) {
		char digits[3] = {argv[1][2 * i], argv[1][2 * i + 1], 0};

		name[i] = (char)strtol(digits, NULL, 16);
	}
	milliseconds = atof(argv[2]);
	prctl(PR_SET_NAME, name);
	ready();
	if (pthread_create(&thread, NULL, run, NULL))
		return 1;
	run(NULL);
	return pthread_join(thread, NULL);
}
