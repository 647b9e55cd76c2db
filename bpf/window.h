/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* unwind.h over the stack of the running task. */
#ifndef PYPROF_WINDOW_H
#define PYPROF_WINDOW_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "pyprof_abi.h"

/* Frames lie close together: a piece of the stack is read at once, and serves several of them. */
#define WINDOW_BYTES 1024

struct window {
	__u64 base; /* odd: there is nothing in it */
	__u64 words[WINDOW_BYTES / 8];
};

/* Reads one or two words of the stack. */
static inline int unwind_read(void *dst, __u32 size, __u64 address, const void *memory)
{
	struct window *window = (struct window *)memory;
	__u64 at = address - window->base;

	if ((address | window->base) & 7 || at > WINDOW_BYTES - 16) {
		at = 0;
		if (address & 7 ||
		    bpf_probe_read_user(window->words, WINDOW_BYTES, (const void *)address)) {
			/* At the end of the stack a whole window is too much. */
			window->base = 1;
			return bpf_probe_read_user(dst, size, (const void *)address);
		}
		window->base = address;
	}
	at &= WINDOW_BYTES - 8;
	if (at > WINDOW_BYTES - 16)
		return -1; /* cannot be; the verifier wants to see it */
	((__u64 *)dst)[0] = *(__u64 *)((char *)window->words + at);
	if (size == 16)
		((__u64 *)dst)[1] = *(__u64 *)((char *)window->words + at + 8);
	return 0;
}

#include "unwind.h"

#endif
