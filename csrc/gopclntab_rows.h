/* SPDX-License-Identifier: Apache-2.0 */
/* Go's program counter table (.gopclntab) to unwind rows: for each address how far the stack
 * pointer is below where the function found it. Go programs have it always, also stripped ones.
 *
 * Formats, of Go 1.2 and later: src/runtime/symtab.go, src/internal/abi/symtab.go.
 * The input may be hostile: every read is checked, time is linear in the size of code and tables,
 * and there is at most one row for each byte of code. */
#ifndef PYPROF_GOPCLNTAB_ROWS_H
#define PYPROF_GOPCLNTAB_ROWS_H

#include "cfi.h"

struct pyprof_go_input {
	/* The function table: pairs of numbers of `width` bytes, 4 or 8: where a function begins,
	 * less `text`, and the position of its description; then where the last one ends. */
	const uint8_t *pairs;
	size_t count; /* functions */
	size_t width;
	uint64_t text;
	const uint8_t *functions; /* what descriptions count from */
	size_t functions_size;
	const uint8_t *deltas; /* what tables of stack pointer deltas count from */
	size_t deltas_size;
	const uint8_t *names; /* what names count from */
	size_t names_size;
	const uint8_t *code; /* the executable segment */
	size_t code_size;
	uint64_t code_address;
	/* Where in a description are: the position of the deltas, and the flags (0: nowhere). */
	uint32_t deltas_at;
	uint32_t flags_at;
	uint32_t quantum; /* bytes that one unit of a distance between addresses stands for */
	enum pyprof_cfi_machine machine;
};

/* Makes rows. Where Go says nothing, those of `other` hold, which may be NULL: call frame
 * information of C code in the same file. Returns as pyprof_cfi_build does, and so does ret. */
int pyprof_go_build(const struct pyprof_go_input *in, const struct pyprof_cfi *other,
		    struct pyprof_cfi *ret);

#endif
