// SPDX-License-Identifier: Apache-2.0
/* Prologues and stack switches in machine code of Go functions.
 *
 * x86-64: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, 2.1 and appendix
 * A. arm64: Arm Architecture Reference Manual, C4.1. Prologues: cmd/internal/obj/x86/obj6.go and
 * cmd/internal/obj/arm64/obj7.go of the Go sources. */
#include <string.h>

#include "gopclntab_code.h"

enum {
	PUSH_RBP = 0x55,
	REX_B = 0x41,
	MOV_STORE = 0x89,
	GROUP_1_IMM32 = 0x81,
	GROUP_1_IMM8 = 0x83,
	XCHG = 0x87,
	MOV_LOAD = 0x8b,
	LEA = 0x8d,
	SP = 4, /* rsp in an instruction */
};

static bool has(const struct go_code *code, size_t at, const void *bytes, size_t size)
{
	return at <= code->size && size <= code->size - at &&
	       !memcmp(code->bytes + at, bytes, size);
}

static int64_t signed_bytes(const struct go_code *code, size_t at, size_t size)
{
	int32_t value = 0;

	if (at > code->size || size > code->size - at)
		return INT64_MIN;
	if (size == 1)
		return (int8_t)code->bytes[at];
	memcpy(&value, code->bytes + at, sizeof(value));
	return value;
}

/* Bytes of `mov %rbp,size-8(%rsp)` at an offset, or 0. */
static uint8_t stored_rbp(const struct go_code *code, size_t at, int64_t size)
{
	if (size == 8 && has(code, at, "\x48\x89\x2c\x24", 4))
		return 4;
	if (has(code, at, "\x48\x89\x6c\x24", 4) && signed_bytes(code, at + 4, 1) == size - 8)
		return 5;
	if (has(code, at, "\x48\x89\xac\x24", 4) && signed_bytes(code, at + 4, 4) == size - 8)
		return 8;
	return 0;
}

struct go_saved go_x86_frame(const struct go_code *code, size_t start, size_t at, int64_t size)
{
	uint8_t length = stored_rbp(code, at, size);

	/* Up to Go 1.20: sub $size,%rsp; mov %rbp,size-8(%rsp); lea size-8(%rsp),%rbp. */
	if (length)
		return (struct go_saved){true, length};
	if (size != 8 || at <= start || code->bytes[at - 1] != PUSH_RBP)
		return (struct go_saved){false, 0};
	/* 41 55 is push %r13, unless 41 ends what is before; what follows push %rbp tells. */
	return (struct go_saved){
	    at - start == 1 || code->bytes[at - 2] != REX_B || has(code, at, "\x48\x89\xe5", 3), 0};
}

/* Whether an instruction with the prefix REX.W writes rsp; at is that of its opcode. */
static bool writes_rsp(const struct go_code *code, size_t at, uint8_t rex)
{
	uint8_t opcode = code->bytes[at], modrm;
	bool to_memory_or_register;

	if (at + 1 >= code->size)
		return false;
	modrm = code->bytes[at + 1];
	/* add, or, adc, sbb, and, sub, xor, mov, xchg: register to register or memory. */
	to_memory_or_register = (opcode < 0x38 && (opcode & 7) == 1) || opcode == MOV_STORE ||
				opcode == XCHG || opcode == GROUP_1_IMM8 || opcode == GROUP_1_IMM32;
	if (to_memory_or_register && !(rex & 1) && (modrm & 0xc7) == (0xc0 | SP))
		/* The seventh of the group is cmp. */
		return (opcode & 0xfd) != GROUP_1_IMM32 || (modrm >> 3 & 7) != 7;
	/* The same from register or memory to a register. */
	if ((opcode < 0x38 && (opcode & 7) == 3) || opcode == MOV_LOAD || opcode == LEA ||
	    opcode == XCHG)
		return !(rex & 4) && (modrm >> 3 & 7) == SP;
	return false;
}

/* Whether what is at an opcode adds just `change` to the frame, and ends at `to`. */
static bool is_adjustment(const struct go_code *code, size_t at, size_t to, int64_t change)
{
	uint8_t opcode = code->bytes[at], modrm = code->bytes[at + 1];
	size_t size = opcode == GROUP_1_IMM8 ? 1 : 4;
	int64_t value;

	if ((opcode != GROUP_1_IMM8 && opcode != GROUP_1_IMM32) || at + 2 + size != to)
		return false;
	value = signed_bytes(code, at + 2, size);
	return (modrm == 0xec && value == change) || (modrm == 0xc4 && value == -change);
}

size_t go_x86_stack_write(const struct go_code *code, size_t from, size_t to, int64_t change)
{
	for (size_t at = from; at + 1 < to; at++) {
		uint8_t rex = code->bytes[at];

		if ((rex & 0xf8) == 0x48 && writes_rsp(code, at + 1, rex) &&
		    !is_adjustment(code, at + 1, to, change))
			return at;
	}
	return to;
}

int go_x86_popped(const struct go_code *code, size_t start, size_t at)
{
	static const int8_t numbers[] = {0, 2, 1, 3, 7, 6, 4, 5};
	uint8_t opcode;

	if (at <= start)
		return -1;
	opcode = code->bytes[at - 1];
	if ((opcode & 0xf8) != 0x58)
		return -1;
	if (at - start > 1 && code->bytes[at - 2] == REX_B)
		return 8 + (opcode & 7);
	return numbers[opcode & 7];
}

static uint32_t word(const struct go_code *code, size_t at)
{
	uint32_t value = 0;

	if (at <= code->size && code->size - at >= sizeof(value))
		memcpy(&value, code->bytes + at, sizeof(value));
	return value;
}

struct go_saved go_arm64_frame(const struct go_code *code, size_t start, size_t at)
{
	/* stur x29, [sp, #-8] */
	if (word(code, at) == 0xf81f83fd)
		return (struct go_saved){true, 4};
	/* stp x29, x30, [x20, #-8]; mov sp, x20 */
	return (struct go_saved){at - start >= 8 && word(code, at - 8) == 0xa93ffa9d, 0};
}

size_t go_arm64_stack_write(const struct go_code *code, size_t from, size_t to)
{
	for (size_t at = from; at < to && to - at >= 4; at += 4) {
		uint32_t insn = word(code, at);
		bool from_sp = (insn >> 5 & 31) == 31;

		/* add and sub of a constant, or of a register, and logical operations with one, to
		 * sp; with a constant and from sp it is a frame that the table knows of. */
		if ((insn & 0xbf80001f) == 0x9100001f && !from_sp)
			return at;
		if ((insn & 0xbfe0001f) == 0x8b20001f)
			return at;
		/* With flags (ands), register 31 is zr. */
		if ((insn & 0x9f80001f) == 0x9200001f && (insn >> 29 & 3) != 3)
			return at;
	}
	return to;
}
