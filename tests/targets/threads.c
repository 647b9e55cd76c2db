// SPDX-License-Identifier: Apache-2.0
/* Two threads besides the main one: worker -> outer -> leaf. */
#include <pthread.h>

#include "known.h"

static pthread_barrier_t all;

KEEP void leaf(void)
{
	while (!done)
		work(1000);
}

KEEP void outer(void)
{
	leaf();
	stay();
}

void *worker(void *nothing)
{
	pthread_barrier_wait(&all);
	outer();
	return nothing;
}

int main(void)
{
	pthread_t threads[2];

	pthread_barrier_init(&all, NULL, 3);
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, worker, NULL);
	pthread_barrier_wait(&all);
	ready();
	pthread_join(threads[0], NULL);
	return 0;
}
