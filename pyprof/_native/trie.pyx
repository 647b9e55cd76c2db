# SPDX-License-Identifier: Apache-2.0
"""The user-space owner of the kernel's LPM trie of executable mappings.

The mappings of one process never overlap, so its prefixes follow from its ranges: the trie keeps,
for each process, its ranges in order, and derives the prefixes when it writes. That makes insertion,
deletion and look-up a binary search in a few cache lines, and what a process has in the kernel
is exactly what its list says: deleting derives the same keys as inserting did.

A retired mapping keeps its number until no sample that names it can be on its way any more: the
kernel side puts the number into samples, and user space then asks whether the mapping was still
valid at the sample's time.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove, memset

from pyprof._native.hashing cimport pyprof_hash_two
from pyprof._native.index cimport (
    index_add,
    index_deinit,
    index_init,
    index_remove,
    index_reserve,
    slot_id,
)
from pyprof._native.memory cimport grow
from pyprof._native.prefix cimport block_last, pyprof_block_bits

cdef extern from "<endian.h>" nogil:
    uint32_t htobe32(uint32_t host)
    uint64_t htobe64(uint64_t host)
    uint32_t be32toh(uint32_t big)
    uint64_t be64toh(uint64_t big)

cdef uint32_t PID_BITS = 32
cdef uint32_t MAX_ENTRIES = 1 << 24


cdef uint32_t pid_slot(Trie *trie, uint32_t pid) noexcept nogil:
    """Slot of a pid in the index, or the free slot that ends its probe sequence."""
    cdef uint32_t tag = <uint32_t>(pyprof_hash_two(pid, 0, 0) >> 32)
    cdef uint32_t at = tag & trie.pid_index.mask
    while trie.pid_index.slots[at]:
        if trie.pids[slot_id(trie.pid_index.slots[at])].pid == pid:
            break
        at = (at + 1) & trie.pid_index.mask
    return at


cdef PidEntries *trie_pid(Trie *trie, uint32_t pid) noexcept nogil:
    """The list of a process, or NULL."""
    cdef uint32_t at = pid_slot(trie, pid)
    if trie.pid_index.slots[at] == 0:
        return NULL
    return &trie.pids[slot_id(trie.pid_index.slots[at])]


cdef PidEntries *make_pid(Trie *trie, uint32_t pid) noexcept nogil:
    cdef PidEntries *list = trie_pid(trie, pid)
    cdef uint32_t number
    if list != NULL:
        return list
    if index_reserve(&trie.pid_index) < 0:
        return NULL
    if trie.free_pid_count:
        number = trie.free_pids[trie.free_pid_count - 1]
        trie.free_pid_count -= 1
    else:
        if grow(<void **>&trie.pids, &trie.pid_capacity, trie.pid_count + 1, sizeof(PidEntries)) < 0:
            return NULL
        # Room for its return, so that dropping a process cannot fail.
        if grow(<void **>&trie.free_pids, &trie.free_pid_capacity, trie.pid_count + 1, 4) < 0:
            return NULL
        number = trie.pid_count
        trie.pid_count += 1
    list = &trie.pids[number]
    memset(list, 0, sizeof(PidEntries))
    list.pid = pid
    index_add(&trie.pid_index, <uint32_t>(pyprof_hash_two(pid, 0, 0) >> 32), number)
    return list


cdef void drop_pid(Trie *trie, uint32_t pid) noexcept nogil:
    cdef uint32_t at = pid_slot(trie, pid)
    cdef uint32_t number = slot_id(trie.pid_index.slots[at])
    free(trie.pids[number].ids)
    trie.pids[number].ids = NULL
    trie.pids[number].capacity = 0
    index_remove(&trie.pid_index, at)
    trie.free_pids[trie.free_pid_count] = number
    trie.free_pid_count += 1


cdef uint32_t position(Trie *trie, PidEntries *list, uint64_t address) noexcept nogil:
    """How many mappings of the list begin at or before the address."""
    cdef uint32_t low = 0, high = list.count, middle
    while low < high:
        middle = (low + high) // 2
        if trie.entries[list.ids[middle]].start <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef uint32_t trie_find(Trie *trie, uint32_t pid, uint64_t address) noexcept nogil:
    """Number of the mapping of a process that holds the address, or 0."""
    cdef PidEntries *list = trie_pid(trie, pid)
    cdef uint32_t at
    if list == NULL:
        return 0
    at = position(trie, list, address)
    if at and trie.entries[list.ids[at - 1]].last >= address:
        return list.ids[at - 1]
    return 0


cdef uint64_t prefix_count(uint64_t start, uint64_t last) noexcept nogil:
    cdef uint64_t at = start, end, count = 0
    while True:
        count += 1
        end = block_last(at, pyprof_block_bits(at, last))
        if end == last:
            return count
        at = end + 1


cdef void put_keys(
    uint32_t pid, uint64_t start, uint64_t last, pyprof_mapping_key *keys
) noexcept nogil:
    """Writes the keys of a range; there must be room for prefix_count of them."""
    cdef uint64_t at = start, end
    cdef uint32_t bits
    while True:
        bits = pyprof_block_bits(at, last)
        end = block_last(at, bits)
        keys.prefix_len = PID_BITS + 64 - bits
        keys.pid = htobe32(pid)
        keys.address = htobe64(at)
        keys += 1
        if end == last:
            return
        at = end + 1


cdef int64_t trie_insert(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias, uint32_t executable
) noexcept nogil:
    """Adds a mapping and what is to be written for it. Its number (from 1), or a TrieError."""
    cdef PidEntries *list
    cdef Entry *entry
    cdef pyprof_mapping_value *value
    cdef uint64_t count, i
    cdef uint32_t at, id
    if start > last or pid == 0:
        return TRIE_BAD_RANGE
    list = make_pid(trie, pid)
    if list == NULL:
        return TRIE_NO_MEMORY
    at = position(trie, list, last)
    if at and trie.entries[list.ids[at - 1]].last >= start:
        return TRIE_OVERLAP
    count = prefix_count(start, last)
    if (
        (trie.entry_count >= MAX_ENTRIES and trie.free_count == 0)
        or grow(<void **>&list.ids, &list.capacity, <uint64_t>list.count + 1, 4) < 0
        or grow(<void **>&trie.entries, &trie.entry_capacity, <uint64_t>trie.entry_count + 2, sizeof(Entry)) < 0
        # Retiring must not fail for want of memory, so its room is made now: what is in the kernel can
        # then always be deleted. Until the next flush each live prefix may be deleted once.
        or grow(<void **>&trie.deletes, &trie.delete_capacity, trie.delete_count + trie.prefixes + count, sizeof(pyprof_mapping_key)) < 0
        or grow(<void **>&trie.free_ids, &trie.free_capacity, <uint64_t>trie.entry_count + 2, 4) < 0
        or grow(<void **>&trie.retired, &trie.retired_capacity, <uint64_t>trie.entry_count + 2, sizeof(Retired)) < 0
        or grow(<void **>&trie.insert_keys, &trie.insert_key_capacity, trie.insert_count + count, sizeof(pyprof_mapping_key)) < 0
        or grow(<void **>&trie.insert_values, &trie.insert_value_capacity, trie.insert_count + count, sizeof(pyprof_mapping_value)) < 0
    ):
        if list.count == 0:
            drop_pid(trie, pid)
        return TRIE_NO_MEMORY
    if trie.free_count:
        trie.free_count -= 1
        id = trie.free_ids[trie.free_count]
    else:
        trie.entry_count += 1
        id = trie.entry_count
    entry = &trie.entries[id]
    entry.start = start
    entry.last = last
    entry.bias = bias
    entry.retired_at = 0
    entry.pid = pid
    entry.executable = executable
    at = position(trie, list, start)
    memmove(&list.ids[at + 1], &list.ids[at], (list.count - at) * sizeof(uint32_t))
    list.ids[at] = id
    list.count += 1
    put_keys(pid, start, last, &trie.insert_keys[trie.insert_count])
    for i in range(trie.insert_count, trie.insert_count + count):
        value = &trie.insert_values[i]
        value.start = start
        value.last = last
        value.bias = bias
        value.mapping = id
        value.executable = executable
    trie.insert_count += count
    trie.live += 1
    trie.prefixes += count
    if trie.live > trie.high_water:
        trie.high_water = trie.live
    return id


cdef void trie_retire(Trie *trie, uint32_t id, uint64_t time) noexcept nogil:
    """Takes a live mapping out as of a time (CLOCK_MONOTONIC, ns)."""
    cdef Entry *entry = &trie.entries[id]
    cdef PidEntries *list = trie_pid(trie, entry.pid)
    cdef uint64_t count = prefix_count(entry.start, entry.last)
    cdef uint32_t at
    put_keys(entry.pid, entry.start, entry.last, &trie.deletes[trie.delete_count])
    trie.delete_count += count
    at = position(trie, list, entry.start) - 1
    memmove(&list.ids[at], &list.ids[at + 1], (list.count - at - 1) * sizeof(uint32_t))
    list.count -= 1
    if list.count == 0:
        drop_pid(trie, entry.pid)
    entry.retired_at = time if time else 1
    trie.retired[trie.retired_count].id = id
    trie.retired[trie.retired_count].flushed_at = 0
    trie.retired_count += 1
    trie.live -= 1
    trie.prefixes -= count


cdef uint32_t trie_retire_range(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t time
) noexcept nogil:
    """Retires every mapping of a process that shares an address with the range; how many."""
    cdef PidEntries *list = trie_pid(trie, pid)
    cdef uint32_t at, count = 0
    while list != NULL:
        at = position(trie, list, last)
        if at == 0 or trie.entries[list.ids[at - 1]].last < start:
            break
        trie_retire(trie, list.ids[at - 1], time)
        count += 1
        list = trie_pid(trie, pid)
    return count


cdef void drop_stale_inserts(Trie *trie) noexcept nogil:
    """Forgets inserts, not written yet, of mappings that were retired in the meantime: deletes are
    written first, so such an insert would stay in the kernel without an owner."""
    cdef uint64_t i, kept = 0
    for i in range(trie.insert_count):
        if trie.entries[trie.insert_values[i].mapping].retired_at == 0:
            trie.insert_keys[kept] = trie.insert_keys[i]
            trie.insert_values[kept] = trie.insert_values[i]
            kept += 1
    trie.insert_count = kept


cdef class MappingTrie:
    """What is, and what is to be, in exec_mappings. Not thread-safe.

    A cycle is: insert and retire; write `pending()` to the kernel (deletes first, then inserts: a
    key in both is then the new mapping's); `flushed()`; and, after samples taken until then have been
    read, `reclaim()`.
    """

    def __cinit__(self):
        memset(&self.trie, 0, sizeof(Trie))
        if index_init(&self.trie.pid_index, 64) < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.trie.pid_count):
            free(self.trie.pids[i].ids)
        free(self.trie.pids)
        free(self.trie.free_pids)
        free(self.trie.entries)
        free(self.trie.free_ids)
        free(self.trie.retired)
        free(self.trie.deletes)
        free(self.trie.insert_keys)
        free(self.trie.insert_values)
        index_deinit(&self.trie.pid_index)

    def insert(self, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias=0, uint32_t executable=0):
        """Number of the new mapping [start, last] of a process.

        Raises ValueError for an empty range, pid 0, or a range that overlaps another of the process.
        """
        cdef int64_t id = trie_insert(&self.trie, pid, start, last, bias, executable)
        if id == TRIE_NO_MEMORY:
            raise MemoryError
        if id == TRIE_OVERLAP:
            raise ValueError("the range overlaps a mapping of the process")
        if id == TRIE_BAD_RANGE:
            raise ValueError("not a range of a process")
        return id

    def retire(self, uint32_t pid, uint64_t start=0, uint64_t last=0xffffffffffffffff, uint64_t time=1):
        """Retires what a process has in [start, last], by default all; how many mappings that were."""
        return trie_retire_range(&self.trie, pid, start, last, time)

    def lookup(self, uint32_t pid, uint64_t address):
        """Number of the mapping that holds an address, or 0: what the kernel's look-up answers."""
        return trie_find(&self.trie, pid, address)

    def mapping(self, uint32_t id):
        """(pid, start, last, bias, executable, retired_at) of a number, or None."""
        if id == 0 or id > self.trie.entry_count or self.trie.entries[id].pid == 0:
            return None
        entry = self.trie.entries[id]
        return entry.pid, entry.start, entry.last, entry.bias, entry.executable, entry.retired_at

    def ids(self, uint32_t pid):
        """Numbers of the mappings of a process, in the order of their addresses."""
        cdef PidEntries *list = trie_pid(&self.trie, pid)
        return [list.ids[i] for i in range(list.count)] if list != NULL else []

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
        cdef uint32_t i
        found = []
        if list != NULL:
            for i in range(list.count):
                found += prefixes(self.trie.entries[list.ids[i]].start, self.trie.entries[list.ids[i]].last)
        return found

    def pending(self):
        """(keys to delete, keys to insert, values to insert), as bytes of the ABI's structs."""
        drop_stale_inserts(&self.trie)
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
        self.trie.delete_count = 0
        self.trie.insert_count = 0
        for i in range(self.trie.retired_count):
            if self.trie.retired[i].flushed_at == 0:
                self.trie.retired[i].flushed_at = now if now else 1
        for pid in failed:
            self.retire(pid, time=now)
        return sorted(failed)

    def reclaim(self, uint64_t before):
        """Frees the numbers whose deletion was written before that time; how many."""
        cdef uint64_t i, kept = 0
        cdef uint64_t count = self.trie.retired_count
        for i in range(count):
            if self.trie.retired[i].flushed_at and self.trie.retired[i].flushed_at < before:
                self.trie.entries[self.trie.retired[i].id].pid = 0
                self.trie.free_ids[self.trie.free_count] = self.trie.retired[i].id
                self.trie.free_count += 1
            else:
                self.trie.retired[kept] = self.trie.retired[i]
                kept += 1
        self.trie.retired_count = kept
        return count - kept

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
