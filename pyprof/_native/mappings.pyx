# SPDX-License-Identifier: Apache-2.0
"""Bodies of mappings.pxd.

The mappings of one process never overlap, so its prefixes follow from its ranges: what is kept are, for each
process, its ranges in order, and prefixes are derived when they are written. That makes insertion,
deletion and look-up a binary search in a few cache lines, and what a process has in the kernel is exactly
what its list says: deleting derives the same keys as inserting did.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

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
from pyprof._native.order cimport order_cut, order_has_room, order_lay_out, order_put
from pyprof._native.prefix cimport block_last, prefix_count, pyprof_block_bits

cdef extern from "<endian.h>" nogil:
    uint32_t htobe32(uint32_t host)
    uint64_t htobe64(uint64_t host)

cdef uint32_t PID_BITS = 32
cdef uint32_t MAX_ENTRIES = 1 << 24


cdef int trie_init(Trie *trie, uint64_t max_prefixes) noexcept nogil:
    """0, or -1 without memory."""
    memset(trie, 0, sizeof(Trie))
    trie.max_prefixes = max_prefixes
    return index_init(&trie.pid_index, 64)


cdef void trie_deinit(Trie *trie) noexcept nogil:
    cdef uint32_t i
    for i in range(trie.pid_count):
        free(trie.pids[i].order.memory)
    free(trie.pids)
    free(trie.free_pids)
    free(trie.entries)
    free(trie.free_ids)
    free(trie.retired)
    free(trie.deletes)
    free(trie.insert_keys)
    free(trie.insert_values)
    index_deinit(&trie.pid_index)
    memset(trie, 0, sizeof(Trie))


# Processes.


cdef uint32_t pid_slot(const Trie *trie, uint32_t pid) noexcept nogil:
    """Slot of a pid in the index, or the free slot that ends its probe sequence."""
    cdef uint32_t tag = <uint32_t>(pyprof_hash_two(pid, 0, 0) >> 32)
    cdef uint32_t at = tag & trie.pid_index.mask
    while trie.pid_index.slots[at]:
        if trie.pids[slot_id(trie.pid_index.slots[at])].pid == pid:
            break
        at = (at + 1) & trie.pid_index.mask
    return at


cdef PidEntries *trie_pid(const Trie *trie, uint32_t pid) noexcept nogil:
    """The list of a process, or NULL."""
    cdef uint32_t at = pid_slot(trie, pid)
    if trie.pid_index.slots[at] == 0:
        return NULL
    return &trie.pids[slot_id(trie.pid_index.slots[at])]


cdef PidEntries *trie_make_pid(Trie *trie, uint32_t pid) noexcept nogil:
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


cdef void trie_drop_if_empty(Trie *trie, PidEntries *list) noexcept nogil:
    cdef uint32_t at, number
    if list.order.count:
        return
    at = pid_slot(trie, list.pid)
    number = slot_id(trie.pid_index.slots[at])
    free(list.order.memory)
    memset(list, 0, sizeof(PidEntries))
    index_remove(&trie.pid_index, at)
    trie.free_pids[trie.free_pid_count] = number
    trie.free_pid_count += 1


cdef uint32_t position(const Trie *trie, const PidEntries *list, uint64_t address) noexcept nogil:
    """How many mappings of the list begin at or before the address."""
    cdef uint32_t low = 0, high = list.order.count, middle
    while low < high:
        middle = (low + high) // 2
        if trie.entries[list.order.ids[middle]].start <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef uint32_t trie_find(const Trie *trie, uint32_t pid, uint64_t address) noexcept nogil:
    """Number of the mapping of a process that holds the address, or 0."""
    cdef const PidEntries *list = trie_pid(trie, pid)
    cdef uint32_t at
    if list == NULL:
        return 0
    at = position(trie, list, address)
    if at and trie.entries[list.order.ids[at - 1]].last >= address:
        return list.order.ids[at - 1]
    return 0


cdef uint64_t trie_prefixes_of(const Trie *trie, uint32_t pid) noexcept nogil:
    """How many entries of the kernel a process takes."""
    cdef const PidEntries *list = trie_pid(trie, pid)
    cdef uint64_t count = 0
    cdef uint32_t i
    if list != NULL:
        for i in range(list.order.count):
            count += prefix_count(trie.entries[list.order.ids[i]].start, trie.entries[list.order.ids[i]].last)
    return count


# Entries.


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


cdef int trie_reserve(Trie *trie, uint32_t entries, uint64_t prefixes) noexcept nogil:
    """Makes room for new entries. 0, or -1 without memory."""
    cdef uint64_t given = trie.entry_count
    if entries > trie.free_count:
        given += entries - trie.free_count
    if given >= MAX_ENTRIES:
        return -1
    if (
        grow(<void **>&trie.entries, &trie.entry_capacity, given + 1, sizeof(Entry)) < 0
        # Retiring must not fail for want of memory, so its room is made now: what is in the kernel can
        # then always be deleted. Until the next flush each live prefix may be deleted once.
        or grow(<void **>&trie.deletes, &trie.delete_capacity, trie.delete_count + trie.prefixes + prefixes, sizeof(pyprof_mapping_key)) < 0
        or grow(<void **>&trie.free_ids, &trie.free_capacity, given + 1, 4) < 0
        or grow(<void **>&trie.retired, &trie.retired_capacity, given + 1, sizeof(Retired)) < 0
        or grow(<void **>&trie.insert_keys, &trie.insert_key_capacity, trie.insert_count + prefixes, sizeof(pyprof_mapping_key)) < 0
        or grow(<void **>&trie.insert_values, &trie.insert_value_capacity, trie.insert_count + prefixes, sizeof(pyprof_mapping_value)) < 0
    ):
        return -1
    return 0


cdef uint32_t trie_make_entry(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias, uint32_t executable, uint64_t prefixes
) noexcept nogil:
    """A new entry, its inserts queued; its number. There must be room, in the order of the process too."""
    cdef Entry *entry
    cdef pyprof_mapping_value *value
    cdef uint64_t i
    cdef uint32_t id
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
    put_keys(pid, start, last, &trie.insert_keys[trie.insert_count])
    for i in range(trie.insert_count, trie.insert_count + prefixes):
        value = &trie.insert_values[i]
        value.start = start
        value.last = last
        value.bias = bias
        value.mapping = id
        value.executable = executable
    trie.insert_count += prefixes
    trie.live += 1
    trie.prefixes += prefixes
    if trie.live > trie.high_water:
        trie.high_water = trie.live
    return id


cdef void trie_retire_entry(Trie *trie, uint32_t id, uint64_t time) noexcept nogil:
    """Queues the deletion of an entry, whose place in the order of its process is the caller's to take."""
    cdef Entry *entry = &trie.entries[id]
    cdef uint64_t count = prefix_count(entry.start, entry.last)
    put_keys(entry.pid, entry.start, entry.last, &trie.deletes[trie.delete_count])
    trie.delete_count += count
    entry.retired_at = time if time else 1
    trie.retired[trie.retired_count].id = id
    trie.retired[trie.retired_count].flushed_at = 0
    trie.retired_count += 1
    trie.live -= 1
    trie.prefixes -= count


