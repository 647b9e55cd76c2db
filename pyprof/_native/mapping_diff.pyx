# SPDX-License-Identifier: Apache-2.0
"""Bodies of mapping_diff.pxd.

A look-up of the kernel's, at whatever point of such a change, finds the right mapping, or none, or one
that is known to be stale, for these reasons:

- Prefixes of one process are never nested, for its mappings are disjoint: where a mapping's prefix is gone,
  no shorter one of another mapping answers in its place.
- All that is stale is deleted before anything new is written. While the deletes are under way a look-up may
  find a stale mapping; its number was retired as of the time of the change, so a sample taken since is
  resolved from its address instead. While the inserts are under way it finds new mappings or none.
- A number is not used for another mapping until three seconds after its deletion was written, so what a late
  sample names is still known as stale.
- What did not change keeps its number and its entries, and is found throughout.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from pyprof._native.mappings cimport (
    TRIE_BAD_RANGE,
    TRIE_FULL,
    TRIE_NO_MEMORY,
    TRIE_OVERLAP,
    Entry,
    PidEntries,
    trie_drop_if_empty,
    trie_make_entry,
    trie_make_pid,
    trie_pid,
    trie_reserve,
    trie_retire_entry,
)
from pyprof._native.order cimport Order, order_lay_out
from pyprof._native.prefix cimport prefix_count


cdef inline bint same(const Entry *entry, const Range *item) noexcept nogil:
    return (
        entry.start == item.start and entry.last == item.last
        and entry.bias == item.bias and entry.executable == item.executable
    )


cdef int trie_diff(
    const Trie *trie, uint32_t pid, const Range *items, uint32_t count, bint replace, Diff *diff
) noexcept nogil:
    """What is to be done for a process to have some ranges, given in order: instead of what it has, or besides.
    One pass over both. 0, or a TrieError where the ranges are none that it may have."""
    cdef const PidEntries *list = trie_pid(trie, pid)
    cdef const Entry *entry
    cdef uint32_t had = list.order.count if list != NULL else 0, i = 0, j
    memset(diff, 0, sizeof(Diff))
    if pid == 0:
        return TRIE_BAD_RANGE
    for j in range(count):
        if items[j].start > items[j].last:
            return TRIE_BAD_RANGE
        if j and items[j].start <= items[j - 1].last:
            return TRIE_OVERLAP
        while i < had and trie.entries[list.order.ids[i]].start < items[j].start:
            entry = &trie.entries[list.order.ids[i]]
            if not replace and entry.last >= items[j].start:
                return TRIE_OVERLAP
            diff.retired += 1
            diff.prefixes_retired += prefix_count(entry.start, entry.last)
            i += 1
        if i < had and same(&trie.entries[list.order.ids[i]], &items[j]) and replace:
            diff.kept += 1
            i += 1
            continue
        if not replace and i < had and trie.entries[list.order.ids[i]].start <= items[j].last:
            return TRIE_OVERLAP
        diff.added += 1
        diff.prefixes_added += prefix_count(items[j].start, items[j].last)
    while i < had:
        entry = &trie.entries[list.order.ids[i]]
        diff.retired += 1
        diff.prefixes_retired += prefix_count(entry.start, entry.last)
        i += 1
    if not replace:
        diff.kept += diff.retired
        diff.retired = 0
        diff.prefixes_retired = 0
    return 0


cdef int apply(
    Trie *trie, uint32_t pid, const Range *items, uint32_t count, bint replace, uint64_t time, Diff *diff
) noexcept nogil:
    """Makes a diff true: retires, adds, and writes the order of the process anew. 0, or a TrieError with nothing
    changed."""
    cdef PidEntries *list
    cdef Order fresh
    cdef const Range *item
    cdef uint32_t i = 0, j, id
    if diff.retired == 0 and diff.added == 0:
        return 0
    if trie.prefixes - diff.prefixes_retired + diff.prefixes_added > trie.max_prefixes:
        return TRIE_FULL
    list = trie_make_pid(trie, pid)
    if list == NULL:
        return TRIE_NO_MEMORY
    memset(&fresh, 0, sizeof(Order))
    if order_lay_out(&fresh, diff.kept + diff.added) < 0 or trie_reserve(trie, diff.added, diff.prefixes_added) < 0:
        free(fresh.memory)
        trie_drop_if_empty(trie, list)
        return TRIE_NO_MEMORY
    fresh.ids -= (diff.kept + diff.added) // 2  # an empty list lies in the middle
    for j in range(count):
        item = &items[j]
        while i < list.order.count and trie.entries[list.order.ids[i]].start < item.start:
            if replace:
                trie_retire_entry(trie, list.order.ids[i], time)
            else:
                fresh.ids[fresh.count] = list.order.ids[i]
                fresh.count += 1
            i += 1
        if i < list.order.count and replace and same(&trie.entries[list.order.ids[i]], item):
            id = list.order.ids[i]
            i += 1
        else:
            id = trie_make_entry(
                trie, pid, item.start, item.last, item.bias, item.executable, prefix_count(item.start, item.last)
            )
        fresh.ids[fresh.count] = id
        fresh.count += 1
    while i < list.order.count:
        if replace:
            trie_retire_entry(trie, list.order.ids[i], time)
        else:
            fresh.ids[fresh.count] = list.order.ids[i]
            fresh.count += 1
        i += 1
    free(list.order.memory)
    list.order = fresh
    trie_drop_if_empty(trie, list)
    return 0


cdef int trie_set(
    Trie *trie, uint32_t pid, const Range *items, uint32_t count, uint64_t time, Diff *diff
) noexcept nogil:
    """Has a process have these ranges, in order and disjoint, and no others. What it has so already keeps its
    number. 0, or a TrieError with nothing changed."""
    cdef int code = trie_diff(trie, pid, items, count, True, diff)
    return code if code < 0 else apply(trie, pid, items, count, True, time, diff)


cdef int trie_add(
    Trie *trie, uint32_t pid, const Range *items, uint32_t count, Diff *diff
) noexcept nogil:
    """Adds ranges, in order and disjoint, to what a process has. 0, or a TrieError with nothing changed."""
    cdef int code = trie_diff(trie, pid, items, count, False, diff)
    return code if code < 0 else apply(trie, pid, items, count, False, 0, diff)
