# SPDX-License-Identifier: Apache-2.0
"""Bodies of ranges.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove

from pyprof._native.sorting cimport Columns, Placed, columns_place, columns_range

cdef uint64_t LONG = 128  # ranges: 5 KiB


cdef Ranges *ranges_share(Ranges *ranges) noexcept nogil:
    """One more user of the same list; NULL (no ranges) stays NULL."""
    if ranges != NULL:
        ranges.users += 1
    return ranges


cdef void ranges_release(Ranges *ranges) noexcept nogil:
    if ranges == NULL:
        return
    ranges.users -= 1
    if ranges.users == 0:
        free(ranges.memory)
        free(ranges)


cdef uint32_t position(const Ranges *ranges, uint64_t address) noexcept nogil:
    """How many ranges begin at or before the address."""
    cdef uint32_t low = 0, high = ranges.count, middle
    while low < high:
        middle = (low + high) // 2
        if ranges.items[middle].start <= address:
            low = middle + 1
        else:
            high = middle
    return low


cdef const Range *ranges_find(const Ranges *ranges, uint64_t address) noexcept nogil:
    """The range that holds the address, or NULL."""
    cdef uint32_t at
    if ranges == NULL:
        return NULL
    at = position(ranges, address)
    if at and ranges.items[at - 1].last >= address:
        return &ranges.items[at - 1]
    return NULL


cdef bint ranges_equal(const Ranges *one, const Ranges *other) noexcept nogil:
    """Whether the same is mapped, whenever it was."""
    cdef uint32_t i
    if one == NULL or other == NULL or one.count != other.count:
        return one == other
    for i in range(one.count):
        if not range_same(&one.items[i], &other.items[i]):
            return False
    return True


cdef Ranges *laid_out(const Ranges *old, uint64_t room) noexcept nogil:
    """A copy of a list that one user owns, with room for so many ranges more; NULL without memory.

    Long lists have room at both ends, so that what is mapped moves the shorter side.
    """
    cdef Ranges *made = <Ranges *>calloc(1, sizeof(Ranges))
    cdef uint64_t count = old.count if old != NULL else 0
    cdef uint64_t capacity = count + room + 2
    if made == NULL:
        return NULL
    capacity += capacity // 2 if capacity < LONG else capacity
    made.memory = <Range *>malloc(capacity * sizeof(Range))
    if made.memory == NULL:
        free(made)
        return NULL
    made.items = made.memory
    if capacity >= LONG:
        made.items += (capacity - count - room) // 2
    made.capacity = capacity
    made.count = <uint32_t>count
    made.users = 1
    if count:
        memcpy(made.items, old.items, count * sizeof(Range))
    return made


cdef Ranges *own(Ranges **ranges) noexcept nogil:
    """The list as its user's own, with room for two more ranges on each side or, in short lists, behind; NULL
    without memory."""
    cdef Ranges *old = ranges[0]
    cdef Ranges *made
    if old != NULL and old.users == 1 and old.items + old.count + 2 <= old.memory + old.capacity and (
        old.capacity < LONG or old.items >= old.memory + 2
    ):
        return old
    made = laid_out(old, 2)
    if made == NULL:
        return NULL
    ranges_release(old)
    ranges[0] = made
    return made


cdef void reshape(Ranges *list, uint32_t first, uint32_t after, uint32_t size) noexcept nogil:
    """Makes what lies at [first, after) `size` ranges long; there must be room."""
    cdef uint32_t behind = list.count - after
    cdef int64_t more = <int64_t>size - (after - first)
    if first < behind and list.items - more >= list.memory:
        memmove(list.items - more, list.items, first * sizeof(Range))
        list.items -= more
    elif more:
        memmove(&list.items[first + size], &list.items[after], behind * sizeof(Range))
    list.count = first + size + behind


cdef int ranges_map(Ranges **ranges, const Range *added) noexcept nogil:
    """Maps a range; what it overlaps is cut away. 1, 0 if it was mapped so already, -1 without memory."""
    cdef Ranges *list
    cdef const Range *old = ranges_find(ranges[0], added.start)
    cdef Range tail
    cdef uint32_t first, after
    cdef bint has_tail = False
    if old != NULL and range_same(old, added):
        return 0
    list = own(ranges)
    if list == NULL:
        return -1
    # [first, after) are the ranges that lie wholly or partly under the new one.
    first = position(list, added.start)
    if first and list.items[first - 1].last >= added.start:
        first -= 1
    after = position(list, added.last)
    if first < after and list.items[after - 1].last > added.last:
        tail = list.items[after - 1]
        tail.start = added.last + 1
        has_tail = True
    if first < after and list.items[first].start < added.start:
        list.items[first].last = added.start - 1
        first += 1
    reshape(list, first, after, 1 + has_tail)
    list.items[first] = added[0]
    if has_tail:
        list.items[first + 1] = tail
    return 1


cdef inline void push(Ranges *list, const Range *item) noexcept nogil:
    list.items[list.count] = item[0]
    list.count += 1


cdef int ranges_map_all(Ranges **ranges, const Range *added, uint32_t count) noexcept nogil:
    """Maps ranges in the order of their addresses, none over another, in one pass over them and the list; what
    they overlap there is cut away. Others are mapped one after the other. 0, or -1 without memory."""
    cdef Ranges *old = ranges[0]
    cdef Ranges *made
    cdef Range piece
    cdef uint32_t i, at = 0, had = old.count if old != NULL else 0
    cdef bint apart = True
    for i in range(1, count):
        apart = apart and added[i].start > added[i - 1].last
    if not apart:
        for i in range(count):
            if ranges_map(ranges, &added[i]) < 0:
                return -1
        return 0
    if count == 0:
        return 0
    made = laid_out(NULL, 2 * <uint64_t>count + had if had else <uint64_t>count)
    if made == NULL:
        return -1
    if had:
        piece = old.items[0]
    for i in range(count):
        # `piece` is what is left of the old range `at`.
        while at < had and piece.last < added[i].start:
            push(made, &piece)
            at += 1
            if at < had:
                piece = old.items[at]
        if at < had and range_same(&piece, &added[i]):
            push(made, &piece)
        else:
            if at < had and piece.start < added[i].start:
                push(made, &piece)
                made.items[made.count - 1].last = added[i].start - 1
            push(made, &added[i])
        while at < had and piece.last <= added[i].last:
            at += 1
            if at < had:
                piece = old.items[at]
        if at < had and piece.start <= added[i].last:
            piece.start = added[i].last + 1
    while at < had:
        push(made, &piece)
        at += 1
        if at < had:
            piece = old.items[at]
    ranges_release(old)
    ranges[0] = made
    return 0


cdef class RangeList:
    """A list of ranges for tests: the structure that processes hold."""

    cdef Ranges *ranges

    def __dealloc__(self):
        ranges_release(self.ranges)

    def map(self, uint64_t start, uint64_t last, uint64_t bias=0, uint32_t executable=0):
        """True where that changed anything. Raises ValueError for an empty range."""
        cdef Range added
        if start > last:
            raise ValueError("empty range")
        added.start, added.last, added.bias, added.executable = start, last, bias, executable
        added.since = 0
        added.untold = 0
        changed = ranges_map(&self.ranges, &added)
        if changed < 0:
            raise MemoryError
        return changed == 1

    def map_many(self, const uint64_t[::1] starts not None, const uint64_t[::1] lasts not None,
                 const uint64_t[::1] biases=None, const uint32_t[::1] executables=None):
        """Maps ranges, in the order of their addresses where none lies over another, else as they are given.

        Raises ValueError for an empty range, with nothing changed.
        """
        cdef Columns columns
        cdef Placed *placed = NULL
        cdef Range *items = NULL
        cdef uint64_t count = <uint64_t>starts.shape[0], i
        cdef int code
        cdef bint sound = True, apart = True
        if (
            <uint64_t>lasts.shape[0] != count or (biases is not None and <uint64_t>biases.shape[0] != count)
            or (executables is not None and <uint64_t>executables.shape[0] != count)
        ):
            raise ValueError("columns differ in length")
        if count == 0:
            return
        if count >> 31:
            raise ValueError("too many ranges")
        columns.pids, columns.starts, columns.lasts = NULL, &starts[0], &lasts[0]
        columns.biases = &biases[0] if biases is not None else NULL
        columns.executables = &executables[0] if executables is not None else NULL
        with nogil:
            code = columns_place(&columns, count, &placed, &items)
            if code == 0:
                for i in range(count):
                    columns_range(&columns, placed[i].index, &items[i])
                    sound = sound and items[i].start <= items[i].last
                    apart = apart and (i == 0 or items[i].start > items[i - 1].last)
                if not apart:
                    for i in range(count):
                        columns_range(&columns, <uint32_t>i, &items[i])
                if sound:
                    code = ranges_map_all(&self.ranges, items, <uint32_t>count)
            free(placed)
            free(items)
        if not sound:
            raise ValueError("empty range")
        if code < 0:
            raise MemoryError

    def fork(self):
        """A copy that shares memory until one of the two changes."""
        cdef RangeList child = RangeList()
        child.ranges = ranges_share(self.ranges)
        return child

    def find(self, uint64_t address):
        """(start, last, bias, executable), or None."""
        cdef const Range *found = ranges_find(self.ranges, address)
        if found == NULL:
            return None
        return found.start, found.last, found.bias, found.executable

    def items(self):
        """[(start, last, bias, executable)] in order."""
        if self.ranges == NULL:
            return []
        return [
            (
                self.ranges.items[i].start, self.ranges.items[i].last,
                self.ranges.items[i].bias, self.ranges.items[i].executable,
            )
            for i in range(self.ranges.count)
        ]
