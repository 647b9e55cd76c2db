# SPDX-License-Identifier: Apache-2.0
"""Bodies of sideband.pxd. Record layouts: include/uapi/linux/perf_event.h, enum perf_event_type.

Each record ends with its time, since the events are opened with sample_id_all and
PERF_SAMPLE_TIME alone. The kernel writes them: still every length is checked before it is used.
"""

import os

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pyprof._native.executables cimport (
    ANONYMOUS,
    NO_EXECUTABLE,
    ExecutableKey,
    executables_number,
    is_anonymous,
    key_of_build_id,
    key_of_inode,
    key_of_name,
)
from pyprof._native.memory cimport grow
from pyprof._native.process_table cimport (
    table_exec,
    table_exit,
    table_fork,
    table_map,
    table_thread,
)
from pyprof._native.ranges cimport Range

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char *text, size_t limit)

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t length)
    enum: PROT_READ, PROT_WRITE, MAP_SHARED
    void *MAP_FAILED

cdef extern from *:
    """
    #define pyprof_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define pyprof_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    """
    uint64_t pyprof_load_acquire(uint64_t *at) nogil
    void pyprof_store_release(uint64_t *at, uint64_t value) nogil

cdef extern from "<linux/perf_event.h>" nogil:
    enum:
        PERF_RECORD_KSYMBOL
        PERF_RECORD_LOST
        PERF_RECORD_COMM
        PERF_RECORD_EXIT
        PERF_RECORD_FORK
        PERF_RECORD_MMAP2
        PERF_RECORD_MISC_COMM_EXEC
        PERF_RECORD_MISC_MMAP_BUILD_ID

cdef struct Header:
    uint32_t type
    uint16_t misc
    uint16_t size

cdef struct Task:  # PERF_RECORD_FORK, PERF_RECORD_EXIT
    Header header
    uint32_t pid, ppid
    uint32_t tid, ptid
    uint64_t time

cdef struct Comm:
    Header header
    uint32_t pid, tid

cdef struct Lost:
    Header header
    uint64_t id
    uint64_t lost

cdef struct Mmap2:
    Header header
    uint32_t pid, tid
    uint64_t address
    uint64_t length
    uint64_t offset
    uint8_t identity[24]  # {u32 major, minor; u64 inode, generation} or {u8 size, u8, u16; u8 id[20]}
    uint32_t protection, flags

cdef enum:
    TRAILER = 8  # the time
    MAX_RECORD = 65536


cdef void copy_out(CpuRing *ring, uint64_t at, void *to, uint64_t size) noexcept nogil:
    """Copies from a position of the ring, which may wrap."""
    cdef uint64_t offset = at & ring.mask
    cdef uint64_t first = min(size, ring.size - offset)
    memcpy(to, ring.data + offset, first)
    memcpy(<uint8_t *>to + first, ring.data, size - first)


cdef void load_time(Sideband *sideband, CpuRing *ring) noexcept nogil:
    """Reads the time of the record at tail. A record that cannot be is skipped with all behind it, which
    is then a loss like one that the kernel tells."""
    cdef Header header
    cdef uint64_t there = ring.head - ring.tail
    if there == 0:
        return
    copy_out(ring, ring.tail, &header, sizeof(Header))
    if there > ring.size or header.size < sizeof(Header) + TRAILER or header.size > there:
        sideband.malformed += 1
        sideband.table.lost_events += 1
        ring.tail = ring.head
        return
    copy_out(ring, ring.tail + header.size - TRAILER, &ring.time, TRAILER)


cdef void sideband_snapshot(Sideband *sideband) noexcept nogil:
    """Sets how far the records are to be read: up to what is there now."""
    cdef uint32_t i
    for i in range(sideband.count):
        if sideband.rings[i].meta != NULL:
            sideband.rings[i].head = pyprof_load_acquire(&sideband.rings[i].meta.data_head)
            load_time(sideband, &sideband.rings[i])


