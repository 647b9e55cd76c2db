# SPDX-License-Identifier: Apache-2.0
"""Bodies of waiting.pxd."""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pyprof._native.memory cimport grow
from pyprof._native.ranges cimport ranges_release, ranges_share
from pyprof._native.records cimport padded

cdef uint64_t MAX_WAITING = 16 << 20


cdef bint waiting_add(
    Waiting *waiting, const Process *process, const pyprof_sample *sample, uint64_t size,
    const pyprof_slice *slice
) noexcept nogil:
    """Keeps a sample until its process or unwind rows are known; False where there is no room for it."""
    cdef Held held
    cdef uint64_t needed
    cdef uint8_t *to
    memset(&held, 0, sizeof(Held))
    held.size = size
    held.slice_size = sizeof(pyprof_slice) + slice.size if slice != NULL else 0
    needed = waiting.used + sizeof(Held) + padded(held.size) + padded(held.slice_size)
    if needed > MAX_WAITING or grow(<void **>&waiting.bytes, &waiting.capacity, needed, 1) < 0:
        return False
    to = waiting.bytes + waiting.used
    if process.known:
        # It may exec, or map something else there, before the rows come.
        held.serial = process.serial
        held.program = process.program
        held.parent = process.parent
        held.ranges = ranges_share(process.ranges)
    memcpy(to, &held, sizeof(Held))
    memcpy(to + sizeof(Held), sample, size)
    if slice != NULL:
        memcpy(to + sizeof(Held) + padded(size), slice, held.slice_size)
    waiting.used = needed
    waiting.count += 1
    return True


cdef const Held *waiting_at(
    const Waiting *waiting, uint64_t *at, const pyprof_sample **sample, const pyprof_slice **slice
) noexcept nogil:
    """The item at a position, which moves on to the next; NULL behind the last. slice: NULL for none."""
    cdef const Held *held
    if at[0] >= waiting.used:
        return NULL
    held = <const Held *>(waiting.bytes + at[0])
    sample[0] = <const pyprof_sample *>(held + 1)
    slice[0] = NULL
    if held.slice_size:
        slice[0] = <const pyprof_slice *>(<const uint8_t *>(held + 1) + padded(held.size))
    at[0] += sizeof(Held) + padded(held.size) + padded(held.slice_size)
    return held


cdef void waiting_deinit(Waiting *waiting) noexcept nogil:
    cdef const Held *held
    cdef const pyprof_sample *sample
    cdef const pyprof_slice *slice
    cdef uint64_t at = 0
    while True:
        held = waiting_at(waiting, &at, &sample, &slice)
        if held == NULL:
            break
        ranges_release(held.ranges)
    free(waiting.bytes)
    memset(waiting, 0, sizeof(Waiting))
