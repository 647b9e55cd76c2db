# SPDX-License-Identifier: Apache-2.0
"""Which processes are in the kernel's trie, and who gives way where it is full."""

from libc.stdint cimport uint64_t

from pyprof._native.process_table cimport Process, Table


cdef void publish_changed(Table *table, uint64_t now) noexcept nogil
cdef void publish_anew(Table *table, Process *process, uint64_t time) noexcept nogil
