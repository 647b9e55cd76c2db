# SPDX-License-Identifier: Apache-2.0
"""Reads the text of /proc/kallsyms: some 200,000 lines, most of them of data, in any order from the modules on."""

from libc.stddef cimport size_t
from libc.stdint cimport UINT64_MAX
from libc.stdint cimport uint8_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memchr
from libc.string cimport memcmp
from libc.string cimport memcpy

from pyprof._native.symbol_entries cimport BOUNDARY
from pyprof._native.symbol_entries cimport RANK_GLOBAL
from pyprof._native.symbol_entries cimport RANK_SIZED
from pyprof._native.symbol_entries cimport RANK_WEAK
from pyprof._native.symbol_entries cimport Entries
from pyprof._native.symbol_entries cimport Entry
from pyprof._native.symbol_entries cimport entries_push
from pyprof._native.symbol_entries cimport underscore_rank

cdef enum:
    # No sizes are stated: above the largest functions, and what ends the last one before a gap.
    CORE_SYMBOL_MAX = 1 << 18
    MODULE_SYMBOL_MAX = 1 << 16


cdef bint arena_reserve(Arena *arena, size_t more) noexcept nogil:
    cdef size_t capacity = arena.capacity if arena.capacity else 1 << 16
    cdef uint8_t *data
    while capacity - arena.size < more:
        capacity *= 2
    if capacity >= BOUNDARY:
        return False
    if capacity != arena.capacity:
        data = <uint8_t *>realloc(arena.data, capacity)
        if data == NULL:
            return False
        arena.data = data
        arena.capacity = capacity
    return True


cdef bint ends_with(const uint8_t *name, size_t size, const char *tail, size_t tail_size) noexcept nogil:
    return size > tail_size and memcmp(name + size - tail_size, tail, tail_size) == 0


cdef bint is_section_mark(const uint8_t *name, size_t size) noexcept nogil:
    """Whether a text symbol only marks where a part of the kernel begins or ends."""
    if size < 5 or name[0] != c'_':
        return False
    if name[1] == c'_':
        return ends_with(name, size, "_text_start", 11) or ends_with(name, size, "_text_end", 9)
    return (
        (size == 5 and memcmp(name, "_text", 5) == 0)
        or (size == 6 and (memcmp(name, "_stext", 6) == 0 or memcmp(name, "_etext", 6) == 0))
        or (size == 10 and (memcmp(name, "_sinittext", 10) == 0 or memcmp(name, "_einittext", 10) == 0))
    )


cdef size_t read_hex(const uint8_t *text, size_t size, uint64_t *value) noexcept nogil:
    """Reads at most 16 hex digits; returns how many."""
    cdef size_t i = 0
    cdef uint8_t c
    value[0] = 0
    while i < size and i < 16:
        c = text[i]
        if c'0' <= c <= c'9':
            c -= c'0'
        elif c'a' <= c <= c'f':
            c -= c'a' - 10
        else:
            break
        value[0] = value[0] << 4 | c
        i += 1
    return i


cdef bint read_kernel_lines(Entries *entries, Arena *arena, TextCounts *counts,
                            const uint8_t *text, size_t size) noexcept nogil:
    """Takes whole lines of /proc/kallsyms, `ADDRESS TYPE NAME[<tab>[MODULE]]`; False: out of memory.

    Types are those of nm. Symbols that are not text, and marks, are kept as boundaries: they end a function.
    """
    cdef size_t position = 0
    cdef size_t length
    cdef size_t digits
    cdef size_t name_size
    cdef const uint8_t *line
    cdef const uint8_t *found
    cdef uint8_t kind
    cdef bint is_text
    cdef Entry entry
    while position < size:
        line = text + position
        found = <const uint8_t *>memchr(line, c'\n', size - position)
        length = found - line if found != NULL else size - position
        position += length + 1
        digits = read_hex(line, length, &entry.value)
        if digits == 0 or length < digits + 4 or line[digits] != c' ' or line[digits + 2] != c' ':
            continue
        kind = line[digits + 1]
        line += digits + 3
        length -= digits + 3
        is_text = kind == c't' or kind == c'T' or kind == c'w' or kind == c'W' or kind == c'i'
        counts.seen += is_text
        if entry.value == 0:  # hidden by kptr_restrict; or the start of the per-CPU area
            continue
        counts.placed += is_text
        found = <const uint8_t *>memchr(line, c'\t', length)
        name_size = found - line if found != NULL else length
        entry.end = entry.value
        entry.in_module = found != NULL
        entry.rank = 0
        entry.name = BOUNDARY
        if is_text and not is_section_mark(line, name_size):
            if not arena_reserve(arena, length + 1):
                return False
            entry.name = <uint32_t>arena.size
            entry.rank = RANK_SIZED | underscore_rank(line, name_size)
            if kind == c'T':
                entry.rank |= RANK_GLOBAL
            elif kind == c'w' or kind == c'W':
                entry.rank |= RANK_WEAK
            memcpy(arena.data + arena.size, line, length)
            arena.data[arena.size + length] = 0
            arena.size += length + 1
        if not entries_push(entries, entry):
            return False
    return True


cdef void end_kernel_symbols(Entries *entries) noexcept nogil:
    """Of sorted entries: each ends where the next address begins, or where no function is that long."""
    cdef uint64_t next_value = UINT64_MAX
    cdef uint64_t limit
    cdef size_t i = entries.count
    cdef Entry *entry
    while i > 0:
        i -= 1
        entry = entries.items + i
        if i + 1 < entries.count and entries.items[i + 1].value > entry.value:
            next_value = entries.items[i + 1].value
        limit = MODULE_SYMBOL_MAX if entry.in_module else CORE_SYMBOL_MAX
        entry.end = entry.value + min(limit, next_value - entry.value)
