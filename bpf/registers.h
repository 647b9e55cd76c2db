/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The registers of the user code that a tick interrupted, or that is in a system call. */
#ifndef PYPROF_REGISTERS_H
#define PYPROF_REGISTERS_H

#include "vmlinux_min.h"
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "window.h"

#if defined(__TARGET_ARCH_x86)
static inline int is_user(const struct bpf_perf_event_data *ctx)
{
	return ctx->regs.cs & 3;
}

/* Whether the instruction before pc makes a system call. Where it does not, the kernel has set pc
 * during the call: in rt_sigreturn, for a signal's handler, for a call to be made again, or in
 * execve, after which the code is often not in memory yet and cannot be read. */
static inline int is_behind_call(__u64 pc)
{
	__u8 code[2];

	if (bpf_probe_read_user(code, sizeof(code), (const void *)(pc - sizeof(code))))
		return 0;
	return (code[0] == 0x0f && code[1] == 0x05) || /* syscall */
	       (code[0] == 0xcd && code[1] == 0x80);   /* int $0x80 */
}

/* False for 32-bit code, whose frames have another layout. */
static inline int read_user_regs(const struct bpf_perf_event_data *ctx, struct task_struct *task,
				 struct unwind_regs *regs)
{
	/* volatile: clang else merges the loads of both branches into one, which verifiers refuse
	 * ("same insn cannot be used with different pointers", seen on 6.18). */
	const volatile struct pt_regs *saved;

#define READ_REGS(from)                                                                            \
	do {                                                                                       \
		__u64 *to = regs->registers;                                                       \
		regs->pc = (from)->rip;                                                            \
		regs->sp = (from)->rsp;                                                            \
		regs->fp = (from)->rbp;                                                            \
		to[0] = (from)->rax, to[1] = (from)->rdx, to[2] = (from)->rcx;                     \
		to[3] = (from)->rbx, to[4] = (from)->rsi, to[5] = (from)->rdi;                     \
		to[6] = (from)->rbp, to[7] = (from)->rsp, to[8] = (from)->r8;                      \
		to[9] = (from)->r9, to[10] = (from)->r10, to[11] = (from)->r11;                    \
		to[12] = (from)->r12, to[13] = (from)->r13, to[14] = (from)->r14;                  \
		to[15] = (from)->r15;                                                              \
	} while (0)

	if (is_user(ctx)) {
		READ_REGS(&ctx->regs);
		return ctx->regs.cs != 0x23; /* __USER32_CS */
	}
	saved = (const volatile struct pt_regs *)bpf_task_pt_regs(task);
	READ_REGS(saved);
	/* In a system call, and not an interrupt or a fault, pc is behind the instruction, which
	 * may be the last one of its function. */
	regs->exact = (__s64)saved->orig_rax < 0 || !is_behind_call(regs->pc);
	return saved->cs != 0x23;
#undef READ_REGS
}
#elif defined(__TARGET_ARCH_arm64)
static inline int is_user(const struct bpf_perf_event_data *ctx)
{
	return (ctx->regs.pstate & 0xf) == 0; /* PSR_MODE_EL0t */
}

static inline int read_user_regs(const struct bpf_perf_event_data *ctx, struct task_struct *task,
				 struct unwind_regs *regs)
{
	const volatile struct user_pt_regs *saved;

	/* Rules that need another register than x29 and x30 cannot be applied yet. */
	regs->has_registers = PYPROF_KNOWN_NONE;
	if (is_user(ctx)) {
		regs->pc = ctx->regs.pc, regs->sp = ctx->regs.sp, regs->fp = ctx->regs.regs[29];
		return !(ctx->regs.pstate & 0x10); /* PSR_MODE32_BIT */
	}
	saved = (const volatile struct user_pt_regs *)bpf_task_pt_regs(task);
	regs->pc = saved->pc, regs->sp = saved->sp, regs->fp = saved->regs[29];
	return !(saved->pstate & 0x10);
}
#else
#error "unknown architecture"
#endif

#endif
