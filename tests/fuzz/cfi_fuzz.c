// SPDX-License-Identifier: Apache-2.0
/* libFuzzer harness of the call frame decoder; tests/fuzz/run says how it is built and started.
 * The first byte of the input selects the variant, the next eight are the section's address. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cfi.h"
#include "fuzz.h"

#define HEAD 9

static void check_rule(const struct pyprof_rule *rule)
{
	CHECK(rule->cfa < PYPROF_CFA_COUNT && rule->fp < PYPROF_FP_COUNT &&
	      rule->ra < PYPROF_RA_COUNT);
	if (rule->cfa == PYPROF_CFA_UNSUPPORTED)
		CHECK(rule->other > PYPROF_REASON_NONE && rule->other < PYPROF_REASON_COUNT);
	if (rule->fp == PYPROF_FP_UNSUPPORTED)
		CHECK(rule->fp_offset > PYPROF_REASON_NONE &&
		      rule->fp_offset < PYPROF_REASON_COUNT);
	if (rule->fp == PYPROF_FP_IN_REGISTER)
		CHECK(rule->fp_offset >= 0 && rule->fp_offset < 31);
	if (rule->ra == PYPROF_RA_IN_REGISTER)
		CHECK(rule->other >= 0 && rule->other < 31);
	if (rule->cfa == PYPROF_CFA_REGISTER)
		CHECK(PYPROF_RULE_CFA_REGISTER(rule->flags) < 31);
	if (rule->ra == PYPROF_RA_AT_SP)
		CHECK(rule->cfa == PYPROF_CFA_CONTEXT);
	if (rule->cfa == PYPROF_CFA_PLT)
		CHECK(rule->other >= 0 && rule->other < 16);
}

static void check(const struct pyprof_cfi *cfi, size_t size)
{
	uint64_t unsupported = 0;

	/* A row needs a byte of instructions or, for the border of a function, an entry. */
	CHECK(cfi->row_count <= size + 1);
	CHECK(cfi->rule_count >= 1 &&
	      cfi->rule_count <= cfi->row_count + cfi->fde_count + size + 1);
	for (uint32_t i = 0; i < cfi->rule_count; i++)
		check_rule(&cfi->rules[i]);
	for (size_t i = 0; i < cfi->row_count; i++) {
		CHECK(cfi->numbers[i] < cfi->rule_count);
		CHECK(pyprof_cfi_find(cfi, cfi->addresses[i]) == (ptrdiff_t)i);
		if (i) {
			CHECK(cfi->addresses[i - 1] < cfi->addresses[i]);
			CHECK(cfi->numbers[i - 1] != cfi->numbers[i]);
		}
	}
	if (cfi->row_count)
		CHECK(cfi->numbers[cfi->row_count - 1] == PYPROF_RULE_NONE);
	for (size_t i = 0; i < PYPROF_REASON_COUNT; i++)
		unsupported += cfi->unsupported[i];
	CHECK(unsupported <= cfi->row_count && !cfi->unsupported[PYPROF_REASON_NONE]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pyprof_cfi_input in = {0};
	struct pyprof_cfi cfi;
	uint8_t *copy;

	if (size < HEAD)
		return 0;
	/* A block of its own, so that one byte too far is noticed. */
	copy = malloc(size - HEAD + (size == HEAD));
	if (!copy)
		return 0;
	memcpy(copy, data + HEAD, size - HEAD);
	in.data = copy;
	in.size = size - HEAD;
	memcpy(&in.address, data + 1, sizeof(in.address));
	in.machine = data[0] & 1 ? PYPROF_CFI_ARM64 : PYPROF_CFI_X86_64;
	in.debug_frame = data[0] & 2;
	in.stop_at_zero = data[0] & 4;
	in.text_base = data[0] & 8 ? 0x1000 : 0;
	in.data_base = data[0] & 16 ? 0x2000 : 0;
	if (!pyprof_cfi_build(&in, &cfi))
		check(&cfi, in.size);
	pyprof_cfi_deinit(&cfi);
	free(copy);
	return 0;
}
