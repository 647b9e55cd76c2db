/* SPDX-License-Identifier: Apache-2.0 */
/* Call frame information (.eh_frame, .debug_frame) to unwind rows: pairs of an address and the
 * number of the rule that holds from there on.
 *
 * Formats: DWARF 5, section 6.4; Linux Standard Base Core 5.0, section 10.6 (.eh_frame).
 * The input may be hostile: every read is checked, time is linear in its size (but for the sort by
 * address, which makes at most six passes), and memory is at most 32 bytes a byte of it. */
#ifndef PYPROF_CFI_H
#define PYPROF_CFI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pyprof_rules.h"

enum pyprof_cfi_machine {
	PYPROF_CFI_X86_64,
	PYPROF_CFI_ARM64,
};

struct pyprof_cfi_input {
	const uint8_t *data;
	size_t size;
	uint64_t address;   /* ELF virtual address of data[0]; 0 for .debug_frame */
	uint64_t text_base; /* what DW_EH_PE_textrel pointers count from; 0: refuse them */
	uint64_t data_base; /* what DW_EH_PE_datarel pointers count from; 0: refuse them */
	/* Signal trampolines, found by their code: pairs of first address and end, ascending. What
	 * the call frame information covers is that's. */
	const uint64_t *trampolines;
	size_t trampoline_count;
	enum pyprof_cfi_machine machine;
	bool debug_frame;  /* layout of .debug_frame, not of .eh_frame */
	bool stop_at_zero; /* the size is a guess: a zero length is the end. With the true size one
			      is passed over, since each input of a link may bring its own. */
};

struct pyprof_cfi {
	/* Rows, ascending by address, no two neighbours with one rule. Where no entry covers an
	 * address, and behind the last one, the rule is PYPROF_RULE_NONE. */
	uint64_t *addresses;
	uint32_t *numbers;
	size_t row_count;
	/* Distinct rules, in order of their first use; the first is PYPROF_RULE_NONE. */
	struct pyprof_rule *rules;
	uint32_t rule_count;
	size_t cie_count;
	size_t fde_count; /* functions that rows were made from */
	/* Functions that begin within an earlier one. Of two, the one that begins first holds the
	 * addresses that both claim; of two that begin at one address, the first in the section. */
	size_t overlaps;
	size_t discarded; /* functions of no size, or at address 0: removed by the linker */
	/* By enum pyprof_reason: rows whose rule is UNSUPPORTED, or whose frame pointer is. */
	uint64_t unsupported[PYPROF_REASON_COUNT];
	/* By enum pyprof_reason: functions left out, since what addresses they cover is unknown. */
	uint64_t skipped[PYPROF_REASON_COUNT];
};

/* Makes rows. 0, -ENOMEM, or -E2BIG where the rows would not fit 32-bit counts; ret is to be
 * deinitialised in any case. Damage is not an error: it is counted in ret, and what can be read is.
 */
int pyprof_cfi_build(const struct pyprof_cfi_input *in, struct pyprof_cfi *ret);
void pyprof_cfi_deinit(struct pyprof_cfi *cfi);

/* Index of the row that covers an address; -1 where it lies before the first. */
ptrdiff_t pyprof_cfi_find(const struct pyprof_cfi *cfi, uint64_t address);

#endif
