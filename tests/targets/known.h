/* SPDX-License-Identifier: Apache-2.0 */
/* For programs whose stacks are known: what the compiler must not change, and work to be sampled
 * at. */
#ifndef KNOWN_H
#define KNOWN_H

#include <stdint.h>
#include <stdio.h>

/* A frame of its own, called as it is written. */
#if defined(__clang__)
#define KEEP __attribute__((noinline))
#else
#define KEEP __attribute__((noinline, noclone, noipa))
#endif

#define KNOWN_INLINE static inline __attribute__((always_inline))

static volatile uint64_t sink;
static volatile int done; /* never set: loops are not endless to the compiler */

/* No call after which it stands is a tail call: the frames stay. */
KNOWN_INLINE void stay(void)
{
	sink = sink + 1;
}

/* Some microseconds of work in the function that calls it. */
KNOWN_INLINE void work(int rounds)
{
	for (int i = 0; i < rounds; i++)
		sink = sink + (uint64_t)i * 7;
}

KNOWN_INLINE void ready(void)
{
	puts("ready");
	fflush(stdout);
}

#endif
