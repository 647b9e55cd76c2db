# SPDX-License-Identifier: Apache-2.0
"""Python's side of the process table."""

import os

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pyprof._native.executables cimport (
    ANONYMOUS,
    KEY_BUILD_ID,
    KEY_INODE,
    NO_EXECUTABLE,
    ExecutableKey,
    executables_deinit,
    executables_init,
    executables_number,
    executables_taken,
    is_anonymous,
    key_of_build_id,
    key_of_inode,
    key_of_name,
)
from pyprof._native.index cimport index_deinit, index_init
from pyprof._native.memory cimport list_push
from pyprof._native.process_table cimport (
    RESYNC_FIRST,
    RESYNC_LAST,
    SENDING,
    SENT,
    TARGET,
    TARGET_ON_EXEC,
    UNSENT,
    Process,
    table_add,
    table_end,
    table_exec,
    table_exit,
    table_find,
    table_forget,
    table_fork,
    table_map,
    table_publish,
    table_settle,
    table_thread,
    table_withdraw,
)
from pyprof._native.publishing cimport publish_anew, publish_changed
from pyprof._native.ranges cimport Range, Ranges, ranges_equal, ranges_map, ranges_release
from pyprof._native.signs cimport signs_scanned

cdef uint64_t EVERYTHING = 0xffffffffffffffff
cdef uint64_t SECOND = 1000000000
# Reading the maps of a process again and again may take a five-hundredth of a CPU.
cdef uint64_t RESCAN_SHARE = 500


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
            added.untold = 0
            if ranges_map(&made, &added) < 0:
                raise MemoryError
    except:
        ranges_release(made)
        raise
    return made


cdef uint32_t lowest_program(const Ranges *ranges) noexcept nogil:
    """The executable that a process runs: the kernel maps programs below libraries."""
    cdef uint32_t i
    for i in range(ranges.count):
        if ranges.items[i].executable > ANONYMOUS:
            return ranges.items[i].executable
    return NO_EXECUTABLE


cdef bint is_mapped(const Ranges *ranges, uint32_t executable) noexcept nogil:
    cdef uint32_t i
    for i in range(ranges.count):
        if ranges.items[i].executable == executable:
            return executable != NO_EXECUTABLE
    return False


