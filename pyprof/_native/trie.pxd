# SPDX-License-Identifier: Apache-2.0
"""Python's side of the owner of exec_mappings."""

from pyprof._native.mappings cimport Trie


cdef class MappingTrie:
    cdef Trie trie
