// SPDX-License-Identifier: Apache-2.0
/* Functions of Go's table one after another: the distance of the stack pointer, step by step,
 * becomes rows. What the table does not say comes from the flags and names of the run-time system's
 * functions, which go from stack to stack, and from machine code. */
#include <errno.h>
#include <string.h>

#include "cfi_internal.h"
#include "gopclntab_code.h"
#include "gopclntab_rows.h"

/* src/internal/abi/symtab.go; there since Go 1.17, zero before. */
enum {
	FLAG_TOP_FRAME = 1,
	FLAG_STACK_WRITE = 2,
};

/* Functions begin at multiples of up to so many bytes; what is left out between two is no code. */
#define MAX_PADDING 32

enum role {
	ROLE_NONE,
	/* The outermost frame of its stack. */
	ROLE_OUTERMOST,
	/* Not that, whatever the flags say. */
	ROLE_NOT_OUTERMOST,
	/* Sets the stack pointer. */
	ROLE_SWITCH,
	/* The same; and where it has, it is the outermost frame of the stack that it went to. */
	ROLE_SWITCH_FOR_GOOD,
	/* Its call was made up by a signal handler: it returns to where the signal came. */
	ROLE_INJECTED,
	/* What a signal handler returns to. */
	ROLE_TRAMPOLINE,
};

/* Functions of the run-time system by name: numbers (funcID) change from version to version, and
 * flags are not there before Go 1.17. A signal handler's sigtramp has the flag of an outermost
 * frame, but its trampoline leads on to what was interrupted. */
static const struct {
	const char *name;
	enum role role;
} roles[] = {
    {"_rt0_amd64", ROLE_OUTERMOST},
    {"_rt0_amd64_linux", ROLE_OUTERMOST},
    {"_rt0_arm64_linux", ROLE_OUTERMOST},
    {"runtime.goexit", ROLE_OUTERMOST},
    {"runtime.mstart", ROLE_OUTERMOST},
    {"runtime.rt0_go", ROLE_OUTERMOST},
    {"runtime.sigtramp", ROLE_NOT_OUTERMOST},
    {"runtime.cgoSigtramp", ROLE_NOT_OUTERMOST},
    {"runtime.asmcgocall", ROLE_SWITCH},
    {"runtime.callCgoMmap", ROLE_SWITCH},
    {"runtime.callCgoMunmap", ROLE_SWITCH},
    {"runtime.callCgoSigaction", ROLE_SWITCH},
    {"runtime.cgocallback", ROLE_SWITCH},
    {"runtime.cgocallback_gofunc", ROLE_SWITCH},
    {"runtime.gogo", ROLE_SWITCH},
    {"runtime.nanotime", ROLE_SWITCH},
    {"runtime.nanotime1", ROLE_SWITCH},
    {"runtime.sigfwd", ROLE_SWITCH},
    {"runtime.systemstack", ROLE_SWITCH},
    {"runtime.walltime", ROLE_SWITCH},
    {"runtime.walltime1", ROLE_SWITCH},
    {"time.now", ROLE_SWITCH},
    {"runtime.clone", ROLE_SWITCH_FOR_GOOD},
    {"runtime.mcall", ROLE_SWITCH_FOR_GOOD},
    {"runtime.morestack", ROLE_SWITCH_FOR_GOOD},
    {"runtime.asyncPreempt", ROLE_INJECTED},
    {"runtime.debugCallV1", ROLE_INJECTED},
    {"runtime.debugCallV2", ROLE_INJECTED},
    {"runtime.sigpanic", ROLE_INJECTED},
    {"runtime.sigpanic0", ROLE_INJECTED},
    {"runtime.sigreturn", ROLE_TRAMPOLINE},
    {"runtime.sigreturn__sigaction", ROLE_TRAMPOLINE},
};

struct go_build {
	const struct pyprof_go_input *in;
	struct go_code code;
	struct cfi_rows rows;
};

struct function {
	size_t start; /* offsets in the code */
	size_t end;
	const char *name; /* zero within name_size bytes, or not at all */
	size_t name_size;
	enum role role;
	bool writes_stack;
	/* As far as its code has been looked at. */
	bool saved;   /* the caller's frame pointer, right below the return address */
	bool written; /* the stack pointer */
	int64_t last; /* distance of the step before */
};

