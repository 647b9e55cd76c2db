// SPDX-License-Identifier: Apache-2.0
/* Frames of every kind, one a mode; each says "ready" when it is about to work, and works until it
 * is killed. frames chain        main -> outer -> middle -> leaf frames deep N       main ->
 * recurse, N times -> leaf frames varying      main -> varying, with an alloca that changes ->
 * inner frames sparse       main -> sparse, with 16 KiB of locals that it does not touch -> inner
 * frames large        main -> large, with 64 KiB of locals -> inner
 * frames huge         main -> huge, with 1 MiB of locals -> inner
 * frames realigned    main -> realigned, with 64-byte alignment and an alloca -> inner
 * frames jumping      main -> jumping -> before -> jump, which leaves by longjmp
 * frames clock        main -> clock, which reads the time
 * frames sort         main -> sort -> qsort -> compare */
#include <alloca.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "known.h"

#define ESCAPES(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

KEEP void leaf(void)
{
	while (!done)
		work(1000);
}

KEEP void middle(void)
{
	leaf();
	stay();
}

KEEP void outer(void)
{
	middle();
	stay();
}

KEEP void recurse(int depth)
{
	if (depth > 1)
		recurse(depth - 1);
	else
		leaf();
	stay();
}

KEEP void inner(char *at)
{
	ESCAPES(at);
	*at = (char)sink;
	work(1000);
}

KEEP void varying(unsigned size)
{
	char *at = alloca(size);

	inner(at);
	work(100);
}

KEEP void sparse(void)
{
	char at[16384];

	inner(at);
	work(100);
	ESCAPES(at);
}

KEEP void large(void)
{
	char at[65536];

	inner(at);
	work(100);
	ESCAPES(at);
}

KEEP void huge(void)
{
	char at[1 << 20];

	inner(at);
	work(100);
	ESCAPES(at);
}

KEEP void realigned(unsigned size)
{
	_Alignas(64) char at[128];
	char *more = alloca(size);

	ESCAPES(more);
	inner(at);
	work(100);
	inner(more);
}

static jmp_buf target;

KEEP void jump(void)
{
	work(10);
	longjmp(target, 1);
}

KEEP void before(void)
{
	jump();
	stay();
}

KEEP void jumping(void)
{
	if (!setjmp(target))
		before();
	work(10);
}

KEEP void read_clock(void)
{
	struct timespec now;

	while (!done) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		sink = sink + (uint64_t)now.tv_nsec;
	}
}

KEEP int compare(const void *left, const void *right)
{
	work(20);
	return *(const int *)left - *(const int *)right;
}

KEEP void sort(void)
{
	int numbers[64];

	for (int i = 0; i < 64; i++)
		numbers[i] = i * 37 % 64;
	qsort(numbers, 64, sizeof(int), compare);
	stay();
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "chain";

	ready();
	if (!strcmp(mode, "chain"))
		outer();
	else if (!strcmp(mode, "deep"))
		recurse(atoi(argv[2]));
	else if (!strcmp(mode, "clock"))
		read_clock();
	for (unsigned i = 0; !done; i++) {
		if (!strcmp(mode, "varying"))
			varying(i % 5000 + 1);
		else if (!strcmp(mode, "sparse"))
			sparse();
		else if (!strcmp(mode, "large"))
			large();
		else if (!strcmp(mode, "huge"))
			huge();
		else if (!strcmp(mode, "realigned"))
			realigned(i % 5000 + 1);
		else if (!strcmp(mode, "jumping"))
			jumping();
		else if (!strcmp(mode, "sort"))
			sort();
		else
			return 1;
	}
	return 0;
}
