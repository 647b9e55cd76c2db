# SPDX-License-Identifier: Apache-2.0
"""Python's side of the process table."""

from pyprof._native.process_table cimport Table
from pyprof._native.trie cimport MappingTrie


cdef class ProcessTable:
    cdef Table table
    cdef readonly MappingTrie trie
