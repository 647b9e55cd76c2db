# SPDX-License-Identifier: Apache-2.0
"""Pages of unwind rows: cutting an executable's rows at every 64 KiB of its file, and placing the pieces."""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from pyprof._native.arena cimport Arena, Holder


cdef struct PageRows:  # the rows of a page in the making
    uint32_t count
    uint16_t *offsets
    uint16_t *numbers


cdef struct Builder:
    PageRows rows
    Arena *arena
    Holder *holder
    uint32_t executable
    int64_t page  # -1 before the first
    uint64_t last  # file offset of the last row
    uint64_t covered  # end of the last segment in the file
    uint16_t carried  # number of the rule that holds


cdef uint32_t page_slot(const Arena *arena, uint32_t executable, uint32_t page) noexcept nogil
cdef int builder_init(Builder *b, Arena *arena, Holder *holder, uint32_t executable) noexcept nogil
cdef void builder_deinit(Builder *b) noexcept nogil
cdef bint builder_add(
    Builder *b, const uint64_t *addresses, const uint32_t *numbers, uint64_t count,
    const uint16_t *translation, uint64_t offset, uint64_t size, uint64_t vaddr,
) noexcept nogil
cdef bint builder_finish(Builder *b) noexcept nogil
cdef void page_remove(Arena *arena, uint32_t number) noexcept nogil
