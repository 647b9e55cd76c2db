# SPDX-License-Identifier: Apache-2.0
"""Allocation of pieces of chunks of equal size: first fit, neighbours join when freed."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef struct Extent:
    uint64_t start
    uint64_t size


cdef struct Extents:
    Extent *free  # ascending, disjoint, none across the border of a chunk, no two that touch in one
    uint64_t capacity
    uint32_t count
    uint64_t chunk_size
    uint64_t free_bytes


cdef void extents_init(Extents *extents, uint64_t chunk_size) noexcept nogil
cdef void extents_deinit(Extents *extents) noexcept nogil
cdef int64_t extents_take(Extents *extents, uint64_t size) noexcept nogil
cdef int extents_give(Extents *extents, uint64_t start, uint64_t size) noexcept nogil
