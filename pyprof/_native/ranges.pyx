# SPDX-License-Identifier: Apache-2.0
"""Bodies of ranges.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

from pyprof._native.memory cimport grow


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
        free(ranges.items)
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
        if (
            one.items[i].start != other.items[i].start or one.items[i].last != other.items[i].last
            or one.items[i].bias != other.items[i].bias
            or one.items[i].executable != other.items[i].executable
        ):
            return False
    return True


cdef Ranges *own(Ranges **ranges) noexcept nogil:
    """The list as its user's own, with room for two more ranges; NULL without memory."""
    cdef Ranges *old = ranges[0]
    cdef Ranges *mine = old
    if old == NULL or old.users > 1:
        mine = <Ranges *>calloc(1, sizeof(Ranges))
        if mine == NULL:
            return NULL
        mine.users = 1
        if old != NULL:
            if grow(<void **>&mine.items, &mine.capacity, <uint64_t>old.count + 2, sizeof(Range)) < 0:
                free(mine)
                return NULL
            memcpy(mine.items, old.items, old.count * sizeof(Range))
            mine.count = old.count
            ranges_release(old)
        ranges[0] = mine
    if grow(<void **>&mine.items, &mine.capacity, <uint64_t>mine.count + 2, sizeof(Range)) < 0:
        return NULL
    return mine


cdef int ranges_map(Ranges **ranges, const Range *added) noexcept nogil:
    """Maps a range; what it overlaps is cut away. 1, 0 if it was mapped so already, -1 without memory."""
    cdef Ranges *list
    cdef const Range *old = ranges_find(ranges[0], added.start)
    cdef Range tail
    cdef uint32_t first, after
    cdef bint has_tail = False
    if (
        old != NULL and old.start == added.start and old.last == added.last
        and old.bias == added.bias and old.executable == added.executable
    ):
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
    memmove(
        &list.items[first + 1 + has_tail],
        &list.items[after],
        (list.count - after) * sizeof(Range),
    )
    list.items[first] = added[0]
    if has_tail:
        list.items[first + 1] = tail
    list.count = list.count - (after - first) + 1 + has_tail
    return 1


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
        added.reserved = 0
        changed = ranges_map(&self.ranges, &added)
        if changed < 0:
            raise MemoryError
        return changed == 1

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
