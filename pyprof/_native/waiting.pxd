# SPDX-License-Identifier: Apache-2.0
"""Samples that wait for the mappings of their process, or for unwind rows."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyprof._native.process_table cimport Process
from pyprof._native.ranges cimport Ranges
from pyprof._native.records cimport pyprof_sample, pyprof_slice


cdef struct Waiting:  # samples of processes whose mappings, or unwind rows, are not known yet
    uint8_t *bytes
    uint64_t capacity
    uint64_t used
    uint64_t count


cdef struct Held:  # the sample follows, then its slice, each padded to 8 bytes
    uint64_t size
    uint64_t slice_size  # 0: it has none
    Ranges *ranges  # of its process when it was taken
    uint32_t serial  # of that; 0 where it was not known
    uint32_t program
    uint32_t parent
    uint32_t reserved


cdef bint waiting_add(
    Waiting *waiting, const Process *process, const pyprof_sample *sample, uint64_t size,
    const pyprof_slice *slice
) noexcept nogil
cdef const Held *waiting_at(
    const Waiting *waiting, uint64_t *at, const pyprof_sample **sample, const pyprof_slice **slice
) noexcept nogil
cdef void waiting_deinit(Waiting *waiting) noexcept nogil
