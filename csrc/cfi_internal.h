/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the call frame decoder share. */
#ifndef PYPROF_CFI_INTERNAL_H
#define PYPROF_CFI_INTERNAL_H

#include "cfi.h"
#include "cfi_cursor.h"

/* DW_EH_PE_*: Linux Standard Base Core 5.0, 10.5.1. */
enum {
	ENCODING_ABSPTR = 0x00,
	ENCODING_ULEB128 = 0x01,
	ENCODING_UDATA2 = 0x02,
	ENCODING_UDATA4 = 0x03,
	ENCODING_UDATA8 = 0x04,
	ENCODING_SLEB128 = 0x09,
	ENCODING_SDATA2 = 0x0a,
	ENCODING_SDATA4 = 0x0b,
	ENCODING_SDATA8 = 0x0c,
	ENCODING_PCREL = 0x10,
	ENCODING_TEXTREL = 0x20,
	ENCODING_DATAREL = 0x30,
	ENCODING_INDIRECT = 0x80,
	ENCODING_OMIT = 0xff,
};

/* Register numbers of a machine. */
struct cfi_machine {
	uint8_t sp;
	uint8_t fp;
	uint8_t link;	   /* where the return address is at first; NO_REGISTER: on the stack */
	uint8_t rbx;	   /* the register that is followed from frame to frame, or NO_REGISTER */
	uint8_t registers; /* general registers that samples hold are those below */
};

enum {
	NO_REGISTER = 0xff,
	CFA_VALUE = 0xfe, /* in place of a register: the CFA itself */
};

/* Where the value that a register had in the caller is. */
enum place_kind {
	PLACE_SAME, /* never mentioned, too */
	PLACE_UNDEFINED,
	PLACE_AT,	/* *(base + offset) */
	PLACE_VALUE,	/* base + offset */
	PLACE_REGISTER, /* in register base */
	PLACE_UNKNOWN,	/* reason in offset */
};

struct place {
	uint8_t kind;
	uint8_t base; /* a register, or CFA_VALUE */
	int32_t offset;
};

enum cfa_kind {
	CFA_UNSET,
	CFA_BY_REGISTER,   /* reg + offset */
	CFA_BY_EXPRESSION, /* as in expression */
};

/* The value of an expression, as far as a rule can state it. */
enum expression_kind {
	EXPRESSION_UNKNOWN,
	EXPRESSION_CONSTANT, /* offset */
	EXPRESSION_BASE,     /* base + offset */
	EXPRESSION_DEREF,    /* *(base + offset) + added */
	EXPRESSION_PLT,	     /* sp + offset + ((pc & 15) >= added ? 8 : 0) */
};

struct expression {
	uint8_t kind;
	uint8_t base; /* a register, or CFA_VALUE */
	int32_t offset;
	int32_t added;
};

/* All that the rule for an address depends on; copied by DW_CFA_remember_state. */
struct cfi_state {
	uint8_t cfa; /* enum cfa_kind */
	uint8_t reg;
	uint8_t offset_reason; /* why the offset is not known, or 0 */
	bool is_signed;
	int32_t offset;
	struct expression expression;
	struct place fp;
	struct place ra;
	struct place sp;  /* SAME: the CFA */
	struct place rbx; /* kept only where it is followed */
};

/* A common information entry (CIE). */
struct cfi_cie {
	uint64_t position; /* in the section */
	uint64_t code_align;
	int64_t data_align;
	uint64_t ra_column;
	uint8_t reason;	      /* why functions that refer to it have no rules; enum pyprof_reason */
	uint8_t encoding;     /* of code addresses; ENCODING_OMIT: not known */
	bool has_length;      /* an FDE has augmentation data, preceded by its length */
	bool is_signal_frame; /* 'S' */
	struct cfi_state initial;
};

/* A frame description entry (FDE): one function, or part of one. */
struct cfi_fde {
	uint64_t start;
	uint64_t end;
	const uint8_t *program; /* its instructions */
	uint32_t program_size;
	uint32_t cie; /* index */
};

/* Head of an entry, of either kind. */
struct cfi_entry {
	uint64_t position;
	bool is_cie;
	uint64_t cie_position; /* of an FDE; UINT64_MAX: outside the section */
	struct pyprof_cursor body;
};

