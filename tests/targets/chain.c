// SPDX-License-Identifier: Apache-2.0
/* A known call chain: main -> a -> b -> c, all of the time spent in c.
 * chain          burns CPU in c
 * chain syscall  makes system calls in c
 * Says "ready" when in c, ends when its standard input does. */
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t sink;

/* Inline, so that c itself is the leaf: libc's wrapper has no frame pointer. */
static inline long getppid_inline(void)
{
#if defined(__x86_64__)
	long ret;

	__asm__ volatile("syscall" : "=a"(ret) : "a"(SYS_getppid) : "rcx", "r11", "memory");
	return ret;
#else
	return syscall(SYS_getppid);
#endif
}

static volatile sig_atomic_t done;

static void stop(int number)
{
	(void)number;
	done = 1;
}

__attribute__((noinline)) void c(int calls)
{
	while (!done) {
		if (calls)
			sink += (uint64_t)getppid_inline();
		else
			for (int i = 0; i < 100000; i++)
				sink += (uint64_t)i * 7;
	}
	sink++; /* no tail call anywhere: the frames must stay */
}

__attribute__((noinline)) void b(int calls)
{
	c(calls);
	sink++;
}

__attribute__((noinline)) void a(int calls)
{
	b(calls);
	sink++;
}

int main(int argc, char **argv)
{
	signal(SIGTERM, stop);
	puts("ready");
	fflush(stdout);
	a(argc > 1 && !strcmp(argv[1], "syscall"));
	return 0;
}
