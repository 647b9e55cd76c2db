# SPDX-License-Identifier: Apache-2.0
"""Python's side of the owner of exec_mappings."""

from libc.stdint cimport uint32_t, uint64_t

from pyprof._native.mappings cimport Trie


cdef class MappingTrie:
    cdef Trie trie
    cdef change(
        self, uint32_t pid, const uint64_t[::1] starts, const uint64_t[::1] lasts, const uint64_t[::1] biases,
        const uint32_t[::1] executables, uint64_t time, bint apply,
    )
