# SPDX-License-Identifier: Apache-2.0
"""Columns of unwind rows as bytes that compress well, and back; both without the GIL.

Addresses become steps from row to row, the first step 0. Steps, and behind them rule numbers, are stored by planes:
first the lowest bytes of all rows, then the next ones, as many as the highest needs. Higher planes are nearly all
zero.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX
from libc.stdint cimport uint8_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.stdlib cimport malloc

cdef enum:
    BLOCK = 1024  # rows that are joined at once: their steps stay in the fastest cache


cdef uint32_t bytes_of(uint32_t highest) noexcept nogil:
    return 1 + (highest > 0xff) + (highest > 0xffff) + (highest > 0xffffff)


cdef void split(const uint32_t *values, uint64_t count, uint32_t width, uint8_t *planes) noexcept nogil:
    cdef uint32_t plane
    cdef uint64_t i
    for plane in range(width):
        for i in range(count):
            planes[plane * count + i] = <uint8_t>(values[i] >> (8 * plane))


cdef void join(const uint8_t *planes, uint64_t stride, uint64_t count, uint32_t width, uint32_t *ret) noexcept nogil:
    """`count` values of planes that lie `stride` bytes apart."""
    cdef uint32_t plane
    cdef uint64_t i
    for i in range(count):
        ret[i] = planes[i]
    for plane in range(1, width):
        for i in range(count):
            ret[i] |= <uint32_t>planes[plane * stride + i] << (8 * plane)


cdef bint steps_of(const uint64_t *addresses, uint64_t count, uint32_t *ret) noexcept nogil:
    """False where addresses do not ascend, or one is 4 GiB or more behind the one before."""
    cdef uint64_t i
    ret[0] = 0
    for i in range(1, count):
        if addresses[i] <= addresses[i - 1] or addresses[i] - addresses[i - 1] > UINT32_MAX:
            return False
        ret[i] = <uint32_t>(addresses[i] - addresses[i - 1])
    return True


cdef uint32_t highest(const uint32_t *values, uint64_t count) noexcept nogil:
    cdef uint32_t found = 0
    cdef uint64_t i
    for i in range(count):
        found = max(found, values[i])
    return found


cdef bint join_rows(
    const uint8_t *planes, uint64_t count, uint32_t step_bytes, uint32_t number_bytes, uint64_t first,
    uint32_t rule_count, uint64_t *addresses, uint32_t *numbers,
) noexcept nogil:
    """False where addresses do not ascend from `first`, or a number has no rule."""
    cdef uint32_t steps[BLOCK]
    cdef uint64_t block
    cdef uint64_t start
    cdef uint64_t length
    cdef uint64_t i
    cdef uint64_t address = first
    cdef uint64_t before
    for block in range((count + BLOCK - 1) // BLOCK):
        start = block * BLOCK
        length = min(<uint64_t>BLOCK, count - start)
        join(planes + start, count, length, step_bytes, steps)
        for i in range(length):
            before = address
            address += steps[i]
            addresses[start + i] = address
            # Also where the sum wraps around.
            if address <= before and start + i:
                return False
        if start == 0 and steps[0]:
            return False
        join(planes + step_bytes * count + start, count, length, number_bytes, numbers + start)
    return highest(numbers, count) < rule_count


cdef uint32_t number_bytes_of(uint32_t rule_count) noexcept nogil:
    return bytes_of(rule_count - 1 if rule_count else 0)


def packed_size(uint64_t row_count, uint32_t step_bytes, uint32_t rule_count):
    """Bytes that pack_rows makes of so many rows."""
    return row_count * (<uint64_t>step_bytes + number_bytes_of(rule_count))


def pack_rows(const uint64_t[::1] addresses not None, const uint32_t[::1] numbers not None, uint32_t rule_count):
    """Bytes of rows; what they do not tell is the first address.

    Args:
        addresses: where rows begin, ascending.
        numbers: of their rules, each below `rule_count`.
        rule_count: number of rules.

    Returns:
        How many bytes a step has, 1 to 4, and the bytes. None for no rows, where two addresses are 4 GiB or more
        apart or do not ascend, and where a row has no rule.
    """
    cdef uint64_t count = <uint64_t>addresses.shape[0]
    cdef uint32_t step_bytes
    cdef uint32_t number_bytes = number_bytes_of(rule_count)
    cdef uint32_t *steps
    cdef uint8_t *planes
    cdef bint done
    if numbers.shape[0] != addresses.shape[0]:
        raise ValueError("columns differ in length")
    if count == 0:
        return None
    steps = <uint32_t *>malloc(count * sizeof(uint32_t))
    if steps == NULL:
        raise MemoryError
    try:
        with nogil:
            done = highest(&numbers[0], count) < rule_count and steps_of(&addresses[0], count, steps)
            step_bytes = bytes_of(highest(steps, count)) if done else 0
        if not done:
            return None
        packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * (step_bytes + number_bytes)))
        planes = <uint8_t *>PyBytes_AS_STRING(packed)
        with nogil:
            split(steps, count, step_bytes, planes)
            split(&numbers[0], count, number_bytes, planes + step_bytes * count)
    finally:
        free(steps)
    return step_bytes, packed


def unpack_rows(
    const uint8_t[::1] packed not None, uint64_t row_count, uint32_t step_bytes, uint64_t first, uint32_t rule_count
):
    """Rows from what pack_rows made.

    Args:
        packed: the bytes.
        row_count: how many rows.
        step_bytes: as pack_rows told.
        first: address of the first row.
        rule_count: how many rules there are.

    Returns:
        Addresses (uint64) and rule numbers (uint32), read-only. None where these are no rows: the sizes do not fit,
        addresses do not ascend, or a row has no rule.
    """
    cdef uint64_t size = <uint64_t>packed.shape[0]
    cdef uint32_t number_bytes = number_bytes_of(rule_count)
    cdef uint64_t *address_column
    cdef uint32_t *number_column
    cdef bint done
    if not 1 <= step_bytes <= 4 or row_count == 0:
        return None
    if size % (step_bytes + number_bytes) or size // (step_bytes + number_bytes) != row_count:
        return None
    addresses = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(row_count * sizeof(uint64_t)))
    numbers = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(row_count * sizeof(uint32_t)))
    address_column = <uint64_t *>PyBytes_AS_STRING(addresses)
    number_column = <uint32_t *>PyBytes_AS_STRING(numbers)
    with nogil:
        done = join_rows(
            &packed[0], row_count, step_bytes, number_bytes, first, rule_count, address_column, number_column
        )
    if not done:
        return None
    return memoryview(addresses).cast("Q"), memoryview(numbers).cast("I")
