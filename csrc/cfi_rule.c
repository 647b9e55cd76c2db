// SPDX-License-Identifier: Apache-2.0
/* From the decoder's state to the rule that unwinders apply, or to why there is none. */
#include "cfi_internal.h"

void cfi_unsupported_rule(int reason, struct pyprof_rule *ret)
{
	*ret = (struct pyprof_rule){.cfa = PYPROF_CFA_UNSUPPORTED, .other = reason};
}

void cfi_trampoline_rule(const struct cfi_machine *machine, struct pyprof_rule *ret)
{
	bool is_arm64 = machine->link != NO_REGISTER;

	*ret = (struct pyprof_rule){
	    .cfa = PYPROF_CFA_CONTEXT,
	    .fp = PYPROF_FP_AT_SP,
	    .ra = PYPROF_RA_AT_SP,
	    .rbx = is_arm64 ? PYPROF_RBX_LOST : PYPROF_RBX_SAME,
	    .flags = PYPROF_RULE_SIGNAL,
	    .cfa_offset = is_arm64 ? PYPROF_ARM64_CONTEXT_SP : PYPROF_X86_CONTEXT_SP,
	    .fp_offset = is_arm64 ? PYPROF_ARM64_CONTEXT_FP : PYPROF_X86_CONTEXT_FP,
	    .other = is_arm64 ? PYPROF_ARM64_CONTEXT_PC : PYPROF_X86_CONTEXT_PC,
	};
}

/* Each sets the fields of its part and returns an enum pyprof_reason. */

static int set_cfa_register(const struct cfi_machine *machine, uint8_t reg, int32_t offset,
			    struct pyprof_rule *rule)
{
	rule->cfa_offset = offset;
	if (reg == machine->sp) {
		rule->cfa = PYPROF_CFA_SP;
	} else if (reg == machine->fp) {
		rule->cfa = PYPROF_CFA_FP;
	} else {
		rule->cfa = PYPROF_CFA_REGISTER;
		if (reg >= machine->registers)
			return PYPROF_REASON_CFA_REGISTER;
		rule->flags = (__u8)PYPROF_RULE_WITH_CFA_REGISTER(reg);
	}
	return PYPROF_REASON_NONE;
}

static int set_cfa(const struct cfi_machine *machine, const struct cfi_state *state,
		   struct pyprof_rule *rule)
{
	const struct expression *expression = &state->expression;

	if (state->cfa == CFA_UNSET)
		return PYPROF_REASON_CFA_MISSING;
	if (state->cfa == CFA_BY_REGISTER) {
		if (state->offset_reason)
			return state->offset_reason;
		return set_cfa_register(machine, state->reg, state->offset, rule);
	}
	if (expression->kind == EXPRESSION_BASE)
		return set_cfa_register(machine, expression->base, expression->offset, rule);
	rule->cfa_offset = expression->offset;
	rule->other = expression->added;
	if (expression->kind == EXPRESSION_PLT)
		rule->cfa = PYPROF_CFA_PLT;
	else if (expression->kind == EXPRESSION_DEREF && expression->base == machine->sp)
		rule->cfa = PYPROF_CFA_AT_SP;
	else if (expression->kind == EXPRESSION_DEREF && expression->base == machine->fp)
		rule->cfa = PYPROF_CFA_AT_FP;
	else
		return PYPROF_REASON_CFA_EXPRESSION;
	return PYPROF_REASON_NONE;
}

static int set_fp(const struct cfi_machine *machine, const struct place *place,
		  struct pyprof_rule *rule)
{
	rule->fp_offset = place->offset;
	switch (place->kind) {
	case PLACE_SAME:
		rule->fp = PYPROF_FP_SAME;
		return PYPROF_REASON_NONE;
	case PLACE_UNDEFINED:
		rule->fp = PYPROF_FP_UNDEFINED;
		return PYPROF_REASON_NONE;
	case PLACE_REGISTER:
		rule->fp = PYPROF_FP_IN_REGISTER;
		rule->fp_offset = place->base;
		return place->base < machine->registers ? PYPROF_REASON_NONE
							: PYPROF_REASON_FP_REGISTER;
	case PLACE_UNKNOWN:
		return place->offset;
	default:
		break;
	}
	if (place->kind == PLACE_VALUE) {
		rule->fp = PYPROF_FP_IS_CFA;
		return place->base == CFA_VALUE ? PYPROF_REASON_NONE : PYPROF_REASON_FP_EXPRESSION;
	}
	if (place->base == CFA_VALUE)
		rule->fp = PYPROF_FP_AT_CFA;
	else if (place->base == machine->fp)
		rule->fp = PYPROF_FP_AT_FP;
	else if (place->base == machine->sp)
		rule->fp = PYPROF_FP_AT_SP;
	else
		return PYPROF_REASON_FP_EXPRESSION;
	return PYPROF_REASON_NONE;
}

