// SPDX-License-Identifier: Apache-2.0
/* brood COUNT PARALLEL SEED: starts COUNT processes, PARALLEL at a time; each execs this program
 * again, works for up to 3 ms of CPU time in the twenty libraries step00 to step19, and ends in one
 * of the ways of `enum ending`, drawn by a generator of pseudo-random numbers. Prints COUNT at
 * the end. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* clang-format off */
#define LIBRARIES(X) \
	X(00) X(01) X(02) X(03) X(04) X(05) X(06) X(07) X(08) X(09) \
	X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19)
/* clang-format on */

#define X(n) uint64_t step##n(uint64_t);
LIBRARIES(X)
#undef X

enum ending {
	RETURN,
	EXIT_AT_ONCE,
	KILL_ITSELF,
	IS_KILLED,
	EXEC_AGAIN,
	FORK,
	LEADER_FIRST,
	ENDINGS
};

static volatile uint64_t sink;

static uint64_t next(uint64_t *state)
{
	/* xorshift64 */
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void *work(void *microseconds)
{
	struct timespec used;
	uint64_t limit = (uintptr_t)microseconds * 1000;

	do {
#define X(n) sink = step##n(sink);
		LIBRARIES(X)
#undef X
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	} while (used.tv_sec == 0 && (uint64_t)used.tv_nsec < limit);
	return NULL;
}

static int live(const char *self, uint64_t seed, int may_exec)
{
	uintptr_t microseconds = next(&seed) % 3000;
	enum ending ending = next(&seed) % ENDINGS;
	pthread_t thread;
	char again[32];

	work((void *)microseconds);
	switch (ending) {
	case EXIT_AT_ONCE:
		_exit(0);
	case KILL_ITSELF:
		raise(SIGKILL);
		break;
	case IS_KILLED:
		pause();
		break;
	case EXEC_AGAIN:
		if (!may_exec)
			return 0;
		snprintf(again, sizeof(again), "%llu", (unsigned long long)next(&seed));
		execl(self, self, "once more", again, (char *)NULL);
		_exit(1);
	case FORK:
		if (fork() == 0) {
			work((void *)(microseconds / 2));
			_exit(0);
		}
		wait(NULL);
		break;
	case LEADER_FIRST:
		if (pthread_create(&thread, NULL, work, (void *)microseconds))
			return 1;
		pthread_detach(thread);
		pthread_exit(NULL);
	default:
		break;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return live(argv[0], strtoull(argv[2], NULL, 10), !strcmp(argv[1], "live"));

	int count = atoi(argv[1]), parallel = atoi(argv[2]);
	uint64_t seed = strtoull(argv[3], NULL, 10) | 1;
	pid_t *pids = calloc((size_t)parallel, sizeof(*pids));
	char text[32];

	for (int i = 0; i < count; i++) {
		int slot = i % parallel;

		/* The oldest gives way: by itself, or, if it waits for that, by a signal. */
		if (pids[slot]) {
			struct timespec patience = {.tv_nsec = 2000000};

			if (waitpid(pids[slot], NULL, WNOHANG) == 0) {
				nanosleep(&patience, NULL);
				kill(pids[slot], SIGKILL);
				waitpid(pids[slot], NULL, 0);
			}
		}
		snprintf(text, sizeof(text), "%llu", (unsigned long long)next(&seed));
		pids[slot] = fork();
		if (pids[slot] < 0)
			return 1;
		if (pids[slot] == 0) {
			execl(argv[0], argv[0], "live", text, (char *)NULL);
			_exit(1);
		}
	}
	for (int slot = 0; slot < parallel; slot++) {
		if (pids[slot]) {
			kill(pids[slot], SIGKILL);
			waitpid(pids[slot], NULL, 0);
		}
	}
	printf("%d\n", count);
	return 0;
}
