// SPDX-License-Identifier: Apache-2.0
/* DWARF expressions in call frame information: the few forms that tools emit, evaluated by symbol.
 */
#include "cfi_internal.h"

/* DW_OP_*: DWARF 5, 2.5.1. */
enum {
	OP_DEREF = 0x06,
	OP_CONST1U = 0x08,
	OP_CONST1S = 0x09,
	OP_CONST2U = 0x0a,
	OP_CONST2S = 0x0b,
	OP_CONST4U = 0x0c,
	OP_CONST4S = 0x0d,
	OP_CONST8U = 0x0e,
	OP_CONST8S = 0x0f,
	OP_CONSTU = 0x10,
	OP_CONSTS = 0x11,
	OP_MINUS = 0x1c,
	OP_PLUS = 0x22,
	OP_PLUS_UCONST = 0x23,
	OP_LIT0 = 0x30,
	OP_LIT31 = 0x4f,
	OP_BREG0 = 0x70,
	OP_BREG31 = 0x8f,
	OP_BREGX = 0x92,
	OP_NOP = 0x96,
};

/* Expressions of real rules need two. */
#define MAX_STACK 4

/* The rule that linkers write for a procedure linkage table entry, whose second instruction (a
 * push) begins at byte N of 16:  sp + 8 + ((pc & 15) >= N) * 8 */
static bool read_plt(const struct cfi_machine *machine, const struct pyprof_cursor *code,
		     struct expression *ret)
{
	const uint8_t *at = code->at;

	if (machine->sp != 7 || cursor_left(code) != 11)
		return false;
	if (at[0] != 0x77 || at[1] != 8 ||     /* breg7 (rsp) 8 */
	    at[2] != 0x80 || at[3] != 0 ||     /* breg16 (rip) 0 */
	    at[4] != 0x3f || at[5] != 0x1a ||  /* lit15, and */
	    at[6] < OP_LIT0 || at[6] > 0x3f || /* lit N */
	    at[7] != 0x2a ||		       /* ge */
	    at[8] != 0x33 || at[9] != 0x24 ||  /* lit3, shl */
	    at[10] != OP_PLUS)
		return false;
	ret->kind = EXPRESSION_PLT;
	ret->base = machine->sp;
	ret->offset = 8;
	ret->added = at[6] - OP_LIT0;
	return true;
}

static bool fits(int64_t value, int32_t *ret)
{
	*ret = (int32_t)value;
	return value >= INT32_MIN && value <= INT32_MAX;
}

/* A constant operand. Unsigned ones above 2^63 become negative, as in the 64-bit arithmetic that
 * they are used in. */
static bool read_constant(struct pyprof_cursor *code, uint8_t op, int64_t *ret)
{
	switch (op) {
	case OP_CONST1U:
		*ret = cursor_u8(code);
		return true;
	case OP_CONST1S:
		*ret = (int8_t)cursor_u8(code);
		return true;
	case OP_CONST2U:
		*ret = cursor_u16(code);
		return true;
	case OP_CONST2S:
		*ret = (int16_t)cursor_u16(code);
		return true;
	case OP_CONST4U:
		*ret = cursor_u32(code);
		return true;
	case OP_CONST4S:
		*ret = (int32_t)cursor_u32(code);
		return true;
	case OP_CONST8U:
	case OP_CONST8S:
		*ret = (int64_t)cursor_u64(code);
		return true;
	case OP_CONSTU:
		*ret = (int64_t)cursor_uleb(code);
		return true;
	case OP_CONSTS:
		*ret = cursor_sleb(code);
		return true;
	default:
		*ret = op - OP_LIT0;
		return op >= OP_LIT0 && op <= OP_LIT31;
	}
}

static bool add(struct expression *top, int64_t value)
{
	int32_t *term = top->kind == EXPRESSION_DEREF ? &top->added : &top->offset;

	if (value < INT32_MIN || value > INT32_MAX)
		return false;
	return fits(*term + value, term);
}

/* Adds (sign 1) or subtracts (sign -1) the constant on top of the stack. */
static bool add_top(struct expression *stack, size_t *depth, int sign)
{
	struct expression *second, *top;

	if (*depth < 2)
		return false;
	top = &stack[*depth - 1];
	second = top - 1;
	if (sign > 0 && second->kind == EXPRESSION_CONSTANT) {
		struct expression swapped = *second;

		*second = *top;
		*top = swapped;
	}
	if (top->kind != EXPRESSION_CONSTANT || !add(second, (int64_t)sign * top->offset))
		return false;
	--*depth;
	return true;
}

static bool step(struct pyprof_cursor *code, struct expression *stack, size_t *depth)
{
	uint8_t op = cursor_u8(code);
	struct expression value = {0};
	uint64_t reg;
	int64_t number;

	if (op == OP_NOP)
		return true;
	if (op == OP_PLUS)
		return add_top(stack, depth, 1);
	if (op == OP_MINUS)
		return add_top(stack, depth, -1);
	if (op == OP_PLUS_UCONST) {
		uint64_t constant = cursor_uleb(code);

		return *depth && constant <= INT32_MAX &&
		       add(&stack[*depth - 1], (int64_t)constant);
	}
	if (op == OP_DEREF) {
		if (!*depth || stack[*depth - 1].kind != EXPRESSION_BASE)
			return false;
		stack[*depth - 1].kind = EXPRESSION_DEREF;
		return true;
	}
	if (*depth == MAX_STACK)
		return false;
	if ((op >= OP_BREG0 && op <= OP_BREG31) || op == OP_BREGX) {
		reg = op == OP_BREGX ? cursor_uleb(code) : (uint64_t)(op - OP_BREG0);
		number = cursor_sleb(code);
		if (reg >= CFA_VALUE)
			return false;
		value.kind = EXPRESSION_BASE;
		value.base = (uint8_t)reg;
	} else if (read_constant(code, op, &number)) {
		value.kind = EXPRESSION_CONSTANT;
	} else {
		return false;
	}
	if (!fits(number, &value.offset))
		return false;
	stack[(*depth)++] = value;
	return true;
}

/* Evaluates an expression. Where starts_with_cfa, the CFA lies on the stack at first (DWARF 5,
 * 6.4.2.3: DW_CFA_expression and DW_CFA_val_expression). */
void cfi_read_expression(const struct cfi_machine *machine, struct pyprof_cursor code,
			 bool starts_with_cfa, struct expression *ret)
{
	struct expression stack[MAX_STACK] = {0};
	size_t depth = 0;

	memset(ret, 0, sizeof(*ret)); /* EXPRESSION_UNKNOWN */
	if (!starts_with_cfa && read_plt(machine, &code, ret))
		return;
	if (starts_with_cfa)
		stack[depth++] = (struct expression){.kind = EXPRESSION_BASE, .base = CFA_VALUE};
	while (cursor_left(&code)) {
		if (!step(&code, stack, &depth) || code.bad)
			return;
	}
	if (depth)
		*ret = stack[depth - 1];
}
