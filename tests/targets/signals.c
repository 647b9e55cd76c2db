// SPDX-License-Identifier: Apache-2.0
/* A signal handler that works: main -> outer -> victim, which has no frame, then the handler ->
 * handled. signals        on the stack of what was interrupted signals alt    on a stack of its own
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "known.h"

KEEP void handled(void)
{
	work(20000);
}

void handler(int number)
{
	(void)number;
	handled();
	stay();
}

KEEP void victim(void)
{
	while (!done)
		stay();
}

KEEP void outer(void)
{
	victim();
	stay();
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = handler};
	struct itimerval often = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000};

	if (argc > 1 && !strcmp(argv[1], "alt")) {
		stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};

		sigaltstack(&stack, NULL);
		action.sa_flags = SA_ONSTACK;
	}
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	ready();
	outer();
	return 0;
}