cdef CpuRing *sideband_next(Sideband *sideband) noexcept nogil:
    """The ring with the earliest record before the snapshot, or NULL."""
    cdef CpuRing *best = NULL
    cdef CpuRing *ring
    cdef uint32_t i
    for i in range(sideband.count):
        ring = &sideband.rings[i]
        if ring.meta != NULL and ring.tail != ring.head and (best == NULL or ring.time < best.time):
            best = ring
    return best


cdef void apply_mmap(Table *table, const uint8_t *record, uint64_t size, uint64_t time) noexcept nogil:
    cdef const Mmap2 *mapped = <const Mmap2 *>record
    cdef ExecutableKey key
    cdef Range added
    cdef const char *path = <const char *>record + sizeof(Mmap2)
    cdef uint32_t path_size
    cdef uint64_t inode
    if size <= sizeof(Mmap2) + TRAILER or mapped.length == 0:
        return
    if mapped.address + (mapped.length - 1) < mapped.address:
        return
    path_size = <uint32_t>strnlen(path, size - sizeof(Mmap2) - TRAILER)
    added.start = mapped.address
    added.last = mapped.address + (mapped.length - 1)
    added.bias = mapped.address - mapped.offset
    added.since = time
    added.untold = 0
    memcpy(&inode, &mapped.identity[8], 8)
    if is_anonymous(path, path_size):
        added.executable = ANONYMOUS
    else:
        if mapped.header.misc & PERF_RECORD_MISC_MMAP_BUILD_ID and mapped.identity[0]:
            key_of_build_id(&key, &mapped.identity[4], mapped.identity[0])
        elif inode and not mapped.header.misc & PERF_RECORD_MISC_MMAP_BUILD_ID:
            key_of_inode(
                &key, (<const uint32_t *>mapped.identity)[0], (<const uint32_t *>mapped.identity)[1], inode
            )
        else:
            key_of_name(&key, path, path_size)
        added.executable = executables_number(
            &table.executables, &key, path, path_size, mapped.pid, added.start, added.last
        )
        if added.executable == NO_EXECUTABLE:
            table.no_memory += 1
    table_map(table, mapped.pid, &added, mapped.protection & PROT_WRITE != 0)


cdef bint is_process(uint32_t pid) noexcept nogil:
    """False for the idle task and for what is not visible from our PID namespace: 0, or -1 once it is dead
    (perf_event_pid_type, kernel/events/core.c)."""
    return pid != 0 and pid != <uint32_t>0xffffffff


cdef void apply_record(Table *table, const uint8_t *record, uint64_t size, uint64_t time) noexcept nogil:
    cdef const Header *header = <const Header *>record
    cdef const Task *task = <const Task *>record
    cdef const Comm *comm = <const Comm *>record
    table.events += 1
    if header.type == PERF_RECORD_LOST:
        if size >= sizeof(Lost):
            table.lost_events += (<const Lost *>record).lost
    elif header.type == PERF_RECORD_KSYMBOL:
        table.kernel_symbols += 1
    elif size < sizeof(Comm) or not is_process(comm.pid):  # the pid lies at the same place in all others
        return
    elif header.type == PERF_RECORD_MMAP2:
        apply_mmap(table, record, size, time)
    elif header.type == PERF_RECORD_FORK and size >= sizeof(Task):
        if task.pid == task.ppid:
            table_thread(table, task.pid)
        else:
            table_fork(table, task.pid, task.ppid, time)
    elif header.type == PERF_RECORD_EXIT and size >= sizeof(Task):
        table_exit(table, task.pid, task.tid, time)
    elif header.type == PERF_RECORD_COMM and header.misc & PERF_RECORD_MISC_COMM_EXEC:
        table_exec(table, comm.pid, time)


