# SPDX-License-Identifier: Apache-2.0
"""Bodies of slices.pxd."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pyprof._native.memory cimport grow
from pyprof._native.records cimport PYPROF_SLICE_BYTES

cdef uint32_t MAX_CPUS = 1 << 16


cdef void slices_keep(Slices *slices, const pyprof_slice *slice, uint64_t size) noexcept nogil:
    """Copies a slice, the ring's place being wanted back: its sample comes later, and of that CPU next."""
    cdef LastSlice *last
    cdef uint64_t had = slices.capacity
    if (
        size < sizeof(pyprof_slice) or slice.size > PYPROF_SLICE_BYTES
        or size < sizeof(pyprof_slice) + slice.size or slice.cpu >= MAX_CPUS
    ):
        slices.malformed += 1
        return
    if grow(<void **>&slices.cpus, &slices.capacity, <uint64_t>slice.cpu + 1, sizeof(LastSlice)) < 0:
        return
    if slices.capacity != had:
        memset(&slices.cpus[had], 0, (slices.capacity - had) * sizeof(LastSlice))
    last = &slices.cpus[slice.cpu]
    last.number = 0
    size = sizeof(pyprof_slice) + slice.size
    if grow(<void **>&last.bytes, &last.capacity, size, 1) == 0:
        memcpy(last.bytes, slice, size)
        last.number = slice.number


cdef const pyprof_slice *slices_find(const Slices *slices, const pyprof_sample *sample) noexcept nogil:
    """The slice that a sample goes on with, or NULL."""
    if sample.slice == 0 or sample.cpu >= slices.capacity or slices.cpus[sample.cpu].number != sample.slice:
        return NULL
    return <const pyprof_slice *>slices.cpus[sample.cpu].bytes


cdef void slices_deinit(Slices *slices) noexcept nogil:
    cdef uint64_t i
    for i in range(slices.capacity):
        free(slices.cpus[i].bytes)
    free(slices.cpus)
