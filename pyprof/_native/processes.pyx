# SPDX-License-Identifier: Apache-2.0
"""Processes, their mappings, and which of both belong into the kernel.

A process is one thread group between two execs, so an exec gives it a new serial number. Events are
applied in the order of their times; a fork shares the parent's ranges until one of them changes. A
process that ended stays for a moment, for the samples of its last instructions; nothing of it
stays in the kernel.

Only processes that are sampled are published to the kernel's trie. What changes under a published
process is retired at once, as of the event's time; the new state is written afterwards.
"""

import secrets

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pyprof._native.executables cimport (
    ANONYMOUS,
    KEY_BUILD_ID,
    KEY_INODE,
    ExecutableKey,
    executables_deinit,
    executables_init,
    executables_number,
    is_anonymous,
    key_of_build_id,
    key_of_inode,
    key_of_name,
)
from pyprof._native.hashing cimport pyprof_hash_two
from pyprof._native.index cimport index_add, index_deinit, index_init, index_remove, index_reserve, slot_id
from pyprof._native.memory cimport grow, list_push
from pyprof._native.ranges cimport ranges_find, ranges_map, ranges_release, ranges_share
from pyprof._native.trie cimport (
    Entry,
    PidEntries,
    trie_find,
    trie_insert,
    trie_pid,
    trie_retire,
    trie_retire_range,
)

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


cdef void withdraw(Table *table, Process *process, uint64_t time) noexcept nogil:
    """Takes all that is of a process out of the kernel's trie."""
    process.published = 0
    trie_retire_range(table.trie, process.pid, 0, EVERYTHING, time)


cdef void forget(Table *table, uint32_t pid, uint64_t time) noexcept nogil:
    cdef uint32_t at = slot_of(table, pid)
    cdef uint32_t number = slot_id(table.index.slots[at])
    cdef Process *process = &table.processes[number]
    withdraw(table, process, time)
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
        forget(table, pid, time)
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


cdef void table_fork(Table *table, uint32_t pid, uint32_t parent, uint64_t time) noexcept nogil:
    cdef Process *child = table_add(table, pid, time)
    cdef Process *father = table_find(table, parent)  # after table_add, which may move the array
    if child == NULL:
        table.no_memory += 1
        return
    child.forked_at = time
    if father == NULL:
        return
    child.ranges = ranges_share(father.ranges)
    child.known = father.known
    child.gone = father.gone
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
    withdraw(table, process, time)
    ranges_release(process.ranges)
    process.ranges = NULL
    process.serial = table_serial(table)
    # Only the thread that execs lives on, and what it maps from now on is reported.
    process.threads = 1
    process.leader_exited = 0
    process.known = 1
    process.gone = 0
    process.exited_at = 0
    if process.target == TARGET_ON_EXEC:
        process.target = TARGET


cdef void end(Table *table, Process *process, uint64_t time) noexcept nogil:
    process.exited_at = time
    withdraw(table, process, time)
    if list_push(&table.exited, process.pid) < 0:
        table.no_memory += 1
        forget(table, process.pid, time)


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
        end(table, process, time)
    elif pid == tid and list_push(&table.leaders, pid) < 0:
        table.no_memory += 1


cdef void table_map(Table *table, uint32_t pid, const Range *added) noexcept nogil:
    cdef Process *process = table_find(table, pid)
    cdef int changed
    if process == NULL:
        # Its fork was lost; what else it has mapped is in its maps.
        process = table_add(table, pid, added.since)
        if process == NULL:
            table.no_memory += 1
            return
    changed = ranges_map(&process.ranges, added)
    if changed < 0:
        table.no_memory += 1
        process.known = 0
    if changed and process.published:
        trie_retire_range(table.trie, pid, added.start, added.last, added.since)
        table_publish(table, process)


cdef void retire_stale(Table *table, Process *process, uint64_t time) noexcept nogil:
    """Retires what the trie holds of a process and its ranges do not."""
    cdef PidEntries *list = trie_pid(table.trie, process.pid)
    cdef const Range *range
    cdef const Entry *entry
    cdef uint32_t i = 0
    while list != NULL and i < list.count:
        entry = &table.trie.entries[list.ids[i]]
        range = ranges_find(process.ranges, entry.start)
        if (
            range != NULL and range.start == entry.start and range.last == entry.last
            and range.bias == entry.bias and range.executable == entry.executable
        ):
            i += 1
        else:
            trie_retire(table.trie, list.ids[i], time)
            list = trie_pid(table.trie, process.pid)  # gone with its last entry


cdef bint write_ranges(Table *table, Process *process) noexcept nogil:
    """Queues the inserts of what a published process has mapped and the trie does not hold."""
    cdef uint32_t i
    cdef int64_t id
    if process.ranges == NULL:
        return True
    for i in range(process.ranges.count):
        if trie_find(table.trie, process.pid, process.ranges.items[i].start):
            continue
        id = trie_insert(
            table.trie, process.pid, process.ranges.items[i].start, process.ranges.items[i].last,
            process.ranges.items[i].bias, process.ranges.items[i].executable,
        )
        if id < 0:
            return False
    return True


