// SPDX-License-Identifier: Apache-2.0
/* Code made at run time, with a frame pointer: main -> enter -> (made) -> called. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "known.h"

#if defined(__x86_64__)
static const unsigned char CODE[] = {
    0x55,			  /* push %rbp */
    0x48, 0x89, 0xe5,		  /* mov %rsp, %rbp */
    0x53,			  /* push %rbx */
    0x48, 0x83, 0xec, 0x08,	  /* sub $8, %rsp */
    0x48, 0x89, 0xfb,		  /* mov %rdi, %rbx */
    0xb9, 0x00, 0x10, 0x00, 0x00, /* mov $4096, %ecx */
    0xff, 0xc9,			  /* dec %ecx */
    0x75, 0xfc,			  /* jnz to the dec */
    0xff, 0xd3,			  /* call *%rbx */
    0x48, 0x83, 0xc4, 0x08,	  /* add $8, %rsp */
    0x5b,			  /* pop %rbx */
    0x5d,			  /* pop %rbp */
    0xc3,			  /* ret */
};
#elif defined(__aarch64__)
static const uint32_t CODE[] = {
    0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
    0x910003fd, /* mov x29, sp */
    0xd63f0000, /* blr x0 */
    0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
    0xd65f03c0, /* ret */
};
#endif

KEEP void called(void)
{
	work(2000);
}

KEEP void enter(void (*made)(void (*)(void)))
{
	while (!done)
		made(called);
}

int main(void)
{
	char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void (*made)(void (*)(void));

	memcpy(code, CODE, sizeof(CODE));
	__builtin___clear_cache(code, code + sizeof(CODE));
	memcpy(&made, &code, sizeof(made));
	ready();
	enter(made);
	return 0;
}
