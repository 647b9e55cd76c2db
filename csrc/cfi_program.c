// SPDX-License-Identifier: Apache-2.0
/* Call frame instructions: DWARF 5, 6.4.2, and the GNU and arm64 extensions. */
#include "cfi_internal.h"
#include "cfi_opcodes.h"

/* Compilers use one level, hand-written assembly two. */
#define MAX_REMEMBERED 16

struct run {
	const struct pyprof_cfi_input *in;
	const struct cfi_machine *machine;
	const struct cfi_cie *cie;
	struct pyprof_cursor code;
	struct cfi_state state;
	bool changed; /* since the last row */
	bool follow_rbx;
	size_t remembered;
	struct cfi_state stack[MAX_REMEMBERED];
};

/* offset of a factored operand. */
static void set_place(struct place *place, uint8_t kind, uint8_t base, int64_t factored,
		      int64_t factor)
{
	int64_t offset;

	if (__builtin_mul_overflow(factored, factor, &offset) || offset < INT32_MIN ||
	    offset > INT32_MAX) {
		*place = (struct place){PLACE_UNKNOWN, 0, PYPROF_REASON_OFFSET};
		return;
	}
	*place = (struct place){kind, base, (int32_t)offset};
}

/* The place of a register, as far as it matters to us; else NULL. */
static struct place *place_of(struct run *run, uint64_t reg)
{
	if (reg == run->machine->fp) {
		run->changed = true;
		return &run->state.fp;
	}
	if (reg == run->cie->ra_column) {
		run->changed = true;
		return &run->state.ra;
	}
	if (reg == run->machine->sp) {
		run->changed = true;
		return &run->state.sp;
	}
	if (reg == run->machine->rbx && run->follow_rbx) {
		run->changed = true;
		return &run->state.rbx;
	}
	return NULL;
}

static const struct place *initial_of(const struct run *run, const struct place *place)
{
	if (place == &run->state.fp)
		return &run->cie->initial.fp;
	if (place == &run->state.ra)
		return &run->cie->initial.ra;
	if (place == &run->state.sp)
		return &run->cie->initial.sp;
	return &run->cie->initial.rbx;
}

/* Why an expression cannot be the place of a register. */
static int reason_of(const struct run *run, const struct place *place)
{
	if (place == &run->state.fp)
		return PYPROF_REASON_FP_EXPRESSION;
	return place == &run->state.ra ? PYPROF_REASON_RA_EXPRESSION : PYPROF_REASON_SP_PLACE;
}

static void rule_offset(struct run *run, uint64_t reg, int64_t factored, uint8_t kind)
{
	struct place *place = place_of(run, reg);

	if (place)
		set_place(place, kind, CFA_VALUE, factored, run->cie->data_align);
}

static void rule_plain(struct run *run, uint64_t reg, uint8_t kind)
{
	struct place *place = place_of(run, reg);

	if (place)
		*place = (struct place){kind, 0, 0};
}

static void rule_restore(struct run *run, uint64_t reg)
{
	struct place *place = place_of(run, reg);

	if (place)
		*place = *initial_of(run, place);
}

static void rule_register(struct run *run, uint64_t reg, uint64_t other)
{
	struct place *place = place_of(run, reg);

	if (!place)
		return;
	if (other == reg && place != &run->state.ra)
		*place = (struct place){PLACE_SAME, 0, 0};
	else
		*place = (struct place){PLACE_REGISTER,
					(uint8_t)(other < CFA_VALUE ? other : NO_REGISTER), 0};
}

/* is_value: the expression gives the value itself, not where it is. */
static void rule_expression(struct run *run, uint64_t reg, bool is_value)
{
	struct pyprof_cursor code = cursor_part(&run->code, cursor_uleb(&run->code));
	struct place *place = place_of(run, reg);
	struct expression expression;

	if (!place)
		return;
	cfi_read_expression(run->machine, code, true, &expression);
	if (expression.kind == EXPRESSION_BASE)
		*place = (struct place){is_value ? PLACE_VALUE : PLACE_AT, expression.base,
					expression.offset};
	else if (expression.kind == EXPRESSION_DEREF && is_value && !expression.added)
		*place = (struct place){PLACE_AT, expression.base, expression.offset};
	else
		*place = (struct place){PLACE_UNKNOWN, 0, reason_of(run, place)};
}

static void def_cfa_register(struct run *run, uint64_t reg)
{
	struct cfi_state *state = &run->state;

	run->changed = true;
	state->cfa = CFA_BY_REGISTER;
	state->reg = (uint8_t)(reg < CFA_VALUE ? reg : NO_REGISTER);
}

/* A CFA by expression stays one: only a register ends it. So do libgcc and readelf. */
static void def_cfa_offset(struct run *run, int64_t factored, int64_t factor)
{
	struct cfi_state *state = &run->state;
	struct place place;

	run->changed = true;
	set_place(&place, PLACE_VALUE, CFA_VALUE, factored, factor);
	state->offset_reason = place.kind == PLACE_UNKNOWN ? PYPROF_REASON_OFFSET : 0;
	state->offset = place.offset;
}

