# SPDX-License-Identifier: Apache-2.0
"""From the ring buffer to counted stacks, without a Python object for any sample.

Samples and side-band records are merged by time: before a sample is looked at, every event up to its
time has been applied, so what the process table says is what was mapped when the sample was taken.
The order in which the two are read makes this sound: first how far the sample ring is filled, then
how far the side-band rings are. An event that a sample depends on was written before the sample.
"""

import os

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pyprof._native.aggregate cimport ProcessRow, aggregate_add, aggregate_process, aggregate_thread
from pyprof._native.arena cimport RowArena
from pyprof._native.executables cimport executables_count
from pyprof._native.frames cimport stack_of
from pyprof._native.process_table cimport (
    TARGET,
    UNSENT,
    table_add,
    table_ask,
    table_exec,
    table_find,
    table_hide,
    table_publish,
    table_serial,
    table_withdraw,
)
from pyprof._native.records cimport (
    PYPROF_END_COUNT,
    PYPROF_MAX_KERNEL_FRAMES,
    PYPROF_MAX_USER_FRAMES,
    PYPROF_RECORD_SAMPLE,
    PYPROF_RECORD_SLICE,
    pyprof_frame,
    pyprof_sample,
    pyprof_slice,
)
from pyprof._native.sideband cimport (
    CpuRing,
    sideband_apply,
    sideband_next,
    sideband_release,
    sideband_snapshot,
)
from pyprof._native.signs cimport MAPS_IN_DOUBT, SAMPLE_IN_DOUBT, Doubt, signs_doubt, signs_execs
from pyprof._native.slices cimport slices_deinit, slices_find, slices_keep
from pyprof._native.waiting cimport Held, Waiting, waiting_add, waiting_at, waiting_deinit

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    enum: PROT_READ, PROT_WRITE, MAP_SHARED
    void *MAP_FAILED

cdef extern from *:
    """
    #define pyprof_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define pyprof_load_acquire32(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define pyprof_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    """
    uint64_t pyprof_load_acquire(uint64_t *at) nogil
    uint32_t pyprof_load_acquire32(const uint32_t *at) nogil
    void pyprof_store_release(uint64_t *at, uint64_t value) nogil

# Header of a ring buffer record: a length with two flags, and a page offset; then the data, padded
# to 8 bytes (kernel/bpf/ringbuf.c, struct bpf_ringbuf_hdr).
cdef uint32_t BUSY = 1 << 31
cdef uint32_t DISCARD = 1 << 30
cdef uint32_t RING_HEADER = 8

cdef uint64_t SECOND = 1000000000


cdef bint is_sound(const pyprof_sample *sample, uint64_t size) noexcept nogil:
    return (
        size >= sizeof(pyprof_sample)
        and sample.record == PYPROF_RECORD_SAMPLE
        and sample.user_frames <= PYPROF_MAX_USER_FRAMES
        and sample.kernel_frames <= PYPROF_MAX_KERNEL_FRAMES
        and sample.end < PYPROF_END_COUNT
        and size >= sizeof(pyprof_sample)
        + sample.user_frames * sizeof(pyprof_frame)
        + sample.kernel_frames * sizeof(uint64_t)
    )


cdef void fill_row(ProcessRow *row, const Process *process, const pyprof_sample *sample) noexcept nogil:
    row.start_time = sample.start_time
    row.serial = process.serial
    row.pid = sample.pid
    row.program = process.program
    row.parent = process.parent
    memcpy(row.name, sample.process_name, sizeof(row.name))


cdef bint report(
    Drain *d, Process *process, const pyprof_sample *sample, const pyprof_slice *slice, bint may_wait
) noexcept nogil:
    """Counts a sample; False where it has to wait for unwind rows."""
    cdef uint8_t end = sample.end
    cdef int64_t stack, row = 0, thread = 0
    cdef ProcessRow known
    # An exec sets the new name, and reports it, before the new program's stack is there: what is sampled
    # between the two belongs to the old program.
    cdef bint rename = not sample.in_kernel or sample.is_kernel_thread or sample.user_frames > 1
    stack = stack_of(d, process, sample, slice, &end, may_wait)
    if stack == -2:
        return False
    if not d.by_none:
        fill_row(&known, process, sample)
        row = aggregate_process(d.aggregate, &known, rename)
        executables_count(&d.table.executables, process.program)
    if d.by_thread and row >= 0:
        thread = aggregate_thread(d.aggregate, <uint32_t>row, sample.tid, sample.thread_name, rename)
    if stack < 0 or row < 0 or thread < 0 or aggregate_add(
        d.aggregate, <uint32_t>row, <uint32_t>thread, <uint32_t>stack, end, 1, sample.time
    ) < 0:
        d.no_memory += 1
        return True
    process.unsent = UNSENT
    d.reported += 1
    d.incomplete[end] += 1
    return True


