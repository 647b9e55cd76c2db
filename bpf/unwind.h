/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* One step of the user stack walk, from a frame's registers to its caller's, and the search for the
 * rule to step by. Compiled for BPF by window.h and for the host by csrc/unwind_slice.h; the
 * includer defines unwind_read(dst, size, address, memory) for 8 or 16 bytes, which returns 0 or a
 * negative errno. */
#ifndef PYPROF_UNWIND_H
#define PYPROF_UNWIND_H

#include "pyprof_abi.h"

struct unwind_regs {
	__u64 pc;
	__u64 sp;
	__u64 fp;
	__u64 registers[PYPROF_REGISTERS]; /* by DWARF number */
	__u8 has_registers;		   /* enum pyprof_known */
	__u8 has_fp;
	__u8 exact; /* pc is no return address */
	__u8 by_fp; /* the frame was found by a frame pointer, which may have been none */
};

/* The address by which a frame's mapping and row are found: a call may be the last instruction of
 * its function, so a return address may belong to the next one. */
static inline __u64 unwind_lookup_pc(const struct unwind_regs *regs)
{
	return regs->exact ? regs->pc : regs->pc - 1;
}

/* Keeps the compiler from making a branch of arithmetic. The verifier follows each branch of a loop
 * separately, which for a binary search is a million instructions (seen on 6.18). */
#ifdef __bpf__
#define UNWIND_OPAQUE(x) asm volatile("" : "+r"(x))
#else
#define UNWIND_OPAQUE(x) ((void)(x))
#endif

/* One halving: moves low up by `half` if that row exists and begins at or before offset. */
static inline __u64 unwind_halve(const struct pyprof_page *page, const __u8 *chunk, __u64 offset,
				 __u64 low, __u64 high, __u64 half)
{
	__u64 middle = low + half, past, at, begins;

	past = (__u64)((__s64)(high - middle) >> 63); /* all ones if there is no such row */
	UNWIND_OPAQUE(past);
	middle = low + (half & ~past);
	at = (page->at + middle * 2) & (PYPROF_CHUNK_BYTES - 2);
	begins = *(const __u16 *)(chunk + at);
	past = (__u64)((__s64)(offset - begins) >> 63); /* all ones if it begins later */
	UNWIND_OPAQUE(past);
	return low + ((middle - low) & ~past);
}

/* Number of the row that holds at an offset in its page: the last one that begins at or before it.
 * A part of a page has at most 4096 rows, mostly under 256; row 0 begins at offset 0. */
static inline __u32 unwind_find_row(const struct pyprof_page *page, const __u8 *chunk, __u32 offset)
{
	__u32 part = (offset >> 12) & (PYPROF_PAGE_PARTS - 1);
	__u64 low = page->starts[part];
	__u64 high = page->last;

	if (part + 1 < PYPROF_PAGE_PARTS)
		high = page->starts[(part + 1) & (PYPROF_PAGE_PARTS - 1)];
	if (high - low >= 256) {
		for (__u64 half = 4096; half >= 256; half /= 2)
			low = unwind_halve(page, chunk, offset, low, high, half);
	}
	for (__u64 half = 128; half; half /= 2)
		low = unwind_halve(page, chunk, offset, low, high, half);
	return (__u32)low;
}

static inline __u32 unwind_rule_number(const struct pyprof_page *page, const __u8 *chunk,
				       __u32 offset)
{
	__u32 row = unwind_find_row(page, chunk, offset);
	__u32 at = (page->at + (page->last + 1 + row) * 2) & (PYPROF_CHUNK_BYTES - 2);

	return *(const __u16 *)(chunk + at);
}

/* By frame pointer: a frame is {caller's frame pointer, return address} at fp.
 *
 * The stack grows down, so a caller's frame lies above: fp below sp, or a saved fp not above fp,
 * means that the register does not hold a frame pointer. A saved frame pointer or return address
 * of 0 marks the outermost frame (System V ABI x86-64, 3.4.1 and AAPCS64, 6.4.6).
 *
 * Returns 1 when regs are the caller's, 0 when the walk is over with the reason in *end. */
