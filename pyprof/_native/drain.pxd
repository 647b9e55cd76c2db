# SPDX-License-Identifier: Apache-2.0
"""Reader of the sample ring: the path that every sample takes in user space."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

from pyprof._native.aggregate cimport Aggregate, Aggregator, FrameRow
from pyprof._native.arena cimport Arena, RowArena, pyprof_rule
from pyprof._native.process_table cimport Process, Table
from pyprof._native.processes cimport ProcessTable
from pyprof._native.sideband cimport Sideband, SidebandReader
from pyprof._native.slices cimport Slices
from pyprof._native.waiting cimport Waiting


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


cdef struct SampleRing:
    uint64_t *consumer  # in a page of its own, ours to write
    uint64_t *producer
    const uint8_t *data  # mapped twice in a row, so that no record is seen to wrap
    uint64_t mask
    uint64_t page
    uint64_t mapped


cdef struct Drain:
    SampleRing ring
    Waiting waiting
    Table *table
    Sideband *sideband
    Aggregate *aggregate
    Arena *arena
    Slices slices
    uint64_t walked
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
