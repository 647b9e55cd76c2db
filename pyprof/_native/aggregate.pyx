# SPDX-License-Identifier: Apache-2.0
"""Hashing, deduplication and counting of frames and stacks.

Five tables of the same form: rows in a growing array, found through an Index by a seeded hash and
a full comparison, so that equal hashes never merge what differs. Rows are numbered in the order
of their arrival and stay until the interval is taken.
"""

import os

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pyprof._native.hashing cimport pyprof_hash_bytes, pyprof_hash_two
from pyprof._native.index cimport (
    Index,
    index_add,
    index_clear,
    index_deinit,
    index_init,
    index_reserve,
    slot_id,
)
from pyprof._native.memory cimport grow

cdef uint32_t MAX_ROWS = 0x7fffffff

cdef enum:
    MAX_FRAMES = 2048


cdef int aggregate_init(Aggregate *a, uint64_t seed) noexcept nogil:
    memset(a, 0, sizeof(Aggregate))
    a.seed = seed
    if (
        index_init(&a.frame_index, 1024) < 0
        or index_init(&a.stack_index, 1024) < 0
        or index_init(&a.process_index, 64) < 0
        or index_init(&a.thread_index, 64) < 0
        or index_init(&a.sample_index, 1024) < 0
    ):
        aggregate_deinit(a)
        return -1
    return 0


cdef void aggregate_deinit(Aggregate *a) noexcept nogil:
    index_deinit(&a.frame_index)
    index_deinit(&a.stack_index)
    index_deinit(&a.process_index)
    index_deinit(&a.thread_index)
    index_deinit(&a.sample_index)
    free(a.frames)
    free(a.stacks)
    free(a.pool)
    free(a.processes)
    free(a.threads)
    free(a.samples)
    free(a.stamps)
    memset(a, 0, sizeof(Aggregate))


cdef void aggregate_clear(Aggregate *a) noexcept nogil:
    """Drops the rows and keeps the memory: the next interval needs about as much."""
    index_clear(&a.frame_index)
    index_clear(&a.stack_index)
    index_clear(&a.process_index)
    index_clear(&a.thread_index)
    index_clear(&a.sample_index)
    a.pool_used = 0
    a.stamp_count = 0


cdef inline int room(Index *index, void **rows, uint64_t *capacity, uint64_t item) noexcept nogil:
    if index.used >= MAX_ROWS or index_reserve(index) < 0:
        return -1
    return grow(rows, capacity, <uint64_t>index.used + 1, item)


cdef int64_t aggregate_frame(Aggregate *a, const FrameRow *frame) noexcept nogil:
    """Number of the frame, made where it is new, or -1 without memory."""
    cdef Index *index = &a.frame_index
    cdef uint32_t tag = <uint32_t>(
        pyprof_hash_two(frame.address, (<uint64_t>frame.kind << 32) | frame.executable, a.seed) >> 32
    )
    cdef uint32_t at = tag & index.mask
    while index.slots[at]:
        if <uint32_t>(index.slots[at] >> 32) == tag and same_frame(&a.frames[slot_id(index.slots[at])], frame):
            return slot_id(index.slots[at])
        at = (at + 1) & index.mask
    if room(index, <void **>&a.frames, &a.frame_capacity, sizeof(FrameRow)) < 0:
        return -1
    a.frames[index.used] = frame[0]
    index_add(index, tag, index.used)
    return index.used - 1


cdef inline bint same_frame(const FrameRow *one, const FrameRow *other) noexcept nogil:
    return one.address == other.address and one.executable == other.executable and one.kind == other.kind


cdef bint same_stack(
    const Aggregate *a, const StackRow *row, const FrameRow *frames, uint32_t length
) noexcept nogil:
    cdef const uint32_t *numbers = &a.pool[row.start]
    cdef uint32_t i
    if row.length != length:
        return False
    for i in range(length):
        if not same_frame(&a.frames[numbers[i]], &frames[i]):
            return False
    return True


cdef int64_t aggregate_stack(Aggregate *a, const FrameRow *frames, uint32_t length) noexcept nogil:
    """The stack is hashed as it comes: only the frames of one that is new are looked up, one by one."""
    cdef Index *index = &a.stack_index
    cdef uint32_t tag = <uint32_t>(
        pyprof_hash_bytes(frames, <uint64_t>length * sizeof(FrameRow), a.seed) >> 32
    )
    cdef uint32_t at = tag & index.mask, i
    cdef int64_t frame
    cdef StackRow *row
    while index.slots[at]:
        if <uint32_t>(index.slots[at] >> 32) == tag and same_stack(
            a, &a.stacks[slot_id(index.slots[at])], frames, length
        ):
            return slot_id(index.slots[at])
        at = (at + 1) & index.mask
    if room(index, <void **>&a.stacks, &a.stack_capacity, sizeof(StackRow)) < 0:
        return -1
    if grow(<void **>&a.pool, &a.pool_capacity, a.pool_used + length + 1, sizeof(uint32_t)) < 0:
        return -1
    for i in range(length):
        frame = aggregate_frame(a, &frames[i])
        if frame < 0:
            return -1
        a.pool[a.pool_used + i] = <uint32_t>frame
    row = &a.stacks[index.used]
    row.start = a.pool_used
    row.length = length
    row.tag = tag
    a.pool_used += length
    index_add(index, tag, index.used)
    return index.used - 1


