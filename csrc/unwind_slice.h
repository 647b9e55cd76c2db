/* SPDX-License-Identifier: Apache-2.0 */
/* bpf/unwind.h for user space: memory is a copied slice of a stack instead of the running task's.
 */
#ifndef PYPROF_UNWIND_SLICE_H
#define PYPROF_UNWIND_SLICE_H

#include <errno.h>
#include <stdint.h>
#include <string.h>

struct unwind_slice {
	const unsigned char *data;
	uint64_t base;
	uint64_t size;
	uint8_t holes; /* a bit a page, from base's on: not in the slice though others behind are */
	uint64_t *failed; /* where set: becomes the last address of a read that failed */
};

static inline int unwind_slice_lacks(const struct unwind_slice *slice, uint64_t address)
{
	uint64_t page = (address >> 12) - (slice->base >> 12);

	return page < 8 && slice->holes >> page & 1;
}

static inline int unwind_read(void *dst, uint32_t size, uint64_t address, const void *memory)
{
	const struct unwind_slice *slice = memory;
	uint64_t at = address - slice->base;

	if (address < slice->base || at > slice->size || size > slice->size - at ||
	    unwind_slice_lacks(slice, address) || unwind_slice_lacks(slice, address + size - 1)) {
		if (slice->failed)
			*slice->failed = address + size - 1;
		return -EFAULT;
	}
	memcpy(dst, slice->data + at, size);
	return 0;
}

#include "../bpf/unwind.h"

#endif
