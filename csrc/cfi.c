// SPDX-License-Identifier: Apache-2.0
/* Call frame information to rows: collects the functions of a section, sorts them by address, runs
 * the instructions of each, and numbers the distinct rules. */
#include <errno.h>
#include <stdlib.h>

#include "cfi_internal.h"

static const struct cfi_machine machines[] = {
    [PYPROF_CFI_X86_64] = {.sp = 7, .fp = 6, .link = NO_REGISTER, .rbx = 3, .registers = 16},
    [PYPROF_CFI_ARM64] = {.sp = 31, .fp = 29, .link = 30, .rbx = NO_REGISTER, .registers = 31},
};

/* Entries have 8 bytes at least, so that no count of them exceeds 32 bits. */
#define MAX_SIZE ((uint64_t)1 << 34)

struct order {
	uint64_t start;
	uint32_t fde;
};

struct build {
	const struct pyprof_cfi_input *in;
	const struct cfi_machine *machine;
	struct pyprof_cfi *out;
	struct cfi_cie *cies;
	size_t cie_count, cie_capacity;
	struct cfi_fde *fdes;
	size_t fde_count, fde_capacity;
	struct order *order;
	struct cfi_rows rows;
};

static void build_deinit(struct build *build)
{
	free(build->cies);
	free(build->fdes);
	free(build->order);
	cfi_rows_deinit(&build->rows);
}

static int read_cies(struct build *build)
{
	struct pyprof_cursor cursor = {build->in->data, build->in->data + build->in->size, false};
	struct cfi_entry entry;
	int error;

	while (cfi_next_entry(build->in, &cursor, &entry)) {
		if (!entry.is_cie)
			continue;
		error = cfi_grow((void **)&build->cies, &build->cie_capacity, build->cie_count,
				 sizeof(*build->cies));
		if (error)
			return error;
		cfi_read_cie(build->in, build->machine, &entry, &build->cies[build->cie_count++]);
	}
	if (cursor.bad)
		build->out->skipped[PYPROF_REASON_ENTRY]++;
	build->out->cie_count = build->cie_count;
	return 0;
}

/* Index of the CIE at a position, which are in ascending order; -1: there is none. last is the
 * index that was found before, most often the answer. */
static ptrdiff_t find_cie(const struct build *build, uint64_t position, size_t last)
{
	size_t low = 0, high = build->cie_count;

	if (last < high && build->cies[last].position == position)
		return (ptrdiff_t)last;
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (build->cies[middle].position < position)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < build->cie_count && build->cies[low].position == position)
		return (ptrdiff_t)low;
	return -1;
}

static int read_fdes(struct build *build)
{
	struct pyprof_cursor cursor = {build->in->data, build->in->data + build->in->size, false};
	struct pyprof_cfi *out = build->out;
	struct cfi_entry entry;
	struct cfi_fde *fde;
	ptrdiff_t cie = 0;
	size_t last = 0;
	int error, reason;

	while (cfi_next_entry(build->in, &cursor, &entry)) {
		if (entry.is_cie)
			continue;
		cie = find_cie(build, entry.cie_position, last);
		if (cie < 0) {
			out->skipped[PYPROF_REASON_ENTRY]++;
			continue;
		}
		last = (size_t)cie;
		error = cfi_grow((void **)&build->fdes, &build->fde_capacity, build->fde_count,
				 sizeof(*build->fdes));
		if (error)
			return error;
		fde = &build->fdes[build->fde_count];
		reason = cfi_read_fde(build->in, &build->cies[last], &entry, fde);
		if (reason) {
			out->skipped[reason]++;
		} else if (!fde->start || fde->start == fde->end) {
			/* What a linker leaves of a function that it removed. */
			out->discarded++;
		} else {
			fde->cie = (uint32_t)last;
			build->fde_count++;
		}
	}
	return 0;
}

#define RADIX_BITS 11
#define RADIX	   (1u << RADIX_BITS)

/* One stable pass of a radix sort by the digit at shift. */
static void sort_pass(const struct order *from, struct order *to, size_t count, uint64_t base,
		      unsigned int shift)
{
	size_t starts[RADIX] = {0};
	size_t total = 0;

	for (size_t i = 0; i < count; i++)
		starts[((from[i].start - base) >> shift) & (RADIX - 1)]++;
	for (size_t i = 0; i < RADIX; i++) {
		size_t here = starts[i];

		starts[i] = total;
		total += here;
	}
	for (size_t i = 0; i < count; i++)
		to[starts[((from[i].start - base) >> shift) & (RADIX - 1)]++] = from[i];
}

