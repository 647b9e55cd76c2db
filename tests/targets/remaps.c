// SPDX-License-Identifier: Apache-2.0
/* remaps SCENE ROUNDS MS ALPHA OMEGA LOW BUSY HIGH: maps the libraries ALPHA and OMEGA (plugin.c)
 * at one address in turn, in the way of a scene, and burns MS of CPU time in a function of what is
 * mapped. LOW, BUSY and HIGH are where the functions lie in the files.
 *
 * Which function runs is told by the caller: below call_alpha_busy runs alpha_busy, whatever the
 * address. Each call is also printed: its name and the address. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "known.h"

typedef void part(volatile unsigned *left);
typedef void caller(const char *at);

static double ms;
static const char *paths[2];
static int files[2];
static size_t size, low, busy, high;
static size_t page;

static double cpu_ms(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

#define CALLER(name)                                                                               \
	KEEP void call_##name(const char *at)                                                      \
	{                                                                                          \
		double end = cpu_ms() + ms;                                                        \
                                                                                                   \
		printf(#name " %p\n", (const void *)at);                                           \
		do {                                                                               \
			volatile unsigned left = 20000;                                            \
                                                                                                   \
			((part *)(uintptr_t)at)(&left);                                            \
		} while (cpu_ms() < end);                                                          \
		stay();                                                                            \
	}

CALLER(alpha_low)
CALLER(alpha_busy)
CALLER(alpha_high)
CALLER(omega_low)
CALLER(omega_busy)
CALLER(omega_high)
CALLER(copied)

static caller *const callers[2] = {call_alpha_busy, call_omega_busy};

static void check(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static char *map(int which, char *at, int protection)
{
	int fixed = at ? MAP_FIXED : 0;
	char *got = mmap(at, size, protection, MAP_PRIVATE | fixed, files[which], 0);

	check(got != MAP_FAILED, "mmap");
	return got;
}

/* Addresses for a library, with nothing there. */
static char *reserve(void)
{
	char *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(at != MAP_FAILED, "mmap");
	return at;
}

static void scene_dlopen(int round)
{
	void *library = dlopen(paths[round & 1], RTLD_NOW | RTLD_LOCAL);

	check(library != NULL, "dlopen");
	callers[round & 1](dlsym(library, round & 1 ? "omega_busy" : "alpha_busy"));
	dlclose(library);
}

/* Mapped over what was there. */
static void scene_fixed(int round)
{
	static char *at;

	if (!at)
		at = reserve();
	map(round & 1, at, PROT_READ | PROT_EXEC);
	callers[round & 1](at + busy);
}

/* Mapped to be read, and made executable afterwards. */
static void scene_mprotect(int round)
{
	static char *at;

	if (!at)
		at = reserve();
	map(round & 1, at, PROT_READ);
	check(mprotect(at, size, PROT_READ | PROT_EXEC) == 0, "mprotect");
	callers[round & 1](at + busy);
}

/* Moved to where the other one was before it was unmapped. */
static void scene_mremap(int round)
{
	static char *at;
	char *from = map(round & 1, NULL, PROT_READ | PROT_EXEC);

	if (!at)
		at = reserve();
	callers[round & 1](from + busy);
	check(munmap(at, size) == 0, "munmap");
	check(mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at, "mremap");
	callers[round & 1](at + busy);
}

/* Moved on and on, to where nothing was. */
static void scene_moves(int round)
{
	static char *at;
	char *to = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (round == 0)
		at = map(0, NULL, PROT_READ | PROT_EXEC);
	check(to != MAP_FAILED, "mmap");
	check(mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
	at = to;
	call_alpha_busy(at + busy);
}

/* A hole is made in one library, and a piece of the other mapped into it. */
static void scene_hole(int round)
{
	static char *at;
	size_t hole = busy & ~(page - 1);

	if (!at)
		at = reserve();
	map(round & 1, at, PROT_READ | PROT_EXEC);
	callers[round & 1](at + busy);
	check(munmap(at + hole, page) == 0, "munmap");
	(round & 1 ? call_omega_low : call_alpha_low)(at + low);
	check(mmap(at + hole, page, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE,
		   files[~round & 1], (off_t)hole) == at + hole,
	      "mmap");
	callers[~round & 1](at + busy);
	(round & 1 ? call_omega_high : call_alpha_high)(at + high);
	check(munmap(at, size) == 0, "munmap");
}

/* A library, and memory without a file that code is copied to. */
static void scene_copied(int round)
{
	static char *at;

	if (!at)
		at = reserve();
	if (round & 1) {
		check(mmap(at, size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at,
		      "mmap");
		check(pread(files[0], at, size, 0) > (ssize_t)high, "pread");
		check(mprotect(at, size, PROT_READ | PROT_EXEC) == 0, "mprotect");
		call_copied(at + busy);
	} else {
		map(0, at, PROT_READ | PROT_EXEC);
		call_alpha_busy(at + busy);
	}
}

/* A child maps something else over what its parent, at the same time, still runs. */
static void scene_fork(int round)
{
	static char *at;
	pid_t child;

	(void)round;
	if (!at)
		at = reserve();
	map(0, at, PROT_READ | PROT_EXEC);
	fflush(stdout);
	child = fork();
	check(child >= 0, "fork");
	if (child == 0) {
		call_alpha_busy(at + busy);
		map(1, at, PROT_READ | PROT_EXEC);
		call_omega_busy(at + busy);
		fflush(stdout);
		_exit(0);
	}
	call_alpha_busy(at + busy);
	check(waitpid(child, NULL, 0) == child, "waitpid");
	call_alpha_busy(at + busy);
}

static const struct {
	const char *name;
	void (*play)(int round);
} scenes[] = {
    {"dlopen", scene_dlopen}, {"fixed", scene_fixed}, {"mprotect", scene_mprotect},
    {"mremap", scene_mremap}, {"moves", scene_moves}, {"hole", scene_hole},
    {"copied", scene_copied}, {"fork", scene_fork},
};

int main(int argc, char **argv)
{
	struct stat stat;

	if (argc != 9)
		return 2;
	page = (size_t)sysconf(_SC_PAGESIZE);
	ms = atof(argv[3]);
	for (int i = 0; i < 2; i++) {
		paths[i] = argv[4 + i];
		files[i] = open(paths[i], O_RDONLY | O_CLOEXEC);
		check(files[i] >= 0 && fstat(files[i], &stat) == 0, paths[i]);
		size = ((size_t)stat.st_size + page - 1) & ~(page - 1);
	}
	low = strtoul(argv[6], NULL, 0);
	busy = strtoul(argv[7], NULL, 0);
	high = strtoul(argv[8], NULL, 0);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
		if (strcmp(scenes[i].name, argv[1]))
			continue;
		for (int round = 0; round < atoi(argv[2]); round++)
			scenes[i].play(round);
		return 0;
	}
	return 2;
}
