# SPDX-License-Identifier: Apache-2.0
# cython: binding=False
"""Least-recently-used cache of Python objects, over lru.pxd.

Pitfalls that the code below avoids:

- Comparing keys, calling back and giving up a reference run any code, which may use this very cache. So they
  happen only between steps that leave it whole; a look-up during which it changed begins again.
- What is removed is queued first and handed out later, each piece taken from the queue before it is told of:
  whoever empties the queue, the outer call or one within, each removal is told once.
- Hashing may run any code, too, and comes before all else.
- Without the GIL nothing happens here. Other threads run only where any code may run.

An entry owns a reference to its key and its value, and so does a removal in the queue.
"""

cimport cython
from cpython.object cimport Py_EQ
from cpython.object cimport PyObject
from cpython.object cimport PyObject_RichCompareBool
from cpython.ref cimport Py_DECREF
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyprof._native.lru cimport LRU_INSERTED
from pyprof._native.lru cimport LRU_MAX_ENTRIES
from pyprof._native.lru cimport LRU_MAX_WEIGHT
from pyprof._native.lru cimport LRU_NO_MEMORY
from pyprof._native.lru cimport LRU_REFUSED
from pyprof._native.lru cimport LRU_REPLACED
from pyprof._native.lru cimport LRU_REMOVE
from pyprof._native.lru cimport Entry
from pyprof._native.lru cimport Lru
from pyprof._native.lru cimport Removal
from pyprof._native.lru cimport check_limits
from pyprof._native.lru cimport lru_clear
from pyprof._native.lru cimport lru_deinit
from pyprof._native.lru cimport lru_discard
from pyprof._native.lru cimport lru_drop
from pyprof._native.lru cimport lru_ended
from pyprof._native.lru cimport lru_exchange
from pyprof._native.lru cimport lru_init
from pyprof._native.lru cimport lru_is_plain
from pyprof._native.lru cimport lru_may_be
from pyprof._native.lru cimport lru_metrics
from pyprof._native.lru cimport lru_purge
from pyprof._native.lru cimport lru_reason
from pyprof._native.lru cimport lru_reserve
from pyprof._native.lru cimport lru_resize
from pyprof._native.lru cimport lru_store
from pyprof._native.lru cimport lru_tag
from pyprof._native.lru cimport lru_take
from pyprof._native.lru cimport lru_tick
from pyprof._native.lru cimport lru_use

import os
import time
from types import GenericAlias

cdef extern from *:
    """
    /* Strings, the most usual keys, know their hash once it was asked for. */
    static inline Py_hash_t hash_of(PyObject *key)
    {
    	if (__builtin_expect(PyUnicode_CheckExact(key) && ((PyASCIIObject *)key)->hash != -1, 1))
    		return ((PyASCIIObject *)key)->hash;
    	return PyObject_Hash(key);
    }
    """
    Py_hash_t hash_of(object key) except? -1

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
        inquiry tp_clear

cdef enum:
    MAX_RESTARTS = 1000
    PURGE_BATCH = 64  # removals between two rounds of telling of them

cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")


