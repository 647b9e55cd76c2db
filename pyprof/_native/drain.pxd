# SPDX-License-Identifier: Apache-2.0
"""Reader of the sample ring: the path that every sample takes in user space."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyprof._native.aggregate cimport Aggregate, Aggregator, FrameRow
from pyprof._native.processes cimport Process, ProcessTable, Table
from pyprof._native.sideband cimport Sideband, SidebandReader


cdef extern from "pyprof_abi.h" nogil:
    enum:
        PYPROF_MAX_USER_FRAMES
        PYPROF_MAX_KERNEL_FRAMES
        PYPROF_END_COMPLETE
        PYPROF_END_NO_MAPPING
        PYPROF_END_KERNEL_TOO_DEEP
        PYPROF_END_PROCESS_GONE
        PYPROF_END_COUNT

    cdef struct pyprof_frame:
        uint64_t pc
        uint32_t mapping
        uint32_t reserved

    cdef struct pyprof_sample:
        uint64_t time
        uint64_t start_time
        uint32_t pid
        uint32_t tid
        uint16_t user_frames
        uint16_t kernel_frames
        uint8_t end
        uint8_t in_kernel
        uint8_t is_kernel_thread
        uint8_t reserved
        char process_name[16]
        char thread_name[16]


cdef struct SampleRing:
    uint64_t *consumer  # in a page of its own, ours to write
    uint64_t *producer
    const uint8_t *data  # mapped twice in a row, so that no record is seen to wrap
    uint64_t mask
    uint64_t page
    uint64_t mapped


cdef struct Waiting:  # samples of processes whose mappings are not known yet
    uint8_t *bytes
    uint64_t capacity
    uint64_t used


cdef struct Drain:
    SampleRing ring
    Waiting waiting
    Table *table
    Sideband *sideband
    Aggregate *aggregate
    bint by_thread
    bint by_none
    uint64_t reported
    uint64_t filtered  # of processes that are not targets
    uint64_t no_memory
    uint64_t malformed
    uint64_t first_sample  # time of the first one
    uint64_t incomplete[32]
    FrameRow frames[2048]


cdef class SampleReader:
    cdef Drain drain
    cdef ProcessTable table
    cdef SidebandReader sideband
    cdef Aggregator aggregator
