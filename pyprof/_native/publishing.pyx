# SPDX-License-Identifier: Apache-2.0
"""Bodies of publishing.pxd.

Where the trie is full the processes that were sampled longest ago give way, and come back when they are sampled
again. One that was sampled within the last second does not: what finds no room then is resolved in user
space, and tried again ten seconds later. So two processes that are both at work never drive each other out
in turn, and nobody is driven out in vain: either the room is enough in the end, or all stay.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memset

from pyprof._native.executables cimport NO_EXECUTABLE
from pyprof._native.mapping_diff cimport Diff, trie_set
from pyprof._native.mappings cimport TRIE_FULL, trie_prefixes_of, trie_retire_range
from pyprof._native.process_table cimport Process, Table, table_find, table_publish, table_withdraw
from pyprof._native.ranges cimport Range

cdef uint64_t EVERYTHING = 0xffffffffffffffff
cdef uint64_t SECOND = 1000000000
cdef uint64_t IDLE = SECOND  # who was not sampled for so long gives way
cdef uint64_t RETRY_FULL = 10 * SECOND


cdef struct Idler:
    uint64_t last_sampled
    uint32_t number  # in the table


cdef struct Idlers:  # by time, the first ones to give way
    Idler *items
    uint32_t count
    uint32_t gone
    bint listed


cdef int compare(const void *a, const void *b) noexcept nogil:
    cdef uint64_t first = (<const Idler *>a).last_sampled
    cdef uint64_t second = (<const Idler *>b).last_sampled
    return -1 if first < second else <int>(first > second)


cdef void list_idlers(Table *table, Idlers *idlers, uint64_t now) noexcept nogil:
    """Finds, once in a round, who may give way. Without memory it is nobody."""
    cdef const Process *process
    cdef uint32_t i
    if idlers.listed:
        return
    idlers.listed = True
    idlers.items = <Idler *>malloc((<uint64_t>table.count + 1) * sizeof(Idler))
    if idlers.items == NULL:
        return
    for i in range(table.count):
        process = &table.processes[i]
        if process.pid and process.published and process.last_sampled + IDLE <= now:
            idlers.items[idlers.count].last_sampled = process.last_sampled
            idlers.items[idlers.count].number = i
            idlers.count += 1
    qsort(idlers.items, idlers.count, sizeof(Idler), compare)


cdef bint make_room(Table *table, Idlers *idlers, uint32_t pid, uint64_t wanted, uint64_t now) noexcept nogil:
    """Withdraws idle processes until so many entries are free, but none where that is not to be had."""
    cdef Process *process
    cdef uint64_t freed = 0
    cdef uint32_t last, i
    list_idlers(table, idlers, now)
    last = idlers.gone
    while freed < wanted and last < idlers.count:
        process = &table.processes[idlers.items[last].number]
        if process.published and process.pid != pid:
            freed += trie_prefixes_of(table.trie, process.pid)
        last += 1
    if freed < wanted:
        return False
    for i in range(idlers.gone, last):
        process = &table.processes[idlers.items[i].number]
        if process.published and process.pid != pid:
            table.evicted += 1
            table_withdraw(table, process, 1)
    idlers.gone = last
    return True


cdef int write(Table *table, Process *process, uint64_t time, Diff *diff) noexcept nogil:
    """Has the trie hold what the process has mapped, or that it is hidden. 0 or a TrieError."""
    cdef Range whole
    cdef const Range *items = process.ranges.items if process.ranges != NULL else NULL
    cdef uint32_t count = process.ranges.count if process.ranges != NULL else 0
    if process.hidden:
        memset(&whole, 0, sizeof(Range))
        whole.last = EVERYTHING
        whole.executable = NO_EXECUTABLE
        return trie_set(table.trie, process.pid, &whole, 1, time, diff)
    return trie_set(table.trie, process.pid, items, count, time, diff)


cdef void publish_changed(Table *table, uint64_t now) noexcept nogil:
    """Queues in the trie what the published processes have mapped."""
    cdef Process *process
    cdef Idlers idlers
    cdef Diff diff
    cdef uint64_t i, needed
    cdef int code
    memset(&idlers, 0, sizeof(Idlers))
    for i in range(table.changed.count):
        process = table_find(table, table.changed.items[i])
        if process == NULL:
            continue
        process.queued = 0
        if not process.published or process.exited_at:
            continue
        # What went was retired when it did, so that there is nothing to retire here.
        code = write(table, process, 1, &diff)
        if code == TRIE_FULL:
            needed = table.trie.prefixes - diff.prefixes_retired + diff.prefixes_added - table.trie.max_prefixes
            if make_room(table, &idlers, process.pid, needed, now):
                code = write(table, process, 1, &diff)
        if code == TRIE_FULL:
            table.refused += 1
            process.publish_after = now + RETRY_FULL
            table_withdraw(table, process, 1)
        elif code < 0:
            table.no_memory += 1
            table_withdraw(table, process, 1)
    table.changed.count = 0
    free(idlers.items)


cdef void publish_anew(Table *table, Process *process, uint64_t time) noexcept nogil:
    """Has the trie hold what a published process was found to have mapped at a time; what it held and the process
    has not any more is retired as of that time."""
    cdef Diff diff
    if write(table, process, time, &diff) < 0:
        # All of it is written once there is room; what is stale must not stay until then.
        trie_retire_range(table.trie, process.pid, 0, EVERYTHING, time)
        table_publish(table, process)
