# SPDX-License-Identifier: Apache-2.0
"""The symbols of one table: a growing array, their names, the order of preference, and who owns which address.

Pitfalls that the layout avoids: the nearest symbol before an address need not cover it; an inner symbol ends before
an outer one does; symbols without a size must not claim what follows; aliases must be chosen alike each time. So the
symbols are laid out once, as the list of addresses where their owner changes, and a look-up is one binary search.
"""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX
from libc.stdint cimport UINT64_MAX
from libc.stdint cimport uint8_t
from libc.stdint cimport uint16_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.stdlib cimport malloc
from libc.stdlib cimport realloc
from libc.string cimport memchr
from libc.string cimport memcmp
from libc.string cimport memset

cdef extern from "stdlib.h" nogil:
    void qsort_r(void *base, size_t count, size_t size,
                 int (*compare)(const void *, const void *, void *) noexcept nogil, void *context)

cdef enum:
    RADIX_BITS = 11
    RADIX = 1 << 11
    NAME_COMPARED = 256  # bounds the sort where a file repeats one huge name
    NAME_SEARCHED = 1024  # for a version, for the same reason

cdef size_t MAX_ENTRIES = INT32_MAX


cdef bint entries_push(Entries *entries, Entry entry) noexcept nogil:
    cdef size_t capacity
    cdef Entry *items
    if entries.count == entries.capacity:
        capacity = entries.capacity * 2 if entries.capacity else 256
        if capacity > MAX_ENTRIES:
            return False
        items = <Entry *>realloc(entries.items, capacity * sizeof(Entry))
        if items == NULL:
            return False
        entries.items = items
        entries.capacity = capacity
    entries.items[entries.count] = entry
    entries.count += 1
    return True


cdef size_t name_find(const Names *names, size_t sources, uint32_t position, const uint8_t **ret,
                      size_t *left) noexcept nogil:
    cdef size_t i
    for i in range(sources):
        if names[i].base <= position and position - names[i].base < names[i].size:
            left[0] = names[i].size - (position - names[i].base)
            ret[0] = names[i].data + (position - names[i].base)
            return i
    return sources


cdef size_t name_length(const uint8_t *name, size_t left, size_t limit) noexcept nogil:
    """Bytes before the terminator and before a version (`name@VER`, `name@@VER`), at most `limit`."""
    cdef const uint8_t *found
    if left > limit:
        left = limit
    found = <const uint8_t *>memchr(name, 0, left)
    if found != NULL:
        left = found - name
    if left > 1:
        found = <const uint8_t *>memchr(name + 1, c'@', left - 1)
        if found != NULL:
            left = found - name
    return left


cdef bint is_old_version(const uint8_t *name, size_t left) noexcept nogil:
    """Whether a name of .symtab ends in `@VER`: kept for programs that were linked against it."""
    cdef size_t size = name_length(name, left, NAME_SEARCHED)
    left = min(left, <size_t>NAME_SEARCHED)
    return size + 1 < left and name[size] == c'@' and name[size + 1] != c'@'


cdef uint16_t underscore_rank(const uint8_t *name, size_t left) noexcept nogil:
    cdef size_t count = 0
    while count < left and count < RANK_UNDERSCORES and name[count] == c'_':
        count += 1
    return <uint16_t>(RANK_UNDERSCORES - count)


cdef struct SortContext:
    const Names *names
    size_t sources


cdef int compare_aliases(const void *left, const void *right, void *context) noexcept nogil:
    """Order of entries with equal value and rank: the preferred name last."""
    cdef const Entry *a = <const Entry *>left
    cdef const Entry *b = <const Entry *>right
    cdef const SortContext *by = <const SortContext *>context
    cdef size_t a_size
    cdef size_t b_size
    cdef const uint8_t *a_name
    cdef const uint8_t *b_name
    cdef int order = 0
    if (name_find(by.names, by.sources, a.name, &a_name, &a_size) < by.sources
            and name_find(by.names, by.sources, b.name, &b_name, &b_size) < by.sources):
        a_size = name_length(a_name, a_size, NAME_COMPARED)
        b_size = name_length(b_name, b_size, NAME_COMPARED)
        order = (a_size < b_size) - (a_size > b_size)
        if order == 0:
            order = memcmp(b_name, a_name, a_size)
    if order == 0:
        order = (a.end > b.end) - (a.end < b.end)
    if order == 0:
        order = (a.name < b.name) - (a.name > b.name)
    return order


cdef bint sort_by_digit(Entry **from_, Entry **to, size_t count, size_t *slots, int shift) noexcept nogil:
    """One stable counting pass; shift -1 sorts by rank, others by RADIX_BITS bits of the value."""
    cdef Entry *source = from_[0]
    cdef Entry *target = to[0]
    cdef size_t i
    cdef size_t total = 0
    cdef size_t digit
    cdef size_t size
    memset(slots, 0, RADIX * sizeof(size_t))
    for i in range(count):
        digit = source[i].rank if shift < 0 else (source[i].value >> shift)
        slots[digit & (RADIX - 1)] += 1
    for i in range(<size_t>RADIX):
        size = slots[i]
        slots[i] = total
        total += size
    for i in range(count):
        digit = (source[i].rank if shift < 0 else (source[i].value >> shift)) & (RADIX - 1)
        target[slots[digit]] = source[i]
        slots[digit] += 1
    from_[0] = target
    to[0] = source
    return True


