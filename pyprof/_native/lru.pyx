# SPDX-License-Identifier: Apache-2.0
"""Bodies of lru.pxd."""

from cpython.mem cimport PyMem_RawCalloc
from cpython.mem cimport PyMem_RawFree
from cpython.mem cimport PyMem_RawRealloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from pyprof._native.leases cimport lease_begin
from pyprof._native.leases cimport wheel_clear
from pyprof._native.leases cimport wheel_ended
from pyprof._native.leases cimport wheel_link
from pyprof._native.leases cimport wheel_unlink

cdef enum:
    LINE = 64  # bytes; no entry lies across two cache lines
    MIN_QUEUE = 8
    ROOM_STEPS = 8  # of the wheel, at each insertion into a full cache


cdef uint64_t slots_for(uint32_t capacity) noexcept nogil:
    cdef uint64_t slots = 16
    while 2 * slots < 5 * <uint64_t>capacity:
        slots *= 2
    return slots


cdef void *storage_new(uint32_t capacity) noexcept nogil:
    """A block of memory for so many entries, or NULL."""
    # Zeroed pages come from the kernel when they are first touched. The raw domain needs no GIL, and tracemalloc
    # sees it.
    return PyMem_RawCalloc(1, (
        LINE
        + slots_for(capacity) * sizeof(uint32_t)
        + (<uint64_t>capacity + 1) * (sizeof(Entry) + sizeof(Lease))
    ))


cdef void storage_use(Lru *lru, void *memory, uint32_t capacity) noexcept nogil:
    """Makes a cache an empty one in this block."""
    cdef uint64_t slots = slots_for(capacity)
    cdef uintptr_t at = (<uintptr_t>memory + LINE - 1) & ~<uintptr_t>(LINE - 1)
    lru.memory = memory
    lru.slots = <uint32_t *>at
    lru.entries = <Entry *>(lru.slots + slots)
    lru.leases = <Lease *>(lru.entries + capacity + 1)
    lru.mask = <uint32_t>(slots - 1)
    lru.id_mask = <uint32_t>(slots - 1)
    while lru.id_mask // 2 >= capacity:  # numbers go up to the capacity
        lru.id_mask //= 2
    lru.capacity = capacity
    lru.used = 0
    lru.fresh = 1
    lru.free = 0
    lru.weighed = 0
    lru.weight = 0
    lru.generation += 1
    wheel_clear(&lru.wheel)


cdef int lru_init(Lru *lru, uint32_t capacity, uint64_t weight_limit, uint64_t seed, int64_t clock,
                  bint objects, bint reports) noexcept nogil:
    """0, or -1: capacity not in 1..LRU_MAX_ENTRIES, weight_limit over LRU_MAX_WEIGHT, or no memory.

    seed: of the hash, for keys that somebody else chose. clock: what the clock says now.
    """
    cdef void *memory
    memset(lru, 0, sizeof(Lru))
    lru.seed = seed
    lru.second_seed = (seed >> 32 | seed << 32) ^ <uint64_t>0xBB67AE8584CAA73B
    lru.hashed_b = 0 if objects else <uint64_t>0xFFFFFFFFFFFFFFFF
    lru.reports = reports
    lru.now = 1  # 0 as a deadline means never
    lru.wheel.reached = lru.now
    lru.clock = clock
    lru.weight_limit = weight_limit
    if capacity == 0 or capacity > LRU_MAX_ENTRIES or weight_limit > LRU_MAX_WEIGHT:
        return -1
    memory = storage_new(capacity)
    if memory == NULL:
        return -1
    storage_use(lru, memory, capacity)
    return 0


cdef void lru_deinit(Lru *lru) noexcept nogil:
    PyMem_RawFree(lru.memory)
    PyMem_RawFree(lru.queue)
    lru.memory = NULL
    lru.entries = NULL
    lru.queue = NULL


