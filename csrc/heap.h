/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PYPROF_HEAP_H
#define PYPROF_HEAP_H

#include <stdint.h>

/* cffi begin */
/* Has the C library give memory back to the kernel when it is freed. */
void pyprof_heap_return_memory(void);
/* Drops pages of [start, start + length) from this process; they come back from their file when
 * they are used. Only for mappings of files that nothing was ever written to. 0 or -errno. */
int pyprof_heap_drop_file_pages(uint64_t start, uint64_t length);
/* cffi end */

#endif
