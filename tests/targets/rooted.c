// SPDX-License-Identifier: Apache-2.0
/* rooted MS: says "ready", then burns MS of CPU time in rooted_busy of a library that it is linked
 * with (plugin.c, -DNAME=rooted). */
#include <stdlib.h>
#include <time.h>

#include "known.h"

void rooted_busy(volatile unsigned *left);

static double cpu_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
	double end = cpu_ms() + (argc > 1 ? atof(argv[1]) : 0);

	ready();
	while (cpu_ms() < end) {
		volatile unsigned left = 20000;

		rooted_busy(&left);
	}
	return 0;
}
