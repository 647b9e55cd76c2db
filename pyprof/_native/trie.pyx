# SPDX-License-Identifier: Apache-2.0
"""The user-space owner of the kernel's LPM trie of executable mappings, for Python.

The structure is mappings.pyx. A retired mapping keeps its number until no sample that names it can be on its
way any more: the kernel side puts the number into samples, and user space then asks whether the mapping was
still valid at the sample's time.
"""

from array import array

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from pyprof._native.index cimport slot_id
from pyprof._native.mapping_diff cimport Diff, trie_add, trie_diff, trie_set
from pyprof._native.mappings cimport (
    TRIE_BAD_RANGE,
    TRIE_FULL,
    TRIE_NO_MEMORY,
    TRIE_OVERLAP,
    Entry,
    PidEntries,
    Trie,
    pyprof_mapping_key,
    pyprof_mapping_value,
    trie_deinit,
    trie_drop_stale_inserts,
    trie_find,
    trie_flushed,
    trie_init,
    trie_insert,
    trie_pid,
    trie_reclaim,
    trie_retire_range,
)
from pyprof._native.prefix cimport block_last, pyprof_block_bits
from pyprof._native.ranges cimport Range
from pyprof._native.sorting cimport Columns, Placed, columns_place, columns_range

cdef extern from "<endian.h>" nogil:
    uint32_t be32toh(uint32_t big)

cdef uint64_t EVERYTHING = 0xffffffffffffffff


cdef int raise_error(int64_t code) except -1:
    if code == TRIE_NO_MEMORY:
        raise MemoryError
    if code == TRIE_OVERLAP:
        raise ValueError("the range overlaps a mapping of the process")
    if code == TRIE_FULL:
        raise OverflowError("the trie is full")
    raise ValueError("not a range of a process")


cdef int insert_group(
    Trie *trie, const Columns *columns, const Placed *placed, uint64_t count, Range *items, uint32_t *numbers
) noexcept nogil:
    """Adds what is in order and of one process, and tells the numbers. 0 or a TrieError."""
    cdef PidEntries *list
    cdef Diff diff
    cdef uint32_t at = 0
    cdef uint64_t i
    cdef int code
    for i in range(count):
        columns_range(columns, placed[i].index, &items[i])
    code = trie_add(trie, placed[0].pid, items, <uint32_t>count, &diff)
    if code < 0:
        return code
    list = trie_pid(trie, placed[0].pid)
    for i in range(count):
        while trie.entries[list.order.ids[at]].start < placed[i].start:
            at += 1
        numbers[placed[i].index] = list.order.ids[at]
    return 0


cdef int insert_all(
    Trie *trie, const Columns *columns, const Placed *placed, uint64_t count, Range *items, uint32_t *numbers
) noexcept nogil:
    """Adds what is in order of process and address, to all processes or to none. 0 or a TrieError."""
    cdef uint64_t first = 0, after, undo
    cdef int code = 0
    while first < count:
        after = first + 1
        while after < count and placed[after].pid == placed[first].pid:
            after += 1
        code = insert_group(trie, columns, &placed[first], after - first, items, numbers)
        if code < 0:
            break
        first = after
    if code < 0:
        for undo in range(first):
            trie_retire_range(trie, placed[undo].pid, placed[undo].start, placed[undo].start, 1)
    return code