static inline int unwind_by_frame_pointer(struct unwind_regs *regs, const void *memory, __u8 *end)
{
	__u64 frame[2];

	if (!regs->has_fp) {
		*end = PYPROF_END_REGISTER_LOST;
		return 0;
	}
	if (regs->fp == 0) {
		*end = PYPROF_END_COMPLETE;
		return 0;
	}
	if (regs->fp < regs->sp || (regs->fp & 7)) {
		*end = PYPROF_END_FRAME_POINTER;
		return 0;
	}
	if (unwind_read(frame, sizeof(frame), regs->fp, memory)) {
		*end = PYPROF_END_UNREADABLE;
		return 0;
	}
	if (frame[1] == 0) {
		*end = PYPROF_END_COMPLETE;
		return 0;
	}
	/* A saved fp that does not lie above is no frame pointer, but the return address is good:
	 * fp points to a real frame. 1 ends the next step by frame pointer; rules may still lead
	 * on. */
	if (frame[0] != 0 && frame[0] <= regs->fp)
		frame[0] = 1;
	regs->sp = regs->fp + sizeof(frame);
	regs->fp = frame[0];
	regs->pc = frame[1];
	regs->has_registers = PYPROF_KNOWN_NONE;
	regs->exact = 0;
	regs->by_fp = 1;
	return 1;
}

static inline __u8 unwind_knows(const struct unwind_regs *regs, __u32 number)
{
	return regs->has_registers == PYPROF_KNOWN_ALL ||
	       (regs->has_registers == PYPROF_KNOWN_RBX && number == PYPROF_RBX);
}

/* Goes on to the caller's rbx, which lies at an address, or nowhere (0): it is what it was. */
static inline void unwind_rbx(struct unwind_regs *regs, __u64 at, const void *memory)
{
	__u8 known = regs->has_registers ? PYPROF_KNOWN_RBX : PYPROF_KNOWN_NONE;

	if (at)
		known = unwind_read(&regs->registers[PYPROF_RBX], sizeof(__u64), at, memory)
			    ? PYPROF_KNOWN_NONE
			    : PYPROF_KNOWN_RBX;
	regs->has_registers = known;
}

/* Registers that the kernel saved before it called a signal handler, or that are about to be
 * restored from memory. */
static inline int unwind_by_context(struct unwind_regs *regs, const struct pyprof_rule *rule,
				    const void *memory, __u8 *end)
{
	__u64 sp, fp, pc, from = regs->sp;

	if (rule->cfa == PYPROF_CFA_CONTEXT_AT) {
		__u32 number = PYPROF_RULE_CFA_REGISTER(rule->flags) & (PYPROF_REGISTERS - 1);

		if (!unwind_knows(regs, number)) {
			*end = PYPROF_END_REGISTER_LOST;
			return 0;
		}
		from = regs->registers[number];
	}
	if (unwind_read(&sp, sizeof(sp), from + (__u64)rule->cfa_offset, memory) ||
	    unwind_read(&fp, sizeof(fp), from + (__u64)rule->fp_offset, memory) ||
	    unwind_read(&pc, sizeof(pc), from + (__u64)rule->other, memory)) {
		*end = PYPROF_END_UNREADABLE;
		return 0;
	}
	regs->sp = sp;
	regs->fp = fp;
	regs->pc = pc;
	regs->has_fp = 1;
	regs->has_registers = PYPROF_KNOWN_NONE;
	if (rule->rbx)
		unwind_rbx(regs, from + (__u64)rule->fp_offset + 8, memory);
	regs->exact = rule->cfa == PYPROF_CFA_CONTEXT || rule->flags & PYPROF_RULE_SIGNAL;
	regs->by_fp = 0;
	return 1;
}

