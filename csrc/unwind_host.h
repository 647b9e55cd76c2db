/* SPDX-License-Identifier: Apache-2.0 */
/* The user stack walk of the BPF side, compiled for user space over a copy of a stack. */
#ifndef PYPROF_UNWIND_HOST_H
#define PYPROF_UNWIND_HOST_H

#include <stddef.h>
#include <stdint.h>

/* cffi begin */
/* Walks from the registers given, reading the stack from a copy of `size` bytes that began at
 * address `base`. Writes up to `capacity` program counters, leaf first, to pcs and the reason for
 * stopping (enum pyprof_end) to *end; returns how many there are. */
size_t pyprof_unwind(uint64_t pc, uint64_t sp, uint64_t fp, const void *stack, uint64_t base,
		     size_t size, uint64_t *pcs, size_t capacity, uint8_t *end);
/* cffi end */

#endif