cdef class MappingTrie:
    """What is, and what is to be, in exec_mappings. Not thread-safe.

    A cycle is: insert and retire, or replace; write `pending()` to the kernel (deletes first, then inserts: a
    key in both is then the new mapping's); `flushed()`; and, after samples taken until then have been
    read, `reclaim()`. Why a look-up in the kernel finds, in the middle of that, no wrong mapping:
    mapping_diff.pyx.

    The methods named many, and replace, work without the interpreter's lock.
    """

    def __cinit__(self, uint64_t capacity=0xffffffffffffffff):
        """capacity: entries that the kernel's map has room for."""
        if trie_init(&self.trie, capacity) < 0:
            raise MemoryError

    def __dealloc__(self):
        trie_deinit(&self.trie)

    def insert(self, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias=0, uint32_t executable=0):
        """Number of the new mapping [start, last] of a process.

        Raises ValueError for an empty range, pid 0, or a range that overlaps another of the process;
        OverflowError where the kernel has no room for it.
        """
        cdef int64_t id = trie_insert(&self.trie, pid, start, last, bias, executable)
        if id < 0:
            raise_error(id)
        return id

    def insert_many(self, const uint32_t[::1] pids not None, const uint64_t[::1] starts not None,
                    const uint64_t[::1] lasts not None, const uint64_t[::1] biases=None,
                    const uint32_t[::1] executables=None):
        """Numbers of new mappings, of any processes and in any order, as an array of uint32.

        Costs a sort, and one pass over what the processes have. Raises as insert does, and then no mapping of any
        process was added.
        """
        cdef Columns columns
        cdef Placed *placed = NULL
        cdef Range *items = NULL
        cdef uint64_t count = <uint64_t>starts.shape[0]
        cdef int code = 0
        if (
            <uint64_t>pids.shape[0] != count or <uint64_t>lasts.shape[0] != count
            or (biases is not None and <uint64_t>biases.shape[0] != count)
            or (executables is not None and <uint64_t>executables.shape[0] != count)
        ):
            raise ValueError("columns differ in length")
        if count >= EVERYTHING >> 33:
            raise ValueError("too many mappings")
        numbers = array("I", bytes(4 * count))
        cdef uint32_t[::1] to = numbers
        if count == 0:
            return numbers
        columns.pids, columns.starts, columns.lasts = &pids[0], &starts[0], &lasts[0]
        columns.biases = &biases[0] if biases is not None else NULL
        columns.executables = &executables[0] if executables is not None else NULL
        with nogil:
            code = columns_place(&columns, count, &placed, &items)
            if code == 0:
                code = insert_all(&self.trie, &columns, placed, count, items, &to[0])
            free(placed)
            free(items)
        if code < 0:
            raise_error(code)
        return numbers

    def retire(self, uint32_t pid, uint64_t start=0, uint64_t last=0xffffffffffffffff, uint64_t time=1):
        """Retires what a process has in [start, last], by default all; how many mappings that were."""
        return trie_retire_range(&self.trie, pid, start, last, time)

    def retire_many(self, const uint32_t[::1] pids not None, uint64_t time=1):
        """Retires all that some processes have; how many mappings that were."""
        cdef uint64_t count = 0, i, given = <uint64_t>pids.shape[0]
        with nogil:
            for i in range(given):
                count += trie_retire_range(&self.trie, pids[i], 0, EVERYTHING, time)
        return count

    def replace(self, uint32_t pid, const uint64_t[::1] starts not None, const uint64_t[::1] lasts not None,
                const uint64_t[::1] biases=None, const uint32_t[::1] executables=None, uint64_t time=1):
        """Has a process have these mappings and no others; (kept, retired, added), how many each.

        What it has so already keeps its number; the rest is retired as of a time. Given in any order; in
        that of addresses it is one pass over both. Raises as insert does, with nothing changed.
        """
        return self.change(pid, starts, lasts, biases, executables, time, True)

    def diff(self, uint32_t pid, const uint64_t[::1] starts not None, const uint64_t[::1] lasts not None,
             const uint64_t[::1] biases=None, const uint32_t[::1] executables=None):
        """What replace would do, undone: (kept, retired, added)."""
        return self.change(pid, starts, lasts, biases, executables, 0, False)

    cdef change(self, uint32_t pid, const uint64_t[::1] starts, const uint64_t[::1] lasts,
                const uint64_t[::1] biases, const uint32_t[::1] executables, uint64_t time, bint apply):
        cdef Columns columns
        cdef Placed *placed = NULL
        cdef Range *items = NULL
        cdef Diff diff
        cdef uint64_t count = <uint64_t>starts.shape[0], i
        cdef int code
        if (
            <uint64_t>lasts.shape[0] != count or (biases is not None and <uint64_t>biases.shape[0] != count)
            or (executables is not None and <uint64_t>executables.shape[0] != count)
        ):
            raise ValueError("columns differ in length")
        if count >= EVERYTHING >> 33:
            raise ValueError("too many mappings")
        columns.pids = NULL
        columns.starts = &starts[0] if count else NULL
        columns.lasts = &lasts[0] if count else NULL
        columns.biases = &biases[0] if count and biases is not None else NULL
        columns.executables = &executables[0] if count and executables is not None else NULL
        with nogil:
            code = columns_place(&columns, count, &placed, &items)
            if code == 0:
                for i in range(count):
                    columns_range(&columns, placed[i].index, &items[i])
                if apply:
                    code = trie_set(&self.trie, pid, items, <uint32_t>count, time, &diff)
                else:
                    code = trie_diff(&self.trie, pid, items, <uint32_t>count, True, &diff)
            free(placed)
            free(items)
        if code < 0:
            raise_error(code)
        return diff.kept, diff.retired, diff.added

    def lookup(self, uint32_t pid, uint64_t address):
        """Number of the mapping that holds an address, or 0: what the kernel's look-up answers."""
        return trie_find(&self.trie, pid, address)

    def lookup_many(self, const uint32_t[::1] pids not None, const uint64_t[::1] addresses not None):
        """lookup() of each pair, as an array of uint32."""
        cdef uint64_t i, count = <uint64_t>pids.shape[0]
        if <uint64_t>addresses.shape[0] != count:
            raise ValueError("columns differ in length")
        found = array("I", bytes(4 * count))
        cdef uint32_t[::1] to = found
        with nogil:
            for i in range(count):
                to[i] = trie_find(&self.trie, pids[i], addresses[i])
        return found

    def mapping(self, uint32_t id):
        """(pid, start, last, bias, executable, retired_at) of a number, or None."""
        if id == 0 or id > self.trie.entry_count or self.trie.entries[id].pid == 0:
            return None
        entry = self.trie.entries[id]
        return entry.pid, entry.start, entry.last, entry.bias, entry.executable, entry.retired_at

    def ids(self, uint32_t pid):
        """Numbers of the mappings of a process, in the order of their addresses."""
        cdef PidEntries *list = trie_pid(&self.trie, pid)
        return [list.order.ids[i] for i in range(list.order.count)] if list != NULL else []

    def pids(self):
        """Process IDs that have mappings in the trie."""
        cdef uint32_t at
        return sorted(
            self.trie.pids[slot_id(self.trie.pid_index.slots[at])].pid
            for at in range(self.trie.pid_index.mask + 1)
            if self.trie.pid_index.slots[at]
        )

    def keys(self, uint32_t pid):
        """[(prefix length in the address, address)] that a process owns in the kernel's trie."""
        cdef PidEntries *list = trie_pid(&self.trie, pid)
        cdef const Entry *entry
        cdef uint32_t i
        found = []
        if list != NULL:
            for i in range(list.order.count):
                entry = &self.trie.entries[list.order.ids[i]]
                found += prefixes(entry.start, entry.last)
        return found

    def pending(self):
        """(keys to delete, keys to insert, values to insert), as bytes of the ABI's structs."""
        trie_drop_stale_inserts(&self.trie)
        return (
            PyBytes_FromStringAndSize(
                <const char *>self.trie.deletes,
                <Py_ssize_t>(self.trie.delete_count * sizeof(pyprof_mapping_key)),
            ),
            PyBytes_FromStringAndSize(
                <const char *>self.trie.insert_keys,
                <Py_ssize_t>(self.trie.insert_count * sizeof(pyprof_mapping_key)),
            ),
            PyBytes_FromStringAndSize(
                <const char *>self.trie.insert_values,
                <Py_ssize_t>(self.trie.insert_count * sizeof(pyprof_mapping_value)),
            ),
        )

    def flushed(self, uint64_t now, uint64_t inserted):
        """Says that all deletes and the first `inserted` inserts of pending() are written.

        Processes with an insert that was not are taken out whole, so that they stay consistent;
        returns their pids. Their deletion is pending afterwards.
        """
        cdef uint64_t i
        failed = {be32toh(self.trie.insert_keys[i].pid) for i in range(inserted, self.trie.insert_count)}
        trie_flushed(&self.trie, now)
        for pid in failed:
            self.retire(pid, time=now)
        return sorted(failed)

    def reclaim(self, uint64_t before):
        """Frees the numbers whose deletion was written before that time; how many."""
        return trie_reclaim(&self.trie, before)

    def counts(self):
        """Numbers by name: processes, mappings, prefixes, retired, mappings_high_water."""
        return {
            "processes": self.trie.pid_index.used,
            "mappings": self.trie.live,
            "prefixes": self.trie.prefixes,
            "retired": self.trie.retired_count,
            "mappings_high_water": self.trie.high_water,
        }


def prefixes(uint64_t start, uint64_t last):
    """[(prefix length, address)]: the least set of prefixes that covers [start, last] exactly."""
    cdef uint64_t at = start, end
    cdef uint32_t bits
    if start > last:
        raise ValueError("empty range")
    found = []
    while True:
        bits = pyprof_block_bits(at, last)
        found.append((64 - bits, at))
        end = block_last(at, bits)
        if end == last:
            return found
        at = end + 1