/* `other` has one user: where the CFA is it, the return address must do without. */
static int set_other(struct pyprof_rule *rule, uint8_t ra, int32_t other)
{
	rule->ra = ra & 15u;
	if (rule->cfa == PYPROF_CFA_AT_SP || rule->cfa == PYPROF_CFA_AT_FP ||
	    rule->cfa == PYPROF_CFA_PLT)
		return PYPROF_REASON_COMBINATION;
	rule->other = other;
	return PYPROF_REASON_NONE;
}

static int set_ra(const struct cfi_machine *machine, const struct cfi_cie *cie,
		  const struct place *place, struct pyprof_rule *rule)
{
	uint64_t reg = place->base;

	switch (place->kind) {
	case PLACE_UNDEFINED:
		rule->ra = PYPROF_RA_UNDEFINED;
		return PYPROF_REASON_NONE;
	case PLACE_UNKNOWN:
		return place->offset;
	case PLACE_VALUE:
		return PYPROF_REASON_RA_EXPRESSION;
	case PLACE_AT:
		if (place->base != CFA_VALUE)
			return PYPROF_REASON_RA_EXPRESSION;
		if (place->offset == -8) {
			rule->ra = PYPROF_RA_BELOW_CFA;
			return PYPROF_REASON_NONE;
		}
		return set_other(rule, PYPROF_RA_AT_CFA, place->offset);
	case PLACE_SAME:
		reg = cie->ra_column;
		break;
	default:
		break;
	}
	if (reg == machine->link) {
		rule->ra = PYPROF_RA_LINK;
		return PYPROF_REASON_NONE;
	}
	if (reg >= machine->registers)
		return place->kind == PLACE_SAME ? PYPROF_REASON_RA_MISSING
						 : PYPROF_REASON_RA_REGISTER;
	return set_other(rule, PYPROF_RA_IN_REGISTER, (int32_t)reg);
}

/* All three registers from where the kernel saved them, as glibc states it for the trampoline that
 * signal handlers return to. */
static bool set_context(const struct cfi_machine *machine, const struct cfi_state *state,
			struct pyprof_rule *rule)
{
	const struct expression *cfa = &state->expression;

	if (state->cfa != CFA_BY_EXPRESSION || cfa->kind != EXPRESSION_DEREF || cfa->added ||
	    cfa->base != machine->sp)
		return false;
	if (state->fp.kind != PLACE_AT || state->fp.base != machine->sp ||
	    state->ra.kind != PLACE_AT || state->ra.base != machine->sp)
		return false;
	rule->cfa = PYPROF_CFA_CONTEXT;
	rule->fp = PYPROF_FP_AT_SP;
	rule->ra = PYPROF_RA_AT_SP;
	rule->cfa_offset = cfa->offset;
	rule->fp_offset = state->fp.offset;
	rule->other = state->ra.offset;
	return true;
}

/* The caller's sp is not the CFA, but what a context holds that a register points to (swapcontext),
 * or in a register (longjmp). Each states all registers so, or there is no rule for it. */
static int set_sp(const struct cfi_machine *machine, const struct cfi_state *state,
		  struct pyprof_rule *rule)
{
	const struct place *sp = &state->sp, *fp = &state->fp, *ra = &state->ra;

	if (state->cfa != CFA_BY_REGISTER || state->reg >= machine->registers ||
	    state->offset_reason)
		return PYPROF_REASON_SP_PLACE;
	rule->flags = (__u8)PYPROF_RULE_WITH_CFA_REGISTER(state->reg);
	rule->cfa_offset = state->offset;
	if (sp->kind == PLACE_REGISTER && sp->base < machine->registers) {
		if (ra->kind != PLACE_REGISTER || ra->base >= machine->registers)
			return PYPROF_REASON_COMBINATION;
		if (fp->kind != PLACE_REGISTER && fp->kind != PLACE_SAME &&
		    fp->kind != PLACE_UNDEFINED)
			return PYPROF_REASON_COMBINATION;
		rule->cfa = PYPROF_CFA_JUMP;
		rule->ra = PYPROF_RA_IN_REGISTER;
		rule->other = PYPROF_RULE_WITH_REGISTERS(ra->base, sp->base);
		return PYPROF_REASON_NONE;
	}
	if (sp->kind != PLACE_AT || sp->base != CFA_VALUE)
		return PYPROF_REASON_SP_PLACE;
	if (fp->kind != PLACE_AT || fp->base != CFA_VALUE || ra->kind != PLACE_AT ||
	    ra->base != CFA_VALUE || state->offset)
		return PYPROF_REASON_COMBINATION;
	rule->cfa = PYPROF_CFA_CONTEXT_AT;
	rule->ra = PYPROF_RA_AT_CFA;
	rule->cfa_offset = sp->offset;
	rule->other = ra->offset;
	return PYPROF_REASON_NONE;
}

/* Whether the caller's sp is the CFA, as nearly always. */
static bool sp_is_cfa(const struct cfi_state *state)
{
	const struct expression *cfa = &state->expression;
	const struct place *sp = &state->sp;

	if (sp->kind == PLACE_AT) /* both say the same */
		return state->cfa == CFA_BY_EXPRESSION && cfa->kind == EXPRESSION_DEREF &&
		       !cfa->added && cfa->base == sp->base && cfa->offset == sp->offset;
	return sp->kind == PLACE_SAME;
}