cdef void sideband_apply(Sideband *sideband, CpuRing *ring) noexcept nogil:
    """Applies the record at a ring's tail and goes on to the next."""
    cdef Header header
    cdef uint64_t offset = ring.tail & ring.mask
    cdef const uint8_t *record = ring.data + offset
    copy_out(ring, ring.tail, &header, sizeof(Header))
    if header.size > ring.size - offset or offset & 7:
        copy_out(ring, ring.tail, sideband.scratch, header.size)
        record = sideband.scratch
    apply_record(sideband.table, record, header.size, ring.time)
    ring.tail += header.size
    load_time(sideband, ring)


cdef void sideband_release(Sideband *sideband) noexcept nogil:
    """Gives the space of what was read back to the kernel."""
    cdef uint32_t i
    for i in range(sideband.count):
        if sideband.rings[i].meta != NULL:
            pyprof_store_release(&sideband.rings[i].meta.data_tail, sideband.rings[i].tail)


cdef void close_ring(CpuRing *ring) noexcept nogil:
    if ring.meta != NULL:
        munmap(ring.meta, ring.mapped)
        ring.meta = NULL


cdef class SidebandReader:
    """Owns the memory mappings of the CPUs' side-band rings; their file descriptors are the caller's."""

    def __cinit__(self, ProcessTable table not None):
        memset(&self.sideband, 0, sizeof(Sideband))
        self.table = table
        self.sideband.table = &table.table
        self.sideband.scratch = <uint8_t *>malloc(MAX_RECORD)
        if self.sideband.scratch == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.sideband.count):
            close_ring(&self.sideband.rings[i])
        free(self.sideband.rings)
        free(self.sideband.scratch)

    def add(self, int fd, uint64_t size):
        """Maps the ring of an event; size in bytes, a power of two of pages. OSError where refused."""
        cdef CpuRing *ring = NULL
        cdef uint64_t page = os.sysconf("SC_PAGE_SIZE")
        cdef void *memory
        cdef uint32_t i
        if size < page or size & (size - 1):
            raise ValueError("size is not a power of two of pages")
        for i in range(self.sideband.count):
            if self.sideband.rings[i].meta == NULL:
                ring = &self.sideband.rings[i]
        if ring == NULL:
            if grow(
                <void **>&self.sideband.rings, &self.sideband.capacity,
                <uint64_t>self.sideband.count + 1, sizeof(CpuRing),
            ) < 0:
                raise MemoryError
            ring = &self.sideband.rings[self.sideband.count]
            memset(ring, 0, sizeof(CpuRing))
            self.sideband.count += 1
        memory = mmap(NULL, page + size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
        if memory == MAP_FAILED:
            raise OSError("the kernel does not give memory for side-band records")
        memset(ring, 0, sizeof(CpuRing))
        ring.meta = <perf_event_mmap_page *>memory
        ring.mapped = page + size
        ring.data = <uint8_t *>memory + page
        ring.size = size
        ring.mask = size - 1
        ring.fd = fd

    def remove(self, int fd):
        """Unmaps the ring of an event, after what is in it was applied."""
        cdef uint32_t i
        self.drain()
        for i in range(self.sideband.count):
            if self.sideband.rings[i].meta != NULL and self.sideband.rings[i].fd == fd:
                close_ring(&self.sideband.rings[i])

    def drain(self):
        """Applies all records that are there now, in the order of their times; how many."""
        cdef CpuRing *ring
        cdef uint64_t before = self.table.table.events
        with nogil:
            sideband_snapshot(&self.sideband)
            while True:
                ring = sideband_next(&self.sideband)
                if ring == NULL:
                    break
                sideband_apply(&self.sideband, ring)
            sideband_release(&self.sideband)
        return self.table.table.events - before

    @property
    def kernel_changes(self):
        """Kernel symbols that came or went - BPF programs, above all - and records that may have told of more."""
        return self.table.table.kernel_symbols + self.table.table.lost_events

    @property
    def malformed(self):
        """Records that had an impossible size."""
        return self.sideband.malformed
