# SPDX-License-Identifier: Apache-2.0
"""Frames, stacks and samples of one interval, each kept once and counted."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyprof._native.index cimport Index


cdef enum FrameKind:  # values of pyprof.profile.model.FrameKind
    KIND_NATIVE = 1
    KIND_KERNEL = 2
    KIND_UNKNOWN = 3


cdef struct FrameRow:
    uint64_t address
    uint32_t executable
    uint32_t kind


cdef struct StackRow:
    uint64_t start  # in the pool
    uint32_t length
    uint32_t tag  # of its frames' rows, not of their numbers


cdef struct ProcessRow:
    uint64_t start_time
    uint32_t serial
    uint32_t pid
    uint32_t program  # number of the executable that it runs, 0 where unknown
    uint32_t parent  # pid, 0 where no event told
    char name[16]


cdef struct ThreadRow:
    uint32_t process
    uint32_t tid
    char name[16]


cdef struct SampleRow:
    uint64_t count
    uint32_t process
    uint32_t thread
    uint32_t stack
    uint32_t end  # enum pyprof_end: the same frames that ended for another reason are another row


cdef struct StampRow:
    uint64_t time  # CLOCK_MONOTONIC, ns
    uint64_t sample


cdef struct Aggregate:
    uint64_t seed
    FrameRow *frames
    StackRow *stacks
    uint32_t *pool
    ProcessRow *processes
    ThreadRow *threads
    SampleRow *samples
    StampRow *stamps
    uint64_t frame_capacity, stack_capacity, pool_capacity
    uint64_t process_capacity, thread_capacity, sample_capacity
    uint64_t pool_used
    uint64_t stamp_capacity
    uint64_t stamp_count
    bint stamped  # whether the time of each sample is kept
    Index frame_index
    Index stack_index
    Index process_index
    Index thread_index
    Index sample_index


cdef int aggregate_init(Aggregate *a, uint64_t seed) noexcept nogil
cdef void aggregate_deinit(Aggregate *a) noexcept nogil
cdef void aggregate_clear(Aggregate *a) noexcept nogil
# Each returns the number of the row, made where it is new, or -1 without memory.
cdef int64_t aggregate_stack(Aggregate *a, const FrameRow *frames, uint32_t length) noexcept nogil
cdef int64_t aggregate_process(Aggregate *a, const ProcessRow *process, bint rename) noexcept nogil
cdef int64_t aggregate_thread(
    Aggregate *a, uint32_t process, uint32_t tid, const char *name, bint rename
) noexcept nogil
cdef int64_t aggregate_add(
    Aggregate *a, uint32_t process, uint32_t thread, uint32_t stack, uint32_t end, uint64_t count, uint64_t time
) noexcept nogil


cdef class Aggregator:
    cdef Aggregate table
    cdef int64_t count_stack(
        self, uint32_t process, uint32_t thread, const uint32_t *kinds, const uint32_t *executables,
        const uint64_t *addresses, uint32_t length, uint32_t end, uint64_t count, uint64_t time
    ) noexcept nogil
