# SPDX-License-Identifier: Apache-2.0
"""Bodies of sorting.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

from pyprof._native.ranges cimport Range


cdef int compare(const void *a, const void *b) noexcept nogil:
    """In the order of process, address, and position in the columns."""
    cdef const Placed *first = <const Placed *>a
    cdef const Placed *second = <const Placed *>b
    if first.pid != second.pid:
        return -1 if first.pid < second.pid else 1
    if first.start != second.start:
        return -1 if first.start < second.start else 1
    return -1 if first.index < second.index else <int>(first.index > second.index)


cdef int columns_place(const Columns *columns, uint64_t count, Placed **placed, Range **items) noexcept nogil:
    """Makes the order of the rows, and room for as many ranges; both are the caller's to free. 0, or -1 without
    memory. Rows in order, ascending or descending, are left as they are or turned round; others sorted."""
    cdef Placed *made = <Placed *>malloc((count + 1) * sizeof(Placed))
    cdef Range *room = <Range *>malloc((count + 1) * sizeof(Range))
    cdef Placed swapped
    cdef uint64_t i
    cdef uint64_t rising = 1, falling = 1
    cdef int order
    if made == NULL or room == NULL:
        free(made)
        free(room)
        return -1
    for i in range(count):
        made[i].start = columns.starts[i]
        made[i].pid = columns.pids[i] if columns.pids != NULL else 0
        made[i].index = <uint32_t>i
        if i:
            order = compare(&made[i - 1], &made[i])
            rising += order < 0
            falling += order > 0
    if count and falling == count:
        for i in range(count // 2):
            swapped = made[i]
            made[i] = made[count - 1 - i]
            made[count - 1 - i] = swapped
    elif count and rising != count:
        qsort(made, count, sizeof(Placed), compare)
    placed[0] = made
    items[0] = room
    return 0