cdef void report_or_wait(
    Drain *d, Process *process, const pyprof_sample *sample, uint64_t size, const pyprof_slice *slice,
    bint may_wait
) noexcept nogil:
    if not report(d, process, sample, slice, may_wait) and not waiting_add(&d.waiting, process, sample, size, slice):
        report(d, process, sample, slice, False)


cdef bint is_older(const Process *process, const pyprof_sample *sample) noexcept nogil:
    """Whether a sample was taken of a process that had the same pid earlier."""
    return sample.time < process.forked_at or sample.start_time < process.start_time


cdef void report_gone(Drain *d, const pyprof_sample *sample) noexcept nogil:
    """Reports a sample that waited until its process ended and another one got the pid."""
    cdef Process process
    if d.table.only_targets:
        d.filtered += 1
        return
    memset(&process, 0, sizeof(Process))
    process.pid = sample.pid
    process.serial = table_serial(d.table)
    process.exited_at = sample.time
    process.known = 1
    process.gone = 1
    report(d, &process, sample, NULL, False)


cdef inline bint may_publish(const Process *process, const pyprof_sample *sample) noexcept nogil:
    """Whether a process is to be written to the kernel now that it was sampled."""
    return (
        not process.published and not sample.is_kernel_thread
        and not process.exited_at and sample.time >= process.publish_after
    )


cdef void handle(
    Drain *d, const pyprof_sample *sample, uint64_t size, const pyprof_slice *slice, bint may_wait
) noexcept nogil:
    cdef Process *process
    cdef int32_t later
    cdef Doubt doubt
    if not is_sound(sample, size):
        d.malformed += 1
        return
    if d.first_sample == 0:
        d.first_sample = sample.time
    process = table_find(d.table, sample.pid)
    if process != NULL and is_older(process, sample):
        report_gone(d, sample)
        return
    if process != NULL and process.start_time and process.start_time != sample.start_time:
        process = NULL  # the pid is another process's by now, and the records of that were lost
    if process == NULL:
        process = table_add(d.table, sample.pid, sample.time)
        if process == NULL:
            d.no_memory += 1
            return
        process.known = sample.is_kernel_thread
    process.start_time = sample.start_time
    process.last_sampled = max(process.last_sampled, sample.time)  # one that waited comes late
    later = signs_execs(&process.signs, sample)
    if later < 0:
        report_gone(d, sample)
        return
    if later > 0:
        table_exec(d.table, sample.pid, sample.time)
        signs_execs(&process.signs, sample)
        process.known = 0  # what it has mapped was told in records that were lost, too
    if d.table.only_targets and process.target != TARGET:
        d.filtered += 1
        if may_publish(process, sample):
            table_hide(d.table, process)
        return
    if may_wait and process.known and not process.exited_at:
        doubt = signs_doubt(&process.signs, process.ranges, sample)
        if doubt == MAPS_IN_DOUBT and sample.time > process.rescan_after:
            table_ask(d.table, process)
        elif doubt == SAMPLE_IN_DOUBT:
            table_withdraw(d.table, process, sample.time)
            process.known = 0
    if not process.known:
        table_ask(d.table, process)
        if may_wait and waiting_add(&d.waiting, process, sample, size, slice):
            return
    elif may_publish(process, sample):
        table_publish(d.table, process)
    report_or_wait(d, process, sample, size, slice, may_wait)


cdef void report_held(
    Drain *d, const Held *held, const pyprof_sample *sample, const pyprof_slice *slice, bint may_wait
) noexcept nogil:
    """Reports a sample that waited for unwind rows as one of what its process was when it was taken."""
    cdef Process process
    memset(&process, 0, sizeof(Process))
    process.pid = sample.pid
    process.serial = held.serial
    process.program = held.program
    process.parent = held.parent
    process.ranges = held.ranges
    process.exited_at = sample.time  # nothing is to be asked about it
    process.known = 1
    report_or_wait(d, &process, sample, held.size, slice, may_wait)


cdef void run(Drain *d) noexcept nogil:
    cdef uint64_t end = pyprof_load_acquire(d.ring.producer)
    cdef uint64_t at = d.ring.consumer[0]
    cdef const uint8_t *record
    cdef const pyprof_sample *sample
    cdef CpuRing *ring
    cdef uint64_t size
    cdef uint32_t length = 0
    sideband_snapshot(d.sideband)
    while True:
        record = d.ring.data + (at & d.ring.mask)
        sample = NULL
        size = 0
        if at < end:
            length = pyprof_load_acquire32(<const uint32_t *>record)
            if length & BUSY:
                break  # still being written: it, and all that came after it, are for the next time
            size = ((<uint64_t>length & ~<uint64_t>DISCARD) + RING_HEADER + 7) & ~<uint64_t>7
            if size > end - at or end - at > d.ring.mask + 1:
                # No record of the kernel's: neither it nor where the next one begins can be trusted.
                size = end - at
                length = 0
            if not length & DISCARD and length >= 4 and (
                (<const uint32_t *>(record + RING_HEADER))[0] == PYPROF_RECORD_SLICE
            ):
                slices_keep(&d.slices, <const pyprof_slice *>(record + RING_HEADER), length)
                at += size
                pyprof_store_release(d.ring.consumer, at)
                continue
            if length & DISCARD or length < sizeof(pyprof_sample):
                # It has no time of its own.
                if not length & DISCARD:
                    d.malformed += 1
                at += size
                pyprof_store_release(d.ring.consumer, at)
                continue
            sample = <const pyprof_sample *>(record + RING_HEADER)
        ring = sideband_next(d.sideband)
        if ring != NULL and (sample == NULL or ring.time <= sample.time):
            sideband_apply(d.sideband, ring)
            continue
        if sample == NULL:
            break
        handle(d, sample, length, slices_find(&d.slices, sample) if is_sound(sample, length) else NULL, True)
        at += size
        pyprof_store_release(d.ring.consumer, at)
    sideband_release(d.sideband)


