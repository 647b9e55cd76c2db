// SPDX-License-Identifier: Apache-2.0
/* Entries of .eh_frame and .debug_frame: lengths, CIEs and the heads of FDEs.
 * Layout: DWARF 5, 6.4.1; Linux Standard Base Core 5.0, 10.6.1. */
#include "cfi_internal.h"

#define EXTENDED_LENGTH	 0xffffffffu
#define RESERVED_LENGTH	 0xfffffff0u
#define MAX_AUGMENTATION 16

static uint64_t position_of(const struct pyprof_cfi_input *in, const uint8_t *at)
{
	return (uint64_t)(at - in->data);
}

/* Reads what comes before all relative parts of a pointer: the address of the pointer itself. */
uint64_t cfi_read_pointer(const struct pyprof_cfi_input *in, struct pyprof_cursor *cursor,
			  uint8_t encoding)
{
	uint64_t base = 0, value;

	switch (encoding & 0x70) {
	case ENCODING_ABSPTR:
		break;
	case ENCODING_PCREL:
		base = in->address + position_of(in, cursor->at);
		break;
	case ENCODING_TEXTREL:
		base = in->text_base;
		cursor->bad |= !base;
		break;
	case ENCODING_DATAREL:
		base = in->data_base;
		cursor->bad |= !base;
		break;
	default:
		cursor->bad = true;
	}
	switch (encoding & 0x0f) {
	case ENCODING_ABSPTR:
	case ENCODING_UDATA8:
	case ENCODING_SDATA8:
		value = cursor_u64(cursor);
		break;
	case ENCODING_UDATA4:
		value = cursor_u32(cursor);
		break;
	case ENCODING_SDATA4:
		value = (uint64_t)(int32_t)cursor_u32(cursor);
		break;
	case ENCODING_UDATA2:
		value = cursor_u16(cursor);
		break;
	case ENCODING_SDATA2:
		value = (uint64_t)(int16_t)cursor_u16(cursor);
		break;
	case ENCODING_ULEB128:
		value = cursor_uleb(cursor);
		break;
	case ENCODING_SLEB128:
		value = (uint64_t)cursor_sleb(cursor);
		break;
	default:
		value = 0;
		cursor->bad = true;
	}
	return base + value;
}

bool cfi_next_entry(const struct pyprof_cfi_input *in, struct pyprof_cursor *cursor,
		    struct cfi_entry *ret)
{
	const uint8_t *id_at;
	uint64_t length, id, own;
	bool wide = false;

	do {
		if (!cursor_left(cursor))
			return false;
		ret->position = position_of(in, cursor->at);
		length = cursor_u32(cursor);
		if (!length && (in->stop_at_zero || cursor->bad))
			return false;
	} while (!length);
	if (length == EXTENDED_LENGTH) {
		length = cursor_u64(cursor);
		wide = true;
	} else if (length >= RESERVED_LENGTH) {
		cursor->bad = true;
	}
	ret->body = cursor_part(cursor, length);
	if (cursor->bad)
		return false;

	id_at = ret->body.at;
	own = position_of(in, id_at);
	/* .eh_frame keeps a 4-byte id behind an extended length, unlike 64-bit DWARF. */
	if (in->debug_frame && wide)
		id = cursor_u64(&ret->body);
	else
		id = cursor_u32(&ret->body);
	if (in->debug_frame) {
		ret->is_cie = id == (wide ? UINT64_MAX : 0xffffffffu);
		ret->cie_position = id;
	} else {
		ret->is_cie = id == 0;
		ret->cie_position = id <= own ? own - id : UINT64_MAX;
	}
	if (ret->body.bad) /* shorter than its id: an FDE of no CIE */
		ret->is_cie = false;
	return true;
}

/* 'P': a pointer to the personality routine, which is of no use to us. It may be indirect, since it
 * is only passed over. */
static bool skip_personality(const struct pyprof_cfi_input *in, struct pyprof_cursor *body)
{
	uint8_t encoding = cursor_u8(body);
	struct pyprof_cfi_input bases = *in;

	if (encoding == ENCODING_OMIT)
		return true;
	if ((encoding & 0x70) == 0x50)
		return false;		       /* aligned: no tool emits it */
	bases.text_base = bases.data_base = 1; /* whatever: the value is not used */
	cfi_read_pointer(&bases, body, encoding & 0x7f);
	return !body->bad;
}

