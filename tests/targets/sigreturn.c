// SPDX-License-Identifier: Apache-2.0
/* Is nearly always in the system call that ends a signal handler: main -> outer -> landed. The call
 * leads to the first instruction of landed, whose last one makes it again; what stands before
 * landed never runs. (rt_sigreturn takes the registers from the signal's frame, to which rsp
 * points.)
 */
#define _GNU_SOURCE
#include <signal.h>
#include <ucontext.h>

#include "known.h"

void *frame;
void landed(void);

/* landed's frame is at rbx while rsp points to the signal's. The handler has given rbx the same
 * value, so that the frame is where the rules say, however many registers the call has restored. */
__asm__(".text\n"
	".type before, @function\n"
	"before:\n"
	".cfi_startproc\n"
	".cfi_undefined rip\n"
	"	nop\n"
	"	ud2\n"
	".cfi_endproc\n"
	".size before, . - before\n"
	".globl landed\n"
	".type landed, @function\n"
	"landed:\n"
	".cfi_startproc\n"
	"	mov %rsp, %rbx\n"
	".cfi_def_cfa rbx, 8\n"
	"	mov frame(%rip), %rsp\n"
	"	mov $15, %eax\n" /* rt_sigreturn */
	"	syscall\n"
	".cfi_endproc\n"
	".size landed, . - landed\n"
	".globl after\n"
	".type after, @function\n"
	"after:\n"
	".cfi_startproc\n"
	".cfi_undefined rip\n"
	"	ud2\n"
	".cfi_endproc\n"
	".size after, . - after\n");

/* As if outer had called landed where the signal interrupted it. */
static void handler(int number, siginfo_t *information, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	greg_t *top = (greg_t *)registers[REG_RSP] - 1;

	(void)number, (void)information;
	*top = registers[REG_RIP];
	registers[REG_RSP] = registers[REG_RBX] = (greg_t)top;
	registers[REG_RIP] = (greg_t)landed;
	frame = context;
}

KEEP void outer(void)
{
	__asm__ volatile("int3\n\tnop" ::: "memory");
	stay();
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};

	sigaction(SIGTRAP, &action, NULL);
	ready();
	outer();
	return 0;
}
