# SPDX-License-Identifier: Apache-2.0
"""The arena of unwind rows.

Rows lie in chunks that the kernel maps for both sides, in pages (pages.pyx). Each executable with rows is a
holder: of its pages, and of the rules that they name (rules.pyx). Where the kernel has no room for one more,
load() says of what, and the caller has `oldest()` give way.

Order of publication: rows first, then the page's entry in the kernel. Of withdrawal: the entry first,
and the piece, and the numbers of the rules, are given out again only after a delay, since a program may still
be reading them.
"""

import os

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from pyprof._native.extents cimport extents_deinit, extents_give, extents_init
from pyprof._native.index cimport index_deinit, index_init, slot_id
from pyprof._native.memory cimport grow, list_push
from pyprof._native.pages cimport (
    Builder,
    builder_add,
    builder_deinit,
    builder_finish,
    builder_init,
    page_remove,
    page_slot,
)
from pyprof._native.rules cimport (
    PYPROF_MAX_RULES,
    PYPROF_RULE_NONE,
    pyprof_rule,
    rules_alone,
    rules_deinit,
    rules_give,
    rules_init,
    rules_take,
    rules_used,
)

cdef extern from "unwind_slice.h" nogil:
    uint32_t unwind_rule_number(const pyprof_page *page, const uint8_t *chunk, uint32_t offset)

cdef uint32_t MAX_ENTRIES = 65000  # a little under what the kernel's maps of pages and executables hold
cdef uint32_t PAGE_BYTES = 1 << PYPROF_PAGE_BITS

SHORTAGES = ("", "chunks", "pages", "executables", "rules")
"""Names of the maps in which there may be no room, by enum ShortOf."""


cdef const pyprof_rule *arena_rule(Arena *arena, uint32_t executable, uint64_t offset) noexcept nogil:
    """The rule of a file offset, as the kernel side finds it; NULL where the rows are not loaded."""
    cdef uint32_t at
    cdef const PageRow *row
    if executable >= arena.holder_count or arena.holders[executable].state < LOADED:
        return NULL
    at = page_slot(arena, executable, <uint32_t>(offset >> PYPROF_PAGE_BITS))
    if arena.page_index.slots[at] == 0:
        return &arena.rules.rules[PYPROF_RULE_NONE]
    row = &arena.pages[slot_id(arena.page_index.slots[at])]
    return &arena.rules.rules[
        unwind_rule_number(&row.page, arena.chunks[row.page.chunk], <uint32_t>(offset & (PAGE_BYTES - 1)))
    ]


cdef uint8_t arena_state(const Arena *arena, uint32_t executable) noexcept nogil:
    return arena.holders[executable].state if executable < arena.holder_count else <uint8_t>NOT_LOADED


cdef Holder *holder_of(Arena *arena, uint32_t executable) noexcept nogil:
    """An executable's entry, made where it is missing; NULL without memory."""
    cdef uint64_t had = arena.holder_capacity
    if executable >= arena.holder_count:
        if grow(<void **>&arena.holders, &arena.holder_capacity, <uint64_t>executable + 1, sizeof(Holder)) < 0:
            return NULL
        if arena.holder_capacity != had:
            memset(&arena.holders[had], 0, (arena.holder_capacity - had) * sizeof(Holder))
        arena.holder_count = executable + 1
    return &arena.holders[executable]


cdef void arena_want(Arena *arena, uint32_t executable) noexcept nogil:
    """Says that a sample wants the rows of an executable."""
    cdef Holder *holder = holder_of(arena, executable)
    if holder == NULL:
        return
    holder.samples += 1
    if holder.state == NOT_LOADED and list_push(&arena.wanted, executable) == 0:
        holder.state = WANTED


cdef void arena_use(Arena *arena, uint32_t executable, uint64_t time) noexcept nogil:
    """Says when an executable was sampled; samples that waited come late."""
    if executable < arena.holder_count and arena.holders[executable].last_used < time:
        arena.holders[executable].last_used = time