cdef int lru_reserve(Lru *lru, uint64_t removals) noexcept nogil:
    """Makes room to report so many removals. 0, or -1 without memory."""
    cdef uint64_t wanted = lru.queue_end + removals
    cdef void *moved
    if wanted <= lru.queue_capacity or not lru.reports:
        return 0
    if wanted < 2 * lru.queue_capacity:
        wanted = 2 * lru.queue_capacity
    if wanted < MIN_QUEUE:
        wanted = MIN_QUEUE
    moved = PyMem_RawRealloc(lru.queue, wanted * sizeof(Removal))
    if moved == NULL:
        return -1
    lru.queue = <Removal *>moved
    lru.queue_capacity = wanted
    return 0


cdef inline void queue_push(Lru *lru, const Entry *entry, uint8_t reason) noexcept nogil:
    """Counts a removal and reports it; lru_reserve must have made the room."""
    cdef Removal *removal
    lru.removed[reason] += 1
    if lru.reports:
        removal = &lru.queue[lru.queue_end]
        removal.a = entry.a
        removal.b = entry.b
        removal.value = entry.value
        removal.reason = reason
        lru.queue_end += 1


cdef inline void index_unlink(Lru *lru, uint32_t id) noexcept nogil:
    """Frees the slot of an entry, and moves back those that probing had pushed past it."""
    cdef uint32_t *slots = lru.slots
    cdef uint32_t mask = lru.mask
    cdef const Entry *entry
    cdef uint32_t hole = lru_tag(lru, lru.entries[id].a, lru.entries[id].b) & mask
    cdef uint32_t here
    cdef uint32_t home
    while slots[hole] & lru.id_mask != id:  # it is there: every entry in use has one slot
        hole = (hole + 1) & mask
    here = hole
    while True:
        here = (here + 1) & mask
        if slots[here] == 0:
            break
        entry = &lru.entries[slots[here] & lru.id_mask]
        home = lru_tag(lru, entry.a, entry.b) & mask
        # It may move to the hole unless its home lies after the hole (cyclically).
        if ((here - home) & mask) >= ((here - hole) & mask):
            slots[hole] = slots[here]
            hole = here
    slots[hole] = 0


cdef inline void weight_set(Lru *lru, uint32_t id, uint64_t weight) noexcept nogil:
    """Most entries of most caches weigh 1: their leases are not touched."""
    if lru.weighed == 0 and weight == 1:
        return
    # Less 1, modulo 2^64.
    lru.weight += weight - 1 - lru.leases[id].weight
    lru.weighed += (weight != 1) - (lru.leases[id].weight != 0)
    lru.leases[id].weight = weight - 1


cdef inline void lease_set(Lru *lru, uint32_t id, uint64_t idle, uint64_t lifetime) noexcept nogil:
    """Begins the lifetimes of an entry; 0: none."""
    if lru.wheel.count == 0 and idle == 0 and lifetime == 0:
        return
    wheel_unlink(&lru.wheel, lru.leases, id)
    lease_begin(&lru.leases[id], lru.now, idle, lifetime)
    wheel_link(&lru.wheel, lru.leases, id)


cdef inline uint64_t entry_weight(const Lru *lru, uint32_t id) noexcept nogil:
    return lru.leases[id].weight + 1 if lru.weighed else 1


cdef void lru_drop(Lru *lru, uint32_t id, uint8_t reason) noexcept nogil:
    """Removes an entry and reports it; lru_reserve must have made the room."""
    cdef Entry *entry = &lru.entries[id]
    index_unlink(lru, id)
    lru.entries[entry.prev].next = entry.next
    lru.entries[entry.next].prev = entry.prev
    weight_set(lru, id, 1)
    lru.weight -= 1
    lease_set(lru, id, 0, 0)
    queue_push(lru, entry, reason)
    entry.next = lru.free
    lru.free = id
    lru.used -= 1
    lru.generation += 1


