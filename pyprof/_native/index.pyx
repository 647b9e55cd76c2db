# SPDX-License-Identifier: Apache-2.0
"""Bodies of index.pxd, and a small map on top of it for tests and benchmarks."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pyprof._native.memory cimport grow

cdef uint32_t MAX_SLOTS = <uint32_t>1 << 31


cdef int index_init(Index *index, uint32_t capacity) noexcept nogil:
    """capacity: entries to have room for at once. 0, or -1 without memory."""
    cdef uint32_t slots = 16
    while slots < MAX_SLOTS and slots // 2 < capacity:
        slots *= 2
    index.slots = <uint64_t *>calloc(slots, sizeof(uint64_t))
    index.mask = slots - 1
    index.used = 0
    return 0 if index.slots != NULL else -1


cdef void index_deinit(Index *index) noexcept nogil:
    free(index.slots)
    index.slots = NULL
    index.used = 0


cdef void index_clear(Index *index) noexcept nogil:
    memset(index.slots, 0, (<uint64_t>index.mask + 1) * sizeof(uint64_t))
    index.used = 0


cdef int index_reserve(Index *index) noexcept nogil:
    """Makes sure that one more entry fits at a load of one half. 0, or -1 without memory."""
    cdef uint64_t *old = index.slots
    cdef uint32_t old_mask = index.mask
    cdef uint64_t size = (<uint64_t>old_mask + 1) * 2
    cdef uint64_t i
    if index.used < (old_mask + 1) // 2:
        return 0
    if size > MAX_SLOTS:
        return -1
    index.slots = <uint64_t *>calloc(size, sizeof(uint64_t))
    if index.slots == NULL:
        index.slots = old
        return -1
    index.mask = <uint32_t>(size - 1)
    index.used = 0
    for i in range(<uint64_t>old_mask + 1):
        if old[i]:
            index_add(index, <uint32_t>(old[i] >> 32), slot_id(old[i]))
    free(old)
    return 0


cdef void index_remove(Index *index, uint32_t at) noexcept nogil:
    """Frees slot `at` and moves back the entries that probing had pushed past it."""
    cdef uint32_t hole = at
    cdef uint32_t here = at
    cdef uint32_t home
    while True:
        here = (here + 1) & index.mask
        if index.slots[here] == 0:
            break
        home = <uint32_t>(index.slots[here] >> 32) & index.mask
        # The entry may move to the hole unless its home lies after the hole (cyclically).
        if ((here - home) & index.mask) >= ((here - hole) & index.mask):
            index.slots[hole] = index.slots[here]
            hole = here
    index.slots[hole] = 0
    index.used -= 1


cdef class IndexMap:
    """Map from u64 keys to their order of insertion, over Index: the structure under test."""

    cdef Index index
    cdef uint64_t *keys
    cdef uint64_t capacity
    cdef uint32_t next

    def __cinit__(self, uint32_t capacity=0):
        self.keys = NULL
        if index_init(&self.index, capacity) < 0:
            raise MemoryError

    def __dealloc__(self):
        index_deinit(&self.index)
        free(self.keys)

    def __len__(self):
        return self.index.used

    cdef uint32_t find(self, uint64_t key) noexcept nogil:
        """Slot of a key, or the free slot that ends its probe sequence."""
        # The low bits alone, so that tests can make keys collide at will.
        cdef uint32_t tag = <uint32_t>key
        cdef uint32_t at = tag & self.index.mask
        while self.index.slots[at]:
            if self.keys[slot_id(self.index.slots[at])] == key:
                break
            at = (at + 1) & self.index.mask
        return at

    def add(self, uint64_t key):
        """Number of the key: an old one's, or the next free number."""
        cdef uint32_t at = self.find(key)
        if self.index.slots[at]:
            return slot_id(self.index.slots[at])
        if index_reserve(&self.index) < 0 or grow(
            <void **>&self.keys, &self.capacity, <uint64_t>self.next + 1, sizeof(uint64_t)
        ) < 0:
            raise MemoryError
        self.keys[self.next] = key
        index_add(&self.index, <uint32_t>key, self.next)
        self.next += 1
        return self.next - 1

    def get(self, uint64_t key):
        """Number of the key, or None."""
        cdef uint32_t at = self.find(key)
        return slot_id(self.index.slots[at]) if self.index.slots[at] else None

    def remove(self, uint64_t key):
        """True where the key was there."""
        cdef uint32_t at = self.find(key)
        if self.index.slots[at] == 0:
            return False
        index_remove(&self.index, at)
        return True
