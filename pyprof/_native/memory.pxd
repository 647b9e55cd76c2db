# SPDX-License-Identifier: Apache-2.0
"""Growing C arrays."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport realloc


cdef inline int grow(void **data, uint64_t *capacity, uint64_t needed, uint64_t item) noexcept nogil:
    """Makes room for `needed` items, at least doubling. 0, or -1 without memory (nothing changed)."""
    cdef uint64_t wanted = capacity[0]
    cdef void *moved
    if needed <= wanted:
        return 0
    # 2^40 bytes are more than any table of ours may have; it keeps the product below from wrapping.
    if needed > (<uint64_t>1 << 40) // item:
        return -1
    if wanted == 0:
        wanted = 16
    while wanted < needed:
        wanted *= 2
    moved = realloc(data[0], wanted * item)
    if moved == NULL:
        return -1
    data[0] = moved
    capacity[0] = wanted
    return 0


cdef struct List32:
    uint32_t *items
    uint64_t capacity
    uint64_t count


cdef inline int list_reserve(List32 *list, uint64_t count) noexcept nogil:
    """Makes room for so many items. 0, or -1 without memory."""
    return grow(<void **>&list.items, &list.capacity, count, sizeof(uint32_t))


cdef inline int list_push(List32 *list, uint32_t item) noexcept nogil:
    """0, or -1 without memory."""
    if list_reserve(list, list.count + 1) < 0:
        return -1
    list.items[list.count] = item
    list.count += 1
    return 0
