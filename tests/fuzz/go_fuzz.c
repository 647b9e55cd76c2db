// SPDX-License-Identifier: Apache-2.0
/* Harness of the decoder of Go's program counter table. An input is a head, and then what the head
 * cuts into the parts of a table and code; tests/fuzz/go_seeds.py makes such inputs of real
 * programs. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "gopclntab_rows.h"

/* Machine and width (bit 0: arm64, bit 1: 8 bytes), offsets in a description, quantum, one byte
 * each; where functions and code begin; then the lengths of pairs, functions, deltas, names; the
 * rest is code. */
struct head {
	uint8_t variant, deltas_at, flags_at, quantum;
	uint32_t lengths[4];
	uint64_t text, code_address;
} __attribute__((packed));

static void check(const struct pyprof_cfi *cfi, size_t code_size)
{
	CHECK(cfi->row_count <= 2 * code_size + 2);
	CHECK(cfi->rule_count >= 1 && cfi->rule_count <= cfi->row_count + 1);
	for (size_t i = 0; i < cfi->row_count; i++) {
		CHECK(cfi->numbers[i] < cfi->rule_count);
		CHECK(!i || cfi->addresses[i - 1] < cfi->addresses[i]);
		CHECK(!i || cfi->numbers[i - 1] != cfi->numbers[i]);
	}
	if (cfi->row_count)
		CHECK(cfi->numbers[cfi->row_count - 1] == PYPROF_RULE_NONE);
}

/* Blocks of their own, so that one byte too far is noticed. */
static uint8_t *part(const uint8_t **data, size_t *left, size_t wanted, size_t *size)
{
	uint8_t *copy;

	*size = wanted < *left ? wanted : *left;
	copy = malloc(*size + !*size);
	CHECK(copy);
	memcpy(copy, *data, *size);
	*data += *size;
	*left -= *size;
	return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pyprof_go_input in = {0};
	struct pyprof_cfi first, second;
	uint8_t *parts[5];
	size_t pairs_size;
	struct head head;

	if (size < sizeof(head))
		return 0;
	memcpy(&head, data, sizeof(head));
	data += sizeof(head);
	size -= sizeof(head);
	in.machine = head.variant & 1 ? PYPROF_CFI_ARM64 : PYPROF_CFI_X86_64;
	in.width = head.variant & 2 ? 8 : 4;
	in.deltas_at = head.deltas_at;
	in.flags_at = head.flags_at;
	in.quantum = head.quantum;
	in.text = head.text;
	in.code_address = head.code_address;
	in.pairs = parts[0] = part(&data, &size, head.lengths[0], &pairs_size);
	in.count = pairs_size / in.width;
	in.count = in.count ? (in.count - 1) / 2 : 0;
	in.functions = parts[1] = part(&data, &size, head.lengths[1], &in.functions_size);
	in.deltas = parts[2] = part(&data, &size, head.lengths[2], &in.deltas_size);
	in.names = parts[3] = part(&data, &size, head.lengths[3], &in.names_size);
	in.code = parts[4] = part(&data, &size, SIZE_MAX, &in.code_size);
	if (!pyprof_go_build(&in, NULL, &first)) {
		check(&first, in.code_size);
		/* Laid over what it is itself, it stays so. */
		CHECK(!pyprof_go_build(&in, &first, &second));
		CHECK(second.row_count == first.row_count);
		pyprof_cfi_deinit(&second);
	}
	pyprof_cfi_deinit(&first);
	for (size_t i = 0; i < 5; i++)
		free(parts[i]);
	return 0;
}
