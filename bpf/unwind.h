/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* One step of the user stack walk: from a frame's registers to its caller's.
 * Compiled for BPF by sampler.bpf.c and for the host by csrc/unwind_host.c; the includer defines
 * unwind_read(dst, size, address, memory), which returns 0 or a negative errno. */
#ifndef PYPROF_UNWIND_H
#define PYPROF_UNWIND_H

#include "pyprof_abi.h"

struct unwind_regs {
	__u64 pc;
	__u64 sp;
	__u64 fp;
};

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
	if (frame[0] != 0 && frame[0] <= regs->fp) {
		/* The return address is still good: fp points to a real frame. The next step ends.
		 */
		frame[0] = 1;
	}
	regs->sp = regs->fp + sizeof(frame);
	regs->fp = frame[0];
	regs->pc = frame[1];
	return 1;
}

#endif