@cython.final
@cython.trashcan(True)  # caches that hold caches are freed without recursion
cdef class LruCache:
    """Maps hashable keys to values and removes, where it is full, what was used least recently.

    Full is: more than `capacity` entries, or more than `weight_limit` in all, each entry weighing what put() was
    told. Before anything is evicted for room, what has ended gives way as far as it is found in a few steps.

    An entry ends when it was not used for `idle`, or `lifetime` after it was put, whichever is first; 0 means that
    it does not. It ends as of that time, whether it was purged or not: it is not found any more. Until it is purged,
    or replaced, or has to give way, it still counts in len().

    Times are those of `clock`, in its unit. The clock is read by tick() only: call it once a batch. While the clock
    goes backwards time stands still here; what it then adds counts again.

    on_removed(key, value, reason) is called once for each entry that goes, after the call that removed it has
    done all it does, and may use the cache in any way. Reasons: "evict", "expire", "replace" (the key was put
    again; the value is the old one), "remove", "clear". If it raises, the removals that are left are told all the
    same, and then the call raises that error, or a BaseExceptionGroup of several; what the call did stands. It is
    not called for entries that the cache still holds when it is itself destroyed.

    Keys are compared by identity, then by ==. If a comparison changes the cache the look-up begins anew; a
    RuntimeError ends it when that happened 1,000 times.
    """

    cdef Lru lru
    cdef uint64_t idle
    cdef uint64_t lifetime
    cdef object on_removed
    cdef object clock
    cdef bint is_plain  # nobody is told of removals, and entries have no lifetime but what put() gives them

    def __cinit__(self, capacity, *, weight_limit=None, idle=0, lifetime=0, on_removed=None,
                  clock=time.monotonic_ns):
        cdef uint64_t entries = capacity
        cdef uint64_t heaviest = LRU_MAX_WEIGHT if weight_limit is None else weight_limit
        cdef int64_t now
        check_limits(entries, heaviest)
        if on_removed is not None and not callable(on_removed):
            raise TypeError("on_removed must be callable")
        self.idle = idle
        self.lifetime = lifetime
        self.on_removed = on_removed
        self.clock = clock
        self.is_plain = on_removed is None and not self.idle | self.lifetime
        now = clock()
        if lru_init(&self.lru, <uint32_t>entries, heaviest, SEED, now, True, True) < 0:
            raise MemoryError

    def __dealloc__(self):
        release_all(&self.lru)
        lru_deinit(&self.lru)

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    def __len__(self):
        return self.lru.used

    def __contains__(self, key):
        """Whether get() would find the key; touches nothing."""
        cdef uint32_t id = <uint32_t>self.find(key, hash_of(key))
        return id != 0 and not lru_ended(&self.lru, id)

    def __getitem__(self, key):
        cdef uint32_t id = <uint32_t>self.find(key, hash_of(key))
        if lru_use(&self.lru, id, True):
            return <object><PyObject *>self.lru.entries[id].value
        self.tell()
        raise KeyError(key)

    def __setitem__(self, key, value):
        cdef Py_hash_t hash = hash_of(key)
        cdef uint32_t id = <uint32_t>self.find(key, hash)
        if id and self.is_plain and lru_is_plain(&self.lru):
            self.exchange(id, value)
        else:
            self.store(key, hash, id, value, 1, self.idle, self.lifetime)

    def __delitem__(self, key):
        if not self.discard(key):
            raise KeyError(key)

    def get(self, key, default=None):
        """The value of a key, which is now the one used last, and whose idle lifetime begins anew; or default."""
        cdef uint32_t id = <uint32_t>self.find(key, hash_of(key))
        if lru_use(&self.lru, id, True):
            return <object><PyObject *>self.lru.entries[id].value
        self.tell()
        return default

    def get_without_refresh(self, key, default=None):
        """As get(), but the idle lifetime goes on."""
        cdef uint32_t id = <uint32_t>self.find(key, hash_of(key))
        if lru_use(&self.lru, id, False):
            return <object><PyObject *>self.lru.entries[id].value
        self.tell()
        return default

    def peek(self, key, default=None):
        """As get(), but touches neither order nor lifetimes nor metrics, and removes nothing."""
        cdef uint32_t id = <uint32_t>self.find(key, hash_of(key))
        if id == 0 or lru_ended(&self.lru, id):
            return default
        return <object><PyObject *>self.lru.entries[id].value

    def put(self, key, value, uint64_t weight=1, *, idle=None, lifetime=None):
        """Keeps a value as the one used last, both lifetimes beginning now. An equal key that is there stays.

        idle, lifetime: None for what the cache was made with, 0 for none. Returns False where the weight alone is
        over the limit: then nothing is kept, and what the key had before is removed as replaced.
        """
        cdef uint64_t idle_time = self.idle
        cdef uint64_t whole_time = self.lifetime
        cdef Py_hash_t hash
        cdef uint32_t id
        if idle is not None:
            idle_time = idle
        if lifetime is not None:
            whole_time = lifetime
        hash = hash_of(key)
        id = <uint32_t>self.find(key, hash)
        return self.store(key, hash, id, value, weight, idle_time, whole_time)

    def remove(self, key):
        """Removes a key. False where it was not there, or had ended."""
        return self.discard(key)

    def clear(self):
        """Removes all, the least recently used first."""
        if lru_clear(&self.lru) < 0:
            raise MemoryError
        self.tell()

    def resize(self, capacity, weight_limit=None):
        """Sets both limits, None for no limit of weight. What is too much is evicted."""
        cdef uint64_t entries = capacity
        cdef uint64_t heaviest = LRU_MAX_WEIGHT if weight_limit is None else weight_limit
        check_limits(entries, heaviest)
        if lru_resize(&self.lru, <uint32_t>entries, heaviest) < 0:
            raise MemoryError
        self.tell()

    def tick(self):
        """Reads the clock: its time is that of all calls up to the next tick."""
        cdef int64_t now = self.clock()
        lru_tick(&self.lru, now)

    def purge(self, steps=None):
        """Removes what has ended. Returns how many that were.

        steps: of work at most, some ten an entry at worst; the next call goes on where this one stops.
        """
        cdef uint64_t budget = LRU_MAX_WEIGHT if steps is None else steps
        cdef uint64_t left = self.lru.used  # a callback that puts and ticks cannot keep this going for ever
        cdef int64_t count = PURGE_BATCH
        cdef int64_t total = 0
        while left and count == PURGE_BATCH:
            count = lru_purge(&self.lru, min(left, <uint64_t>PURGE_BATCH), &budget)
            if count < 0:
                raise MemoryError
            total += count
            left -= <uint64_t>count
            self.tell()
        return total

    def keys(self):
        """List of all keys, the one used last first, also of entries that have ended and were not purged."""
        cdef uint32_t id
        cdef Py_ssize_t count = -1
        # Making a list may run the garbage collector, and so any code.
        found = []
        while count != self.lru.used:
            count = self.lru.used
            found = [None] * count
        count = 0
        id = self.lru.entries[0].next
        while id:
            found[count] = <object><PyObject *>self.lru.entries[id].b
            count += 1
            id = self.lru.entries[id].next
        return found

    def metrics(self):
        """Counts of hits, misses, inserts, refused values and, by reason, removals; entries, and their weight:
        inserts == evict + expire + replace + remove + clear + entries."""
        return lru_metrics(&self.lru)

    cdef inline int64_t find(self, key, Py_hash_t hash) except -1:
        """Number of the entry of a key, whether it has ended or not; 0 where there is none."""
        cdef const Lru *lru = &self.lru
        cdef uint32_t tag = lru_tag(lru, <uint64_t>hash, 0)
        cdef uint32_t at = tag & lru.mask
        cdef uint32_t slot = lru.slots[at]
        cdef const Entry *entry
        while slot:
            if lru_may_be(lru, slot, tag):
                entry = &lru.entries[slot & lru.id_mask]
                if entry.b == <uint64_t><PyObject *>key:
                    return slot & lru.id_mask
                if entry.a == <uint64_t>hash:
                    return self.find_equal(key, hash, tag)
            at = (at + 1) & lru.mask
            slot = lru.slots[at]
        return 0

    cdef int64_t find_equal(self, key, Py_hash_t hash, uint32_t tag) except -1:
        """find() where another object has the same hash."""
        cdef uint32_t at, slot, id
        cdef int restarts
        cdef uint64_t generation
        cdef bint same
        for restarts in range(MAX_RESTARTS):
            generation = self.lru.generation
            at = tag & self.lru.mask
            slot = self.lru.slots[at]
            while slot:
                id = slot & self.lru.id_mask
                if self.lru.entries[id].a == <uint64_t>hash:
                    same = self.is_key(id, key)
                    # What was looked at is not there any more, nor is `at` what it was.
                    if self.lru.generation != generation:
                        break
                    if same:
                        return id
                at = (at + 1) & self.lru.mask
                slot = self.lru.slots[at]
            if self.lru.generation == generation:
                return 0
        raise RuntimeError("comparing keys changes the cache again and again")

    cdef bint is_key(self, uint32_t id, key) except -1:
        """Whether an entry's key equals another one. May run any code."""
        # The reference that is held here keeps the key alive should its entry go. Giving it up is part of what may
        # run any code, and over when this returns.
        other = <object><PyObject *>self.lru.entries[id].b
        return PyObject_RichCompareBool(other, key, Py_EQ)

    cdef inline void exchange(self, uint32_t id, value) noexcept:
        """Puts another value where nobody is told of the old one, and no entry has a weight or a lifetime."""
        cdef uint64_t old
        Py_INCREF(value)
        old = lru_exchange(&self.lru, id, <uint64_t><PyObject *>value)
        Py_DECREF(<object><PyObject *>old)

    cdef bint store(self, key, Py_hash_t hash, uint32_t id, value, uint64_t weight, uint64_t idle,
                    uint64_t lifetime) except -1:
        """id: of the entry that the key has already, or 0."""
        cdef uint64_t kept = self.lru.entries[id].b
        cdef int answer
        answer = lru_store(
            &self.lru, id, <uint64_t>hash, <uint64_t><PyObject *>key, <uint64_t><PyObject *>value,
            weight, idle, lifetime,
        )
        if answer == LRU_INSERTED:
            Py_INCREF(key)
            Py_INCREF(value)
        elif answer == LRU_REPLACED:
            Py_INCREF(<object><PyObject *>kept)  # the entry has it still, and so has the queue
            Py_INCREF(value)
        self.tell()
        if answer == LRU_NO_MEMORY:
            raise MemoryError
        return answer != LRU_REFUSED

    cdef bint discard(self, key) except -1:
        cdef uint32_t id = <uint32_t>self.find(key, hash_of(key))
        cdef int answer
        if id == 0:
            return False
        answer = lru_discard(&self.lru, id)
        if answer < 0:
            raise MemoryError
        self.tell()
        return answer

    cdef inline int tell(self) except -1:
        """Tells of all removals that are queued. May run any code."""
        if self.lru.queue_first != self.lru.queue_end:
            if self.on_removed is None:
                release_queue(&self.lru)
            else:
                self.call_back()
        return 0

    cdef int call_back(self) except -1:
        cdef Removal removal
        errors = None
        while lru_take(&self.lru, &removal):
            key = <object><PyObject *>removal.b
            value = <object><PyObject *>removal.value
            Py_DECREF(key)
            Py_DECREF(value)
            try:
                self.on_removed(key, value, lru_reason(removal.reason))
            except BaseException as error:
                if errors is None:
                    errors = []
                errors.append(error)
            key = value = None
        if errors is not None:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup("removals", errors)
        return 0


