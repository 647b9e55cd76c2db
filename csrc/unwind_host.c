// SPDX-License-Identifier: Apache-2.0
/* Host build of bpf/unwind.h: memory is a copied slice of a stack instead of the running task's. */
#include "unwind_host.h"

#include <errno.h>
#include <string.h>

struct slice {
	const unsigned char *data;
	uint64_t base;
	uint64_t size;
};

static int unwind_read(void *dst, uint32_t size, uint64_t address, const void *memory)
{
	const struct slice *slice = memory;
	uint64_t at = address - slice->base;

	if (address < slice->base || at > slice->size || size > slice->size - at)
		return -EFAULT;
	memcpy(dst, slice->data + at, size);
	return 0;
}

#include "../bpf/unwind.h"

size_t pyprof_unwind(uint64_t pc, uint64_t sp, uint64_t fp, const void *stack, uint64_t base,
		     size_t size, uint64_t *pcs, size_t capacity, uint8_t *end)
{
	struct slice slice = {stack, base, size};
	struct unwind_regs regs = {pc, sp, fp};
	size_t count = 0;

	*end = PYPROF_END_TOO_DEEP;
	while (count < capacity) {
		pcs[count++] = regs.pc;
		if (!unwind_by_frame_pointer(&regs, &slice, end))
			break;
	}
	return count;
}
