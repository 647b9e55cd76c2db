# SPDX-License-Identifier: Apache-2.0
"""Open-addressing hash index from a 32-bit tag to 32-bit ids.

The items lie in an array of the user's; the index holds only their positions, so that items stay
where they are when it grows. Look-up, with `same` the user's comparison:

    at = tag & index.mask
    while index.slots[at]:
        if <uint32_t>(index.slots[at] >> 32) == tag and same(slot_id(index.slots[at])):
            ...found
        at = (at + 1) & index.mask

The loop ends since at most half of the slots are in use. Deletion shifts the following entries
back: there are no tombstones, so no look-up ever slows down or runs for ever because of them.
"""

from libc.stdint cimport uint32_t, uint64_t


cdef struct Index:
    uint64_t *slots  # tag << 32 | id + 1; 0 is free
    uint32_t mask
    uint32_t used


cdef int index_init(Index *index, uint32_t capacity) noexcept nogil
cdef void index_deinit(Index *index) noexcept nogil
cdef void index_clear(Index *index) noexcept nogil
cdef int index_reserve(Index *index) noexcept nogil
cdef void index_remove(Index *index, uint32_t at) noexcept nogil


cdef inline uint32_t slot_id(uint64_t slot) noexcept nogil:
    return <uint32_t>slot - 1


cdef inline void index_add(Index *index, uint32_t tag, uint32_t id) noexcept nogil:
    """Adds an id that is not in the index; index_reserve must have succeeded before."""
    cdef uint32_t at = tag & index.mask
    while index.slots[at]:
        at = (at + 1) & index.mask
    index.slots[at] = (<uint64_t>tag << 32) | (<uint64_t>id + 1)
    index.used += 1
