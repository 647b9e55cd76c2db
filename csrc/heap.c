/* SPDX-License-Identifier: Apache-2.0 */
#include "heap.h"

#include <errno.h>
#include <sys/mman.h>

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

void pyprof_heap_return_memory(void)
{
#ifdef __GLIBC__
	/* By default glibc keeps up to 32 MiB a thread's heap once blocks of that size were freed:
	 * the rows of one large executable would cost their memory for ever (mallopt(3)). */
	mallopt(M_MMAP_THRESHOLD, 256 * 1024);
	mallopt(M_TRIM_THRESHOLD, 256 * 1024);
	mallopt(M_ARENA_MAX, 2);
#endif
}

int pyprof_heap_drop_file_pages(uint64_t start, uint64_t length)
{
	return madvise((void *)(uintptr_t)start, length, MADV_DONTNEED) ? -errno : 0;
}
