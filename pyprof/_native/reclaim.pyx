# SPDX-License-Identifier: Apache-2.0
"""Finds executables that no owner names any more.

All owners are looked at in one pass: the ranges of processes (lists that forks share once), those of
waiting samples, the entries of the trie, retired ones too, and the frames that were counted and not sent yet. The
references are the numbers in the owners' own rows, so there is no count that could leak or come out low.
A pass reads 40 bytes a mapping: 25,000 mappings, a host of 500 processes, take some 50 us.
"""

from libc.stdint cimport uint32_t, uint64_t

from pyprof._native.drain cimport SampleReader
from pyprof._native.executables cimport (
    KEY_INODE,
    Executables,
    executables_has,
    executables_release,
)
from pyprof._native.process_table cimport Table
from pyprof._native.processes cimport ProcessTable
from pyprof._native.ranges cimport Ranges
from pyprof._native.records cimport pyprof_sample, pyprof_slice
from pyprof._native.waiting cimport Held, Waiting, waiting_at


cdef inline void mark(Executables *table, uint32_t number) noexcept nogil:
    if number < table.count:
        table.items[number].marked = table.sweep


cdef void mark_ranges(Executables *table, Ranges *ranges) noexcept nogil:
    cdef uint32_t i
    if ranges == NULL or ranges.sweep == table.sweep:
        return
    ranges.sweep = table.sweep
    for i in range(ranges.count):
        mark(table, ranges.items[i].executable)


cdef void mark_all(Table *table, const Waiting *waiting) noexcept nogil:
    cdef Executables *executables = &table.executables
    cdef const Held *held
    cdef const pyprof_sample *sample
    cdef const pyprof_slice *slice
    cdef uint64_t i, at = 0
    for i in range(table.count):
        mark_ranges(executables, table.processes[i].ranges)
        if table.processes[i].pid:
            mark(executables, table.processes[i].program)
    for i in range(1, <uint64_t>table.trie.entry_count + 1):
        if table.trie.entries[i].pid:
            mark(executables, table.trie.entries[i].executable)
    for i in range(executables.counted.count):
        mark(executables, executables.counted.items[i])
    for i in range(executables.sending.count):
        mark(executables, executables.sending.items[i])
    while True:
        held = waiting_at(waiting, &at, &sample, &slice)
        if held == NULL:
            break
        mark_ranges(executables, held.ranges)
        mark(executables, held.program)


cdef void sweep(Executables *table, uint64_t now) noexcept nogil:
    cdef uint32_t i
    for i in range(2, table.count):
        if not executables_has(table, i):
            continue
        if table.items[i].marked == table.sweep:
            table.items[i].unused_since = 0
        elif table.items[i].unused_since == 0:
            table.items[i].unused_since = now


cdef class Reclaimer:
    """Looks at the owners of executables, and releases what none of them names. Not thread-safe.

    What hangs on an executable's number - its open file, its unwind rows - is the caller's to release before.
    """

    cdef ProcessTable table
    cdef SampleReader reader

    def __cinit__(self, ProcessTable table not None, SampleReader reader not None):
        self.table = table
        self.reader = reader

    def sweep(self, uint64_t now):
        """Looks at all owners; now: CLOCK_MONOTONIC, ns."""
        cdef Executables *executables = &self.table.table.executables
        with nogil:
            executables.sweep += 1
            if executables.sweep == 0:
                executables.sweep = 1
            mark_all(&self.table.table, &self.reader.drain.waiting)
            sweep(executables, now)

    def unused(self):
        """[(number, since when in ns, whether its inode number is what identifies it)] as of the last sweep, less
        what was mapped again since."""
        cdef Executables *executables = &self.table.table.executables
        cdef uint32_t i
        return [
            (i, executables.items[i].unused_since, executables.items[i].key.kind == KEY_INODE)
            for i in range(2, executables.count)
            if executables_has(executables, i) and executables.items[i].unused_since
        ]

    def release(self, uint32_t number):
        """Forgets an executable of `unused()`; False where it is in use after all."""
        cdef Executables *executables = &self.table.table.executables
        if not executables_has(executables, number) or executables.items[number].unused_since == 0:
            return False
        executables_release(executables, number)
        return True
