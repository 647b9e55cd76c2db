# SPDX-License-Identifier: Apache-2.0
"""What events do to the process table. Bodies of process_table.pxd.

A process is one thread group between two execs, so an exec gives it a new serial number. Events are
applied in the order of their times; a fork shares the parent's ranges until one of them changes. A
process that ended stays for a moment, for the samples of its last instructions; nothing of it
stays in the kernel.

Only processes that are sampled are published to the kernel's trie. What changes under a published
process is retired at once, as of the event's time; the new state is written afterwards.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from pyprof._native.executables cimport ANONYMOUS, NO_EXECUTABLE
from pyprof._native.hashing cimport pyprof_hash_two
from pyprof._native.index cimport index_add, index_remove, index_reserve, slot_id
from pyprof._native.mappings cimport trie_retire_range
from pyprof._native.memory cimport grow, list_push
from pyprof._native.ranges cimport ranges_map, ranges_release, ranges_share
from pyprof._native.signs cimport Signs, signs_mapped

cdef uint64_t EVERYTHING = 0xffffffffffffffff


cdef uint32_t slot_of(Table *table, uint32_t pid) noexcept nogil:
    cdef uint32_t at = <uint32_t>(pyprof_hash_two(pid, 0, 0) >> 32) & table.index.mask
    while table.index.slots[at]:
        if table.processes[slot_id(table.index.slots[at])].pid == pid:
            break
        at = (at + 1) & table.index.mask
    return at


cdef Process *table_find(Table *table, uint32_t pid) noexcept nogil:
    """The process of a pid, also when it has just ended; NULL where there is none."""
    cdef uint32_t at = slot_of(table, pid)
    if table.index.slots[at] == 0:
        return NULL
    return &table.processes[slot_id(table.index.slots[at])]


cdef void table_withdraw(Table *table, Process *process, uint64_t time) noexcept nogil:
    """Takes all that is of a process out of the kernel's trie."""
    process.published = 0
    process.hidden = 0
    trie_retire_range(table.trie, process.pid, 0, EVERYTHING, time)


cdef void table_forget(Table *table, uint32_t pid, uint64_t time) noexcept nogil:
    cdef uint32_t at = slot_of(table, pid)
    cdef uint32_t number = slot_id(table.index.slots[at])
    cdef Process *process = &table.processes[number]
    table_withdraw(table, process, time)
    ranges_release(process.ranges)
    memset(process, 0, sizeof(Process))
    index_remove(&table.index, at)
    table.free_slots.items[table.free_slots.count] = number
    table.free_slots.count += 1


cdef uint32_t table_serial(Table *table) noexcept nogil:
    table.last_serial += 1
    if table.last_serial == 0:  # a busy host gets here in some weeks
        table.last_serial = 1
    return table.last_serial


cdef Process *table_add(Table *table, uint32_t pid, uint64_t time) noexcept nogil:
    """A new process of a pid, in the place of an old one; NULL without memory."""
    cdef Process *process = table_find(table, pid)
    cdef uint32_t number
    if process != NULL:
        table_forget(table, pid, time)
    if index_reserve(&table.index) < 0:
        return NULL
    if table.free_slots.count:
        table.free_slots.count -= 1
        number = table.free_slots.items[table.free_slots.count]
    else:
        if grow(<void **>&table.processes, &table.capacity, <uint64_t>table.count + 1, sizeof(Process)) < 0:
            return NULL
        # Room for the slot's return, so that forgetting cannot fail.
        if grow(
            <void **>&table.free_slots.items, &table.free_slots.capacity,
            <uint64_t>table.count + 1, sizeof(uint32_t),
        ) < 0:
            return NULL
        number = table.count
        table.count += 1
    process = &table.processes[number]
    memset(process, 0, sizeof(Process))
    process.pid = pid
    process.serial = table_serial(table)
    process.threads = 1
    index_add(&table.index, <uint32_t>(pyprof_hash_two(pid, 0, 0) >> 32), number)
    return process


cdef void table_ask(Table *table, Process *process) noexcept nogil:
    """Wants the maps of a process to be read."""
    if not process.asked:
        if list_push(&table.unknown, process.pid) < 0:
            table.no_memory += 1
        else:
            process.asked = 1


