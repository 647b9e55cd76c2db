# SPDX-License-Identifier: Apache-2.0
"""What a process has in the trie beside what it is to have: the difference, and making it true."""

from libc.stdint cimport uint32_t, uint64_t

from pyprof._native.mappings cimport Trie
from pyprof._native.ranges cimport Range


cdef struct Diff:  # between what a process has and what it is to have
    uint32_t kept
    uint32_t retired
    uint32_t added
    uint64_t prefixes_retired
    uint64_t prefixes_added


cdef int trie_diff(
    const Trie *trie, uint32_t pid, const Range *items, uint32_t count, bint replace, Diff *diff
) noexcept nogil
cdef int trie_set(
    Trie *trie, uint32_t pid, const Range *items, uint32_t count, uint64_t time, Diff *diff
) noexcept nogil
cdef int trie_add(
    Trie *trie, uint32_t pid, const Range *items, uint32_t count, Diff *diff
) noexcept nogil
