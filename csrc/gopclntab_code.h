/* SPDX-License-Identifier: Apache-2.0 */
/* What only a function's machine code tells: where it saves the caller's frame pointer, and where
 * it moves the stack pointer elsewhere. Offsets are from the start of the code; all reads stay in
 * it. */
#ifndef PYPROF_GOPCLNTAB_CODE_H
#define PYPROF_GOPCLNTAB_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct go_code {
	const uint8_t *bytes;
	size_t size;
};

/* How a frame pointer is saved where a frame is made. */
struct go_saved {
	bool saved;
	uint8_t after; /* only by instructions of so many bytes that come first */
};

/* `at` is where the frame of `size` bytes has just been made, in a function from `start` on. */
struct go_saved go_x86_frame(const struct go_code *code, size_t start, size_t at, int64_t size);
struct go_saved go_arm64_frame(const struct go_code *code, size_t start, size_t at);

/* Offset of the first instruction in [from, to) that may set the stack pointer other than by
 * `change` in the last instruction; `to` if there is none. On x86-64 it may find one too many:
 * instructions are not told from what lies within others. */
size_t go_x86_stack_write(const struct go_code *code, size_t from, size_t to, int64_t change);
size_t go_arm64_stack_write(const struct go_code *code, size_t from, size_t to);

/* DWARF number of the register that the instruction before `at` pops on x86-64; -1: it is no pop.
 */
int go_x86_popped(const struct go_code *code, size_t start, size_t at);

#endif