cdef inline uint32_t entry_add(Lru *lru, uint64_t a, uint64_t b, uint64_t value) noexcept nogil:
    """Adds an entry as the most recently used one; there must be room, and no entry of that key."""
    cdef uint32_t tag = lru_tag(lru, a, b)
    cdef uint32_t at = tag & lru.mask
    cdef uint32_t id = lru.free
    cdef Entry *entry
    if id:
        lru.free = lru.entries[id].next
    else:
        id = lru.fresh
        lru.fresh += 1
    while lru.slots[at]:
        at = (at + 1) & lru.mask
    lru.slots[at] = (tag & ~lru.id_mask) | id
    entry = &lru.entries[id]
    entry.a = a
    entry.b = b
    entry.value = value
    entry.prev = 0
    entry.next = lru.entries[0].next
    lru.entries[entry.next].prev = id
    lru.entries[0].next = id
    lru.used += 1
    lru.weight += 1
    lru.generation += 1
    return id


cdef inline bint too_much(const Lru *lru, uint32_t more, uint64_t heavier) noexcept nogil:
    """Whether so many entries more, heavier by so much (modulo 2^64) in all, are too many or too heavy."""
    return lru.used + more > lru.capacity or lru.weight + heavier > lru.weight_limit


cdef int make_room(Lru *lru, uint32_t more, uint64_t heavier) noexcept nogil:
    """Removes, until there is room, what has ended, as far as that is found in a few steps, and then what was
    used least recently. 0, or -1 without memory to report it."""
    cdef uint64_t budget = ROOM_STEPS
    cdef uint32_t id
    while too_much(lru, more, heavier):
        if lru_reserve(lru, 1) < 0:
            return -1
        id = wheel_ended(&lru.wheel, lru.leases, lru.now, &budget)
        if id:
            lru_drop(lru, id, LRU_EXPIRE)
        else:
            id = lru.entries[0].prev
            lru_drop(lru, id, LRU_EXPIRE if lru_ended(lru, id) else LRU_EVICT)
    return 0


cdef int lru_store(Lru *lru, uint32_t id, uint64_t a, uint64_t b, uint64_t value, uint64_t weight,
                   uint64_t idle, uint64_t lifetime) noexcept nogil:
    """lru_put where the entry of the key was looked up: its number, or 0. On LRU_REPLACED the entry keeps the
    key that it had, which is queued also."""
    cdef uint64_t old
    if lru_reserve(lru, 1) < 0:
        return LRU_NO_MEMORY
    if id and lru_ended(lru, id):
        lru_drop(lru, id, LRU_EXPIRE)
        id = 0
    if weight > lru.weight_limit:
        if id:
            lru_drop(lru, id, LRU_REPLACE)
        lru.refused += 1
        return LRU_REFUSED
    if id == 0:
        if make_room(lru, 1, weight) < 0:
            return LRU_NO_MEMORY
        id = entry_add(lru, a, b, value)
        weight_set(lru, id, weight)
        lease_set(lru, id, idle, lifetime)
        lru.inserts += 1
        return LRU_INSERTED
    old = entry_weight(lru, id)
    # In front it is the last to give way; and alone it fits.
    lru_to_front(lru, id)
    if make_room(lru, 0, weight - old) < 0 or lru_reserve(lru, 1) < 0:
        return LRU_NO_MEMORY
    queue_push(lru, &lru.entries[id], LRU_REPLACE)
    lru.entries[id].value = value
    weight_set(lru, id, weight)
    lease_set(lru, id, idle, lifetime)
    lru.inserts += 1
    return LRU_REPLACED


cdef int lru_put(Lru *lru, uint64_t a, uint64_t b, uint64_t value, uint64_t weight,
                 uint64_t idle, uint64_t lifetime) noexcept nogil:
    """Keeps a value as the most recently used one: LRU_INSERTED, LRU_REPLACED, LRU_REFUSED or LRU_NO_MEMORY.

    weight: 1 where only entries are counted. idle, lifetime: from the last use, and from now; 0 for none.
    """
    return lru_store(lru, lru_find(lru, a, b), a, b, value, weight, idle, lifetime)


cdef int lru_discard(Lru *lru, uint32_t id) noexcept nogil:
    """Removes an entry. 1; 0 where it had ended; -1 without memory to report it (nothing changed)."""
    cdef bint ended = lru_ended(lru, id)
    if lru_reserve(lru, 1) < 0:
        return -1
    lru_drop(lru, id, LRU_EXPIRE if ended else LRU_REMOVE)
    return not ended