static void def_cfa_expression(struct run *run)
{
	struct pyprof_cursor code = cursor_part(&run->code, cursor_uleb(&run->code));

	run->changed = true;
	run->state.cfa = CFA_BY_EXPRESSION;
	cfi_read_expression(run->machine, code, false, &run->state.expression);
}

static int restore_state(struct run *run)
{
	if (!run->remembered)
		return PYPROF_REASON_STATE;
	run->changed = true;
	run->state = run->stack[--run->remembered];
	return PYPROF_REASON_NONE;
}

static int remember_state(struct run *run)
{
	if (run->remembered == MAX_REMEMBERED)
		return PYPROF_REASON_STATE;
	run->stack[run->remembered++] = run->state;
	return PYPROF_REASON_NONE;
}

/* An instruction that is no move to another address, operand included. Returns an enum
 * pyprof_reason. */
static int step(struct run *run, uint8_t op)
{
	struct pyprof_cursor *code = &run->code;
	uint64_t reg;

	switch (op) {
	case CFA_NOP:
		return PYPROF_REASON_NONE;
	case CFA_OFFSET_EXTENDED:
		reg = cursor_uleb(code);
		rule_offset(run, reg, (int64_t)cursor_uleb(code), PLACE_AT);
		return PYPROF_REASON_NONE;
	case CFA_OFFSET_EXTENDED_SF:
		reg = cursor_uleb(code);
		rule_offset(run, reg, cursor_sleb(code), PLACE_AT);
		return PYPROF_REASON_NONE;
	case CFA_GNU_NEGATIVE_OFFSET_EXTENDED:
		reg = cursor_uleb(code);
		rule_offset(run, reg, (int64_t)(0 - cursor_uleb(code)), PLACE_AT);
		return PYPROF_REASON_NONE;
	case CFA_VAL_OFFSET:
		reg = cursor_uleb(code);
		rule_offset(run, reg, (int64_t)cursor_uleb(code), PLACE_VALUE);
		return PYPROF_REASON_NONE;
	case CFA_VAL_OFFSET_SF:
		reg = cursor_uleb(code);
		rule_offset(run, reg, cursor_sleb(code), PLACE_VALUE);
		return PYPROF_REASON_NONE;
	case CFA_RESTORE_EXTENDED:
		rule_restore(run, cursor_uleb(code));
		return PYPROF_REASON_NONE;
	case CFA_UNDEFINED:
		rule_plain(run, cursor_uleb(code), PLACE_UNDEFINED);
		return PYPROF_REASON_NONE;
	case CFA_SAME_VALUE:
		rule_plain(run, cursor_uleb(code), PLACE_SAME);
		return PYPROF_REASON_NONE;
	case CFA_REGISTER:
		reg = cursor_uleb(code);
		rule_register(run, reg, cursor_uleb(code));
		return PYPROF_REASON_NONE;
	case CFA_EXPRESSION:
	case CFA_VAL_EXPRESSION:
		rule_expression(run, cursor_uleb(code), op == CFA_VAL_EXPRESSION);
		return PYPROF_REASON_NONE;
	case CFA_REMEMBER_STATE:
		return remember_state(run);
	case CFA_RESTORE_STATE:
		return restore_state(run);
	case CFA_DEF_CFA:
		def_cfa_register(run, cursor_uleb(code));
		def_cfa_offset(run, (int64_t)cursor_uleb(code), 1);
		return PYPROF_REASON_NONE;
	case CFA_DEF_CFA_SF:
		def_cfa_register(run, cursor_uleb(code));
		def_cfa_offset(run, cursor_sleb(code), run->cie->data_align);
		return PYPROF_REASON_NONE;
	case CFA_DEF_CFA_REGISTER:
		def_cfa_register(run, cursor_uleb(code));
		return PYPROF_REASON_NONE;
	case CFA_DEF_CFA_OFFSET:
		def_cfa_offset(run, (int64_t)cursor_uleb(code), 1);
		return PYPROF_REASON_NONE;
	case CFA_DEF_CFA_OFFSET_SF:
		def_cfa_offset(run, cursor_sleb(code), run->cie->data_align);
		return PYPROF_REASON_NONE;
	case CFA_DEF_CFA_EXPRESSION:
		def_cfa_expression(run);
		return PYPROF_REASON_NONE;
	case CFA_GNU_ARGS_SIZE: /* bytes of arguments: matters to exception handlers only */
		cursor_uleb(code);
		return PYPROF_REASON_NONE;
	case CFA_AARCH64_NEGATE_RA_STATE:
	case CFA_AARCH64_NEGATE_RA_STATE_WITH_PC:
		if (run->machine->link == NO_REGISTER)
			return PYPROF_REASON_INSTRUCTION; /* elsewhere the number means SPARC's
							     windows */
		run->changed = true;
		run->state.is_signed = !run->state.is_signed;
		return PYPROF_REASON_NONE;
	default:
		return PYPROF_REASON_INSTRUCTION;
	}
}

