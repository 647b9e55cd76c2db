# SPDX-License-Identifier: Apache-2.0
"""Address range -> least set of prefixes: the aligned power-of-two blocks that cover it exactly.

A block of 2^n addresses that begins at a multiple of 2^n is the prefix of 64 - n bits. Taking, at
each point, the largest block that is aligned there and does not pass the end gives the least set.
"""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from *:
    """
    /* log2 of the largest block that begins at `at` and ends at or before `last`; 64 is all of it. */
    static inline uint32_t pyprof_block_bits(uint64_t at, uint64_t last)
    {
        uint64_t room = last - at; /* size - 1, which fits where the size may be 2^64 */
        uint32_t aligned = at ? (uint32_t)__builtin_ctzll(at) : 64;
        uint32_t fits = room == UINT64_MAX ? 64 : 63 - (uint32_t)__builtin_clzll(room + 1);

        return aligned < fits ? aligned : fits;
    }
    """
    uint32_t pyprof_block_bits(uint64_t at, uint64_t last) noexcept nogil


cdef inline uint64_t block_last(uint64_t at, uint32_t bits) noexcept nogil:
    """Last address of the block of 2^bits that begins at `at`."""
    if bits >= 64:
        return <uint64_t>0xffffffffffffffff
    return at + ((<uint64_t>1 << bits) - 1)


cdef inline uint64_t prefix_count(uint64_t start, uint64_t last) noexcept nogil:
    """How many prefixes cover [start, last]: at most 126."""
    cdef uint64_t at = start, end, count = 0
    while True:
        count += 1
        end = block_last(at, pyprof_block_bits(at, last))
        if end == last:
            return count
        at = end + 1