cdef class SampleReader:
    """Owns the memory mapping of the sample ring. Not thread-safe."""

    def __cinit__(self, int fd, uint64_t size, ProcessTable table not None, SidebandReader sideband not None,
                  Aggregator aggregator not None, RowArena arena not None, by):
        """fd: of the ring buffer map; size: its max_entries; by: "thread", "process" or "none"."""
        cdef uint64_t page = os.sysconf("SC_PAGE_SIZE")
        cdef void *memory
        memset(&self.drain, 0, sizeof(Drain))
        if size < page or size & (size - 1):
            raise ValueError("size is not a power of two of pages")
        if by not in ("thread", "process", "none"):
            raise ValueError(f"cannot keep samples apart by {by}")
        self.table = table
        self.sideband = sideband
        self.aggregator = aggregator
        self.arena = arena
        self.drain.arena = &arena.arena
        self.drain.table = &table.table
        self.drain.sideband = &sideband.sideband
        self.drain.aggregate = &aggregator.table
        self.drain.by_thread = by == "thread"
        self.drain.by_none = by == "none"
        self.drain.ring.page = page
        memory = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if memory == MAP_FAILED:
            raise OSError("cannot map the sample ring")
        self.drain.ring.consumer = <uint64_t *>memory
        self.drain.ring.mapped = page + 2 * size
        memory = mmap(NULL, self.drain.ring.mapped, PROT_READ, MAP_SHARED, fd, <long>page)
        if memory == MAP_FAILED:
            raise OSError("cannot map the sample ring")
        self.drain.ring.producer = <uint64_t *>memory
        self.drain.ring.data = <const uint8_t *>memory + page
        self.drain.ring.mask = size - 1

    def __dealloc__(self):
        if self.drain.ring.producer != NULL:
            munmap(self.drain.ring.producer, self.drain.ring.mapped)
        if self.drain.ring.consumer != NULL:
            munmap(self.drain.ring.consumer, self.drain.ring.page)
        waiting_deinit(&self.drain.waiting)
        slices_deinit(&self.drain.slices)

    def run(self):
        """Reads what is in the sample and side-band rings now."""
        with nogil:
            run(&self.drain)

    def replay(self, uint64_t wait_from=0xffffffffffffffff):
        """Reports the samples that waited, except those taken since a time (CLOCK_MONOTONIC, ns) whose unwind
        rows are still to come; how many it reported."""
        cdef Drain *d = &self.drain
        cdef Waiting old = d.waiting
        cdef uint64_t count = old.count
        cdef uint64_t at = 0
        cdef const Held *held
        cdef const pyprof_sample *sample
        cdef const pyprof_slice *slice
        memset(&d.waiting, 0, sizeof(Waiting))
        with nogil:
            while True:
                held = waiting_at(&old, &at, &sample, &slice)
                if held == NULL:
                    break
                if held.serial:
                    report_held(d, held, sample, slice, sample.time >= wait_from)
                else:
                    handle(d, sample, held.size, slice, sample.time >= wait_from)
            waiting_deinit(&old)
        return count - d.waiting.count

    @property
    def unread(self):
        """Bytes in the sample ring."""
        return pyprof_load_acquire(self.drain.ring.producer) - self.drain.ring.consumer[0]

    @property
    def waiting(self):
        """Bytes of samples that wait."""
        return self.drain.waiting.used

    def counts(self):
        """Samples by what became of them since the start: reported, filtered, no_memory, malformed; walked: those
        of the reported whose stacks were unwound in user space, all or part;
        first_sample is the time (CLOCK_MONOTONIC, ns) of the first one, 0 before."""
        return {
            "reported": self.drain.reported,
            "filtered": self.drain.filtered,
            "no_memory": self.drain.no_memory,
            "malformed": self.drain.malformed,
            "malformed_slices": self.drain.slices.malformed,
            "walked": self.drain.walked,
            "first_sample": self.drain.first_sample,
        }

    def ends(self):
        """Reported samples by where their stacks end, by enum pyprof_end."""
        return [self.drain.incomplete[i] for i in range(PYPROF_END_COUNT)]
