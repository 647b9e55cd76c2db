// SPDX-License-Identifier: Apache-2.0
/* Rows of one source laid over those of another. */
#include <errno.h>
#include <stdlib.h>

#include "cfi_internal.h"

/* Whether a rule leaves it to the rows below to say more. */
static bool is_open(const struct pyprof_rule *rule)
{
	if (rule->ra == PYPROF_RA_UNDEFINED)
		return false;
	return rule->cfa == PYPROF_CFA_NONE ||
	       (rule->cfa == PYPROF_CFA_UNSUPPORTED && rule->other == PYPROF_REASON_FOREIGN);
}

static const struct pyprof_rule *rule_at(const struct pyprof_cfi *cfi, size_t next)
{
	static const struct pyprof_rule none = {0};

	return next ? &cfi->rules[cfi->numbers[next - 1]] : &none;
}

static int sweep(const struct pyprof_cfi *upper, const struct pyprof_cfi *lower,
		 struct cfi_rows *rows)
{
	static const struct pyprof_rule none = {0};
	size_t i = 0, j = 0;
	int error = 0;

	rows->end = UINT64_MAX;
	while (!error && (i < upper->row_count || j < lower->row_count)) {
		uint64_t one = i < upper->row_count ? upper->addresses[i] : UINT64_MAX;
		uint64_t two = j < lower->row_count ? lower->addresses[j] : UINT64_MAX;
		uint64_t address = one < two ? one : two;
		const struct pyprof_rule *above, *below;

		i += i < upper->row_count && one == address;
		j += j < lower->row_count && two == address;
		above = rule_at(upper, i);
		below = rule_at(lower, j);
		if (is_open(above) && memcmp(below, &none, sizeof(none)))
			above = below;
		error = cfi_put_row(rows, address, above);
	}
	return error;
}

int cfi_overlay(const struct pyprof_cfi *upper, const struct pyprof_cfi *lower,
		struct pyprof_cfi *ret)
{
	static const struct pyprof_cfi empty = {0};
	struct cfi_rows rows;
	int error;

	if (!lower)
		lower = &empty;
	memset(ret, 0, sizeof(*ret));
	error = cfi_rows_init(&rows, ret);
	if (!error)
		error = sweep(upper, lower, &rows);
	cfi_rows_deinit(&rows);
	if (error)
		return error;
	ret->cie_count = upper->cie_count + lower->cie_count;
	ret->fde_count = upper->fde_count + lower->fde_count;
	ret->overlaps = upper->overlaps + lower->overlaps;
	ret->discarded = upper->discarded + lower->discarded;
	for (size_t i = 0; i < PYPROF_REASON_COUNT; i++)
		ret->skipped[i] = upper->skipped[i] + lower->skipped[i];
	cfi_count_unsupported(ret);
	cfi_rows_shrink(ret);
	return 0;
}
