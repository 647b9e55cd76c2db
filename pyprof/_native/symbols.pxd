# SPDX-License-Identifier: Apache-2.0
cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from pyprof._native.kallsyms cimport Arena
from pyprof._native.symbol_entries cimport Entries
from pyprof._native.symbol_entries cimport Layout
from pyprof._native.symbol_entries cimport Names


cdef enum:
    MAX_SOURCES = 8


cdef struct Range:
    # Executable addresses [start, end).
    uint64_t start
    uint64_t end


@cython.final
cdef class SymbolTable:
    cdef Entries entries
    cdef Layout layout
    cdef Names names[MAX_SOURCES]
    cdef size_t sources
    cdef Arena arena  # names of kernel symbols
    cdef object kept  # the string tables that `names` points into
    cdef readonly list counts
    cdef readonly bint hidden