static void build_deinit(struct go_build *build)
{
	cfi_rows_deinit(&build->rows);
}

static uint64_t number_at(const struct pyprof_go_input *in, size_t index)
{
	uint64_t value = 0;

	memcpy(&value, in->pairs + index * in->width, in->width);
	return value;
}

static bool begins_with(const struct function *function, const char *text)
{
	size_t size = strlen(text);

	return size <= function->name_size && !memcmp(function->name, text, size);
}

static bool is_named(const struct function *function, const char *text)
{
	return begins_with(function, text) && strlen(text) < function->name_size &&
	       !function->name[strlen(text)];
}

/* Frame pointers are kept where it goes to another stack. */
static bool is_of_runtime(const struct function *function)
{
	return begins_with(function, "runtime.") || is_named(function, "time.now");
}

static enum role role_of(const struct function *function)
{
	if (!begins_with(function, "runtime.") && !begins_with(function, "_rt0_") &&
	    !begins_with(function, "time.now"))
		return ROLE_NONE;
	for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
		if (is_named(function, roles[i].name))
			return roles[i].role;
	}
	return ROLE_NONE;
}

static int put(struct go_build *build, size_t at, const struct pyprof_rule *rule)
{
	return cfi_put_row(&build->rows, build->in->code_address + at, rule);
}

static int put_unsupported(struct go_build *build, size_t at, int reason)
{
	struct pyprof_rule rule;

	cfi_unsupported_rule(reason, &rule);
	return put(build, at, &rule);
}

static int put_outermost(struct go_build *build, size_t at)
{
	struct pyprof_rule rule = {.cfa = PYPROF_CFA_SP, .ra = PYPROF_RA_UNDEFINED};

	return put(build, at, &rule);
}

/* The rule where the stack pointer is `distance` below where the function found it. */
static void rule_of(const struct go_build *build, const struct function *function, int32_t distance,
		    struct pyprof_rule *ret)
{
	*ret = (struct pyprof_rule){.cfa = PYPROF_CFA_SP, .fp = PYPROF_FP_SAME};
	if (distance)
		ret->fp = function->saved ? PYPROF_FP_AT_CFA : PYPROF_FP_UNDEFINED;
	if (build->in->machine == PYPROF_CFI_X86_64) {
		ret->cfa_offset = distance + 8;
		ret->ra = PYPROF_RA_BELOW_CFA;
		if (ret->fp == PYPROF_FP_AT_CFA)
			ret->fp_offset = -16;
	} else {
		ret->cfa_offset = distance;
		ret->ra = distance ? PYPROF_RA_AT_CFA : PYPROF_RA_LINK;
		ret->other = -distance;
		if (ret->fp == PYPROF_FP_AT_CFA)
			ret->fp_offset = -distance - 8;
	}
	if (function->role == ROLE_INJECTED)
		ret->flags = PYPROF_RULE_SIGNAL;
}

/* A return address that is kept in a register while a child runs on the same stack (vfork). */
static int put_popped(struct go_build *build, const struct function *function, size_t at,
		      int64_t distance)
{
	struct pyprof_rule rule = {.cfa = PYPROF_CFA_SP, .ra = PYPROF_RA_IN_REGISTER};
	int reg = go_x86_popped(&build->code, function->start, at);

	if (build->in->machine != PYPROF_CFI_X86_64 || distance != -8 || reg < 0)
		return put_unsupported(build, at, PYPROF_REASON_SP_WRITE);
	rule.other = reg;
	return put(build, at, &rule);
}

/* Where the function has gone to another stack: its frame is on the old one, at its frame pointer.
 */
static int put_switched(struct go_build *build, const struct function *function, size_t at,
			int32_t distance)
{
	struct pyprof_rule rule;

	if (function->role == ROLE_SWITCH_FOR_GOOD)
		return put_outermost(build, at);
	if (!function->saved || (distance && !is_of_runtime(function)))
		return put_unsupported(build, at, PYPROF_REASON_SP_WRITE);
	rule_of(build, function, distance, &rule);
	if (distance) {
		rule.cfa = PYPROF_CFA_FP;
		rule.cfa_offset = build->in->machine == PYPROF_CFI_X86_64 ? 16 : distance + 8;
		rule.flags |= PYPROF_RULE_SWITCH;
	}
	return put(build, at, &rule);
}

