// SPDX-License-Identifier: Apache-2.0
/* Host build of bpf/unwind.h: memory is a copied slice of a stack instead of the running task's. */
#include "unwind_host.h"

#include "unwind_slice.h"

size_t pyprof_unwind(uint64_t pc, uint64_t sp, uint64_t fp, const void *stack, uint64_t base,
		     size_t size, uint64_t *pcs, size_t capacity, uint8_t *end)
{
	struct unwind_slice slice = {.data = stack, .base = base, .size = size};
	struct unwind_regs regs = {.pc = pc, .sp = sp, .fp = fp, .has_fp = 1, .exact = 1};
	size_t count = 0;

	*end = PYPROF_END_TOO_DEEP;
	while (count < capacity) {
		pcs[count++] = regs.pc;
		if (!unwind_by_frame_pointer(&regs, &slice, end))
			break;
	}
	return count;
}

/* cffi knows the registers by a struct of their header. */
static struct unwind_regs from_host(const struct pyprof_host_regs *host)
{
	struct unwind_regs regs = {
	    .pc = host->pc,
	    .sp = host->sp,
	    .fp = host->fp,
	    .has_registers = host->has_registers,
	    .has_fp = host->has_fp,
	    .exact = host->exact,
	    .by_fp = host->by_fp,
	};

	memcpy(regs.registers, host->registers, sizeof(regs.registers));
	return regs;
}

int pyprof_unwind_step(struct pyprof_host_regs *host, const void *rule, const void *stack,
		       uint64_t base, size_t size, uint8_t *end)
{
	struct unwind_slice slice = {.data = stack, .base = base, .size = size};
	struct unwind_regs regs = from_host(host);
	struct pyprof_rule copy;
	int stepped;

	memcpy(&copy, rule, sizeof(copy));
	stepped = unwind_by_rule(&regs, &copy, &slice, end);
	host->pc = regs.pc;
	host->sp = regs.sp;
	host->fp = regs.fp;
	memcpy(host->registers, regs.registers, sizeof(regs.registers));
	host->has_registers = regs.has_registers;
	host->has_fp = regs.has_fp;
	host->exact = regs.exact;
	host->by_fp = regs.by_fp;
	return stepped;
}

uint64_t pyprof_unwind_lookup_pc(const struct pyprof_host_regs *host)
{
	struct unwind_regs regs = from_host(host);

	return unwind_lookup_pc(&regs);
}

uint32_t pyprof_unwind_rule_number(const void *page, const void *chunk, uint32_t offset)
{
	return unwind_rule_number(page, chunk, offset);
}
