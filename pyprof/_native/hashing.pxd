# SPDX-License-Identifier: Apache-2.0
"""The hash functions of csrc/hash.h."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t


cdef extern from "hash.h" nogil:
    uint64_t pyprof_hash_fold(uint64_t a, uint64_t b) noexcept
    uint64_t pyprof_hash_two(uint64_t a, uint64_t b, uint64_t seed) noexcept
    uint64_t pyprof_hash_bytes(const void *data, size_t size, uint64_t seed) noexcept
