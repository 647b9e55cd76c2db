// SPDX-License-Identifier: Apache-2.0
/* Two programs from one source, with their functions at the same addresses: built with -DNAME=alpha
 * and -DNAME=omega, at a fixed address.
 * NAME ROUNDS MS [OTHER]: says name, pid and where its function lies; burns MS of CPU time in
 * NAME_busy; then ROUNDS more times execs OTHER, which does the same and execs back. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "known.h"

#define PASTE(a, b)   a##b
#define EXPAND(a, b)  PASTE(a, b)
#define QUOTE(text)   #text
#define TEXT_OF(name) QUOTE(name)
#define BUSY	      EXPAND(NAME, _busy)

static double cpu_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

KEEP void BUSY(double ms)
{
	double end = cpu_ms() + ms;

	while (cpu_ms() < end)
		work(20000);
	stay();
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[1]) : 0;
	char left[16];

	if (argc < 3)
		return 2;
	printf("%s %d %p\n", TEXT_OF(NAME), getpid(), (void *)BUSY);
	fflush(stdout);
	BUSY(atof(argv[2]));
	if (rounds == 0 || argc < 4)
		return 0;
	snprintf(left, sizeof(left), "%d", rounds - 1);
	execl(argv[3], argv[3], left, argv[2], argv[0], (char *)NULL);
	return 1;
}
