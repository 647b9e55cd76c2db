// SPDX-License-Identifier: Apache-2.0
/* brief COUNT PARALLEL: starts COUNT processes, PARALLEL at a time; each execs this program again
 * and lives for 30 ms of CPU time in main -> outer -> middle -> leaf. */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "known.h"

KEEP void leaf(void)
{
	work(10000);
}

KEEP void middle(void)
{
	struct timespec used;

	do {
		leaf();
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	} while (used.tv_nsec < 30000000 && used.tv_sec == 0);
}

KEEP void outer(void)
{
	middle();
	stay();
}

KEEP void start(const char *self)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl(self, "brief", "child", (char *)NULL);
		_exit(1);
	}
	if (pid < 0)
		exit(1);
}

int main(int argc, char **argv)
{
	int running = 0;

	if (argc < 3) {
		outer();
		return 0;
	}
	for (int i = 0; i < atoi(argv[1]); i++) {
		if (running == atoi(argv[2])) {
			wait(NULL);
			running--;
		}
		start(argv[0]);
		running++;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
