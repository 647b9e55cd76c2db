# SPDX-License-Identifier: Apache-2.0
"""Numbers for mapped files, by what identifies them: build ID, device and inode, or a special name.

A number is in use as long as an owner names it: a range of a process or of a waiting sample, an entry of
the trie, a frame that was counted and not sent yet. What no owner names is found by looking at the owners
(reclaim.pyx), so that no count can go wrong; it is released some time later, unless it is mapped again.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyprof._native.index cimport Index
from pyprof._native.memory cimport List32


cdef enum:
    NO_EXECUTABLE = 0
    ANONYMOUS = 1  # executable memory without a file


cdef enum KeyKind:
    KEY_FREE = 0  # the number stands for nothing
    KEY_BUILD_ID = 1
    KEY_INODE = 2
    KEY_NAME = 3


cdef struct ExecutableKey:
    uint8_t kind
    uint8_t size
    uint8_t bytes[22]


cdef struct Executable:
    ExecutableKey key
    char *path  # as the mapping named it
    uint32_t path_size
    uint32_t pid  # the process and range through which it was first seen
    uint64_t start
    uint64_t last
    uint64_t unused_since  # CLOCK_MONOTONIC, ns; 0 while an owner names it
    uint32_t marked  # the last look at the owners that found it named
    uint8_t counted  # in `counted`


cdef struct Executables:
    Executable *items  # by number; 0 and 1 are special
    uint64_t capacity
    uint32_t count
    uint32_t sweep  # number of the last look at the owners
    uint64_t seed
    Index index
    List32 fresh  # numbers that Python does not know yet
    List32 free_numbers
    List32 counted  # numbers that counted frames name
    List32 sending  # the same of frames that were taken to be sent


cdef inline bint executables_has(const Executables *table, uint32_t number) noexcept nogil:
    return 2 <= number < table.count and table.items[number].key.kind != KEY_FREE


cdef int executables_init(Executables *table, uint64_t seed) noexcept nogil
cdef void executables_deinit(Executables *table) noexcept nogil
cdef uint32_t executables_number(
    Executables *table, const ExecutableKey *key, const char *path, uint32_t path_size,
    uint32_t pid, uint64_t start, uint64_t last
) noexcept nogil
cdef void executables_count(Executables *table, uint32_t number) noexcept nogil
cdef void executables_taken(Executables *table) noexcept nogil
cdef void executables_release(Executables *table, uint32_t number) noexcept nogil
cdef void key_of_name(ExecutableKey *key, const char *name, uint32_t size) noexcept nogil
cdef void key_of_inode(ExecutableKey *key, uint32_t major, uint32_t minor, uint64_t inode) noexcept nogil
cdef void key_of_build_id(ExecutableKey *key, const uint8_t *build_id, uint32_t size) noexcept nogil
cdef bint is_anonymous(const char *path, uint32_t size) noexcept nogil
