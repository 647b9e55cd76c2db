# SPDX-License-Identifier: Apache-2.0
"""Numbers for mapped files, by what identifies them: build ID, device and inode, or a special name."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyprof._native.index cimport Index


cdef enum:
    NO_EXECUTABLE = 0
    ANONYMOUS = 1  # executable memory without a file


cdef enum KeyKind:
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


cdef struct Executables:
    Executable *items  # by number; 0 and 1 are special
    uint64_t capacity
    uint32_t count
    uint32_t announced  # numbers below this are known to Python
    uint64_t seed
    Index index


cdef int executables_init(Executables *table, uint64_t seed) noexcept nogil
cdef void executables_deinit(Executables *table) noexcept nogil
cdef uint32_t executables_number(
    Executables *table, const ExecutableKey *key, const char *path, uint32_t path_size,
    uint32_t pid, uint64_t start, uint64_t last
) noexcept nogil
cdef void key_of_name(ExecutableKey *key, const char *name, uint32_t size) noexcept nogil
cdef void key_of_inode(ExecutableKey *key, uint32_t major, uint32_t minor, uint64_t inode) noexcept nogil
cdef void key_of_build_id(ExecutableKey *key, const uint8_t *build_id, uint32_t size) noexcept nogil
cdef bint is_anonymous(const char *path, uint32_t size) noexcept nogil
