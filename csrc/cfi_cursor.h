/* SPDX-License-Identifier: Apache-2.0 */
/* The one way in which call frame information is read: a cursor that never leaves its bytes. A read
 * beyond the end gives 0, and sets `bad` for good. */
#ifndef PYPROF_CFI_CURSOR_H
#define PYPROF_CFI_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pyprof_cursor {
	const uint8_t *at;
	const uint8_t *end;
	bool bad;
};

static inline size_t cursor_left(const struct pyprof_cursor *cursor)
{
	return (size_t)(cursor->end - cursor->at);
}

/* True where there are size bytes left; else the cursor is bad and at its end. */
static inline bool cursor_has(struct pyprof_cursor *cursor, uint64_t size)
{
	if (size <= cursor_left(cursor))
		return true;
	cursor->bad = true;
	cursor->at = cursor->end;
	return false;
}

#define CURSOR_READER(name, type)                                                                  \
	static inline type cursor_##name(struct pyprof_cursor *cursor)                             \
	{                                                                                          \
		type value = 0;                                                                    \
                                                                                                   \
		if (cursor_has(cursor, sizeof(value))) {                                           \
			memcpy(&value, cursor->at, sizeof(value));                                 \
			cursor->at += sizeof(value);                                               \
		}                                                                                  \
		return value;                                                                      \
	}

CURSOR_READER(u8, uint8_t)
CURSOR_READER(u16, uint16_t)
CURSOR_READER(u32, uint32_t)
CURSOR_READER(u64, uint64_t)

static inline void cursor_skip(struct pyprof_cursor *cursor, uint64_t size)
{
	if (cursor_has(cursor, size))
		cursor->at += size;
}

/* The next size bytes as a cursor of their own. */
static inline struct pyprof_cursor cursor_part(struct pyprof_cursor *cursor, uint64_t size)
{
	struct pyprof_cursor part = {cursor->at, cursor->at, false};

	if (cursor_has(cursor, size)) {
		cursor->at += size;
		part.end = cursor->at;
	} else {
		part.bad = true;
	}
	return part;
}

/* LEB128 (DWARF 5, 7.6), of any length: assemblers pad. Bits beyond 64 must not matter. */
static inline uint64_t cursor_uleb(struct pyprof_cursor *cursor)
{
	uint64_t value = 0;
	unsigned int shift = 0;

	while (cursor->at < cursor->end) {
		uint64_t byte = *cursor->at++;
		uint64_t bits = byte & 0x7f;

		if (shift < 64)
			value |= bits << shift;
		if ((shift >= 64 && bits) || (shift == 63 && bits > 1))
			break;
		if (!(byte & 0x80))
			return value;
		shift = shift < 64 ? shift + 7 : shift;
	}
	cursor->bad = true;
	return 0;
}

static inline int64_t cursor_sleb(struct pyprof_cursor *cursor)
{
	uint64_t value = 0;
	unsigned int shift = 0;

	while (cursor->at < cursor->end) {
		uint64_t byte = *cursor->at++;
		uint64_t bits = byte & 0x7f;

		if (shift < 63)
			value |= bits << shift;
		else if (shift == 63)
			value |= (bits & 1) << 63;
		/* From bit 63 on all must repeat the sign. */
		if (shift >= 63 && bits != (value >> 63 ? 0x7fu : 0))
			break;
		shift = shift < 64 ? shift + 7 : shift;
		if (!(byte & 0x80)) {
			if (shift < 64 && (byte & 0x40))
				value |= ~(uint64_t)0 << shift;
			return (int64_t)value;
		}
	}
	cursor->bad = true;
	return 0;
}

#endif
