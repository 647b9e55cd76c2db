# SPDX-License-Identifier: Apache-2.0
"""Signs in samples that a process is not what events say: see signs.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from pyprof._native.ranges cimport Ranges
from pyprof._native.records cimport pyprof_sample


cdef struct Signs:  # of a process
    uint64_t changed_at  # when its mappings were last read, or an event told of one
    int64_t pages  # of its ranges
    int64_t surplus  # of the kernel's count of executable pages over them
    uint32_t exec_id  # of the kernel's count of execs
    uint8_t has_exec_id
    uint8_t counted  # pages is what the ranges have
    uint8_t learn  # surplus is to be taken from the next sample
    uint8_t in_vain  # times in a row that the maps were read, and were what was known
    uint8_t doubted  # samples wait until its maps are read


cdef enum Doubt:
    NO_DOUBT = 0
    MAPS_IN_DOUBT = 1  # they should be read
    SAMPLE_IN_DOUBT = 2  # and it has to wait for that


cdef void signs_mapped(Signs *signs, uint64_t time, bint writable) noexcept nogil
cdef void signs_scanned(
    Signs *signs, const Ranges *ranges, Ranges *fresh, uint64_t time, uint64_t uncounted
) noexcept nogil
cdef int32_t signs_execs(Signs *signs, const pyprof_sample *sample) noexcept nogil
cdef Doubt signs_doubt(Signs *signs, const Ranges *ranges, const pyprof_sample *sample) noexcept nogil
