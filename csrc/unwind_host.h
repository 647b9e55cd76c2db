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

/* Registers of a frame; see struct unwind_regs. */
struct pyprof_host_regs {
	uint64_t pc;
	uint64_t sp;
	uint64_t fp;
	uint64_t registers[16];
	uint8_t has_registers; /* enum pyprof_known */
	uint8_t has_fp;
	uint8_t exact;
	uint8_t by_fp;
};

/* Steps by one rule (struct pyprof_rule, 16 bytes): 1 where regs are now the caller's, 0 where the
 * walk is over with the reason in *end. */
int pyprof_unwind_step(struct pyprof_host_regs *regs, const void *rule, const void *stack,
		       uint64_t base, size_t size, uint8_t *end);
/* The address by which a frame is looked up. */
uint64_t pyprof_unwind_lookup_pc(const struct pyprof_host_regs *regs);
/* Number of the rule that holds at an offset of a page (struct pyprof_page, 40 bytes), of which the
 * chunk of PYPROF_CHUNK_BYTES holds the rows. */
uint32_t pyprof_unwind_rule_number(const void *page, const void *chunk, uint32_t offset);
/* cffi end */

#endif
