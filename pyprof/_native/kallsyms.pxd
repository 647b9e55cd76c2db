# SPDX-License-Identifier: Apache-2.0
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pyprof._native.symbol_entries cimport Entries


cdef struct Arena:
    # Names, each with a NUL at its end.
    uint8_t *data
    size_t size
    size_t capacity


cdef struct TextCounts:
    size_t seen  # text symbols
    size_t placed  # those of them with an address


# Takes whole lines of /proc/kallsyms. False: out of memory.
cdef bint read_kernel_lines(Entries *entries, Arena *arena, TextCounts *counts,
                            const uint8_t *text, size_t size) noexcept nogil

# Gives sorted entries their ends.
cdef void end_kernel_symbols(Entries *entries) noexcept nogil
