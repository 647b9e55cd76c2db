// SPDX-License-Identifier: Apache-2.0
/* The return address in a register.
 * forks          main -> outer -> spawn, which calls vfork again and again; the child works in
 * childwork forks popped   main -> outer -> popped (assembly): takes its return address off the
 * stack and works */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "known.h"

void popped(void);

#if defined(__x86_64__)
/* As glibc's vfork does. */
__asm__(".text\n"
	".globl popped\n"
	".type popped, @function\n"
	"popped:\n"
	"	.cfi_startproc\n"
	"	pop %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	.cfi_register %rip, %rdi\n"
	"	mov $100000, %ecx\n"
	"1:	dec %ecx\n"
	"	jnz 1b\n"
	"	push %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_offset %rip, -8\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size popped, . - popped\n");
#else
KEEP void popped(void)
{
	work(100000);
}
#endif

KEEP void childwork(void)
{
	work(1000);
}

KEEP void spawn(void)
{
	pid_t pid;

	while (!done) {
		pid = vfork();
		if (pid == 0) {
			childwork();
			_exit(0);
		}
		waitpid(pid, NULL, 0);
	}
}

KEEP void outer(int assembly)
{
	if (!assembly)
		spawn();
	while (!done)
		popped();
}

int main(int argc, char **argv)
{
	int assembly = argc > 1 && !strcmp(argv[1], "popped");

	ready();
	outer(assembly);
	return 0;
}
