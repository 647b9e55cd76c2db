// SPDX-License-Identifier: Apache-2.0
/* spawner COUNT PARALLEL: starts COUNT processes, PARALLEL at a time; each execs this program
 * again, works for 5 ms of CPU time and ends, every third one by a signal. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;

__attribute__((noinline)) void work(void)
{
	struct timespec used;

	do {
		for (int i = 0; i < 10000; i++)
			sink += (uint64_t)i;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	} while (used.tv_nsec < 5000000 && used.tv_sec == 0);
}

static void start(const char *self, int number)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl(self, self, number % 3 ? "work" : "die", (char *)NULL);
		_exit(1);
	}
	if (pid < 0)
		exit(1);
}

int main(int argc, char **argv)
{
	if (argc == 2) {
		work();
		if (argv[1][0] == 'd')
			raise(SIGKILL);
		return 0;
	}
	int count = atoi(argv[1]), parallel = atoi(argv[2]), running = 0;

	for (int i = 0; i < count; i++) {
		if (running == parallel) {
			wait(NULL);
			running--;
		}
		start(argv[0], i);
		running++;
	}
	while (wait(NULL) > 0)
		;
	puts("done");
	return 0;
}