/* Sorts functions by start; those that start at one address stay in the order of the section. */
static int sort_functions(struct build *build)
{
	size_t count = build->fde_count;
	struct order *from, *to, *swap;
	uint64_t low = UINT64_MAX, high = 0;
	bool sorted = true;

	build->order = malloc((count ? count : 1) * 2 * sizeof(*build->order));
	if (!build->order)
		return -ENOMEM;
	from = build->order;
	to = from + count;
	for (size_t i = 0; i < count; i++) {
		uint64_t start = build->fdes[i].start;

		from[i] = (struct order){start, (uint32_t)i};
		sorted = sorted && start >= high;
		low = start < low ? start : low;
		high = start > high ? start : high;
	}
	if (sorted)
		return 0;
	for (unsigned int shift = 0; shift < 64 && (high - low) >> shift; shift += RADIX_BITS) {
		sort_pass(from, to, count, low, shift);
		swap = from;
		from = to;
		to = swap;
	}
	if (from != build->order)
		memcpy(build->order, from, count * sizeof(*from));
	return 0;
}

/* From what is covered up to an address no function lies: rows of the trampolines there, of which
 * *next is the next one. */
static int put_gap(struct build *build, uint64_t end, size_t *next)
{
	const struct pyprof_cfi_input *in = build->in;
	struct cfi_rows *rows = &build->rows;
	struct pyprof_rule rule;
	int error = cfi_put_none(rows);

	cfi_trampoline_rule(build->machine, &rule);
	for (; !error && *next < in->trampoline_count; ++*next) {
		uint64_t first = in->trampolines[2 * *next], last = in->trampolines[2 * *next + 1];

		if (first >= end)
			break;
		if (first < rows->covered || last > end || last <= first)
			continue;
		/* A handler returns to the first byte, and a caller is looked up one byte before
		 * where it goes on. */
		rows->end = last;
		error = cfi_put_row(rows, first ? first - 1 : 0, &rule);
		rows->covered = last;
		if (!error)
			error = cfi_put_none(rows);
	}
	return error;
}

static int make_rows_of(struct build *build, struct cfi_rows *rows)
{
	size_t trampoline = 0;
	int error = 0;

	for (size_t i = 0; !error && i < build->fde_count; i++) {
		const struct cfi_fde *fde = &build->fdes[build->order[i].fde];

		if (fde->start > rows->covered)
			error = put_gap(build, fde->start, &trampoline);
		else if (fde->start < rows->covered)
			build->out->overlaps++;
		if (error || fde->end <= rows->covered)
			continue;
		rows->end = fde->end;
		error =
		    cfi_run_function(build->in, build->machine, &build->cies[fde->cie], fde, rows);
		rows->covered = fde->end;
	}
	return error ? error : put_gap(build, UINT64_MAX, &trampoline);
}

static int make_rows(struct build *build)
{
	struct cfi_rows *rows = &build->rows;
	int error = cfi_rows_init(rows, build->out);

	if (!error)
		error = make_rows_of(build, rows);
	if (error || !rows->needs_rbx)
		return error;
	/* Once more: where rbx is matters in all functions that others call. */
	build->out->overlaps = 0;
	error = cfi_rows_reset(rows);
	rows->follow_rbx = true;
	return error ? error : make_rows_of(build, rows);
}

void cfi_count_unsupported(struct pyprof_cfi *out)
{
	for (size_t i = 0; i < out->row_count; i++) {
		const struct pyprof_rule *rule = &out->rules[out->numbers[i]];

		if (rule->ra == PYPROF_RA_UNDEFINED)
			continue;
		if (rule->cfa == PYPROF_CFA_UNSUPPORTED)
			out->unsupported[rule->other]++;
		else if (rule->fp == PYPROF_FP_UNSUPPORTED)
			out->unsupported[rule->fp_offset]++;
	}
}

int pyprof_cfi_build(const struct pyprof_cfi_input *in, struct pyprof_cfi *ret)
{
	struct build build __attribute__((cleanup(build_deinit))) = {
	    .in = in,
	    .machine = &machines[in->machine],
	    .out = ret,
	};
	int error;

	memset(ret, 0, sizeof(*ret));
	if (in->size > MAX_SIZE)
		return -E2BIG;
	error = read_cies(&build);
	if (!error)
		error = read_fdes(&build);
	if (!error)
		error = sort_functions(&build);
	if (!error)
		error = make_rows(&build);
	if (error)
		return error;
	ret->fde_count = build.fde_count;
	cfi_count_unsupported(ret);
	cfi_rows_shrink(ret);
	return 0;
}

void pyprof_cfi_deinit(struct pyprof_cfi *cfi)
{
	free(cfi->addresses);
	free(cfi->numbers);
	free(cfi->rules);
	memset(cfi, 0, sizeof(*cfi));
}

ptrdiff_t pyprof_cfi_find(const struct pyprof_cfi *cfi, uint64_t address)
{
	size_t low = 0, high = cfi->row_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (cfi->addresses[middle] <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return (ptrdiff_t)low - 1;
}
