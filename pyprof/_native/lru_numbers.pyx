# SPDX-License-Identifier: Apache-2.0
"""Cache of numbers for Python, in batches: lru.pxd call by call."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyprof._native.lru cimport LRU_MAX_ENTRIES
from pyprof._native.lru cimport LRU_MAX_WEIGHT
from pyprof._native.lru cimport LRU_NO_MEMORY
from pyprof._native.lru cimport LRU_REFUSED
from pyprof._native.lru cimport Lru
from pyprof._native.lru cimport Removal
from pyprof._native.lru cimport check_limits
from pyprof._native.lru cimport lru_clear
from pyprof._native.lru cimport lru_deinit
from pyprof._native.lru cimport lru_get
from pyprof._native.lru cimport lru_init
from pyprof._native.lru cimport lru_metrics
from pyprof._native.lru cimport lru_peek
from pyprof._native.lru cimport lru_purge
from pyprof._native.lru cimport lru_put
from pyprof._native.lru cimport lru_reason
from pyprof._native.lru cimport lru_remove
from pyprof._native.lru cimport lru_resize
from pyprof._native.lru cimport lru_take
from pyprof._native.lru cimport lru_tick

import os

cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")


cdef Py_ssize_t same_length(Py_ssize_t one, Py_ssize_t other) except -1:
    if one != other:
        raise ValueError("columns differ in length")
    return one


@cython.final
cdef class LruNumbers:
    """Cache from pairs of numbers of 64 bits to numbers, in batches that run without the GIL.

    The second word is the same for all keys of a batch. Lifetimes are in units of the times given to tick().
    reports: whether removals are kept until removals() is called.
    """

    cdef Lru lru
    cdef uint64_t idle
    cdef uint64_t lifetime

    def __cinit__(self, uint32_t capacity, *, uint64_t weight_limit=LRU_MAX_WEIGHT, uint64_t idle=0,
                  uint64_t lifetime=0, int64_t now=0, bint reports=True):
        self.idle = idle
        self.lifetime = lifetime
        check_limits(capacity, weight_limit)
        if lru_init(&self.lru, capacity, weight_limit, SEED, now, False, reports) < 0:
            raise MemoryError

    def __dealloc__(self):
        lru_deinit(&self.lru)

    def __len__(self):
        return self.lru.used

    def tick(self, int64_t now):
        """Sets the time of what follows."""
        lru_tick(&self.lru, now)

    def get_many(self, const uint64_t[::1] keys not None, uint64_t[::1] to not None, *, uint64_t second=0,
                 uint64_t missing=0, bint refresh=True):
        """Writes the value of each key, or `missing`. Returns how many were found."""
        cdef Py_ssize_t i, count = same_length(keys.shape[0], to.shape[0])
        cdef int64_t found = 0
        with nogil:
            for i in range(count):
                if lru_get(&self.lru, keys[i], second, refresh, &to[i]):
                    found += 1
                else:
                    to[i] = missing
        return found

    def peek_many(self, const uint64_t[::1] keys not None, uint64_t[::1] to not None, *, uint64_t second=0,
                  uint64_t missing=0):
        """As get_many, with no effect on order, lifetimes or metrics."""
        cdef Py_ssize_t i, count = same_length(keys.shape[0], to.shape[0])
        cdef int64_t found = 0
        with nogil:
            for i in range(count):
                if lru_peek(&self.lru, keys[i], second, &to[i]):
                    found += 1
                else:
                    to[i] = missing
        return found

    def put_many(self, const uint64_t[::1] keys not None, const uint64_t[::1] values not None, *,
                 uint64_t second=0, weight=1, idle=None, lifetime=None):
        """Keeps a value for each key. Returns how many were kept: not those that weigh more than the limit."""
        cdef uint64_t weighs = weight
        cdef uint64_t idles = self.idle if idle is None else idle
        cdef uint64_t lasts = self.lifetime if lifetime is None else lifetime
        cdef Py_ssize_t i, count = same_length(keys.shape[0], values.shape[0])
        cdef int64_t kept = 0
        cdef int answer = LRU_REFUSED
        with nogil:
            for i in range(count):
                answer = lru_put(&self.lru, keys[i], second, values[i], weighs, idles, lasts)
                if answer == LRU_NO_MEMORY:
                    break
                kept += answer != LRU_REFUSED
        if answer == LRU_NO_MEMORY:
            raise MemoryError
        return kept

    def remove_many(self, const uint64_t[::1] keys not None, *, uint64_t second=0):
        """Removes each key that is there. Returns how many were."""
        cdef Py_ssize_t i, count = keys.shape[0]
        cdef int64_t removed = 0
        cdef int answer = 0
        with nogil:
            for i in range(count):
                answer = lru_remove(&self.lru, keys[i], second)
                if answer < 0:
                    break
                removed += answer
        if answer < 0:
            raise MemoryError
        return removed

    def purge(self, *, uint64_t steps=LRU_MAX_WEIGHT):
        """Removes what has ended, in so many steps at most. Returns how many that were."""
        cdef int64_t count
        with nogil:
            count = lru_purge(&self.lru, LRU_MAX_ENTRIES, &steps)
        if count < 0:
            raise MemoryError
        return count

    def clear(self):
        """Removes all."""
        if lru_clear(&self.lru) < 0:
            raise MemoryError

    def resize(self, uint32_t capacity, uint64_t weight_limit=LRU_MAX_WEIGHT):
        """Sets both limits; what is too much is evicted."""
        check_limits(capacity, weight_limit)
        if lru_resize(&self.lru, capacity, weight_limit) < 0:
            raise MemoryError

    def removals(self):
        """[(key, second word, value, reason)] of what was removed since the last call."""
        cdef Removal removal
        taken = []
        while lru_take(&self.lru, &removal):
            taken.append((removal.a, removal.b, removal.value, lru_reason(removal.reason)))
        return taken

    def metrics(self):
        """What happened so far, by name: see lru_metrics."""
        return lru_metrics(&self.lru)