cdef uint32_t highest(const uint32_t *numbers, uint64_t count) noexcept nogil:
    cdef uint32_t found = 0
    cdef uint64_t i
    for i in range(count):
        found = max(found, numbers[i])
    return found


cdef void empty(Holder *holder) noexcept nogil:
    holder.page_count = 0
    holder.rows = 0
    holder.bytes = 0
    holder.samples = 0


cdef class RowArena:
    """Owner of the arena's memory and of what the kernel knows of it. Not thread-safe.

    Writing to the kernel's maps is the caller's: what is pending, in the order of `pending()`.
    """

    def __cinit__(self, rules, uint32_t max_pages=MAX_ENTRIES, uint32_t max_executables=MAX_ENTRIES):
        """rules: writable memory of the kernel's rule table, PYPROF_MAX_RULES rules. max_pages, max_executables:
        entries that the kernel's maps have room for."""
        cdef uint8_t[::1] view = rules
        memset(&self.arena, 0, sizeof(Arena))
        extents_init(&self.arena.extents, PYPROF_CHUNK_BYTES)
        self.arena.max_pages = max_pages
        self.arena.max_executables = max_executables
        self.buffers = [memoryview(rules)]  # which keeps them from being unmapped
        self.page_updates, self.page_deletes, self.state_updates, self.state_deletes = [], [], [], []
        if <uint64_t>view.shape[0] < PYPROF_MAX_RULES * sizeof(pyprof_rule):
            raise ValueError("the rule table is too small")
        # The hash has a secret seed, for rules are made by what is profiled.
        if index_init(&self.arena.page_index, 1024) < 0 or rules_init(
            &self.arena.rules, <pyprof_rule *>&view[0], int.from_bytes(os.urandom(8), "little")
        ) < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef uint64_t i
        for i in range(self.arena.holder_count):
            free(self.arena.holders[i].pages)
            free(self.arena.holders[i].rules.numbers)
        for i in range(self.arena.withdrawn_rules_count):
            free(self.arena.withdrawn_rules[i].use.numbers)
        free(self.arena.holders)
        free(self.arena.pages)
        free(self.arena.free_pages.items)
        free(self.arena.wanted.items)
        free(self.arena.withdrawn)
        free(self.arena.withdrawn_rules)
        extents_deinit(&self.arena.extents)
        rules_deinit(&self.arena.rules)
        index_deinit(&self.arena.page_index)

    def add_chunk(self, chunk):
        """Adds the memory of a new chunk, whose number is how many there were."""
        cdef uint8_t[::1] view = chunk
        if self.arena.chunk_count >= PYPROF_MAX_CHUNKS:
            raise ValueError("too many chunks")
        if view.shape[0] != PYPROF_CHUNK_BYTES:
            raise ValueError("not the size of a chunk")
        if extents_give(
            &self.arena.extents, <uint64_t>self.arena.chunk_count * PYPROF_CHUNK_BYTES, PYPROF_CHUNK_BYTES
        ) < 0:
            raise MemoryError
        self.buffers.append(memoryview(chunk))
        self.arena.chunks[self.arena.chunk_count] = &view[0]
        self.arena.chunk_count += 1

    def want(self, uint32_t executable):
        """Asks for the rows of an executable that was not sampled yet."""
        arena_want(&self.arena, executable)

    def wanted(self):
        """Executables whose rows are asked for, most wanted first; each told once."""
        numbers = [self.arena.wanted.items[i] for i in range(self.arena.wanted.count)]
        self.arena.wanted.count = 0
        return sorted(numbers, key=lambda number: -self.arena.holders[<uint32_t>number].samples)

    def load(self, uint32_t executable, const uint64_t[::1] addresses not None,
             const uint32_t[::1] numbers not None, const uint8_t[::1] rules not None, segments, uint64_t now,
             bint partial=False):
        """Places rows and queues their publication.

        Args:
            executable: its number.
            addresses: ELF virtual addresses of the rows, ascending.
            numbers: of their rules.
            rules: the rules, as bytes.
            segments: (file offset, size, ELF address) of the executable segments.
            now: CLOCK_MONOTONIC, ns.
            partial: where the table of rules is full, have UNSUPPORTED stand for what finds no room.

        Returns:
            False where there is no room, and `short_of` says in what: nothing is changed then.
        """
        cdef Holder *holder = holder_of(&self.arena, executable)
        cdef Builder b
        cdef uint64_t count = <uint64_t>addresses.shape[0], offset, size, vaddr, i
        cdef uint64_t rule_count = <uint64_t>rules.shape[0] // sizeof(pyprof_rule)
        cdef int taken
        cdef bint fits = True
        self.arena.short_of = SHORT_OF_NOTHING
        if holder == NULL:
            raise MemoryError
        if numbers.shape[0] != addresses.shape[0]:
            raise ValueError("columns differ in length")
        if count and highest(&numbers[0], count) >= rule_count:
            raise ValueError("a row has no rule")
        if holder.state == LOADED:
            return True
        if (holder.state != NO_ROWS or holder.untold) and self.arena.told >= self.arena.max_executables:
            self.arena.short_of = SHORT_OF_EXECUTABLES
            return False
        # Whatever is no such triple is found before anything is placed.
        parts = []
        for offset, size, vaddr in segments:
            parts.append((offset, size, vaddr))
        parts.sort()
        taken = rules_take(
            &self.arena.rules, <const pyprof_rule *>&rules[0] if rule_count else NULL, rule_count, partial,
            &holder.rules, &self.arena.refused_rules,
        )
        if taken == -2:
            self.arena.short_of = SHORT_OF_RULES
            return False
        if taken < 0:
            raise MemoryError
        try:
            if builder_init(&b, &self.arena, holder, executable) < 0:
                rules_give(&self.arena.rules, &holder.rules)
                raise MemoryError
            for offset, size, vaddr in parts:
                if fits and count and size:
                    with nogil:
                        fits = builder_add(
                            &b, &addresses[0], &numbers[0], count, holder.rules.numbers, offset, size, vaddr
                        )
            fits = fits and builder_finish(&b)
        finally:
            builder_deinit(&b)
        if not fits:
            for i in range(holder.page_count):
                extents_give(
                    &self.arena.extents,
                    self.arena.pages[holder.pages[i]].start, self.arena.pages[holder.pages[i]].size,
                )
                page_remove(&self.arena, holder.pages[i])
            empty(holder)
            # The kernel was told of no page that names them.
            rules_give(&self.arena.rules, &holder.rules)
            return False
        self.tell(executable, holder)
        holder.state = LOADED
        holder.last_used = now
        for i in range(holder.page_count):
            self.page_updates.append(holder.pages[i])
        return True

    cdef void tell(self, uint32_t executable, Holder *holder):
        """Queues that the kernel is to know an executable."""
        if holder.state < LOADED or holder.untold:
            self.arena.told += 1
        holder.untold = False
        self.state_updates.append(executable)

    cdef void untell(self, uint32_t executable, Holder *holder):
        """Queues that the kernel is to know an executable no more."""
        self.state_updates = [number for number in self.state_updates if number != executable]
        if not holder.untold:
            self.arena.told -= 1
            self.state_deletes.append(executable)
        holder.untold = False

    def load_none(self, uint32_t executable):
        """Says that an executable has no rows: from now on frame pointers have to do for it.

        Returns:
            False where the kernel has no room to know that: it goes on to ask user space.
        """
        cdef Holder *holder = holder_of(&self.arena, executable)
        if holder == NULL:
            raise MemoryError
        self.evict(executable)
        if holder.state == NO_ROWS and not holder.untold:
            return True
        if self.arena.told >= self.arena.max_executables:
            holder.untold = True
        else:
            self.tell(executable, holder)
        holder.state = NO_ROWS
        return not holder.untold

    def evict(self, uint32_t executable):
        """Withdraws the rows of an executable; sampled again, they are wanted again. Bytes that get free."""
        cdef Holder *holder = holder_of(&self.arena, executable)
        cdef PageRow *row
        cdef uint32_t i
        cdef uint64_t freed
        if holder == NULL or holder.state != LOADED:
            return 0
        freed = holder.bytes
        if grow(
            <void **>&self.arena.withdrawn, &self.arena.withdrawn_capacity,
            self.arena.withdrawn_count + holder.page_count, sizeof(Withdrawn),
        ) < 0 or grow(
            <void **>&self.arena.withdrawn_rules, &self.arena.withdrawn_rules_capacity,
            self.arena.withdrawn_rules_count + 1, sizeof(WithdrawnRules),
        ) < 0:
            raise MemoryError
        self.arena.withdrawn_rules[self.arena.withdrawn_rules_count].use = holder.rules
        self.arena.withdrawn_rules[self.arena.withdrawn_rules_count].flushed_at = 0
        self.arena.withdrawn_rules_count += 1
        memset(&holder.rules, 0, sizeof(holder.rules))
        gone = set()
        for i in range(holder.page_count):
            row = &self.arena.pages[holder.pages[i]]
            self.page_deletes.append((row.key.executable, row.key.page))
            gone.add(holder.pages[i])
            self.arena.withdrawn[self.arena.withdrawn_count].start = row.start
            self.arena.withdrawn[self.arena.withdrawn_count].size = row.size
            self.arena.withdrawn[self.arena.withdrawn_count].flushed_at = 0
            self.arena.withdrawn_count += 1
            page_remove(&self.arena, holder.pages[i])
        self.page_updates = [number for number in self.page_updates if number not in gone]
        self.untell(executable, holder)
        empty(holder)
        holder.state = NOT_LOADED
        self.arena.evictions += 1
        return freed

    def forget(self, uint32_t executable):
        """Takes back what load_none said: sampled again, its rows are wanted again."""
        cdef Holder *holder = holder_of(&self.arena, executable)
        if holder != NULL and holder.state == NO_ROWS:
            holder.state = NOT_LOADED
            self.untell(executable, holder)

    def drop(self, uint32_t executable):
        """Forgets an executable, whose number is to stand for another one. False while its rows are being made."""
        cdef Holder *holder = holder_of(&self.arena, executable)
        if holder == NULL:
            raise MemoryError
        if holder.state == WANTED:
            return False
        self.forget(executable)
        if self.evict(executable):
            self.arena.evictions -= 1
        free(holder.pages)
        memset(holder, 0, sizeof(Holder))
        return True

    def page_keys(self):
        """[(executable, page)] whose entries the kernel has, or is to get."""
        cdef uint32_t i
        return [
            (self.arena.pages[i].key.executable, self.arena.pages[i].key.page)
            for i in range(self.arena.page_count)
            if self.arena.pages[i].key.executable
        ]

    def settled(self):
        """Executables of which the kernel is to know that their rows are there, or that there are none."""
        cdef uint32_t i
        return [
            i
            for i in range(self.arena.holder_count)
            if self.arena.holders[i].state >= LOADED and not self.arena.holders[i].untold
        ]

    def oldest(self, uint64_t before, shortage="chunks"):
        """The executable sampled longest ago, before a time, that makes room in a map if it gives way; 0 where there
        is none. shortage: as short_of."""
        cdef uint32_t i, found = 0
        cdef uint32_t kind = SHORTAGES.index(shortage)
        cdef const Holder *holder
        for i in range(self.arena.holder_count):
            holder = &self.arena.holders[i]
            if holder.state < LOADED or holder.last_used >= before:
                continue
            if kind == SHORT_OF_EXECUTABLES and holder.untold:
                continue
            if kind == SHORT_OF_RULES and not rules_alone(&self.arena.rules, &holder.rules):
                continue
            if kind <= SHORT_OF_PAGES and holder.page_count == 0:
                continue
            before = holder.last_used
            found = i
        return found

    @property
    def short_of(self):
        """Name of the map in which the last load() found no room, or ""."""
        return SHORTAGES[self.arena.short_of]

    @property
    def withdrawn_rules(self):
        """Executables that gave way and whose rules are not free yet."""
        return self.arena.withdrawn_rules_count

    def pending(self):
        """What is to be written, and forgets it: (page keys to delete, executables to delete, page keys,
        page values, executables to say loaded), as bytes, in the order of writing."""
        deletes = b"".join(
            (<uint32_t>executable).to_bytes(4, "little") + (<uint32_t>page).to_bytes(4, "little")
            for executable, page in self.page_deletes
        )
        gone = b"".join(number.to_bytes(4, "little") for number in self.state_deletes)
        keys = b"".join(
            PyBytes_FromStringAndSize(<const char *>&self.arena.pages[<uint32_t>i].key, sizeof(pyprof_page_key))
            for i in self.page_updates
        )
        values = b"".join(
            PyBytes_FromStringAndSize(<const char *>&self.arena.pages[<uint32_t>i].page, sizeof(pyprof_page))
            for i in self.page_updates
        )
        loaded = b"".join(number.to_bytes(4, "little") for number in self.state_updates)
        self.page_updates, self.page_deletes, self.state_updates, self.state_deletes = [], [], [], []
        return deletes, gone, keys, values, loaded

    def flushed(self, uint64_t now):
        """Says that what was pending is written."""
        cdef uint64_t i
        for i in range(self.arena.withdrawn_count):
            if self.arena.withdrawn[i].flushed_at == 0:
                self.arena.withdrawn[i].flushed_at = now
        for i in range(self.arena.withdrawn_rules_count):
            if self.arena.withdrawn_rules[i].flushed_at == 0:
                self.arena.withdrawn_rules[i].flushed_at = now

    def reclaim(self, uint64_t before):
        """Gives memory and rules free whose entries were out of the kernel before a time; bytes freed."""
        cdef uint64_t i, kept = 0, freed = 0
        for i in range(self.arena.withdrawn_count):
            if self.arena.withdrawn[i].flushed_at and self.arena.withdrawn[i].flushed_at < before:
                extents_give(&self.arena.extents, self.arena.withdrawn[i].start, self.arena.withdrawn[i].size)
                freed += self.arena.withdrawn[i].size
            else:
                self.arena.withdrawn[kept] = self.arena.withdrawn[i]
                kept += 1
        self.arena.withdrawn_count = kept
        kept = 0
        for i in range(self.arena.withdrawn_rules_count):
            if self.arena.withdrawn_rules[i].flushed_at and self.arena.withdrawn_rules[i].flushed_at < before:
                rules_give(&self.arena.rules, &self.arena.withdrawn_rules[i].use)
            else:
                self.arena.withdrawn_rules[kept] = self.arena.withdrawn_rules[i]
                kept += 1
        self.arena.withdrawn_rules_count = kept
        return freed

    def rule(self, uint32_t executable, uint64_t offset):
        """The rule of a file offset as (cfa, fp, ra, flags, cfa_offset, fp_offset, other), or None."""
        cdef const pyprof_rule *found = arena_rule(&self.arena, executable, offset)
        if found == NULL:
            return None
        return (
            found.cfa, found.fp, found.ra, found.flags,
            found.cfa_offset, found.fp_offset, found.other,
        )

    def state(self, uint32_t executable):
        """0 not loaded, 1 wanted, 2 loaded, 3 without rows."""
        return arena_state(&self.arena, executable)

    def counts(self):
        """Numbers by name."""
        cdef uint32_t i, loaded = 0
        for i in range(self.arena.holder_count):
            loaded += self.arena.holders[i].state == LOADED
        return {
            "chunks": self.arena.chunk_count,
            "bytes": <uint64_t>self.arena.chunk_count * PYPROF_CHUNK_BYTES,
            "free_bytes": self.arena.extents.free_bytes,
            "withdrawn": self.arena.withdrawn_count,
            "executables": loaded,
            "pages": self.arena.page_index.used,
            "rows": self.arena.rows,
            "rules": rules_used(&self.arena.rules),
            "told": self.arena.told,
            "evictions": self.arena.evictions,
            "refused_rules": self.arena.refused_rules,
        }
