# SPDX-License-Identifier: Apache-2.0
"""Least-recently-used cache from 128-bit keys to 64-bit values, for use without the GIL.

Rules for the user:

- Limits are a number of entries and a total weight. Entries, their index and their lifetimes are one block of
  memory that only lru_resize replaces; parts that are not used (lifetimes) are never touched.
- lru_tick sets the time, once a batch; no operation reads a clock. A clock that goes backwards counts as one
  that stands: lifetimes go on from there, nobody lives for ever and nobody dies of it.
- Each removal is queued with its reason. lru_take hands them out one by one, between operations, when the cache
  may be used at will; whoever does not take them soon pays with memory. lru_init(reports=False) queues none.
- inserts == sum(removed) + used, always.
- An entry that has ended but was not purged still counts in `used`; it is never found.

A key is two words; the second is 0 where one suffices. With lru_init(objects=True) only the first word takes part
in hashing, as a hash that the user made, and the user compares what the second word stands for.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyprof._native.hashing cimport pyprof_hash_fold
from pyprof._native.leases cimport Lease
from pyprof._native.leases cimport Wheel
from pyprof._native.leases cimport lease_ended
from pyprof._native.leases cimport lease_refresh


cdef extern from *:
    """
    #define LRU_MAX_WEIGHT ((uint64_t)INT64_MAX)  /* the sum of two fits in 64 bits */
    """
    const uint64_t LRU_MAX_WEIGHT

cdef enum:
    LRU_MAX_ENTRIES = 1 << 29

    # Reasons of removal
    LRU_EVICT = 0  # there was no room
    LRU_EXPIRE = 1  # its lifetime had ended
    LRU_REPLACE = 2  # its key was given another value
    LRU_REMOVE = 3
    LRU_CLEAR = 4
    LRU_REASONS = 5

    # Answers of lru_store and lru_put
    LRU_NO_MEMORY = -1
    LRU_REFUSED = 0  # heavier than all that may be kept; what the key had before was replaced all the same
    LRU_INSERTED = 1
    LRU_REPLACED = 2


cdef struct Entry:
    uint64_t a
    uint64_t b
    uint64_t value
    uint32_t next  # towards the least recently used; of an entry that is free: the next free one
    uint32_t prev


cdef struct Removal:
    uint64_t a
    uint64_t b
    uint64_t value
    uint8_t reason


cdef struct Lru:
    uint32_t *slots  # of the index: number of the entry, and above id_mask some bits of its tag; 0 is free
    Entry *entries  # number 0 is where the circle of use begins and ends
    Lease *leases  # of each entry; all zero where it has no lifetime and a weight of 1
    void *memory
    uint32_t mask  # of the slots; a tag's lowest bits say where its slot is, or would be
    uint32_t id_mask
    uint32_t capacity
    uint32_t used
    uint32_t fresh  # entries from this number on were never used
    uint32_t free  # first of those given back, or 0
    uint32_t weighed  # entries whose weight is not 1
    uint64_t weight
    uint64_t weight_limit
    uint64_t seed  # of the hash: for the first word, and
    uint64_t second_seed
    uint64_t hashed_b  # mask of the second word
    uint64_t generation  # changes when an entry comes, goes or moves in memory
    uint64_t now
    int64_t clock
    uint64_t hits
    uint64_t misses
    uint64_t inserts
    uint64_t refused
    uint64_t removed[LRU_REASONS]
    bint reports
    Removal *queue
    uint64_t queue_capacity
    uint64_t queue_first
    uint64_t queue_end
    Wheel wheel


cdef int lru_init(Lru *lru, uint32_t capacity, uint64_t weight_limit, uint64_t seed, int64_t clock,
                  bint objects, bint reports) noexcept nogil
cdef void lru_deinit(Lru *lru) noexcept nogil
cdef int lru_reserve(Lru *lru, uint64_t removals) noexcept nogil
cdef void lru_drop(Lru *lru, uint32_t id, uint8_t reason) noexcept nogil
cdef int lru_store(Lru *lru, uint32_t id, uint64_t a, uint64_t b, uint64_t value, uint64_t weight,
                   uint64_t idle, uint64_t lifetime) noexcept nogil
cdef int lru_put(Lru *lru, uint64_t a, uint64_t b, uint64_t value, uint64_t weight,
                 uint64_t idle, uint64_t lifetime) noexcept nogil
cdef int lru_discard(Lru *lru, uint32_t id) noexcept nogil
cdef void lru_expire(Lru *lru, uint32_t id) noexcept nogil
cdef int lru_clear(Lru *lru) noexcept nogil
cdef int lru_resize(Lru *lru, uint32_t capacity, uint64_t weight_limit) noexcept nogil
cdef int64_t lru_purge(Lru *lru, uint64_t limit, uint64_t *budget) noexcept nogil


cdef inline void lru_tick(Lru *lru, int64_t clock) noexcept nogil:
    """Sets the time: what the clock says, in the unit of the lifetimes."""
    if clock > lru.clock:
        lru.now += <uint64_t>clock - <uint64_t>lru.clock
    lru.clock = clock


cdef inline uint32_t lru_tag(const Lru *lru, uint64_t a, uint64_t b) noexcept nogil:
    return <uint32_t>pyprof_hash_fold(a ^ lru.seed, (b & lru.hashed_b) ^ lru.second_seed)


cdef inline bint lru_may_be(const Lru *lru, uint32_t slot, uint32_t tag) noexcept nogil:
    """Whether a slot that is in use may be that of a tag: the bits that it has are the same."""
    return (slot ^ tag) <= lru.id_mask


cdef inline uint32_t lru_find(const Lru *lru, uint64_t a, uint64_t b) noexcept nogil:
    """Number of the entry of a key, whether it has ended or not; 0 where there is none."""
    cdef uint32_t tag = lru_tag(lru, a, b)
    cdef uint32_t at = tag & lru.mask
    cdef uint32_t slot = lru.slots[at]
    cdef const Entry *entry
    while slot:  # at most two fifths of the slots are in use
        if lru_may_be(lru, slot, tag):
            entry = &lru.entries[slot & lru.id_mask]
            if entry.a == a and entry.b == b:
                return slot & lru.id_mask
        at = (at + 1) & lru.mask
        slot = lru.slots[at]
    return 0


cdef inline bint lru_ended(const Lru *lru, uint32_t id) noexcept nogil:
    """Whether the lifetime of an entry has ended."""
    return lru.wheel.count != 0 and lease_ended(&lru.leases[id], lru.now)


cdef inline void lru_to_front(Lru *lru, uint32_t id) noexcept nogil:
    """Makes an entry the most recently used one."""
    cdef Entry *entries = lru.entries
    cdef Entry *entry = &entries[id]
    cdef uint32_t first = entries[0].next
    if first == id:
        return
    entries[entry.prev].next = entry.next
    entries[entry.next].prev = entry.prev
    entry.prev = 0
    entry.next = first
    entries[first].prev = id
    entries[0].next = id


cdef inline bint lru_use(Lru *lru, uint32_t id, bint refresh) noexcept nogil:
    """Counts a look-up that found this entry (0: none). True: a hit, and the entry is now the most recent one;
    refresh: its idle lifetime begins anew. False: a miss; an entry that has ended is removed."""
    if id == 0:
        lru.misses += 1
        return False
    if lru.wheel.count:
        if lease_ended(&lru.leases[id], lru.now):
            lru_expire(lru, id)
            lru.misses += 1
            return False
        if refresh:
            lease_refresh(&lru.leases[id], lru.now)
    lru_to_front(lru, id)
    lru.hits += 1
    return True


cdef inline bint lru_get(Lru *lru, uint64_t a, uint64_t b, bint refresh, uint64_t *ret) noexcept nogil:
    """A hit or a miss (lru_use), with the value."""
    cdef uint32_t id = lru_find(lru, a, b)
    if not lru_use(lru, id, refresh):
        return False
    ret[0] = lru.entries[id].value
    return True


cdef inline bint lru_is_plain(const Lru *lru) noexcept nogil:
    """Whether all entries weigh 1 and live without end."""
    return lru.weighed == 0 and lru.wheel.count == 0


cdef inline uint64_t lru_exchange(Lru *lru, uint32_t id, uint64_t value) noexcept nogil:
    """What lru_store does in a plain cache for a plain value of a key that is there, except that nothing is
    queued: this returns the old value."""
    cdef uint64_t old = lru.entries[id].value
    lru.entries[id].value = value
    lru_to_front(lru, id)
    lru.inserts += 1
    lru.removed[LRU_REPLACE] += 1
    return old


cdef inline bint lru_peek(const Lru *lru, uint64_t a, uint64_t b, uint64_t *ret) noexcept nogil:
    """The value, with no effect on anything."""
    cdef uint32_t id = lru_find(lru, a, b)
    if id == 0 or lru_ended(lru, id):
        return False
    ret[0] = lru.entries[id].value
    return True


cdef inline int lru_remove(Lru *lru, uint64_t a, uint64_t b) noexcept nogil:
    """1: removed; 0: there was none, or it had ended; -1: no memory to report it, nothing changed."""
    cdef uint32_t id = lru_find(lru, a, b)
    return lru_discard(lru, id) if id else 0


cdef inline bint lru_take(Lru *lru, Removal *ret) noexcept nogil:
    """Hands out the removal that was queued first."""
    if lru.queue_first == lru.queue_end:
        return False
    ret[0] = lru.queue[lru.queue_first]
    lru.queue_first += 1
    if lru.queue_first == lru.queue_end:
        lru.queue_first = 0
        lru.queue_end = 0
    return True


cdef str lru_reason(uint8_t reason)
cdef dict lru_metrics(const Lru *lru)
cdef int check_limits(uint64_t capacity, uint64_t weight_limit) except -1