static struct go_saved frame_at(const struct go_build *build, const struct function *function,
				size_t at, int64_t distance)
{
	if (build->in->machine == PYPROF_CFI_X86_64)
		return go_x86_frame(&build->code, function->start, at, distance);
	return go_arm64_frame(&build->code, function->start, at);
}

/* Puts the rows of a part of a function in which the stack pointer is at one distance; `change` is
 * what the last of its instructions adds to it. */
static int put_step(struct go_build *build, struct function *function, size_t from, size_t to,
		    int64_t distance, int64_t change)
{
	struct go_saved saved = {false, 0};
	struct pyprof_rule rule;
	size_t write = to;
	int error;

	if (distance < 0)
		return put_popped(build, function, from, distance);
	if (distance > INT32_MAX - 16)
		return put_unsupported(build, from, PYPROF_REASON_OFFSET);
	if (!function->last && distance)
		saved = frame_at(build, function, from, distance);
	if (function->written)
		return put_switched(build, function, from, (int32_t)distance);
	rule_of(build, function, (int32_t)distance, &rule);
	if (saved.saved && !function->saved) {
		if (saved.after) {
			rule.fp = PYPROF_FP_SAME;
			rule.fp_offset = 0;
			error = put(build, from, &rule);
			if (error)
				return error;
		}
		function->saved = true;
		from += saved.after;
		rule_of(build, function, (int32_t)distance, &rule);
	}
	if (from >= to)
		return 0;
	error = put(build, from, &rule);
	if (error || !function->writes_stack)
		return error;
	write = build->in->machine == PYPROF_CFI_X86_64
		    ? go_x86_stack_write(&build->code, from, to, change)
		    : go_arm64_stack_write(&build->code, from, to);
	if (write == to)
		return 0;
	/* The instruction there has not run yet. */
	function->written = true;
	return put_switched(build, function, write + 1, (int32_t)distance);
}

/* One step of a table of distances. */
struct step {
	size_t end; /* in the code */
	int64_t distance;
};

/* Reads the next step: by how much the distance changes, as a zigzag number, and how far it holds.
 * False at the end, or where the table is damaged. */
static bool read_step(const struct go_build *build, struct pyprof_cursor *cursor, size_t limit,
		      bool is_first, struct step *step)
{
	uint64_t change = cursor_uleb(cursor), units = cursor_uleb(cursor);

	if (cursor->bad || (!change && !is_first) || change > UINT32_MAX || !units ||
	    units > UINT32_MAX)
		return false;
	step->distance += (int64_t)(change >> 1) ^ -(int64_t)(change & 1);
	units *= build->in->quantum;
	step->end = units < limit - step->end ? step->end + (size_t)units : limit;
	return true;
}

/* Puts the rows of a function by its table; *end is where the table ends. */
static int put_steps(struct go_build *build, struct function *function, struct pyprof_cursor cursor,
		     size_t *end)
{
	struct step step = {function->start, -1}, next;
	size_t from = function->start;
	bool more = read_step(build, &cursor, function->end, true, &step);
	int error;

	while (more) {
		next = step;
		more = step.end < function->end &&
		       read_step(build, &cursor, function->end, false, &next);
		error = put_step(build, function, from, step.end, step.distance,
				 more ? next.distance - step.distance : 0);
		if (error)
			return error;
		function->last = step.distance;
		from = step.end;
		step = next;
	}
	*end = from;
	return 0;
}

/* Reads the description of a function; false where it is damaged. *deltas: 0 for C code. */
static bool read_function(const struct go_build *build, uint64_t position,
			  struct function *function, uint32_t *deltas)
{
	const struct pyprof_go_input *in = build->in;
	uint64_t size = (uint64_t)in->deltas_at + sizeof(*deltas);
	uint32_t name;
	const uint8_t *at;
	uint8_t flags;