cdef class ProcessTable:
    """Python's side of the table. Not thread-safe; times are CLOCK_MONOTONIC in nanoseconds."""

    def __cinit__(self, MappingTrie trie not None):
        memset(&self.table, 0, sizeof(Table))
        self.trie = trie
        self.table.trie = &trie.trie
        if index_init(&self.table.index, 1024) < 0 or executables_init(
            &self.table.executables, int.from_bytes(os.urandom(8), "little")
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
        added.untold = 0
        table_map(&self.table, pid, &added, False)

    # What a look at /proc says.

    def scanned(self, uint32_t pid, uint32_t threads, ranges, uint64_t time, uint64_t took=0,
                uint64_t uncounted=0, uint64_t read_at=0):
        """Sets what /proc said of a process at a time: ranges as (start, last, offset, executable).

        took: how long it was to find out, in ns: the longer, the later is it done again.

        Mappings that are not in the list any more are dropped; those that are stay as they are. Ranges of
        None say that the process could not be read, and end it. An empty list is what a zombie shows, be
        it of the process or of its leader only: it does not take away what is known.

        uncounted: pages of the ranges that are not among struct pyprof_sample's exec_pages; read_at: when the
        reading was over.

        Raises ValueError for an empty range; nothing has changed then.
        """
        # Pitfall: going through `ranges` may run any Python code, so no Process is looked up before.
        cdef Ranges *fresh = ranges_of(ranges)
        cdef Process *process = table_find(&self.table, pid)
        if process != NULL and process.exited_at and fresh == NULL:
            table_settle(process)
            return
        if process == NULL or process.exited_at:
            process = table_add(&self.table, pid, time)
            if process == NULL:
                ranges_release(fresh)
                raise MemoryError
        if ranges is None:
            table_settle(process)
            table_end(&self.table, process, time)
            return
        process.asked = 0
        process.known = 1
        process.gone = 0
        process.threads = <int32_t>threads
        process.rescan_after = max(process.rescan_after, time + took * RESCAN_SHARE)
        if fresh == NULL:
            return
        if not is_mapped(fresh, process.program):
            process.program = lowest_program(fresh)  # the exec of another program was not told
        doubted = process.signs.doubted
        signs_scanned(&process.signs, process.ranges, fresh, max(time, read_at), uncounted)
        if ranges_equal(process.ranges, fresh) and not doubted:
            ranges_release(fresh)
            process.resync_wait = min(process.resync_wait * 2, RESYNC_LAST)
            return
        process.resync_wait = RESYNC_FIRST
        ranges_release(process.ranges)
        process.ranges = fresh
        if process.published and not process.hidden:
            # Not as of now: events that came before, and are not applied yet, may end it earlier.
            publish_anew(&self.table, process, 1)

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

    def resync_due(self, uint64_t now):
        """A process whose maps are to be compared with what is known, since no event tells what is unmapped; 0
        where none is.

        The first comparison comes RESYNC_FIRST seconds after the process was first looked at here; with each that
        finds nothing the next one comes twice as late.
        """
        cdef Process *process
        cdef uint32_t i, pid = 0
        cdef uint64_t first = now
        for i in range(self.table.count):
            process = &self.table.processes[i]
            if not process.pid or not process.known or process.exited_at or process.ranges == NULL:
                continue
            if process.resync_at == 0:
                process.resync_wait = max(process.resync_wait, RESYNC_FIRST)
                # Spread, so that a host's processes do not all come at once.
                process.resync_at = now + process.resync_wait * (SECOND + process.pid % 8 * (SECOND // 16))
            elif process.resync_at <= first:
                first = process.resync_at
                pid = process.pid
        if pid:
            table_find(&self.table, pid).resync_at = 0
        return pid

    def new_executables(self):
        """[(number, build ID or b"", inode or 0, path, pid, start, last)] seen since the last call."""
        cdef uint64_t inode, at
        cdef uint32_t i
        found = []
        for at in range(self.table.executables.fresh.count):
            i = self.table.executables.fresh.items[at]
            item = &self.table.executables.items[i]
            build_id = item.key.bytes[:item.key.size] if item.key.kind == KEY_BUILD_ID else b""
            inode = 0
            if item.key.kind == KEY_INODE:
                memcpy(&inode, &item.key.bytes[0], sizeof(uint64_t))
            found.append((i, build_id, inode, item.path[:item.path_size], item.pid, item.start, item.last))
        self.table.executables.fresh.count = 0
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
            table_end(&self.table, process, time)

    def publish(self, uint64_t now=0):
        """Queues in the trie what the published processes have mapped; True if there is any.

        Where it is full, processes that were not sampled for a second before `now` give way.
        """
        with nogil:
            publish_changed(&self.table, now)
        return self.table.trie.delete_count > 0 or self.table.trie.insert_count > 0

    def publish_ahead(self, uint32_t pid):
        """Has publish() queue a process that was not sampled yet. False where it is not known."""
        cdef Process *process = table_find(&self.table, pid)
        if process == NULL or process.exited_at:
            return False
        if not process.published:
            table_publish(&self.table, process)
        return True

    def unpublish(self, uint32_t pid, uint64_t retry_after):
        """Takes a process out of the kernel, until it is sampled after that time."""
        cdef Process *process = table_find(&self.table, pid)
        if process != NULL:
            table_withdraw(&self.table, process, 1)
            process.publish_after = retry_after

    def take_counted(self):
        """Says that what was counted of processes and executables was taken to be sent: they stay until sent()."""
        cdef uint32_t i
        executables_taken(&self.table.executables)
        for i in range(self.table.count):
            if self.table.processes[i].unsent == UNSENT:
                self.table.processes[i].unsent = SENDING

    def sent(self, uint64_t time):
        """Says that what take_counted() said was to be sent is sent."""
        cdef uint32_t i
        self.table.executables.sending.count = 0
        for i in range(self.table.count):
            if self.table.processes[i].unsent == SENDING:
                self.table.processes[i].unsent = SENT
                self.table.processes[i].sent_at = time

    def forget_exited(self, uint64_t before, uint64_t sent_before=EVERYTHING):
        """Forgets processes that ended before a time, and what they had mapped; how many processes.

        Those with samples that are not sent, or were only after `sent_before`, stay, without their mappings.
        """
        cdef Process *process
        cdef uint64_t i, kept = 0, count = 0
        for i in range(self.table.exited.count):
            process = table_find(&self.table, self.table.exited.items[i])
            if process == NULL or not process.exited_at:
                continue
            if process.exited_at < before:
                ranges_release(process.ranges)
                process.ranges = NULL
            if process.exited_at < before and process.unsent == SENT and process.sent_at < sent_before:
                table_forget(&self.table, process.pid, before)
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
        if process.hidden:
            table_withdraw(&self.table, process, 1)
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
            "program": process.program,
            "parent": process.parent,
            "threads": process.threads,
            "known": bool(process.known),
            "published": bool(process.published),
            "hidden": bool(process.hidden),
            "exited": bool(process.exited_at),
            "target": process.target == TARGET,
            "ranges": ranges,
        }

    def serials(self):
        """Serial numbers of all that are known, ended ones too."""
        cdef uint32_t i
        return {self.table.processes[i].serial for i in range(self.table.count) if self.table.processes[i].pid}

    def counts(self):
        """Numbers by name: processes, exited, executables, unused_executables, mappings, events, lost_events, no_memory;
        evicted: times that a process gave way in a full trie; refused: times that nobody gave way to one."""
        cdef uint64_t mappings = 0, unused = 0
        cdef uint32_t i
        for i in range(self.table.count):
            if self.table.processes[i].ranges != NULL:
                mappings += self.table.processes[i].ranges.count
        for i in range(2, self.table.executables.count):
            unused += self.table.executables.items[i].unused_since != 0
        return {
            "processes": self.table.index.used,
            "exited": self.table.exited.count,
            "executables": self.table.executables.index.used,
            "unused_executables": unused,
            "mappings": mappings,
            "events": self.table.events,
            "lost_events": self.table.lost_events,
            "no_memory": self.table.no_memory,
            "evicted": self.table.evicted,
            "refused": self.table.refused,
        }
