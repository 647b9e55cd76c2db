# SPDX-License-Identifier: Apache-2.0
"""Bodies of extents.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove, memset

from pyprof._native.memory cimport grow


cdef void extents_init(Extents *extents, uint64_t chunk_size) noexcept nogil:
    memset(extents, 0, sizeof(Extents))
    extents.chunk_size = chunk_size


cdef void extents_deinit(Extents *extents) noexcept nogil:
    free(extents.free)
    memset(extents, 0, sizeof(Extents))


cdef int64_t extents_take(Extents *extents, uint64_t size) noexcept nogil:
    """Start of a piece that was free; -1 where none is large enough."""
    cdef uint32_t i
    cdef uint64_t start
    for i in range(extents.count):
        if extents.free[i].size < size:
            continue
        start = extents.free[i].start
        extents.free[i].start += size
        extents.free[i].size -= size
        extents.free_bytes -= size
        if extents.free[i].size == 0:
            memmove(&extents.free[i], &extents.free[i + 1], (extents.count - i - 1) * sizeof(Extent))
            extents.count -= 1
        return <int64_t>start
    return -1


cdef int extents_give(Extents *extents, uint64_t start, uint64_t size) noexcept nogil:
    """Frees a piece; 0, or -1 without memory (the piece is then lost to the arena, not to the system)."""
    cdef uint32_t low = 0, high = extents.count, middle
    cdef bint joins_before, joins_after
    while low < high:
        middle = (low + high) // 2
        if extents.free[middle].start < start:
            low = middle + 1
        else:
            high = middle
    joins_before = (
        low > 0
        and extents.free[low - 1].start + extents.free[low - 1].size == start
        and start % extents.chunk_size != 0
    )
    joins_after = (
        low < extents.count
        and start + size == extents.free[low].start
        and (start + size) % extents.chunk_size != 0
    )
    if joins_before and joins_after:
        extents.free[low - 1].size += size + extents.free[low].size
        memmove(&extents.free[low], &extents.free[low + 1], (extents.count - low - 1) * sizeof(Extent))
        extents.count -= 1
    elif joins_before:
        extents.free[low - 1].size += size
    elif joins_after:
        extents.free[low].start = start
        extents.free[low].size += size
    else:
        if grow(<void **>&extents.free, &extents.capacity, <uint64_t>extents.count + 1, sizeof(Extent)) < 0:
            return -1
        memmove(&extents.free[low + 1], &extents.free[low], (extents.count - low) * sizeof(Extent))
        extents.free[low].start = start
        extents.free[low].size = size
        extents.count += 1
    extents.free_bytes += size
    return 0


cdef class ExtentPool:
    """The allocator for tests."""

    cdef Extents extents

    def __cinit__(self, uint64_t chunk_size):
        extents_init(&self.extents, chunk_size)

    def __dealloc__(self):
        extents_deinit(&self.extents)

    def take(self, uint64_t size):
        """Start of a free piece, or None."""
        start = extents_take(&self.extents, size)
        return None if start < 0 else start

    def give(self, uint64_t start, uint64_t size):
        """Frees a piece, or adds a chunk."""
        if extents_give(&self.extents, start, size) < 0:
            raise MemoryError

    def free(self):
        """[(start, size)] of what is free."""
        return [(self.extents.free[i].start, self.extents.free[i].size) for i in range(self.extents.count)]