/* Everything but fp, rbx and flags. */
static int set_caller(const struct cfi_machine *machine, const struct cfi_cie *cie,
		      const struct cfi_state *state, struct pyprof_rule *rule)
{
	int reason;

	if (!sp_is_cfa(state) && state->ra.kind != PLACE_UNDEFINED)
		return set_sp(machine, state, rule);
	reason = set_cfa(machine, state, rule);
	return reason ? reason : set_ra(machine, cie, &state->ra, rule);
}

static uint8_t rbx_of(const struct place *place)
{
	int32_t words = -place->offset / 8;

	if (place->kind == PLACE_SAME)
		return PYPROF_RBX_SAME;
	if (place->kind != PLACE_AT || place->base != CFA_VALUE || place->offset % 8 ||
	    words <= PYPROF_RBX_SAME || words > PYPROF_RBX_MAX)
		return PYPROF_RBX_LOST;
	return (uint8_t)words;
}

static bool is_kernel_context(const struct cfi_machine *machine, const struct pyprof_rule *rule)
{
	return machine->rbx != NO_REGISTER && rule->cfa_offset == PYPROF_X86_CONTEXT_SP &&
	       rule->fp_offset == PYPROF_X86_CONTEXT_FP && rule->other == PYPROF_X86_CONTEXT_PC;
}

/* Whether the caller's sp is stated as lying so far above the CFA, as the Haskell run-time system
 * does.
 */
static bool is_sp_above_cfa(const struct cfi_state *state, int32_t *ret)
{
	const struct place *sp = &state->sp;
	int32_t base = 0;

	if (sp->kind != PLACE_VALUE)
		return false;
	if (sp->base != CFA_VALUE) {
		if (state->cfa != CFA_BY_REGISTER || sp->base != state->reg || state->offset_reason)
			return false;
		base = state->offset;
	}
	return !__builtin_sub_overflow(sp->offset, base, ret);
}

static bool shift_place(struct place *place, int32_t shift)
{
	return (place->kind != PLACE_AT && place->kind != PLACE_VALUE) ||
	       place->base != CFA_VALUE ||
	       !__builtin_sub_overflow(place->offset, shift, &place->offset);
}

/* The state with the caller's sp for a CFA. */
static bool shift_cfa(struct cfi_state *state, int32_t shift)
{
	state->sp = (struct place){PLACE_SAME, 0, 0};
	if (!shift)
		return true;
	return state->cfa == CFA_BY_REGISTER &&
	       !__builtin_add_overflow(state->offset, shift, &state->offset) &&
	       shift_place(&state->fp, shift) && shift_place(&state->ra, shift) &&
	       shift_place(&state->rbx, shift);
}

static void rule_of(const struct cfi_machine *machine, const struct cfi_cie *cie,
		    const struct cfi_state *state, bool follow_rbx, struct pyprof_rule *ret)
{
	int reason, fp_reason;

	memset(ret, 0, sizeof(*ret));
	if (set_context(machine, state, ret)) {
		if (is_kernel_context(machine, ret))
			ret->rbx = PYPROF_RBX_SAME;
	} else {
		reason = set_caller(machine, cie, state, ret);
		if (reason) {
			cfi_unsupported_rule(reason, ret);
			/* The end of the stack needs no CFA. */
			if (state->ra.kind == PLACE_UNDEFINED)
				ret->ra = PYPROF_RA_UNDEFINED;
			return;
		}
		fp_reason = set_fp(machine, &state->fp, ret);
		if (fp_reason) {
			ret->fp = PYPROF_FP_UNSUPPORTED;
			ret->fp_offset = fp_reason;
		}
		if (follow_rbx && ret->cfa != PYPROF_CFA_JUMP &&
		    ret->cfa != PYPROF_CFA_CONTEXT_AT && ret->ra != PYPROF_RA_UNDEFINED)
			ret->rbx = rbx_of(&state->rbx) & 15u;
	}
	if (cie->is_signal_frame)
		ret->flags |= PYPROF_RULE_SIGNAL;
	if (state->is_signed)
		ret->flags |= PYPROF_RULE_SIGNED;
}

void cfi_rule_of(const struct cfi_machine *machine, const struct cfi_cie *cie,
		 const struct cfi_state *state, bool follow_rbx, struct pyprof_rule *ret)
{
	struct cfi_state shifted;
	int32_t shift;

	if (!is_sp_above_cfa(state, &shift)) {
		rule_of(machine, cie, state, follow_rbx, ret);
		return;
	}
	shifted = *state;
	if (shift_cfa(&shifted, shift)) {
		rule_of(machine, cie, &shifted, follow_rbx, ret);
		if (!shift)
			return;
		if ((ret->cfa == PYPROF_CFA_SP || ret->cfa == PYPROF_CFA_FP) &&
		    ret->ra == PYPROF_RA_BELOW_CFA) {
			ret->other = shift;
			return;
		}
	}
	cfi_unsupported_rule(PYPROF_REASON_SP_PLACE, ret);
}
