/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Copies of stacks, for user space to unwind. */
#ifndef PYPROF_SLICE_H
#define PYPROF_SLICE_H

#include "maps.h"
#include "window.h"

/* A stack copy under construction: 28 KiB a CPU; 32 KiB is the most that a per-CPU value may have.
 */
struct slice {
	struct pyprof_slice head;
	__u8 bytes[PYPROF_SLICE_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slice);
} slices SEC(".maps");

/* Copies what a walk that stands at some registers could not go on with to the ring. *taken counts
 * the copies of this CPU. Returns the number of the copy, or 0. */
static inline __u32 send_slice(const struct unwind_regs *regs, __u32 cpu, __u32 *taken)
{
	__u32 zero = 0, size = 0, end = 0, holes = 0;
	struct slice *slice = bpf_map_lookup_elem(&slices, &zero);
	/* What a leaf function keeps in the red zone below sp belongs to it. */
	__u64 base = (regs->sp - 128) & ~7ull;

	if (!slice)
		return 0;
	/* The half of the ring is for samples alone. */
	if (bpf_ringbuf_query(&samples, BPF_RB_AVAIL_DATA) > 2 * config.wakeup_bytes) {
		count(PYPROF_COUNTER_SLICES_LOST);
		return 0;
	}
	slice->head.record = PYPROF_RECORD_SLICE;
	slice->head.cpu = cpu;
	slice->head.base = base;
	slice->head.pc = regs->pc;
	slice->head.sp = regs->sp;
	slice->head.fp = regs->fp;
	__builtin_memcpy(slice->head.registers, regs->registers, sizeof(regs->registers));
	slice->head.has_registers = regs->has_registers;
	slice->head.has_fp = regs->has_fp;
	slice->head.exact = regs->exact;
	/* Page by page: a read that reaches past the stack's end gives nothing at all. A page that
	 * is not there may also be one in a large frame that the program has not touched yet. */
	for (int i = 0; i < PYPROF_SLICE_PAGES; i++) {
		__u64 at = base + size;
		__u32 step = 4096 - (at & 4095);
		__u8 *to;

		if (size > PYPROF_SLICE_BYTES - 4096 || step > 4096)
			break;
		to = slice->bytes + size;
		size += step;
		if (bpf_probe_read_user(to, step, (const void *)at))
			holes |= 1 << i;
		else
			end = size;
	}
	size = end;
	if (size > PYPROF_SLICE_BYTES)
		return 0; /* cannot be; the verifier wants to see it */
	slice->head.size = size;
	slice->head.holes = holes;
	if (++*taken == 0)
		*taken = 1;
	slice->head.number = *taken;
	if (bpf_ringbuf_output(&samples, slice, sizeof(slice->head) + size, BPF_RB_NO_WAKEUP)) {
		count(PYPROF_COUNTER_SLICES_LOST);
		return 0;
	}
	count(PYPROF_COUNTER_SLICES);
	return *taken;
}

#endif