cdef int64_t aggregate_process(Aggregate *a, const ProcessRow *process, bint rename) noexcept nogil:
    """Number of the row of a process, or -1 without memory. rename: whether the name is newer for sure."""
    cdef Index *index = &a.process_index
    cdef uint32_t tag = <uint32_t>(pyprof_hash_two(process.serial, process.pid, a.seed) >> 32)
    cdef uint32_t at = tag & index.mask
    cdef ProcessRow *row
    while index.slots[at]:
        row = &a.processes[slot_id(index.slots[at])]
        if row.serial == process.serial and row.pid == process.pid:
            # A process may rename itself; its latest name is the one that ps shows.
            if rename:
                memcpy(row.name, process.name, sizeof(row.name))
            if row.program == 0:
                row.program = process.program
            return slot_id(index.slots[at])
        at = (at + 1) & index.mask
    if room(index, <void **>&a.processes, &a.process_capacity, sizeof(ProcessRow)) < 0:
        return -1
    a.processes[index.used] = process[0]
    index_add(index, tag, index.used)
    return index.used - 1


cdef int64_t aggregate_thread(
    Aggregate *a, uint32_t process, uint32_t tid, const char *name, bint rename
) noexcept nogil:
    cdef Index *index = &a.thread_index
    cdef uint32_t tag = <uint32_t>(pyprof_hash_two((<uint64_t>process << 32) | tid, 0, a.seed) >> 32)
    cdef uint32_t at = tag & index.mask
    cdef ThreadRow *row
    while index.slots[at]:
        row = &a.threads[slot_id(index.slots[at])]
        if row.process == process and row.tid == tid:
            if rename:
                memcpy(row.name, name, sizeof(row.name))
            return slot_id(index.slots[at])
        at = (at + 1) & index.mask
    if room(index, <void **>&a.threads, &a.thread_capacity, sizeof(ThreadRow)) < 0:
        return -1
    row = &a.threads[index.used]
    row.process = process
    row.tid = tid
    memcpy(row.name, name, sizeof(row.name))
    index_add(index, tag, index.used)
    return index.used - 1


cdef int64_t aggregate_add(
    Aggregate *a, uint32_t process, uint32_t thread, uint32_t stack, uint32_t end, uint64_t count, uint64_t time
) noexcept nogil:
    """Counts a sample; time: when it was taken, which is kept where stamps are wanted."""
    cdef Index *index = &a.sample_index
    cdef uint32_t tag = <uint32_t>(
        pyprof_hash_two((<uint64_t>process << 32) | thread, (<uint64_t>end << 32) | stack, a.seed) >> 32
    )
    cdef uint32_t at = tag & index.mask
    cdef SampleRow *row
    # Room for the stamp comes first: what has no room must not be counted.
    if a.stamped and grow(
        <void **>&a.stamps, &a.stamp_capacity, a.stamp_count + 1, sizeof(StampRow)
    ) < 0:
        return -1
    while index.slots[at]:
        row = &a.samples[slot_id(index.slots[at])]
        if row.process == process and row.thread == thread and row.stack == stack and row.end == end:
            row.count += count
            stamp(a, slot_id(index.slots[at]), time)
            return slot_id(index.slots[at])
        at = (at + 1) & index.mask
    if room(index, <void **>&a.samples, &a.sample_capacity, sizeof(SampleRow)) < 0:
        return -1
    row = &a.samples[index.used]
    row.count = count
    row.process = process
    row.thread = thread
    row.stack = stack
    row.end = end
    index_add(index, tag, index.used)
    stamp(a, index.used - 1, time)
    return index.used - 1


cdef inline void stamp(Aggregate *a, uint32_t sample, uint64_t time) noexcept nogil:
    if a.stamped:
        a.stamps[a.stamp_count].time = time
        a.stamps[a.stamp_count].sample = sample
        a.stamp_count += 1


cdef bytes rows(const void *data, uint64_t count, uint64_t item):
    return PyBytes_FromStringAndSize(<const char *>data, <Py_ssize_t>(count * item))


