# SPDX-License-Identifier: Apache-2.0
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint16_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t


cdef enum:
    # Bits of Entry.rank, most important first; the lowest 6 count leading underscores down from 63.
    RANK_SIZED = 1 << 10
    RANK_DEFAULT = 1 << 9  # no version, or the one that programs are linked against
    RANK_GLOBAL = 2 << 7
    RANK_WEAK = 1 << 7
    RANK_FUNCTION = 1 << 6
    RANK_UNDERSCORES = 63

    BOUNDARY = 0xffffffff  # Entry.name of what only ends the symbol before it
    NO_OWNER = 0xffffffff  # index of the entry that owns an address which no symbol covers


cdef struct Entry:
    uint64_t value  # address of the symbol's first byte
    uint64_t end  # address after its last byte; equal to value while that is not known
    uint32_t name  # position in the names of all sources together, or BOUNDARY
    uint16_t rank  # which of several at one address to prefer; higher is better
    uint16_t in_module  # of kernel symbols: 1 where it belongs to a module or BPF program


cdef struct Entries:
    Entry *items
    size_t count
    size_t capacity


cdef struct Names:
    # One string table of a file, or the names of kernel symbols.
    const uint8_t *data
    size_t size
    uint32_t base  # position of its first byte in the names of all sources together


cdef struct Layout:
    uint64_t *starts  # where the owner changes, ascending
    uint32_t *owners  # index of the entry that owns what follows, or NO_OWNER
    size_t count


# False: out of memory, or too many.
cdef bint entries_push(Entries *entries, Entry entry) noexcept nogil

# The source that a position lies in, with the name's first byte and what its string table has from there on;
# `sources` where there is none.
cdef size_t name_find(const Names *names, size_t sources, uint32_t position, const uint8_t **ret,
                      size_t *left) noexcept nogil

# Bytes before the terminator and before a version (name@VER, name@@VER), at most `limit`.
cdef size_t name_length(const uint8_t *name, size_t left, size_t limit) noexcept nogil

cdef bint is_old_version(const uint8_t *name, size_t left) noexcept nogil
cdef uint16_t underscore_rank(const uint8_t *name, size_t left) noexcept nogil

# Orders by value, then rank, then name; what to prefer at an address comes last there. False: out of memory.
cdef bint entries_sort(Entries *entries, const Names *names, size_t sources) noexcept nogil

# From sorted entries whose ends are all known. False: out of memory; to be deinitialised all the same.
cdef bint layout_init(Layout *layout, const Entries *entries) noexcept nogil

cdef void layout_deinit(Layout *layout) noexcept nogil

# Index of the entry that owns an address, or NO_OWNER.
cdef uint32_t layout_owner(const Layout *layout, uint64_t address) noexcept nogil
