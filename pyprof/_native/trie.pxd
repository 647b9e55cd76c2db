# SPDX-License-Identifier: Apache-2.0
"""The owner of exec_mappings: what of which process is in the kernel's prefix trie, and what is to
be written there."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyprof._native.index cimport Index


cdef extern from "pyprof_abi.h" nogil:
    cdef struct pyprof_mapping_key:
        uint32_t prefix_len
        uint32_t pid
        uint64_t address

    cdef struct pyprof_mapping_value:
        uint64_t start
        uint64_t last
        uint64_t bias
        uint32_t mapping
        uint32_t executable


cdef struct Entry:  # a mapping in the kernel; its number names it in samples
    uint64_t start
    uint64_t last
    uint64_t bias
    uint64_t retired_at  # 0 while it is in use
    uint32_t pid  # 0: the number is free
    uint32_t executable


cdef struct PidEntries:
    uint32_t pid
    uint32_t count
    uint64_t capacity
    uint32_t *ids  # by start


cdef struct Retired:
    uint64_t flushed_at  # 0: its deletion is not written yet
    uint32_t id
    uint32_t reserved


cdef struct Trie:
    Entry *entries
    uint64_t entry_capacity
    uint32_t entry_count  # numbers ever given, from 1
    uint32_t live
    uint32_t *free_ids
    uint64_t free_capacity
    uint32_t free_count
    uint32_t high_water
    PidEntries *pids
    uint64_t pid_capacity
    uint32_t pid_count
    uint32_t *free_pids
    uint64_t free_pid_capacity
    uint32_t free_pid_count
    Index pid_index
    Retired *retired
    uint64_t retired_capacity
    uint64_t retired_count
    pyprof_mapping_key *deletes
    uint64_t delete_capacity
    uint64_t delete_count
    pyprof_mapping_key *insert_keys
    pyprof_mapping_value *insert_values
    uint64_t insert_key_capacity
    uint64_t insert_value_capacity
    uint64_t insert_count
    uint64_t prefixes  # that live entries have


cdef enum TrieError:
    TRIE_NO_MEMORY = -1
    TRIE_OVERLAP = -2
    TRIE_BAD_RANGE = -3


cdef int64_t trie_insert(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias, uint32_t executable
) noexcept nogil
cdef void trie_retire(Trie *trie, uint32_t id, uint64_t time) noexcept nogil
cdef uint32_t trie_retire_range(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t time
) noexcept nogil
cdef uint32_t trie_find(Trie *trie, uint32_t pid, uint64_t address) noexcept nogil
cdef PidEntries *trie_pid(Trie *trie, uint32_t pid) noexcept nogil


cdef class MappingTrie:
    cdef Trie trie
