# SPDX-License-Identifier: Apache-2.0
"""Reader of the sample ring: the path that every sample takes in user space."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyprof._native.aggregate cimport Aggregate, Aggregator, FrameRow
from pyprof._native.arena cimport Arena, RowArena, pyprof_rule
from pyprof._native.processes cimport Process, ProcessTable, Table
from pyprof._native.ranges cimport Ranges
from pyprof._native.sideband cimport Sideband, SidebandReader


cdef extern from "pyprof_abi.h" nogil:
    enum:
        PYPROF_MAX_USER_FRAMES
        PYPROF_MAX_KERNEL_FRAMES
        PYPROF_FRAME_EXACT
        PYPROF_RECORD_SAMPLE
        PYPROF_RECORD_SLICE
        PYPROF_SLICE_BYTES
        PYPROF_CFA_NONE
        PYPROF_RA_UNDEFINED
        PYPROF_END_COMPLETE
        PYPROF_END_UNREADABLE
        PYPROF_END_NO_MAPPING
        PYPROF_END_TOO_DEEP
        PYPROF_END_KERNEL_TOO_DEEP
        PYPROF_END_PROCESS_GONE
        PYPROF_END_NOT_LOADED
        PYPROF_END_SLICE_SHORT
        PYPROF_END_COUNT

    cdef struct pyprof_frame:
        uint64_t pc
        uint32_t mapping
        uint32_t flags

    cdef struct pyprof_sample:
        uint32_t record
        uint32_t slice
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
        uint32_t cpu
        uint32_t reserved2
        char process_name[16]
        char thread_name[16]

    cdef struct pyprof_slice:
        uint32_t record
        uint32_t number
        uint32_t cpu
        uint32_t size
        uint64_t base
        uint64_t pc
        uint64_t sp
        uint64_t fp
        uint64_t registers[16]
        uint8_t has_registers
        uint8_t has_fp
        uint8_t exact
        uint8_t holes


cdef extern from "unwind_slice.h" nogil:
    cdef struct unwind_slice:
        const uint8_t *data
        uint64_t base
        uint64_t size
        uint8_t holes
        uint64_t *failed

    cdef struct unwind_regs:
        uint64_t pc
        uint64_t sp
        uint64_t fp
        uint64_t registers[16]
        uint8_t has_registers
        uint8_t has_fp
        uint8_t exact
        uint8_t by_fp

    uint64_t unwind_lookup_pc(const unwind_regs *regs)
    int unwind_by_frame_pointer(unwind_regs *regs, const void *memory, uint8_t *end)
    int unwind_by_rule(unwind_regs *regs, const pyprof_rule *rule, const void *memory, uint8_t *end)


cdef struct LastSlice:  # of a CPU
    uint8_t *bytes
    uint64_t capacity
    uint32_t number


cdef struct SampleRing:
    uint64_t *consumer  # in a page of its own, ours to write
    uint64_t *producer
    const uint8_t *data  # mapped twice in a row, so that no record is seen to wrap
    uint64_t mask
    uint64_t page
    uint64_t mapped


cdef struct Waiting:  # samples of processes whose mappings, or unwind rows, are not known yet
    uint8_t *bytes
    uint64_t capacity
    uint64_t used
    uint64_t count


cdef struct Held:  # the sample follows, then its slice, each padded to 8 bytes
    uint64_t size
    uint64_t slice_size  # 0: it has none
    Ranges *ranges  # of its process when it was taken
    uint64_t serial  # of that; 0 where it was not known


cdef struct Drain:
    SampleRing ring
    Waiting waiting
    Table *table
    Sideband *sideband
    Aggregate *aggregate
    Arena *arena
    LastSlice *slices
    uint64_t slice_capacity
    uint64_t walked
    uint64_t malformed_slices
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
    cdef RowArena arena
    cdef void let_go(self) noexcept