/* Rows under construction. */
struct cfi_rows {
	struct pyprof_cfi *out;
	size_t row_capacity;
	uint32_t rule_capacity;
	uint32_t
	    *slots; /* number of a rule + 1; 0: free. A power of two of them, half full at most */
	uint32_t slot_mask;
	uint64_t seed;	  /* the rules come from the file, so collisions could be made on purpose */
	uint64_t covered; /* addresses below are done */
	uint64_t end;	  /* of the function at hand */
	bool follow_rbx;  /* rules say where rbx is */
	bool needs_rbx;	  /* a CFA is by rbx */
};

/* Reads the head of the next entry; false at the end. A length that leads out of the section ends
 * it too, with cursor->bad set. */
bool cfi_next_entry(const struct pyprof_cfi_input *in, struct pyprof_cursor *cursor,
		    struct cfi_entry *ret);
void cfi_read_cie(const struct pyprof_cfi_input *in, const struct cfi_machine *machine,
		  const struct cfi_entry *entry, struct cfi_cie *ret);
/* Returns an enum pyprof_reason: NONE, or why the addresses are not known. */
int cfi_read_fde(const struct pyprof_cfi_input *in, const struct cfi_cie *cie,
		 const struct cfi_entry *entry, struct cfi_fde *ret);
/* An encoded pointer; sets the cursor bad where the encoding is not known. */
uint64_t cfi_read_pointer(const struct pyprof_cfi_input *in, struct pyprof_cursor *cursor,
			  uint8_t encoding);

void cfi_read_expression(const struct cfi_machine *machine, struct pyprof_cursor code,
			 bool starts_with_cfa, struct expression *ret);

/* Runs the instructions of a CIE. Returns an enum pyprof_reason. */
int cfi_run_initial(const struct pyprof_cfi_input *in, const struct cfi_machine *machine,
		    struct cfi_cie *cie, struct pyprof_cursor program);
/* Runs the instructions of an FDE and puts its rows; 0 or -ENOMEM, -E2BIG. */
int cfi_run_function(const struct pyprof_cfi_input *in, const struct cfi_machine *machine,
		     const struct cfi_cie *cie, const struct cfi_fde *fde, struct cfi_rows *rows);

/* The rule that a state comes to; follow_rbx: with the place of rbx. */
void cfi_rule_of(const struct cfi_machine *machine, const struct cfi_cie *cie,
		 const struct cfi_state *state, bool follow_rbx, struct pyprof_rule *ret);
void cfi_unsupported_rule(int reason, struct pyprof_rule *ret);
/* The rule of the code that a signal handler returns to: the kernel saved all registers. */
void cfi_trampoline_rule(const struct cfi_machine *machine, struct pyprof_rule *ret);

/* Makes room for one more item, doubling. 0 or -ENOMEM. */
int cfi_grow(void **items, size_t *capacity, size_t count, size_t size);

int cfi_rows_init(struct cfi_rows *rows, struct pyprof_cfi *out);
void cfi_rows_deinit(struct cfi_rows *rows);
/* Takes back all rows and rules. */
int cfi_rows_reset(struct cfi_rows *rows);
/* Appends a row: from address on, as far as that is in the function at hand and not covered yet,
 * rule holds. 0, -ENOMEM or -E2BIG. */
int cfi_put_row(struct cfi_rows *rows, uint64_t address, const struct pyprof_rule *rule);
/* Appends a row: from what is covered on there is no rule. */
int cfi_put_none(struct cfi_rows *rows);
/* Gives back what doubling left over. */
void cfi_rows_shrink(struct pyprof_cfi *out);
/* Counts the rows that have no rule, or none for the frame pointer, by reason. */
void cfi_count_unsupported(struct pyprof_cfi *out);
/* Rows of `upper`, and where it has none, those of `lower`, which may be NULL. 0, -ENOMEM or
 * -E2BIG; ret is to be deinitialised in any case. */
int cfi_overlay(const struct pyprof_cfi *upper, const struct pyprof_cfi *lower,
		struct pyprof_cfi *ret);

#endif