/* By a rule of the unwind rows; see pyprof_rules.h. Returns as unwind_by_frame_pointer does. */
static inline int unwind_by_rule(struct unwind_regs *regs, const struct pyprof_rule *rule,
				 const void *memory, __u8 *end)
{
	__u64 cfa, fp = regs->fp, pair[2];
	__u8 has_fp = regs->has_fp;
	__u32 number;

	if (rule->ra == PYPROF_RA_UNDEFINED) {
		*end = PYPROF_END_COMPLETE;
		return 0;
	}
	if ((rule->cfa == PYPROF_CFA_FP || rule->cfa == PYPROF_CFA_AT_FP) && !regs->has_fp) {
		*end = PYPROF_END_REGISTER_LOST;
		return 0;
	}
	switch (rule->cfa) {
	case PYPROF_CFA_SP:
		cfa = regs->sp + (__u64)rule->cfa_offset;
		break;
	case PYPROF_CFA_FP:
		if ((rule->flags & PYPROF_RULE_SWITCH) && regs->fp == 0) {
			*end = PYPROF_END_COMPLETE;
			return 0;
		}
		cfa = regs->fp + (__u64)rule->cfa_offset;
		break;
	case PYPROF_CFA_PLT:
		cfa = regs->sp + (__u64)rule->cfa_offset +
		      ((regs->pc & 15) >= (__u32)rule->other ? 8 : 0);
		break;
	case PYPROF_CFA_AT_SP:
	case PYPROF_CFA_AT_FP:
		cfa = rule->cfa == PYPROF_CFA_AT_SP ? regs->sp : regs->fp;
		if (unwind_read(&cfa, sizeof(cfa), cfa + (__u64)rule->cfa_offset, memory)) {
			*end = PYPROF_END_UNREADABLE;
			return 0;
		}
		cfa += (__u64)rule->other;
		break;
	case PYPROF_CFA_REGISTER:
		number = PYPROF_RULE_CFA_REGISTER(rule->flags) & (PYPROF_REGISTERS - 1);
		if (!unwind_knows(regs, number)) {
			*end = PYPROF_END_REGISTER_LOST;
			return 0;
		}
		cfa = regs->registers[number] + (__u64)rule->cfa_offset;
		break;
	case PYPROF_CFA_JUMP:
		if (regs->has_registers != PYPROF_KNOWN_ALL) {
			*end = PYPROF_END_REGISTER_LOST;
			return 0;
		}
		cfa =
		    regs->registers[PYPROF_RULE_SP_REGISTER(rule->other) & (PYPROF_REGISTERS - 1)];
		break;
	case PYPROF_CFA_CONTEXT:
	case PYPROF_CFA_CONTEXT_AT:
		return unwind_by_context(regs, rule, memory, end);
	default:
		*end = PYPROF_END_RULE_UNSUPPORTED;
		return 0;
	}
	/* Equal where a function has popped its return address (vfork). A jump may lead to another
	 * stack, and is possible in the innermost frame only; a rule may say that it does. */
	if (cfa < regs->sp && rule->cfa != PYPROF_CFA_JUMP && !(rule->flags & PYPROF_RULE_SWITCH)) {
		*end = PYPROF_END_STACK_ORDER;
		return 0;
	}

	if (rule->fp == PYPROF_FP_AT_CFA && rule->fp_offset == -16 &&
	    rule->ra == PYPROF_RA_BELOW_CFA) {
		/* push %rbp first of all: one read instead of two. */
		if (unwind_read(pair, sizeof(pair), cfa - 16, memory)) {
			*end = PYPROF_END_UNREADABLE;
			return 0;
		}
		fp = pair[0];
		has_fp = 1;
	} else {
		__u64 at = 0;

		if (rule->fp == PYPROF_FP_AT_CFA)
			at = cfa + (__u64)rule->fp_offset;
		else if (rule->fp == PYPROF_FP_AT_FP && regs->has_fp)
			at = regs->fp + (__u64)rule->fp_offset;
		else if (rule->fp == PYPROF_FP_AT_SP)
			at = regs->sp + (__u64)rule->fp_offset;
		if (at) {
			if (unwind_read(&fp, sizeof(fp), at, memory)) {
				*end = PYPROF_END_UNREADABLE;
				return 0;
			}
			has_fp = 1;
		} else if (rule->fp == PYPROF_FP_IS_CFA) {
			fp = cfa + (__u64)rule->fp_offset;
			has_fp = 1;
		} else if (rule->fp == PYPROF_FP_IN_REGISTER) {
			number = (__u32)rule->fp_offset & (PYPROF_REGISTERS - 1);
			fp = regs->registers[number];
			has_fp = unwind_knows(regs, number);
		} else if (rule->fp != PYPROF_FP_SAME) {
			has_fp = 0;
		}

		at = cfa - 8;
		if (rule->ra == PYPROF_RA_AT_CFA)
			at = cfa + (__u64)rule->other;
		if (rule->ra == PYPROF_RA_IN_REGISTER) {
			number = PYPROF_RULE_RA_REGISTER(rule->other) & (PYPROF_REGISTERS - 1);
			if (!unwind_knows(regs, number)) {
				*end = PYPROF_END_REGISTER_LOST;
				return 0;
			}
			pair[1] = regs->registers[number];
		} else if (rule->ra != PYPROF_RA_BELOW_CFA && rule->ra != PYPROF_RA_AT_CFA) {
			*end = PYPROF_END_RULE_UNSUPPORTED;
			return 0;
		} else if (unwind_read(&pair[1], sizeof(pair[1]), at, memory)) {
			*end = PYPROF_END_UNREADABLE;
			return 0;
		}
	}
	if (pair[1] == 0) {
		*end = PYPROF_END_COMPLETE;
		return 0;
	}
	regs->sp = cfa;
	regs->fp = fp;
	regs->pc = pair[1];
	regs->has_fp = has_fp;
	if (rule->rbx)
		unwind_rbx(regs, rule->rbx == PYPROF_RBX_SAME ? 0 : cfa - 8ull * rule->rbx, memory);
	else
		regs->has_registers = PYPROF_KNOWN_NONE;
	regs->exact = !!(rule->flags & PYPROF_RULE_SIGNAL);
	regs->by_fp = 0;
	return 1;
}

#endif
