/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Unwind rules: how the registers of a frame's caller are found. Made from .eh_frame by csrc/cfi.c,
 * applied by bpf/unwind.h in the kernel and on the host. */
#ifndef PYPROF_RULES_H
#define PYPROF_RULES_H

#ifndef __bpf__
#include <assert.h>
#include <stddef.h>
#endif
#include <linux/types.h>

/* A row says that from its address up to the next row's one rule holds. Rules are few (some 2,000
 * in a whole distribution), so rows name them by number and they are stored once.
 *
 * sp, fp, pc and registers are those of the frame at hand; the canonical frame address (CFA) is the
 * caller's sp, except with PYPROF_CFA_CONTEXT. Registers are numbered as DWARF does:
 *   x86-64: 0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi, 6 rbp (fp), 7 rsp (sp), 8..15 r8..r15
 *   arm64:  0..28 x0..x28, 29 x29 (fp), 30 x30 (link register), 31 sp
 * Registers other than sp and fp are known in the innermost frame only; elsewhere a rule that needs
 * one cannot be applied. rbx alone may be known further up, as far as rules say where it is.
 *
 * To apply a rule: 1. ra is UNDEFINED: this is the outermost frame, whatever cfa says. 2. cfa is
 * NONE or UNSUPPORTED: there is no rule. 3. Compute the CFA, then fp and ra from the old registers.
 */

/* The CFA. `other` is a field of the rule that cfa or ra may use, never both. Where neither does,
 * and cfa is SP or FP, it is how far below the CFA lies what the call frame information calls so,
 * which matters to who prints rules only: it may state the caller's sp apart. */
#define PYPROF_CFAS(X)                                                                             \
	/* No unwind information covers these addresses: all fields are 0. */                      \
	X(NONE, "none")                                                                            \
	/* sp + cfa_offset */                                                                      \
	X(SP, "stack pointer")                                                                     \
	/* fp + cfa_offset */                                                                      \
	X(FP, "frame pointer")                                                                     \
	/* register number PYPROF_RULE_CFA_REGISTER(flags) + cfa_offset */                         \
	X(REGISTER, "register")                                                                    \
	/* *(sp + cfa_offset) + other */                                                           \
	X(AT_SP, "saved on the stack")                                                             \
	/* *(fp + cfa_offset) + other */                                                           \
	X(AT_FP, "saved in the frame")                                                             \
	/* sp + cfa_offset + ((pc & 15) >= other ? 8 : 0): procedure linkage table, x86-64 only */ \
	X(PLT, "procedure linkage table")                                                          \
	/* All three registers lie in a context that the kernel saved for a signal handler:        \
	 * sp = *(sp + cfa_offset), fp = *(sp + fp_offset), pc = *(sp + other), each from the old  \
	 * sp. fp and ra are AT_SP. */                                                             \
	X(CONTEXT, "saved context")                                                                \
	/* The same in memory that register number PYPROF_RULE_CFA_REGISTER(flags), which is the   \
	 * CFA, points to: sp = *(CFA + cfa_offset), and so on. fp and ra are AT_CFA. */           \
	X(CONTEXT_AT, "saved context in a register")                                               \
	/* A jump to the caller (longjmp): its sp is in register number PYPROF_RULE_SP_REGISTER(   \
	 * other) and ra is IN_REGISTER. The CFA, as with REGISTER, serves for nothing. */         \
	X(JUMP, "register, with the stack pointer in another")                                     \
	/* There is a rule, but it could not be decoded: `other` is an enum pyprof_reason. */      \
	X(UNSUPPORTED, "unsupported")

enum pyprof_cfa {
#define X(name, text) PYPROF_CFA_##name,
	PYPROF_CFAS(X)
#undef X
	    PYPROF_CFA_COUNT,
};

/* The caller's frame pointer. */
#define PYPROF_FPS(X)                                                                              \
	/* as it is here */                                                                        \
	X(SAME, "same")                                                                            \
	/* *(CFA + fp_offset) */                                                                   \
	X(AT_CFA, "saved below the CFA")                                                           \
	/* *(fp + fp_offset) */                                                                    \
	X(AT_FP, "saved in the frame")                                                             \
	/* *(sp + fp_offset) */                                                                    \
	X(AT_SP, "saved on the stack")                                                             \
	/* in register number fp_offset */                                                         \
	X(IN_REGISTER, "in a register")                                                            \
	/* CFA + fp_offset itself */                                                               \
	X(IS_CFA, "relative to the CFA")                                                           \
	/* lost: callers whose rules need it cannot be unwound, others can */                      \
	X(UNDEFINED, "undefined")                                                                  \
	/* could not be decoded (fp_offset is an enum pyprof_reason); as UNDEFINED */              \
	X(UNSUPPORTED, "unsupported")

enum pyprof_fp {
#define X(name, text) PYPROF_FP_##name,
	PYPROF_FPS(X)
#undef X
	    PYPROF_FP_COUNT,
};

/* The return address: the caller's pc. */
#define PYPROF_RAS(X)                                                                              \
	/* *(CFA - 8): always so on x86-64 after a call instruction */                             \
	X(BELOW_CFA, "below the CFA")                                                              \
	/* *(CFA + other) */                                                                       \
	X(AT_CFA, "saved below the CFA")                                                           \
	/* *(sp + other), only with PYPROF_CFA_CONTEXT */                                          \
	X(AT_SP, "saved on the stack")                                                             \
	/* in the link register, x30 on arm64 */                                                   \
	X(LINK, "in the link register")                                                            \
	/* in register number PYPROF_RULE_RA_REGISTER(other) */                                    \
	X(IN_REGISTER, "in a register")                                                            \
	/* none: this is the outermost frame */                                                    \
	X(UNDEFINED, "undefined")

