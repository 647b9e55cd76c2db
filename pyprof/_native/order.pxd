# SPDX-License-Identifier: Apache-2.0
"""A list of numbers with room at both ends, for an order that changes anywhere: what is inserted moves the
shorter side, so that lists built from either end cost nothing, and others half."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove


cdef struct Order:
    uint32_t *ids  # in `memory`
    uint32_t *memory
    uint64_t capacity
    uint32_t count


cdef inline int order_lay_out(Order *order, uint64_t count) noexcept nogil:
    """Gives an order room for so many numbers, and for some more at both ends. 0, or -1 without memory."""
    cdef uint64_t capacity = count + 2 * (2 + count // 2)
    cdef uint32_t *memory = <uint32_t *>malloc(capacity * sizeof(uint32_t))
    cdef uint32_t *ids
    if memory == NULL:
        return -1
    ids = memory + (capacity - order.count) // 2
    if order.count:
        memcpy(ids, order.ids, order.count * sizeof(uint32_t))
    free(order.memory)
    order.memory = memory
    order.ids = ids
    order.capacity = capacity
    return 0


cdef inline bint order_has_room(const Order *order) noexcept nogil:
    """Whether one more fits on each side."""
    return order.memory != NULL and order.ids > order.memory and (
        order.ids + order.count < order.memory + order.capacity
    )


cdef inline void order_put(Order *order, uint32_t at, uint32_t id) noexcept nogil:
    """Inserts a number; there must be room."""
    if at < order.count - at:
        memmove(order.ids - 1, order.ids, at * sizeof(uint32_t))
        order.ids -= 1
    else:
        memmove(&order.ids[at + 1], &order.ids[at], (order.count - at) * sizeof(uint32_t))
    order.ids[at] = id
    order.count += 1


cdef inline void order_cut(Order *order, uint32_t first, uint32_t after) noexcept nogil:
    """Removes the numbers at [first, after)."""
    if first < order.count - after:
        memmove(order.ids + (after - first), order.ids, first * sizeof(uint32_t))
        order.ids += after - first
    else:
        memmove(&order.ids[first], &order.ids[after], (order.count - after) * sizeof(uint32_t))
    order.count -= after - first
