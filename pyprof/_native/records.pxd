# SPDX-License-Identifier: Apache-2.0
"""Records of the sample ring: csrc/pyprof_abi.h."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "pyprof_abi.h" nogil:
    enum:
        PYPROF_MAX_USER_FRAMES
        PYPROF_MAX_KERNEL_FRAMES
        PYPROF_FRAME_EXACT
        PYPROF_RECORD_SAMPLE
        PYPROF_RECORD_SLICE
        PYPROF_SLICE_BYTES
        PYPROF_CFA_NONE
        PYPROF_RA_UNDEFINED
        PYPROF_END_COMPLETE
        PYPROF_END_UNREADABLE
        PYPROF_END_NO_MAPPING
        PYPROF_END_TOO_DEEP
        PYPROF_END_KERNEL_TOO_DEEP
        PYPROF_END_PROCESS_GONE
        PYPROF_END_NOT_LOADED
        PYPROF_END_SLICE_SHORT
        PYPROF_END_STALE
        PYPROF_END_COUNT

    cdef struct pyprof_frame:
        uint64_t pc
        uint32_t mapping
        uint32_t flags

    cdef struct pyprof_sample:
        uint32_t record
        uint32_t slice
        uint64_t time
        uint64_t start_time
        uint32_t pid
        uint32_t tid
        uint16_t user_frames
        uint16_t kernel_frames
        uint8_t end
        uint8_t in_kernel
        uint8_t is_kernel_thread
        uint8_t reserved
        uint32_t cpu
        uint32_t exec_id
        uint32_t exec_pages
        uint32_t reserved2
        char process_name[16]
        char thread_name[16]

    cdef struct pyprof_slice:
        uint32_t record
        uint32_t number
        uint32_t cpu
        uint32_t size
        uint64_t base
        uint64_t pc
        uint64_t sp
        uint64_t fp
        uint64_t registers[16]
        uint8_t has_registers
        uint8_t has_fp
        uint8_t exact
        uint8_t holes


cdef inline uint64_t padded(uint64_t size) noexcept nogil:
    return (size + 7) & ~<uint64_t>7