/* What the letters behind 'z' stand for. Returns an enum pyprof_reason. */
static int read_augmentation(const struct pyprof_cfi_input *in, const char *letters,
			     struct pyprof_cursor data, struct cfi_cie *ret)
{
	for (; *letters; letters++) {
		switch (*letters) {
		case 'R': /* encoding of code addresses */
			ret->encoding = cursor_u8(&data);
			break;
		case 'P':
			if (!skip_personality(in, &data))
				return PYPROF_REASON_ENCODING;
			break;
		case 'L': /* encoding of the pointer to exception tables */
			cursor_u8(&data);
			break;
		case 'S':
			ret->is_signal_frame = true;
			break;
		case 'B': /* arm64: return addresses are signed with key B */
		case 'G': /* arm64: the stack is tagged */
			break;
		default:
			return PYPROF_REASON_AUGMENTATION;
		}
	}
	return data.bad ? PYPROF_REASON_ENTRY : PYPROF_REASON_NONE;
}

/* The augmentation string, cut to what could be a known one. */
static void read_letters(struct pyprof_cursor *body, char letters[MAX_AUGMENTATION])
{
	size_t count = 0;
	uint8_t letter;

	while ((letter = cursor_u8(body)) != 0) {
		letters[count] = (char)letter;
		if (count < MAX_AUGMENTATION - 2)
			count++;
	}
	letters[count] = 0;
}

void cfi_read_cie(const struct pyprof_cfi_input *in, const struct cfi_machine *machine,
		  const struct cfi_entry *entry, struct cfi_cie *ret)
{
	struct pyprof_cursor body = entry->body;
	char letters[MAX_AUGMENTATION];
	int reason = PYPROF_REASON_NONE;
	uint8_t version;

	*ret = (struct cfi_cie){.position = entry->position, .encoding = ENCODING_OMIT};
	version = cursor_u8(&body);
	if (version != 1 && version != 3 && version != 4) {
		ret->reason = PYPROF_REASON_VERSION;
		return;
	}
	read_letters(&body, letters);
	if (!strcmp(letters, "eh")) /* GCC 2: a pointer to exception tables */
		cursor_skip(&body, 8);
	if (version >= 4 && (cursor_u8(&body) != 8 || cursor_u8(&body) != 0)) {
		ret->reason = PYPROF_REASON_VERSION; /* address size, segment selector size */
		return;
	}
	ret->code_align = cursor_uleb(&body);
	ret->data_align = cursor_sleb(&body);
	ret->ra_column = version == 1 ? cursor_u8(&body) : cursor_uleb(&body);
	ret->encoding = ENCODING_ABSPTR;
	if (letters[0] == 'z') {
		uint64_t size = cursor_uleb(&body);

		/* An unknown letter may hide the encoding that 'R' behind it gives. */
		ret->encoding = ENCODING_OMIT;
		ret->has_length = true;
		reason = read_augmentation(in, letters + 1, cursor_part(&body, size), ret);
		if (reason != PYPROF_REASON_AUGMENTATION && !strchr(letters, 'R'))
			ret->encoding = ENCODING_ABSPTR;
	} else if (letters[0] && strcmp(letters, "eh")) {
		/* Without 'z' nothing says where what follows is. */
		ret->encoding = ENCODING_OMIT;
		reason = PYPROF_REASON_AUGMENTATION;
	}
	if (body.bad)
		reason = PYPROF_REASON_ENTRY;
	if (reason == PYPROF_REASON_NONE)
		reason = cfi_run_initial(in, machine, ret, body);
	ret->reason = (uint8_t)reason;
}

int cfi_read_fde(const struct pyprof_cfi_input *in, const struct cfi_cie *cie,
		 const struct cfi_entry *entry, struct cfi_fde *ret)
{
	struct pyprof_cursor body = entry->body;
	uint64_t size;

	if (cie->encoding == ENCODING_OMIT)
		return cie->reason ? cie->reason : PYPROF_REASON_ENCODING;
	if (cie->encoding & ENCODING_INDIRECT)
		return PYPROF_REASON_ENCODING;
	ret->start = cfi_read_pointer(in, &body, cie->encoding);
	if (body.bad)
		return cursor_left(&entry->body) >= 8 ? PYPROF_REASON_ENCODING
						      : PYPROF_REASON_ENTRY;
	/* The size has the format, but is relative to nothing. */
	size = cfi_read_pointer(in, &body, cie->encoding & 0x0f);
	if (cie->has_length)
		cursor_skip(&body, cursor_uleb(&body));
	if (body.bad || cursor_left(&body) > UINT32_MAX || size > UINT64_MAX - ret->start)
		return PYPROF_REASON_ENTRY;
	ret->end = ret->start + size;
	ret->program = body.at;
	ret->program_size = (uint32_t)cursor_left(&body);
	return PYPROF_REASON_NONE;
}