cdef void release_queue(Lru *lru) noexcept:
    """Gives up what is queued, telling nobody. May run any code."""
    cdef Removal removal
    while lru_take(lru, &removal):
        Py_DECREF(<object><PyObject *>removal.b)
        Py_DECREF(<object><PyObject *>removal.value)


cdef void release_all(Lru *lru) noexcept:
    """Gives up all entries, telling nobody. May run any code."""
    cdef uint64_t left = lru.used  # no more than there were
    release_queue(lru)
    while left and lru.used and lru_reserve(lru, 1) == 0:
        lru_drop(lru, lru.entries[0].prev, LRU_REMOVE)
        release_queue(lru)
        left -= 1


# The entries' references are not attributes, so that Cython does not see them: both functions of its own for the
# garbage collector are extended.
cdef traverseproc traverse_attributes = (<PyTypeObject *>LruCache).tp_traverse
cdef inquiry clear_attributes = (<PyTypeObject *>LruCache).tp_clear


cdef int traverse(PyObject *cache, visitproc visit, void *arg) noexcept:
    cdef Lru *lru = &(<LruCache>cache).lru
    cdef uint64_t i
    cdef uint32_t id
    cdef int answer = traverse_attributes(cache, visit, arg)
    if answer or lru.entries == NULL:
        return answer
    id = lru.entries[0].next
    while id and not answer:
        answer = visit(<PyObject *>lru.entries[id].b, arg)
        if not answer:
            answer = visit(<PyObject *>lru.entries[id].value, arg)
        id = lru.entries[id].next
    for i in range(lru.queue_first, lru.queue_end):
        if not answer:
            answer = visit(<PyObject *>lru.queue[i].b, arg)
        if not answer:
            answer = visit(<PyObject *>lru.queue[i].value, arg)
    return answer


cdef int clear(PyObject *cache) noexcept:
    clear_attributes(cache)
    release_all(&(<LruCache>cache).lru)
    return 0


(<PyTypeObject *>LruCache).tp_traverse = traverse
(<PyTypeObject *>LruCache).tp_clear = clear