	if (size <= in->flags_at)
		size = (uint64_t)in->flags_at + 1;
	if (size < in->width + sizeof(name))
		size = in->width + sizeof(name);
	if (position > in->functions_size || in->functions_size - position < size)
		return false;
	at = in->functions + position;
	memcpy(&name, at + in->width, sizeof(name));
	memcpy(deltas, at + in->deltas_at, sizeof(*deltas));
	if (name >= in->names_size || *deltas >= in->deltas_size)
		return false;
	function->name = (const char *)in->names + name;
	function->name_size = in->names_size - name;
	function->role = role_of(function);
	flags = in->flags_at ? at[in->flags_at] : 0;
	if ((flags & FLAG_TOP_FRAME) && function->role != ROLE_NOT_OUTERMOST)
		function->role = ROLE_OUTERMOST;
	function->writes_stack = (flags & FLAG_STACK_WRITE) || function->role == ROLE_SWITCH ||
				 function->role == ROLE_SWITCH_FOR_GOOD;
	return true;
}

/* The kernel's context of a signal. Its handler returns to the first byte, and callers are looked
 * up by the byte before. */
static int put_trampoline(struct go_build *build, const struct function *function)
{
	struct pyprof_rule rule = {
	    .cfa = PYPROF_CFA_CONTEXT,
	    .fp = PYPROF_FP_AT_SP,
	    .ra = PYPROF_RA_AT_SP,
	    .rbx = PYPROF_RBX_SAME,
	    .flags = PYPROF_RULE_SIGNAL,
	    .cfa_offset = PYPROF_X86_CONTEXT_SP,
	    .fp_offset = PYPROF_X86_CONTEXT_FP,
	    .other = PYPROF_X86_CONTEXT_PC,
	};
	uint64_t before = build->in->code_address + function->start - !!function->start;

	if (before < build->rows.covered)
		build->rows.covered = before;
	return put(build, function->start - !!function->start, &rule);
}

static int put_function(struct go_build *build, struct function *function, uint32_t deltas)
{
	const struct pyprof_go_input *in = build->in;
	struct pyprof_cursor cursor = {in->deltas + deltas, in->deltas + in->deltas_size, false};
	size_t end = function->end;
	int error;

	if (!deltas)
		error = put_unsupported(build, function->start, PYPROF_REASON_FOREIGN);
	else if (function->role == ROLE_OUTERMOST)
		error = put_outermost(build, function->start);
	else if (function->role == ROLE_TRAMPOLINE && in->machine == PYPROF_CFI_X86_64)
		error = put_trampoline(build, function);
	else
		error = put_steps(build, function, cursor, &end);
	build->rows.covered = in->code_address + end;
	return error;
}

static int make_rows(struct go_build *build, struct pyprof_cfi *out)
{
	const struct pyprof_go_input *in = build->in;
	struct cfi_rows *rows = &build->rows;
	int error = cfi_rows_init(rows, out);

	for (size_t i = 0; !error && i < in->count; i++) {
		uint64_t address = in->text + number_at(in, 2 * i);
		uint64_t size = in->text + number_at(in, 2 * i + 2) - address;
		uint64_t start = address - in->code_address;
		struct function function = {0};
		uint32_t deltas;

		if (!size) {
			out->discarded++;
			continue;
		}
		if (start >= in->code_size || size > in->code_size - start ||
		    !read_function(build, number_at(in, 2 * i + 1), &function, &deltas)) {
			out->skipped[PYPROF_REASON_ENTRY]++;
			continue;
		}
		if (address < rows->covered) {
			out->overlaps++;
			continue;
		}
		if (!rows->covered || address - rows->covered >= MAX_PADDING)
			error = cfi_put_none(rows);
		function.start = (size_t)start;
		function.end = (size_t)(start + size);
		rows->end = address + size;
		if (!error)
			error = put_function(build, &function, deltas);
		out->fde_count++;
	}
	return error ? error : cfi_put_none(rows);
}

int pyprof_go_build(const struct pyprof_go_input *in, const struct pyprof_cfi *other,
		    struct pyprof_cfi *ret)
{
	struct go_build build __attribute__((cleanup(build_deinit))) = {
	    .in = in,
	    .code = {in->code, in->code_size},
	};
	struct pyprof_cfi own;
	int error;

	memset(&own, 0, sizeof(own));
	memset(ret, 0, sizeof(*ret));
	error = make_rows(&build, &own);
	if (!error)
		error = cfi_overlay(&own, other, ret);
	pyprof_cfi_deinit(&own);
	return error;
}