/* Moves to another address where op does so. Returns 1 if it does, 0 if not, and -1 where the
 * address cannot be; *ret is then where we were. */
static int advance(struct run *run, uint8_t op, uint64_t *location)
{
	uint64_t delta, target;

	if ((op & 0xc0) == CFA_ADVANCE_LOC) {
		delta = op & 0x3f;
	} else if (op == CFA_ADVANCE_LOC1) {
		delta = cursor_u8(&run->code);
	} else if (op == CFA_ADVANCE_LOC2) {
		delta = cursor_u16(&run->code);
	} else if (op == CFA_ADVANCE_LOC4) {
		delta = cursor_u32(&run->code);
	} else if (op == CFA_MIPS_ADVANCE_LOC8) {
		delta = cursor_u64(&run->code);
	} else if (op == CFA_SET_LOC) {
		target = cfi_read_pointer(run->in, &run->code, run->cie->encoding);
		if (target < *location)
			return -1;
		*location = target;
		return 1;
	} else {
		return 0;
	}
	if (__builtin_mul_overflow(delta, run->cie->code_align, &delta) ||
	    __builtin_add_overflow(delta, *location, &target))
		return -1;
	*location = target;
	return 1;
}

/* One instruction other than those that advance. */
static inline int execute(struct run *run, uint8_t op)
{
	int reason = PYPROF_REASON_NONE;

	if ((op & 0xc0) == CFA_OFFSET)
		rule_offset(run, op & 0x3f, (int64_t)cursor_uleb(&run->code), PLACE_AT);
	else if ((op & 0xc0) == CFA_RESTORE)
		rule_restore(run, op & 0x3f);
	else
		reason = step(run, op);
	return run->code.bad ? PYPROF_REASON_TRUNCATED : reason;
}

int cfi_run_initial(const struct pyprof_cfi_input *in, const struct cfi_machine *machine,
		    struct cfi_cie *cie, struct pyprof_cursor program)
{
	struct run run;
	uint64_t location = 0;
	int reason;

	memset(&run, 0, offsetof(struct run, stack));
	run.in = in;
	run.machine = machine;
	run.cie = cie;
	run.follow_rbx = true;
	run.code = program;
	while (cursor_left(&run.code)) {
		uint8_t op = cursor_u8(&run.code);

		/* A CIE has no address to advance from. */
		if (advance(&run, op, &location))
			return PYPROF_REASON_LOCATION;
		reason = execute(&run, op);
		if (reason)
			return reason;
	}
	cie->initial = run.state;
	return PYPROF_REASON_NONE;
}

/* Puts the row of the state as it is now. */
static int put_state(const struct run *run, struct cfi_rows *rows, uint64_t location)
{
	const struct cfi_state *state = &run->state;
	struct pyprof_rule rule;

	cfi_rule_of(run->machine, run->cie, state, run->follow_rbx, &rule);
	rows->needs_rbx |= state->cfa == CFA_BY_REGISTER && state->reg == run->machine->rbx;
	return cfi_put_row(rows, location, &rule);
}

int cfi_run_function(const struct pyprof_cfi_input *in, const struct cfi_machine *machine,
		     const struct cfi_cie *cie, const struct cfi_fde *fde, struct cfi_rows *rows)
{
	struct run run;
	struct pyprof_rule rule;
	uint64_t location = fde->start, next = fde->start;
	int moved, reason = cie->reason, error = 0;

	memset(&run, 0, offsetof(struct run, stack));
	run.in = in;
	run.machine = machine;
	run.cie = cie;
	run.code = (struct pyprof_cursor){fde->program, fde->program + fde->program_size, false};
	run.state = cie->initial;
	run.changed = true;
	run.follow_rbx = rows->follow_rbx;
	if (!reason && cie->is_signal_frame && machine->link != NO_REGISTER) {
		/* arm64 states the frame record that the kernel makes for the handler, which leads
		 * to the caller of what was interrupted. The context has all. */
		cfi_trampoline_rule(machine, &rule);
		return cfi_put_row(rows, location, &rule);
	}
	while (!reason && cursor_left(&run.code)) {
		uint8_t op = cursor_u8(&run.code);

		moved = advance(&run, op, &next);
		if (!moved) {
			reason = execute(&run, op);
			continue;
		}
		if (moved < 0 || run.code.bad) {
			reason = run.code.bad ? PYPROF_REASON_TRUNCATED : PYPROF_REASON_LOCATION;
			continue;
		}
		if (next == location)
			continue;
		if (run.changed) {
			error = put_state(&run, rows, location);
			if (error)
				return error;
			run.changed = false;
		}
		location = next;
		if (location >= fde->end)
			return 0;
	}
	if (!reason)
		return put_state(&run, rows, location);
	cfi_unsupported_rule(reason, &rule);
	return cfi_put_row(rows, location, &rule);
}
