# SPDX-License-Identifier: Apache-2.0
"""The unwind rows of executables in memory that the kernel side reads too."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyprof._native.extents cimport Extents
from pyprof._native.index cimport Index
from pyprof._native.memory cimport List32
from pyprof._native.rules cimport RuleTable, RuleUse, pyprof_rule


cdef extern from "pyprof_abi.h" nogil:
    enum:
        PYPROF_PAGE_BITS
        PYPROF_PAGE_PARTS
        PYPROF_CHUNK_BYTES
        PYPROF_MAX_CHUNKS

    cdef struct pyprof_page_key:
        uint32_t executable
        uint32_t page

    cdef struct pyprof_page:
        uint32_t at
        uint16_t chunk
        uint16_t last
        uint16_t starts[16]


cdef enum LoadState:
    NOT_LOADED = 0
    WANTED = 1  # sampled, and asked for
    LOADED = 2
    NO_ROWS = 3  # there are none, or they cannot be read: frame pointers have to do


cdef struct PageRow:
    pyprof_page_key key
    pyprof_page page
    uint64_t start  # in the arena
    uint64_t size


cdef struct Holder:  # an executable
    uint64_t last_used  # CLOCK_MONOTONIC, ns
    uint64_t rows
    uint64_t bytes
    uint32_t *pages  # their numbers
    uint64_t page_capacity
    uint32_t page_count
    uint32_t samples  # that want its rows
    RuleUse rules
    uint8_t state
    bint untold  # it has no rows, and the kernel has no room to know it


cdef enum ShortOf:  # what there was no room in: a map of the kernel
    SHORT_OF_NOTHING = 0
    SHORT_OF_CHUNKS = 1
    SHORT_OF_PAGES = 2
    SHORT_OF_EXECUTABLES = 3
    SHORT_OF_RULES = 4


cdef struct Withdrawn:  # a page
    uint64_t start
    uint64_t size
    uint64_t flushed_at  # 0: its entry is not yet out of the kernel


cdef struct WithdrawnRules:  # of an executable
    RuleUse use
    uint64_t flushed_at


cdef struct Arena:
    uint8_t *chunks[1024]
    uint32_t chunk_count
    Extents extents
    RuleTable rules
    PageRow *pages
    uint64_t page_capacity
    uint32_t page_count
    List32 free_pages
    Index page_index
    Holder *holders
    uint64_t holder_capacity
    uint32_t holder_count
    List32 wanted
    Withdrawn *withdrawn
    uint64_t withdrawn_capacity
    uint64_t withdrawn_count
    WithdrawnRules *withdrawn_rules
    uint64_t withdrawn_rules_capacity
    uint64_t withdrawn_rules_count
    uint32_t told  # executables of which the kernel knows their rows, or that they have none
    uint32_t max_pages
    uint32_t max_executables
    uint32_t short_of  # why load() said False
    uint64_t rows
    uint64_t evictions
    uint64_t refused_rules


cdef const pyprof_rule *arena_rule(Arena *arena, uint32_t executable, uint64_t offset) noexcept nogil
cdef void arena_want(Arena *arena, uint32_t executable) noexcept nogil
cdef void arena_use(Arena *arena, uint32_t executable, uint64_t time) noexcept nogil
cdef uint8_t arena_state(const Arena *arena, uint32_t executable) noexcept nogil


cdef class RowArena:
    cdef Arena arena
    cdef list buffers
    cdef list page_updates
    cdef list page_deletes
    cdef list state_updates
    cdef list state_deletes
    cdef void tell(self, uint32_t executable, Holder *holder)
    cdef void untell(self, uint32_t executable, Holder *holder)