cdef class Aggregator:
    """Owner of the tables of an interval. Not thread-safe."""

    def __cinit__(self, seed=None, bint stamped=False):
        """seed: of the hash; by default a secret one, since addresses are chosen by what is profiled; stamped: whether
        the time of each sample is kept."""
        if aggregate_init(&self.table, int.from_bytes(os.urandom(8), "little") if seed is None else seed) < 0:
            raise MemoryError
        self.table.stamped = stamped

    def __dealloc__(self):
        aggregate_deinit(&self.table)

    cdef int64_t count_stack(
        self, uint32_t process, uint32_t thread, const uint32_t *kinds, const uint32_t *executables,
        const uint64_t *addresses, uint32_t length, uint32_t end, uint64_t count, uint64_t time
    ) noexcept nogil:
        """length: at most MAX_FRAMES. Number of the sample row, or -1 without memory."""
        cdef FrameRow frames[MAX_FRAMES]
        cdef int64_t id
        cdef uint32_t i
        for i in range(length):
            frames[i].address = addresses[i]
            frames[i].executable = executables[i]
            frames[i].kind = kinds[i]
        id = aggregate_stack(&self.table, frames, length)
        if id < 0:
            return -1
        return aggregate_add(&self.table, process, thread, <uint32_t>id, end, count, time)

    def add(self, uint32_t process, uint32_t thread, const uint32_t[::1] kinds not None,
            const uint32_t[::1] executables not None, const uint64_t[::1] addresses not None,
            uint64_t count=1, uint32_t end=0, uint64_t time=0):
        """Counts a stack given as three columns, leaf first. For tests and benchmarks: the ring's
        reader calls the C functions."""
        cdef int64_t id
        cdef Py_ssize_t n = addresses.shape[0]
        if n > MAX_FRAMES or kinds.shape[0] != n or executables.shape[0] != n:
            raise ValueError("columns differ in length or are too long")
        # The address of an empty view's first item is never read.
        with nogil, cython.boundscheck(False):
            id = self.count_stack(
                process, thread, &kinds[0], &executables[0], &addresses[0], <uint32_t>n, end, count, time
            )
        if id < 0:
            raise MemoryError

    def add_batch(self, uint32_t process, uint32_t thread, const uint64_t[::1] starts not None,
                  const uint32_t[::1] kinds not None, const uint32_t[::1] executables not None,
                  const uint64_t[::1] addresses not None):
        """Counts stacks that lie one after the other in columns: stack i is [starts[i], starts[i + 1]).

        Raises ValueError, before anything is counted, where starts and columns do not fit.
        """
        cdef int64_t id = 0
        cdef Py_ssize_t i, n = starts.shape[0]
        cdef uint64_t size = <uint64_t>addresses.shape[0]
        cdef bint sound = <uint64_t>kinds.shape[0] == size and <uint64_t>executables.shape[0] == size
        with nogil, cython.boundscheck(False):
            for i in range(1, n):
                sound = sound and starts[i - 1] <= starts[i] <= size and starts[i] - starts[i - 1] <= MAX_FRAMES
            if sound:
                for i in range(1, n):
                    id = self.count_stack(
                        process, thread, &kinds[starts[i - 1]], &executables[starts[i - 1]],
                        &addresses[starts[i - 1]], <uint32_t>(starts[i] - starts[i - 1]), 0, 1, 0
                    )
                    if id < 0:
                        break
        if not sound:
            raise ValueError("columns differ in length, or starts do not lie in them")
        if id < 0:
            raise MemoryError

    def sizes(self):
        """(frames, stacks, samples) held."""
        return self.table.frame_index.used, self.table.stack_index.used, self.table.sample_index.used

    def take(self):
        """Copies of the tables, as bytes by name, and empties them.

        Layouts (native endian): frames {u64 address, u32 executable, u32 kind}; stacks {u64 start,
        u32 length, u32 hash}; pool u32; processes {u64 start_time, u32 serial, u32 pid, u32 program,
        u32 parent, char name[16]}; threads {u32 process, u32 tid, char name[16]}; samples {u64 count,
        u32 process, u32 thread, u32 stack, u32 end}, where end is that of enum pyprof_end; stamps {u64 time,
        u64 sample}, in the order in which samples were counted, none unless they are wanted.
        """
        cdef Aggregate *a = &self.table
        taken = {
            "frames": rows(a.frames, a.frame_index.used, sizeof(FrameRow)),
            "stacks": rows(a.stacks, a.stack_index.used, sizeof(StackRow)),
            "pool": rows(a.pool, a.pool_used, sizeof(uint32_t)),
            "processes": rows(a.processes, a.process_index.used, sizeof(ProcessRow)),
            "threads": rows(a.threads, a.thread_index.used, sizeof(ThreadRow)),
            "samples": rows(a.samples, a.sample_index.used, sizeof(SampleRow)),
            "stamps": rows(a.stamps, a.stamp_count, sizeof(StampRow)),
        }
        aggregate_clear(a)
        return taken
