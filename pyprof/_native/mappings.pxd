# SPDX-License-Identifier: Apache-2.0
"""What of which process is in exec_mappings, the kernel's LPM trie, and what is to be written there."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyprof._native.index cimport Index
from pyprof._native.order cimport Order


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
    Order order  # by start
    uint32_t pid


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
    Retired *retired  # in the order in which they were
    uint64_t retired_capacity
    uint64_t retired_count
    uint64_t retired_flushed  # how many of them are out of the kernel
    pyprof_mapping_key *deletes
    uint64_t delete_capacity
    uint64_t delete_count
    pyprof_mapping_key *insert_keys
    pyprof_mapping_value *insert_values
    uint64_t insert_key_capacity
    uint64_t insert_value_capacity
    uint64_t insert_count
    uint64_t prefixes  # that live entries have
    uint64_t max_prefixes  # that the kernel has room for


cdef enum TrieError:
    TRIE_NO_MEMORY = -1
    TRIE_OVERLAP = -2
    TRIE_BAD_RANGE = -3
    TRIE_FULL = -4


cdef int trie_init(Trie *trie, uint64_t max_prefixes) noexcept nogil
cdef void trie_deinit(Trie *trie) noexcept nogil
cdef int64_t trie_insert(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias, uint32_t executable
) noexcept nogil
cdef uint32_t trie_retire_range(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t time
) noexcept nogil
cdef uint32_t trie_find(const Trie *trie, uint32_t pid, uint64_t address) noexcept nogil
cdef PidEntries *trie_pid(const Trie *trie, uint32_t pid) noexcept nogil
cdef uint64_t trie_prefixes_of(const Trie *trie, uint32_t pid) noexcept nogil
cdef void trie_drop_stale_inserts(Trie *trie) noexcept nogil
cdef void trie_flushed(Trie *trie, uint64_t now) noexcept nogil
cdef uint64_t trie_reclaim(Trie *trie, uint64_t before) noexcept nogil

# Steps of an insertion, for mapping_diff.

cdef PidEntries *trie_make_pid(Trie *trie, uint32_t pid) noexcept nogil
cdef void trie_drop_if_empty(Trie *trie, PidEntries *list) noexcept nogil
cdef int trie_reserve(Trie *trie, uint32_t entries, uint64_t prefixes) noexcept nogil
cdef uint32_t trie_make_entry(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias, uint32_t executable, uint64_t prefixes
) noexcept nogil
cdef void trie_retire_entry(Trie *trie, uint32_t id, uint64_t time) noexcept nogil