cdef void table_publish(Table *table, Process *process) noexcept nogil:
    """Wants the ranges of a process to be written to the kernel."""
    process.published = 1
    if not process.queued:
        if list_push(&table.changed, process.pid) < 0:
            table.no_memory += 1
        else:
            process.queued = 1


cdef void table_hide(Table *table, Process *process) noexcept nogil:
    """Wants the kernel side to know that a process's samples are not wanted, so that it copies no stacks: an
    address of NO_EXECUTABLE is walked by frame pointers."""
    process.hidden = 1
    table_publish(table, process)


cdef void table_fork(Table *table, uint32_t pid, uint32_t parent, uint64_t time) noexcept nogil:
    cdef Process *child = table_add(table, pid, time)
    cdef Process *father = table_find(table, parent)  # after table_add, which may move the array
    if child == NULL:
        table.no_memory += 1
        return
    child.forked_at = time
    child.parent = parent
    if father == NULL:
        return
    child.ranges = ranges_share(father.ranges)
    child.known = father.known
    child.signs = father.signs
    child.gone = father.gone
    child.program = father.program
    if father.target == TARGET:
        child.target = TARGET


cdef void table_thread(Table *table, uint32_t pid) noexcept nogil:
    cdef Process *process = table_find(table, pid)
    if process != NULL:
        process.threads += 1


cdef void table_exec(Table *table, uint32_t pid, uint64_t time) noexcept nogil:
    cdef Process *process = table_find(table, pid)
    if process == NULL:
        process = table_add(table, pid, time)
        if process == NULL:
            table.no_memory += 1
            return
    table_withdraw(table, process, time)
    ranges_release(process.ranges)
    process.ranges = NULL
    process.serial = table_serial(table)
    process.program = NO_EXECUTABLE
    process.forked_at = time
    memset(&process.signs, 0, sizeof(Signs))
    # Only the thread that execs lives on, and what it maps from now on is reported.
    process.threads = 1
    process.leader_exited = 0
    process.known = 1
    process.gone = 0
    process.exited_at = 0
    process.resync_at = 0
    process.resync_wait = 0
    process.unsent = SENT
    process.sent_at = 0
    if process.target == TARGET_ON_EXEC:
        process.target = TARGET
        table_publish(table, process)  # it is known that it will be sampled


cdef void table_end(Table *table, Process *process, uint64_t time) noexcept nogil:
    process.exited_at = time
    table_withdraw(table, process, time)
    if list_push(&table.exited, process.pid) < 0:
        table.no_memory += 1
        table_forget(table, process.pid, time)


cdef void table_exit(Table *table, uint32_t pid, uint32_t tid, uint64_t time) noexcept nogil:
    """A thread ended; with the last one the process does."""
    cdef Process *process = table_find(table, pid)
    if process == NULL or process.exited_at:
        return
    process.threads -= 1
    if pid == tid:
        process.leader_exited = 1
    if not process.leader_exited:
        return
    if process.threads <= 0:
        table_end(table, process, time)
    elif pid == tid and list_push(&table.leaders, pid) < 0:
        table.no_memory += 1


cdef void table_map(Table *table, uint32_t pid, const Range *added, bint writable) noexcept nogil:
    cdef Process *process = table_find(table, pid)
    cdef int changed
    if process == NULL:
        # Its fork was lost; what else it has mapped is in its maps.
        process = table_add(table, pid, added.since)
        if process == NULL:
            table.no_memory += 1
            return
    if process.program == NO_EXECUTABLE and process.known and process.ranges == NULL and added.executable > ANONYMOUS:
        process.program = added.executable  # what an exec maps first
    signs_mapped(&process.signs, added.since, writable)
    changed = ranges_map(&process.ranges, added)
    if changed < 0:
        table.no_memory += 1
        process.known = 0
    if changed > 0 and process.resync_wait > RESYNC_FIRST:
        # What maps a library may unmap another one.
        process.resync_wait = RESYNC_FIRST
        process.resync_at = 0
    if changed and process.published and not process.hidden:
        trie_retire_range(table.trie, pid, added.start, added.last, added.since)
        table_publish(table, process)


cdef void table_settle(Process *process) noexcept nogil:
    """Nothing more can be learned of a process that ended."""
    process.asked = 0
    if not process.known:
        process.known = 1
        process.gone = 1
    if process.signs.doubted:
        ranges_release(process.ranges)
        process.ranges = NULL
