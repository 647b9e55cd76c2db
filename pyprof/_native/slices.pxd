# SPDX-License-Identifier: Apache-2.0
"""Copies of stacks that came before the samples they belong to: one for each CPU, the last."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyprof._native.records cimport pyprof_sample, pyprof_slice


cdef struct LastSlice:  # of a CPU
    uint8_t *bytes
    uint64_t capacity
    uint32_t number


cdef struct Slices:
    LastSlice *cpus
    uint64_t capacity
    uint64_t malformed


cdef void slices_keep(Slices *slices, const pyprof_slice *slice, uint64_t size) noexcept nogil
cdef const pyprof_slice *slices_find(const Slices *slices, const pyprof_sample *sample) noexcept nogil
cdef void slices_deinit(Slices *slices) noexcept nogil
