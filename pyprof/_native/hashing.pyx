# SPDX-License-Identifier: Apache-2.0
"""The hash functions for Python: test vectors, benchmarks."""

from libc.stdint cimport uint64_t


def hash_two(uint64_t a, uint64_t b, uint64_t seed=0):
    """64-bit hash of two words."""
    return pyprof_hash_two(a, b, seed)


def hash_bytes(const unsigned char[::1] data not None, uint64_t seed=0):
    """64-bit hash of a byte string."""
    if data.shape[0] == 0:
        return pyprof_hash_bytes(b"", 0, seed)
    return pyprof_hash_bytes(&data[0], <size_t>data.shape[0], seed)