cdef int64_t trie_insert(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t bias, uint32_t executable
) noexcept nogil:
    """Adds a mapping and what is to be written for it. Its number (from 1), or a TrieError."""
    cdef PidEntries *list
    cdef uint64_t count
    cdef uint32_t at, id
    if start > last or pid == 0:
        return TRIE_BAD_RANGE
    list = trie_make_pid(trie, pid)
    if list == NULL:
        return TRIE_NO_MEMORY
    at = position(trie, list, last)
    if at and trie.entries[list.order.ids[at - 1]].last >= start:
        return TRIE_OVERLAP
    count = prefix_count(start, last)
    if trie.prefixes + count > trie.max_prefixes:
        trie_drop_if_empty(trie, list)
        return TRIE_FULL
    if (not order_has_room(&list.order) and order_lay_out(&list.order, <uint64_t>list.order.count + 1) < 0) or trie_reserve(trie, 1, count) < 0:
        trie_drop_if_empty(trie, list)
        return TRIE_NO_MEMORY
    id = trie_make_entry(trie, pid, start, last, bias, executable, count)
    order_put(&list.order, at, id)
    return id


cdef uint32_t trie_retire_range(
    Trie *trie, uint32_t pid, uint64_t start, uint64_t last, uint64_t time
) noexcept nogil:
    """Retires every mapping of a process that shares an address with the range, as of a time
    (CLOCK_MONOTONIC, ns); how many."""
    cdef PidEntries *list = trie_pid(trie, pid)
    cdef uint32_t first, after, i
    if list == NULL:
        return 0
    first = position(trie, list, start)
    if first and trie.entries[list.order.ids[first - 1]].last >= start:
        first -= 1
    after = position(trie, list, last)
    if after <= first:
        return 0
    for i in range(first, after):
        trie_retire_entry(trie, list.order.ids[i], time)
    order_cut(&list.order, first, after)
    trie_drop_if_empty(trie, list)
    return after - first


# Writing.


cdef void trie_drop_stale_inserts(Trie *trie) noexcept nogil:
    """Forgets inserts, not written yet, of mappings that were retired in the meantime: deletes are
    written first, so such an insert would stay in the kernel without an owner."""
    cdef uint64_t i, kept = 0
    for i in range(trie.insert_count):
        if trie.entries[trie.insert_values[i].mapping].retired_at == 0:
            trie.insert_keys[kept] = trie.insert_keys[i]
            trie.insert_values[kept] = trie.insert_values[i]
            kept += 1
    trie.insert_count = kept


cdef void trie_flushed(Trie *trie, uint64_t now) noexcept nogil:
    """Says that what was queued is written."""
    cdef uint64_t i
    trie.delete_count = 0
    trie.insert_count = 0
    for i in range(trie.retired_flushed, trie.retired_count):
        trie.retired[i].flushed_at = now if now else 1
    trie.retired_flushed = trie.retired_count


cdef uint64_t trie_reclaim(Trie *trie, uint64_t before) noexcept nogil:
    """Frees the numbers whose deletion was written before a time; how many."""
    cdef uint64_t i, kept = 0
    cdef uint64_t count = trie.retired_count, flushed = 0
    for i in range(count):
        if i < trie.retired_flushed and trie.retired[i].flushed_at < before:
            trie.entries[trie.retired[i].id].pid = 0
            trie.free_ids[trie.free_count] = trie.retired[i].id
            trie.free_count += 1
        else:
            flushed += i < trie.retired_flushed
            trie.retired[kept] = trie.retired[i]
            kept += 1
    trie.retired_count = kept
    trie.retired_flushed = flushed
    return count - kept