cdef void settle(Process *process) noexcept nogil:
    """Nothing more can be learned of a process that ended."""
    process.asked = 0
    if not process.known:
        process.known = 1
        process.gone = 1


cdef Ranges *ranges_of(items) except? NULL:
    """(start, last, offset, executable) items as Ranges; NULL where there are none, or on error."""
    cdef Ranges *made = NULL
    cdef Range added
    cdef uint64_t start, last, offset
    try:
        for start, last, offset, executable in items or ():
            if start > last:
                raise ValueError("empty range")
            # The difference wraps where a file is mapped below its offset.
            added.start, added.last, added.bias = start, last, start - offset
            added.executable = executable
            # They were there before they were read: samples taken earlier may be theirs.
            added.since = 0
            added.reserved = 0
            if ranges_map(&made, &added) < 0:
                raise MemoryError
    except:
        ranges_release(made)
        raise
    return made


cdef class ProcessTable:
    """Python's side of the table. Not thread-safe; times are CLOCK_MONOTONIC in nanoseconds."""

    def __cinit__(self, MappingTrie trie not None):
        memset(&self.table, 0, sizeof(Table))
        self.trie = trie
        self.table.trie = &trie.trie
        if index_init(&self.table.index, 1024) < 0 or executables_init(
            &self.table.executables, secrets.randbits(64)
        ) < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.table.count):
            ranges_release(self.table.processes[i].ranges)
        free(self.table.processes)
        free(self.table.free_slots.items)
        free(self.table.unknown.items)
        free(self.table.changed.items)
        free(self.table.leaders.items)
        free(self.table.exited.items)
        index_deinit(&self.table.index)
        executables_deinit(&self.table.executables)

    def __len__(self):
        return self.table.index.used

    def __contains__(self, uint32_t pid):
        cdef Process *process = table_find(&self.table, pid)
        return process != NULL and process.exited_at == 0

    def pids(self):
        """Process IDs of all that live."""
        cdef uint32_t i
        return [
            self.table.processes[i].pid
            for i in range(self.table.count)
            if self.table.processes[i].pid and not self.table.processes[i].exited_at
        ]

    # What events say, also callable one by one.

    def fork(self, uint32_t pid, uint32_t parent, uint64_t time):
        table_fork(&self.table, pid, parent, time)

    def thread(self, uint32_t pid):
        table_thread(&self.table, pid)

    def exec(self, uint32_t pid, uint64_t time):
        table_exec(&self.table, pid, time)

    def exit(self, uint32_t pid, uint32_t tid, uint64_t time):
        table_exit(&self.table, pid, tid, time)

    def map(self, uint32_t pid, uint64_t start, uint64_t last, uint64_t offset, uint32_t executable,
            uint64_t time):
        """Maps [start, last] to a file from an offset on."""
        cdef Range added
        if start > last:
            raise ValueError("empty range")
        added.start, added.last, added.bias, added.since = start, last, start - offset, time
        added.executable = executable
        added.reserved = 0
        table_map(&self.table, pid, &added)

    # What a look at /proc says.

    def scanned(self, uint32_t pid, uint32_t threads, ranges, uint64_t time):
        """Sets what /proc said of a process at a time: ranges as (start, last, offset, executable).

        Mappings that are not in the list any more are dropped; those that are stay as they are. Ranges of
        None say that the process could not be read, and end it. An empty list is what a zombie shows, be
        it of the process or of its leader only: it does not take away what is known.

        Raises ValueError for an empty range; nothing has changed then.
        """
        # Pitfall: going through `ranges` may run any Python code, so no Process is looked up before.
        cdef Ranges *fresh = ranges_of(ranges)
        cdef Process *process = table_find(&self.table, pid)
        if process != NULL and process.exited_at and fresh == NULL:
            settle(process)
            return
        if process == NULL or process.exited_at:
            process = table_add(&self.table, pid, time)
            if process == NULL:
                ranges_release(fresh)
                raise MemoryError
        if ranges is None:
            settle(process)
            end(&self.table, process, time)
            return
        process.asked = 0
        process.known = 1
        process.gone = 0
        process.threads = <int32_t>threads
        if fresh == NULL:
            return
        ranges_release(process.ranges)
        process.ranges = fresh
        if process.published:
            retire_stale(&self.table, process, time)
            table_publish(&self.table, process)

    def executable(self, bytes build_id, uint32_t major, uint32_t minor, uint64_t inode, bytes path,
                   uint32_t pid, uint64_t start, uint64_t last):
        """Number of a mapped file: by build ID, else device and inode, else name."""
        cdef ExecutableKey key
        if not inode and is_anonymous(path, <uint32_t>len(path)):
            return ANONYMOUS
        if build_id:
            key_of_build_id(&key, build_id, <uint32_t>len(build_id))
        elif inode:
            key_of_inode(&key, major, minor, inode)
        else:
            key_of_name(&key, path, <uint32_t>len(path))
        return executables_number(
            &self.table.executables, &key, path, <uint32_t>len(path), pid, start, last
        )

    # What is to be done.

    def new_executables(self):
        """[(number, build ID or b"", inode or 0, path, pid, start, last)] seen since the last call."""
        cdef uint64_t inode
        found = []
        for i in range(self.table.executables.announced, self.table.executables.count):
            item = &self.table.executables.items[i]
            build_id = item.key.bytes[:item.key.size] if item.key.kind == KEY_BUILD_ID else b""
            inode = 0
            if item.key.kind == KEY_INODE:
                memcpy(&inode, &item.key.bytes[0], sizeof(uint64_t))
            found.append((i, build_id, inode, item.path[:item.path_size], item.pid, item.start, item.last))
        self.table.executables.announced = self.table.executables.count
        return found

    def unknown(self):
        """Processes whose maps are to be read, each told once until scanned() is called."""
        pids = [self.table.unknown.items[i] for i in range(self.table.unknown.count)]
        self.table.unknown.count = 0
        return pids

    def leaders(self):
        """Processes whose leader has exited and of which threads were left, when that was told."""
        cdef Process *process
        pids = []
        for i in range(self.table.leaders.count):
            process = table_find(&self.table, self.table.leaders.items[i])
            if process != NULL and process.leader_exited and not process.exited_at:
                pids.append(process.pid)
        self.table.leaders.count = 0
        return pids

    def watch_leader(self, uint32_t pid):
        """Says that a process's leader has exited while threads go on: keeps it among leaders()."""
        cdef Process *process = table_find(&self.table, pid)
        if process == NULL or process.exited_at:
            return
        process.leader_exited = 1
        if list_push(&self.table.leaders, pid) < 0:
            raise MemoryError

    def ended(self, uint32_t pid, uint64_t time):
        """Says that a process is not there any more, whatever events said."""
        cdef Process *process = table_find(&self.table, pid)
        if process != NULL and not process.exited_at:
            end(&self.table, process, time)

    def publish(self):
        """Queues in the trie what the published processes have mapped; True if there is any."""
        cdef Process *process
        cdef uint64_t i
        for i in range(self.table.changed.count):
            process = table_find(&self.table, self.table.changed.items[i])
            if process == NULL:
                continue
            process.queued = 0
            if process.published and not process.exited_at and not write_ranges(&self.table, process):
                self.table.no_memory += 1
                withdraw(&self.table, process, 1)
        self.table.changed.count = 0
        return self.table.trie.delete_count > 0 or self.table.trie.insert_count > 0

    def unpublish(self, uint32_t pid, uint64_t retry_after):
        """Takes a process out of the kernel, until it is sampled after that time."""
        cdef Process *process = table_find(&self.table, pid)
        if process != NULL:
            withdraw(&self.table, process, 1)
            process.publish_after = retry_after

    def forget_exited(self, uint64_t before):
        """Forgets processes that ended before a time; how many."""
        cdef Process *process
        cdef uint64_t i, kept = 0, count = 0
        for i in range(self.table.exited.count):
            process = table_find(&self.table, self.table.exited.items[i])
            if process == NULL or not process.exited_at:
                continue
            if process.exited_at < before:
                forget(&self.table, process.pid, before)
                count += 1
            else:
                self.table.exited.items[kept] = self.table.exited.items[i]
                kept += 1
        self.table.exited.count = kept
        return count

    def set_only_targets(self):
        """From now on only samples of targets and their descendants count."""
        self.table.only_targets = True

    def set_target(self, uint32_t pid, bint on_exec=False):
        """Makes a process a target, at once or with its next exec. False where it is not known."""
        cdef Process *process = table_find(&self.table, pid)
        if process == NULL:
            return False
        process.target = TARGET_ON_EXEC if on_exec else TARGET
        return True

    def process(self, uint32_t pid):
        """What is known of a process, as a dict, or None."""
        cdef Process *process = table_find(&self.table, pid)
        if process == NULL:
            return None
        ranges = []
        if process.ranges != NULL:
            for i in range(process.ranges.count):
                item = &process.ranges.items[i]
                ranges.append((item.start, item.last, (item.start - item.bias), item.executable))
        return {
            "serial": process.serial,
            "threads": process.threads,
            "known": bool(process.known),
            "published": bool(process.published),
            "exited": bool(process.exited_at),
            "target": process.target == TARGET,
            "ranges": ranges,
        }

    def counts(self):
        """Numbers by name: processes, exited, executables, mappings, events, lost_events, no_memory."""
        cdef uint64_t mappings = 0
        cdef uint32_t i
        for i in range(self.table.count):
            if self.table.processes[i].ranges != NULL:
                mappings += self.table.processes[i].ranges.count
        return {
            "processes": self.table.index.used,
            "exited": self.table.exited.count,
            "executables": self.table.executables.count - 2,
            "mappings": mappings,
            "events": self.table.events,
            "lost_events": self.table.lost_events,
            "no_memory": self.table.no_memory,
        }
