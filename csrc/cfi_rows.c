// SPDX-License-Identifier: Apache-2.0
/* Rows under construction, and the numbering of distinct rules. */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "cfi_internal.h"
#include "hash.h"

/* Makes room for one more item, doubling. */
int cfi_grow(void **items, size_t *capacity, size_t count, size_t size)
{
	size_t wanted = *capacity ? 2 * *capacity : 64;
	void *moved;

	if (count < *capacity)
		return 0;
	moved = realloc(*items, wanted * size);
	if (!moved)
		return -ENOMEM;
	*items = moved;
	*capacity = wanted;
	return 0;
}

static uint64_t hash_rule(const struct pyprof_rule *rule, uint64_t seed)
{
	uint64_t words[2];

	memcpy(words, rule, sizeof(words));
	return pyprof_hash_two(words[0], words[1], seed);
}

static int grow_slots(struct cfi_rows *rows)
{
	uint32_t count = rows->slot_mask ? 2 * (rows->slot_mask + 1) : 1024;
	uint32_t *slots;

	if (!count)
		return -E2BIG;
	slots = calloc(count, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	free(rows->slots);
	rows->slots = slots;
	rows->slot_mask = count - 1;
	for (uint32_t i = 0; i < rows->out->rule_count; i++) {
		uint64_t at = hash_rule(&rows->out->rules[i], rows->seed);

		while (slots[at & rows->slot_mask])
			at++;
		slots[at & rows->slot_mask] = i + 1;
	}
	return 0;
}

/* The number of a rule, given to it at its first use. */
static int intern(struct cfi_rows *rows, const struct pyprof_rule *rule, uint32_t *ret)
{
	struct pyprof_cfi *out = rows->out;
	size_t capacity = rows->rule_capacity;
	uint64_t at;
	uint32_t number;
	int error;

	if (out->rule_count >= rows->slot_mask / 2) {
		error = grow_slots(rows);
		if (error)
			return error;
	}
	at = hash_rule(rule, rows->seed);
	while ((number = rows->slots[at & rows->slot_mask]) != 0) {
		if (!memcmp(&out->rules[number - 1], rule, sizeof(*rule))) {
			*ret = number - 1;
			return 0;
		}
		at++;
	}
	error = cfi_grow((void **)&out->rules, &capacity, out->rule_count, sizeof(*rule));
	if (error)
		return error;
	rows->rule_capacity = (uint32_t)capacity;
	out->rules[out->rule_count] = *rule;
	*ret = out->rule_count++;
	rows->slots[at & rows->slot_mask] = *ret + 1;
	return 0;
}

static int put(struct cfi_rows *rows, uint64_t address, uint32_t number)
{
	struct pyprof_cfi *out = rows->out;
	size_t count = out->row_count, wanted = rows->row_capacity;
	uint64_t *addresses;
	uint32_t *numbers;

	if (count && out->addresses[count - 1] == address)
		out->row_count = --count; /* of no length: what comes now holds */
	if (count ? out->numbers[count - 1] == number : number == PYPROF_RULE_NONE)
		return 0;
	if (count == UINT32_MAX)
		return -E2BIG;
	if (count == rows->row_capacity) {
		wanted = wanted ? 2 * wanted : 256;
		addresses = realloc(out->addresses, wanted * sizeof(*addresses));
		if (!addresses)
			return -ENOMEM;
		out->addresses = addresses;
		numbers = realloc(out->numbers, wanted * sizeof(*numbers));
		if (!numbers)
			return -ENOMEM;
		out->numbers = numbers;
		rows->row_capacity = wanted;
	}
	out->addresses[count] = address;
	out->numbers[count] = number;
	out->row_count = count + 1;
	return 0;
}

int cfi_put_row(struct cfi_rows *rows, uint64_t address, const struct pyprof_rule *rule)
{
	uint32_t number;
	int error;

	if (address < rows->covered)
		address = rows->covered;
	if (address >= rows->end)
		return 0;
	error = intern(rows, rule, &number);
	return error ? error : put(rows, address, number);
}

int cfi_put_none(struct cfi_rows *rows)
{
	return put(rows, rows->covered, PYPROF_RULE_NONE);
}

static int put_rule_none(struct cfi_rows *rows)
{
	static const struct pyprof_rule none = {0};
	uint32_t number;

	return intern(rows, &none, &number);
}

int cfi_rows_init(struct cfi_rows *rows, struct pyprof_cfi *out)
{
	*rows = (struct cfi_rows){.out = out};
	/* Early in boot there may be no randomness yet; then addresses have to do. */
	if (getrandom(&rows->seed, sizeof(rows->seed), GRND_NONBLOCK) < 0)
		rows->seed = (uintptr_t)rows ^ (uintptr_t)out;
	return put_rule_none(rows);
}

int cfi_rows_reset(struct cfi_rows *rows)
{
	memset(rows->slots, 0, ((size_t)rows->slot_mask + 1) * sizeof(*rows->slots));
	rows->out->row_count = 0;
	rows->out->rule_count = 0;
	rows->covered = rows->end = 0;
	return put_rule_none(rows);
}

void cfi_rows_deinit(struct cfi_rows *rows)
{
	free(rows->slots);
	rows->slots = NULL;
}

/* Gives back what doubling left over; a failure leaves all as it is. */
void cfi_rows_shrink(struct pyprof_cfi *out)
{
	size_t count = out->row_count ? out->row_count : 1;
	void *moved;

	moved = realloc(out->addresses, count * sizeof(*out->addresses));
	if (moved)
		out->addresses = moved;
	moved = realloc(out->numbers, count * sizeof(*out->numbers));
	if (moved)
		out->numbers = moved;
}
