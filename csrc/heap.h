/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PYPROF_HEAP_H
#define PYPROF_HEAP_H

/* cffi begin */
/* Has the C library give memory back to the kernel when it is freed. */
void pyprof_heap_return_memory(void);
/* cffi end */

#endif
