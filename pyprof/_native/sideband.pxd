# SPDX-License-Identifier: Apache-2.0
"""Reader of perf side-band records: what processes do, CPU by CPU, merged by time."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from pyprof._native.process_table cimport Table
from pyprof._native.processes cimport ProcessTable


cdef extern from "<linux/perf_event.h>" nogil:
    cdef struct perf_event_mmap_page:
        uint64_t data_head
        uint64_t data_tail
        uint64_t data_offset
        uint64_t data_size


cdef struct CpuRing:
    perf_event_mmap_page *meta  # NULL: the slot is free
    uint8_t *data
    uint64_t size
    uint64_t mask
    uint64_t mapped
    uint64_t head  # as of the last snapshot
    uint64_t tail
    uint64_t time  # of the record at tail; valid while tail != head
    int fd


cdef struct Sideband:
    CpuRing *rings
    uint64_t capacity
    uint32_t count
    uint8_t *scratch  # a record that wraps around, or is not aligned
    uint64_t malformed
    Table *table


cdef void sideband_snapshot(Sideband *sideband) noexcept nogil
cdef CpuRing *sideband_next(Sideband *sideband) noexcept nogil
cdef void sideband_apply(Sideband *sideband, CpuRing *ring) noexcept nogil
cdef void sideband_release(Sideband *sideband) noexcept nogil


cdef class SidebandReader:
    cdef Sideband sideband
    cdef ProcessTable table
