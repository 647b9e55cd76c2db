# SPDX-License-Identifier: Apache-2.0
"""Stacks of samples."""

from libc.stdint cimport int64_t, uint8_t

from pyprof._native.drain cimport Drain
from pyprof._native.process_table cimport Process
from pyprof._native.records cimport pyprof_sample, pyprof_slice


cdef int64_t stack_of(
    Drain *d, Process *process, const pyprof_sample *sample, const pyprof_slice *slice, uint8_t *end, bint may_wait
) noexcept nogil