cdef bint entries_sort(Entries *entries, const Names *names, size_t sources) noexcept nogil:
    """Orders by value, then rank, then name; the entry to prefer at an address comes last of its kind."""
    cdef size_t count = entries.count
    cdef Entry *items = entries.items
    cdef Entry *spare
    cdef size_t *slots
    cdef uint64_t differing = 0
    cdef size_t i
    cdef size_t begin
    cdef int shift = 0
    cdef SortContext context
    if count < 2:
        return True
    spare = <Entry *>malloc(count * sizeof(Entry))
    slots = <size_t *>malloc(RADIX * sizeof(size_t))
    if spare == NULL or slots == NULL:
        free(spare)
        free(slots)
        return False
    for i in range(1, count):
        differing |= items[i].value ^ items[0].value
    sort_by_digit(&items, &spare, count, slots, -1)
    while shift < 64:
        if (differing >> shift) & (RADIX - 1):
            sort_by_digit(&items, &spare, count, slots, shift)
        shift += RADIX_BITS
    free(spare)
    free(slots)
    entries.items = items
    entries.capacity = count  # of whichever of the two arrays was kept
    context.names = names
    context.sources = sources
    begin = 0
    for i in range(1, count + 1):
        if i < count and items[i].value == items[begin].value and items[i].rank == items[begin].rank:
            continue
        if i - begin > 1:
            qsort_r(items + begin, i - begin, sizeof(Entry), compare_aliases, &context)
        begin = i
    return True


# Laying out


cdef void layout_change(Layout *layout, uint64_t start, uint32_t owner) noexcept nogil:
    if layout.count and layout.starts[layout.count - 1] == start:
        layout.owners[layout.count - 1] = owner
    elif layout.count == 0 or layout.owners[layout.count - 1] != owner:
        layout.starts[layout.count] = start
        layout.owners[layout.count] = owner
        layout.count += 1


cdef void layout_close(Layout *layout, const Entry *items, uint32_t *open_, size_t *depth,
                       uint64_t until) noexcept nogil:
    """Ends the open symbols that end at or before `until`, inner ones first."""
    cdef uint64_t end
    while depth[0] and items[open_[depth[0] - 1]].end <= until:
        end = items[open_[depth[0] - 1]].end
        while depth[0] and items[open_[depth[0] - 1]].end <= end:
            depth[0] -= 1
        layout_change(layout, end, open_[depth[0] - 1] if depth[0] else NO_OWNER)


cdef bint layout_init(Layout *layout, const Entries *entries) noexcept nogil:
    """Sweeps over sorted entries with a stack of those that are open; False: out of memory.

    At each address the innermost sized symbol owns (the one that began last, of aliases the preferred one). A symbol
    without a size owns only where no sized one does; one that lies in a sized symbol is a label of it and owns
    nothing, not even behind its end.
    """
    cdef const Entry *items = entries.items
    cdef size_t count = entries.count
    cdef size_t depth = 0
    cdef size_t i = 0
    cdef size_t end_of_run
    cdef uint64_t value
    # Each entry causes at most two changes: its start and its end.
    cdef uint32_t *open_ = <uint32_t *>malloc((count + 1) * sizeof(uint32_t))
    layout.count = 0
    layout.starts = <uint64_t *>malloc((2 * count + 1) * sizeof(uint64_t))
    layout.owners = <uint32_t *>malloc((2 * count + 1) * sizeof(uint32_t))
    if open_ == NULL or layout.starts == NULL or layout.owners == NULL:
        free(open_)
        return False
    while i < count:
        value = items[i].value
        end_of_run = i + 1
        while end_of_run < count and items[end_of_run].value == value:
            end_of_run += 1
        layout_close(layout, items, open_, &depth, value)
        if items[end_of_run - 1].rank & RANK_SIZED:
            while i < end_of_run:
                if items[i].rank & RANK_SIZED and items[i].end > value:
                    open_[depth] = <uint32_t>i
                    depth += 1
                i += 1
            layout_change(layout, value, open_[depth - 1] if depth else NO_OWNER)
        elif depth == 0 and items[end_of_run - 1].name != BOUNDARY:
            open_[depth] = <uint32_t>(end_of_run - 1)
            depth += 1
            layout_change(layout, value, <uint32_t>(end_of_run - 1))
        i = end_of_run
    layout_close(layout, items, open_, &depth, UINT64_MAX)
    free(open_)
    return True


cdef uint32_t layout_owner(const Layout *layout, uint64_t address) noexcept nogil:
    cdef size_t low = 0
    cdef size_t high = layout.count
    cdef size_t middle
    while low < high:
        middle = (low + high) // 2
        if layout.starts[middle] <= address:
            low = middle + 1
        else:
            high = middle
    return layout.owners[low - 1] if low else NO_OWNER


cdef void layout_deinit(Layout *layout) noexcept nogil:
    free(layout.starts)
    free(layout.owners)
    layout.starts = NULL
    layout.owners = NULL
    layout.count = 0
