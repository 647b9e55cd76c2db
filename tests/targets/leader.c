// SPDX-License-Identifier: Apache-2.0
/* The main thread ends; a second one says "ready" when it is gone, and burns CPU in spin. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static volatile uint64_t sink;

__attribute__((noinline)) void spin(void)
{
	for (;;)
		sink++;
}

static char leader_state(void)
{
	char line[256];
	FILE *stat = fopen("/proc/self/stat", "r");
	char state = '?';

	if (stat && fgets(line, sizeof(line), stat))
		sscanf(line, "%*d (leader) %c", &state);
	if (stat)
		fclose(stat);
	return state;
}

static void *work(void *nothing)
{
	(void)nothing;
	while (leader_state() != 'Z')
		usleep(1000);
	puts("ready");
	fflush(stdout);
	spin();
	return NULL;
}

int main(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, work, NULL);
	pthread_exit(NULL);
}
