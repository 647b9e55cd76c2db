# SPDX-License-Identifier: Apache-2.0
"""The executable address ranges of a process, in order and disjoint; shared by forks until one changes."""

from libc.stdint cimport uint32_t, uint64_t


cdef struct Range:
    uint64_t start
    uint64_t last
    uint64_t bias  # address - bias is the offset in the file
    uint64_t since  # CLOCK_MONOTONIC, ns
    uint32_t executable
    uint32_t untold  # 1: only a look at /proc found it, where events had told of something else


cdef struct Ranges:
    Range *items  # in `memory`, with room before and behind where there are many
    Range *memory
    uint64_t capacity
    uint32_t count
    uint32_t users
    uint32_t sweep  # the last look at the owners of executables that has been here


cdef inline bint range_same(const Range *one, const Range *other) noexcept nogil:
    """Whether the same is mapped at the same place, whenever it was."""
    return (
        one.start == other.start and one.last == other.last
        and one.bias == other.bias and one.executable == other.executable
    )


cdef Ranges *ranges_share(Ranges *ranges) noexcept nogil
cdef void ranges_release(Ranges *ranges) noexcept nogil
cdef const Range *ranges_find(const Ranges *ranges, uint64_t address) noexcept nogil
cdef bint ranges_equal(const Ranges *one, const Ranges *other) noexcept nogil
cdef int ranges_map(Ranges **ranges, const Range *added) noexcept nogil
cdef int ranges_map_all(Ranges **ranges, const Range *added, uint32_t count) noexcept nogil