enum pyprof_ra {
#define X(name, text) PYPROF_RA_##name,
	PYPROF_RAS(X)
#undef X
	    PYPROF_RA_COUNT,
};

/* The caller's rbx on x86-64, which ld.so needs: one of its functions that others call, and that
 * call others, keeps its CFA there (_dl_runtime_resolve). Else its place is a number from 2 on: rbx
 * is
 * *(CFA - 8 * number). Rules of files without such a function say LOST throughout, which leaves
 * rows and rules few. With PYPROF_CFA_CONTEXT, SAME means that it is saved there, too, next to fp
 * as the kernel does: *(sp + fp_offset + 8). */
#define PYPROF_RBX_LOST 0
#define PYPROF_RBX_SAME 1
#define PYPROF_RBX_MAX	15

/* Why a rule could not be decoded. */
#define PYPROF_REASONS(X)                                                                          \
	X(NONE, "none")                                                                            \
	X(CFA_MISSING, "no CFA stated")                                                            \
	X(CFA_EXPRESSION, "CFA by an expression of unknown form")                                  \
	X(CFA_REGISTER, "CFA by a register that is not saved in samples")                          \
	X(FP_EXPRESSION, "frame pointer by an expression of unknown form")                         \
	X(FP_REGISTER, "frame pointer in a register that is not saved in samples")                 \
	X(RA_MISSING, "no return address stated")                                                  \
	X(RA_EXPRESSION, "return address by an expression of unknown form")                        \
	X(RA_REGISTER, "return address in a register that is not saved in samples")                \
	X(OFFSET, "offset of more than 32 bits")                                                   \
	X(COMBINATION, "CFA and return address too special for one rule")                          \
	X(SP_PLACE, "stack pointer saved in an unknown way")                                       \
	X(INSTRUCTION, "unknown call frame instruction")                                           \
	X(TRUNCATED, "call frame instructions end early")                                          \
	X(LOCATION, "call frame instructions go back")                                             \
	X(STATE, "remembered states unbalanced or too deep")                                       \
	X(AUGMENTATION, "unknown augmentation")                                                    \
	X(ENCODING, "unknown pointer encoding")                                                    \
	X(VERSION, "unknown version, or address size")                                             \
	X(ENTRY, "entry that is damaged, or refers to no common information")                      \
	X(SP_WRITE, "stack pointer set to what is not stated")                                     \
	X(FOREIGN, "C code without call frame information in a Go program")

enum pyprof_reason {
#define X(name, text) PYPROF_REASON_##name,
	PYPROF_REASONS(X)
#undef X
	    PYPROF_REASON_COUNT,
};

/* The pc of this frame's caller is where a signal interrupted it, not behind a call: look it up as
 * it is, not less one. */
#define PYPROF_RULE_SIGNAL 1
/* The return address carries an authentication code (arm64): strip it. */
#define PYPROF_RULE_SIGNED 2
/* With PYPROF_CFA_FP: the caller's frame is on another stack, which may lie anywhere (Go's
 * systemstack). No frame pointer: there is none, and this is the outermost frame. */
#define PYPROF_RULE_SWITCH 4
/* The register of PYPROF_CFA_REGISTER. */
#define PYPROF_RULE_CFA_REGISTER(flags)	      ((flags) >> 3)
#define PYPROF_RULE_WITH_CFA_REGISTER(number) ((number) << 3)

/* Registers in `other`: that of the return address, and with PYPROF_CFA_JUMP that of sp. */
#define PYPROF_RULE_RA_REGISTER(other)	   ((other) & 31)
#define PYPROF_RULE_SP_REGISTER(other)	   ((other) >> 8 & 31)
#define PYPROF_RULE_WITH_REGISTERS(ra, sp) ((ra) | (sp) << 8)

struct pyprof_rule {
	__u8 cfa;     /* enum pyprof_cfa */
	__u8 fp;      /* enum pyprof_fp */
	__u8 ra : 4;  /* enum pyprof_ra */
	__u8 rbx : 4; /* PYPROF_RBX_*, or where */
	__u8 flags;   /* PYPROF_RULE_* */
	__s32 cfa_offset;
	__s32 fp_offset;
	__s32 other;
};

_Static_assert(sizeof(struct pyprof_rule) == 16, "map layout");
_Static_assert(PYPROF_CFA_NONE == 0, "a zeroed rule is no rule");
_Static_assert(PYPROF_RA_COUNT <= 16, "ra has four bits");

/* Number of the rule NONE in every table that csrc/cfi.c makes. */
#define PYPROF_RULE_NONE 0

/* The context that the kernel lays on the stack before a signal handler, seen from the handler's
 * return to the trampoline: offsets from sp of struct ucontext's saved sp, fp and pc.
 * x86-64: struct rt_sigframe without its first word, arch/x86/include/asm/sigframe.h; arm64:
 * arch/arm64/kernel/signal.c. */
#define PYPROF_X86_CONTEXT_SP	160
#define PYPROF_X86_CONTEXT_FP	120
#define PYPROF_X86_CONTEXT_PC	168
#define PYPROF_ARM64_CONTEXT_SP 560
#define PYPROF_ARM64_CONTEXT_FP 544
#define PYPROF_ARM64_CONTEXT_PC 568

#endif
