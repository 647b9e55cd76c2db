# SPDX-License-Identifier: Apache-2.0
"""Batches of ranges given as columns, in the order of process and address."""

from libc.stdint cimport uint32_t, uint64_t

from pyprof._native.ranges cimport Range


cdef struct Columns:
    const uint32_t *pids  # NULL: all of one process
    const uint64_t *starts
    const uint64_t *lasts
    const uint64_t *biases  # NULL: 0
    const uint32_t *executables  # NULL: 0


cdef struct Placed:
    uint64_t start
    uint32_t pid
    uint32_t index  # in the columns


cdef int columns_place(const Columns *columns, uint64_t count, Placed **placed, Range **items) noexcept nogil


cdef inline void columns_range(const Columns *columns, uint32_t at, Range *item) noexcept nogil:
    """The range in a row of the columns."""
    item.start = columns.starts[at]
    item.last = columns.lasts[at]
    item.bias = columns.biases[at] if columns.biases != NULL else 0
    item.executable = columns.executables[at] if columns.executables != NULL else 0
    item.since = 0
    item.untold = 0