cdef void lru_expire(Lru *lru, uint32_t id) noexcept nogil:
    """Removes an entry that has ended. Where there is no memory to report it, that is for later."""
    if lru_reserve(lru, 1) == 0:
        lru_drop(lru, id, LRU_EXPIRE)


cdef int lru_clear(Lru *lru) noexcept nogil:
    """Removes all, the least recently used first. 0, or -1 without memory to report it (nothing changed)."""
    cdef uint32_t id
    if lru_reserve(lru, lru.used) < 0:
        return -1
    while lru.used:
        id = lru.entries[0].prev
        lru_drop(lru, id, LRU_EXPIRE if lru_ended(lru, id) else LRU_CLEAR)
    return 0


cdef int lru_resize(Lru *lru, uint32_t capacity, uint64_t weight_limit) noexcept nogil:
    """Sets both limits; what is too much is evicted. 0, or -1 as lru_init (nothing changed)."""
    cdef Entry *entries = lru.entries
    cdef Lease *leases = lru.leases
    cdef uint32_t before = lru.capacity
    cdef void *memory = NULL
    cdef void *old
    cdef uint32_t id, moved
    if capacity == 0 or capacity > LRU_MAX_ENTRIES or weight_limit > LRU_MAX_WEIGHT:
        return -1
    if lru_reserve(lru, lru.used) < 0:
        return -1
    if capacity != before:
        memory = storage_new(capacity)
        if memory == NULL:
            return -1
    lru.capacity = min(capacity, before)
    lru.weight_limit = weight_limit
    make_room(lru, 0, 0)  # with room to report all
    if memory == NULL:
        return 0
    old = lru.memory
    storage_use(lru, memory, capacity)
    id = entries[0].prev
    while id:
        moved = entry_add(lru, entries[id].a, entries[id].b, entries[id].value)
        weight_set(lru, moved, leases[id].weight + 1)
        lru.leases[moved].deadline = leases[id].deadline
        lru.leases[moved].idle = leases[id].idle
        lru.leases[moved].latest = leases[id].latest
        wheel_link(&lru.wheel, lru.leases, moved)
        id = entries[id].prev
    PyMem_RawFree(old)
    return 0


cdef int64_t lru_purge(Lru *lru, uint64_t limit, uint64_t *budget) noexcept nogil:
    """Removes entries that have ended, `limit` at most, in `budget` steps of the wheel at most, which are
    subtracted. Their number, or -1 without memory to report one (those before are removed)."""
    cdef int64_t count = 0
    cdef uint32_t id
    while <uint64_t>count < limit:
        if lru_reserve(lru, 1) < 0:
            return -1
        id = wheel_ended(&lru.wheel, lru.leases, lru.now, budget)
        if id == 0:
            break
        lru_drop(lru, id, LRU_EXPIRE)
        count += 1
    return count


cdef tuple REASON_NAMES = ("evict", "expire", "replace", "remove", "clear")


cdef str lru_reason(uint8_t reason):
    """Name of a reason of removal."""
    return REASON_NAMES[reason]


cdef dict lru_metrics(const Lru *lru):
    """Counts of hits, misses, inserts, refused values and, by reason, removals; entries, and their weight:
    inserts == evict + expire + replace + remove + clear + entries."""
    return {
        "hits": lru.hits,
        "misses": lru.misses,
        "inserts": lru.inserts,
        "refused": lru.refused,
        **{name: lru.removed[i] for i, name in enumerate(REASON_NAMES)},
        "entries": lru.used,
        "weight": lru.weight,
    }


cdef int check_limits(uint64_t capacity, uint64_t weight_limit) except -1:
    """Raises ValueError for what lru_init would refuse."""
    if not 1 <= capacity <= LRU_MAX_ENTRIES:
        raise ValueError(f"capacity must be 1 to {LRU_MAX_ENTRIES} entries")
    if weight_limit > LRU_MAX_WEIGHT:
        raise ValueError(f"weight limit must be at most {LRU_MAX_WEIGHT}")
    return 0
