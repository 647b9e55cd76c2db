# SPDX-License-Identifier: Apache-2.0
"""The arena of unwind rows.

Rows lie in chunks that the kernel maps for both sides. An executable's rows are cut at every 64 KiB of its
file; each such page is one piece of a chunk (layout: struct pyprof_page). Each page begins with a row
for its first byte, so that a search never leaves it.

Order of publication: rows first, then the page's entry in the kernel. Of withdrawal: the entry first,
and the piece is given out again only after a delay, since a program may still be reading it.
"""

import secrets

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from pyprof._native.extents cimport extents_deinit, extents_give, extents_init, extents_take
from pyprof._native.hashing cimport pyprof_hash_bytes, pyprof_hash_two
from pyprof._native.index cimport (
    index_add,
    index_deinit,
    index_init,
    index_remove,
    index_reserve,
    slot_id,
)
from pyprof._native.memory cimport grow, list_push

cdef extern from "unwind_slice.h" nogil:
    uint32_t unwind_rule_number(const pyprof_page *page, const uint8_t *chunk, uint32_t offset)

cdef uint32_t MAX_PAGES = 65000  # a little under what the kernel side map of pages holds
cdef uint32_t MAX_FILE_PAGES = 16384  # 1 GiB of code: no file may take all that the host has
cdef uint64_t ALIGN = 64  # a cache line
cdef uint64_t MAX_OFFSET = <uint64_t>1 << 47
cdef uint32_t PAGE_BYTES = 1 << PYPROF_PAGE_BITS
cdef uint32_t RULE_UNSUPPORTED = 1  # what stands for a rule that the full table has no room for


cdef uint32_t page_slot(const Arena *arena, uint32_t executable, uint32_t page) noexcept nogil:
    cdef uint32_t tag = <uint32_t>(pyprof_hash_two((<uint64_t>executable << 32) | page, 0, 0) >> 32)
    cdef uint32_t at = tag & arena.page_index.mask
    cdef const PageRow *row
    while arena.page_index.slots[at]:
        row = &arena.pages[slot_id(arena.page_index.slots[at])]
        if row.key.executable == executable and row.key.page == page:
            break
        at = (at + 1) & arena.page_index.mask
    return at


cdef const pyprof_rule *arena_rule(Arena *arena, uint32_t executable, uint64_t offset) noexcept nogil:
    """The rule of a file offset, as the kernel side finds it; NULL where the rows are not loaded."""
    cdef uint32_t at
    cdef const PageRow *row
    if executable >= arena.holder_count or arena.holders[executable].state < LOADED:
        return NULL
    at = page_slot(arena, executable, <uint32_t>(offset >> PYPROF_PAGE_BITS))
    if arena.page_index.slots[at] == 0:
        return &arena.rules[PYPROF_RULE_NONE]
    row = &arena.pages[slot_id(arena.page_index.slots[at])]
    return &arena.rules[
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


cdef uint32_t rule_number(Arena *arena, const pyprof_rule *rule) noexcept nogil:
    """Number of a rule in the table of the host."""
    cdef uint32_t tag = <uint32_t>(pyprof_hash_bytes(rule, sizeof(pyprof_rule), arena.seed) >> 32)
    cdef uint32_t at = tag & arena.rule_index.mask
    while arena.rule_index.slots[at]:
        if memcmp(&arena.rules[slot_id(arena.rule_index.slots[at])], rule, sizeof(pyprof_rule)) == 0:
            return slot_id(arena.rule_index.slots[at])
        at = (at + 1) & arena.rule_index.mask
    if arena.rule_count >= PYPROF_MAX_RULES or index_reserve(&arena.rule_index) < 0:
        arena.refused_rules += 1
        return RULE_UNSUPPORTED
    arena.rules[arena.rule_count] = rule[0]
    index_add(&arena.rule_index, tag, arena.rule_count)
    arena.rule_count += 1
    return arena.rule_count - 1


cdef struct PageRows:  # the rows of a page in the making
    uint32_t count
    uint16_t *offsets
    uint16_t *numbers


cdef bint place_page(
    Arena *arena, Holder *holder, uint32_t executable, uint32_t page, PageRows *rows
) noexcept nogil:
    """Copies a page's rows into the arena; False where there is no room."""
    cdef uint64_t size = (<uint64_t>rows.count * 4 + ALIGN - 1) & ~(ALIGN - 1)
    cdef int64_t start = extents_take(&arena.extents, size)
    cdef uint32_t number, part, row
    cdef uint8_t *chunk
    cdef PageRow *made
    if start < 0:
        return False
    if arena.page_index.used >= MAX_PAGES or index_reserve(&arena.page_index) < 0 or grow(
        <void **>&holder.pages, &holder.page_capacity, <uint64_t>holder.page_count + 1, sizeof(uint32_t)
    ) < 0:
        extents_give(&arena.extents, <uint64_t>start, size)
        return False
    if arena.free_pages.count:
        number = arena.free_pages.items[arena.free_pages.count - 1]
    elif (
        grow(<void **>&arena.pages, &arena.page_capacity, <uint64_t>arena.page_count + 1, sizeof(PageRow)) < 0
        or grow(
            <void **>&arena.free_pages.items, &arena.free_pages.capacity,
            <uint64_t>arena.page_count + 1, sizeof(uint32_t),
        ) < 0
    ):
        extents_give(&arena.extents, <uint64_t>start, size)
        return False
    else:
        number = arena.page_count
    made = &arena.pages[number]
    memset(made, 0, sizeof(PageRow))
    made.key.executable = executable
    made.key.page = page
    made.start = <uint64_t>start
    made.size = size
    made.page.chunk = <uint16_t>(<uint64_t>start // PYPROF_CHUNK_BYTES)
    made.page.at = <uint32_t>(<uint64_t>start % PYPROF_CHUNK_BYTES)
    made.page.last = <uint16_t>(rows.count - 1)
    row = 0
    for part in range(<uint32_t>PYPROF_PAGE_PARTS):
        while row + 1 < rows.count and rows.offsets[row + 1] <= part << 12:
            row += 1
        made.page.starts[part] = <uint16_t>row
    chunk = arena.chunks[made.page.chunk] + made.page.at
    memcpy(chunk, rows.offsets, rows.count * 2)
    memcpy(chunk + rows.count * 2, rows.numbers, rows.count * 2)
    if arena.free_pages.count:
        arena.free_pages.count -= 1
    else:
        arena.page_count += 1
    index_add(
        &arena.page_index,
        <uint32_t>(pyprof_hash_two((<uint64_t>executable << 32) | page, 0, 0) >> 32),
        number,
    )
    holder.pages[holder.page_count] = number
    holder.page_count += 1
    holder.rows += rows.count
    holder.bytes += size
    arena.rows += rows.count
    return True


cdef struct Builder:
    PageRows rows
    Arena *arena
    Holder *holder
    uint32_t executable
    int64_t page  # -1 before the first
    uint64_t last  # file offset of the last row
    uint64_t covered  # end of the last segment in the file
    uint16_t carried  # number of the rule that holds


cdef bint flush_page(Builder *b) noexcept nogil:
    if b.page >= 0 and b.rows.count and b.holder.page_count < MAX_FILE_PAGES and not (
        b.rows.count == 1 and b.rows.numbers[0] == PYPROF_RULE_NONE
    ) and not place_page(b.arena, b.holder, b.executable, <uint32_t>b.page, &b.rows):
        return False
    b.rows.count = 0
    return True


cdef void put_row(Builder *b, uint32_t offset, uint16_t number) noexcept nogil:
    cdef PageRows *rows = &b.rows
    if rows.count and rows.offsets[rows.count - 1] == offset:
        rows.numbers[rows.count - 1] = number
    elif rows.count == 0 or rows.numbers[rows.count - 1] != number:
        rows.offsets[rows.count] = <uint16_t>offset
        rows.numbers[rows.count] = number
        rows.count += 1


cdef bint emit(Builder *b, uint64_t offset, uint16_t number) noexcept nogil:
    """Adds a row at a file offset; False where there is no room."""
    cdef int64_t page = <int64_t>(offset >> PYPROF_PAGE_BITS)
    if offset < b.last:
        return True  # not in order: rows of a page must be
    b.last = offset
    while b.page < page:
        if b.page >= 0:
            if not flush_page(b):
                return False
            b.page += 1
            # A rule that holds for long has a row in each page.
            if b.carried == PYPROF_RULE_NONE or b.holder.page_count >= MAX_FILE_PAGES:
                b.page = page
        else:
            b.page = page
        put_row(b, 0, b.carried)
    put_row(b, <uint32_t>(offset & (PAGE_BYTES - 1)), number)
    b.carried = number
    return True


cdef bint build(
    Builder *b, const uint64_t *addresses, const uint32_t *numbers, uint64_t count,
    const uint16_t *translation, uint64_t offset, uint64_t size, uint64_t vaddr,
) noexcept nogil:
    """Places the rows of one segment; False where there is no room."""
    cdef uint64_t low = 0, high = count, middle, taken
    size = min(size, MAX_OFFSET - offset)
    if offset < b.covered:  # segments that overlap in the file: the first one holds
        taken = b.covered - offset
        if taken >= size:
            return True
        offset, size, vaddr = offset + taken, size - taken, vaddr + taken
    b.covered = offset + size
    while low < high:
        middle = (low + high) // 2
        if addresses[middle] <= vaddr:
            low = middle + 1
        else:
            high = middle
    if not emit(b, offset, translation[numbers[low - 1]] if low else <uint16_t>PYPROF_RULE_NONE):
        return False
    while low < count and addresses[low] - vaddr < size:
        if not emit(b, offset + (addresses[low] - vaddr), translation[numbers[low]]):
            return False
        low += 1
    return emit(b, offset + size, PYPROF_RULE_NONE)


cdef void remove_page(Arena *arena, uint32_t number) noexcept nogil:
    """Forgets a page; its piece of the arena is the caller's to free."""
    cdef PageRow *row = &arena.pages[number]
    index_remove(&arena.page_index, page_slot(arena, row.key.executable, row.key.page))
    arena.rows -= row.page.last + 1
    row.key.executable = 0
    arena.free_pages.items[arena.free_pages.count] = number
    arena.free_pages.count += 1


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

    def __cinit__(self, rules):
        """rules: writable memory of the kernel's rule table, PYPROF_MAX_RULES rules."""
        cdef uint8_t[::1] view = rules
        cdef pyprof_rule unsupported
        memset(&self.arena, 0, sizeof(Arena))
        self.arena.seed = secrets.randbits(64)  # rules are made by what is profiled
        extents_init(&self.arena.extents, PYPROF_CHUNK_BYTES)
        self.buffers = [memoryview(rules)]  # which keeps them from being unmapped
        self.page_updates, self.page_deletes, self.state_updates, self.state_deletes = [], [], [], []
        if <uint64_t>view.shape[0] < PYPROF_MAX_RULES * sizeof(pyprof_rule):
            raise ValueError("the rule table is too small")
        if index_init(&self.arena.rule_index, 4096) < 0 or index_init(&self.arena.page_index, 1024) < 0:
            raise MemoryError
        self.arena.rules = <pyprof_rule *>&view[0]
        memset(&unsupported, 0, sizeof(unsupported))
        rule_number(&self.arena, &unsupported)  # all zeros: PYPROF_RULE_NONE, number 0
        unsupported.cfa = PYPROF_CFA_UNSUPPORTED
        rule_number(&self.arena, &unsupported)

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.arena.holder_count):
            free(self.arena.holders[i].pages)
        free(self.arena.holders)
        free(self.arena.pages)
        free(self.arena.free_pages.items)
        free(self.arena.wanted.items)
        free(self.arena.withdrawn)
        extents_deinit(&self.arena.extents)
        index_deinit(&self.arena.rule_index)
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
             const uint32_t[::1] numbers not None, const uint8_t[::1] rules not None, segments, uint64_t now):
        """Places rows and queues their publication.

        Args:
            executable: its number.
            addresses: ELF virtual addresses of the rows, ascending.
            numbers: of their rules.
            rules: the rules, as bytes.
            segments: (file offset, size, ELF address) of the executable segments.
            now: CLOCK_MONOTONIC, ns.

        Returns:
            False where the arena has no room: nothing is changed then.
        """
        cdef Holder *holder = holder_of(&self.arena, executable)
        cdef Builder b
        cdef uint64_t count = <uint64_t>addresses.shape[0], offset, size, vaddr, i
        cdef uint64_t rule_count = <uint64_t>rules.shape[0] // sizeof(pyprof_rule)
        cdef uint16_t *translation
        cdef bint fits = True
        if holder == NULL:
            raise MemoryError
        if numbers.shape[0] != addresses.shape[0]:
            raise ValueError("columns differ in length")
        if count and highest(&numbers[0], count) >= rule_count:
            raise ValueError("a row has no rule")
        if holder.state == LOADED:
            return True
        # Whatever is no such triple is found before anything is placed.
        parts = []
        for offset, size, vaddr in segments:
            parts.append((offset, size, vaddr))
        parts.sort()
        b.arena = &self.arena
        b.holder = holder
        b.executable = executable
        b.page = -1
        b.last = 0
        b.covered = 0
        b.carried = PYPROF_RULE_NONE
        b.rows.count = 0
        b.rows.offsets = <uint16_t *>calloc(PAGE_BYTES, 2)
        b.rows.numbers = <uint16_t *>calloc(PAGE_BYTES, 2)
        translation = <uint16_t *>calloc(rule_count + 1, 2)
        try:
            if b.rows.offsets == NULL or b.rows.numbers == NULL or translation == NULL:
                raise MemoryError
            for i in range(rule_count):
                translation[i] = <uint16_t>rule_number(
                    &self.arena, <const pyprof_rule *>&rules[i * sizeof(pyprof_rule)]
                )
            for offset, size, vaddr in parts:
                if fits and count and size and offset < MAX_OFFSET:
                    with nogil:
                        fits = build(&b, &addresses[0], &numbers[0], count, translation, offset, size, vaddr)
            fits = fits and flush_page(&b)
        finally:
            free(b.rows.offsets)
            free(b.rows.numbers)
            free(translation)
        if not fits:
            for i in range(holder.page_count):
                extents_give(
                    &self.arena.extents,
                    self.arena.pages[holder.pages[i]].start, self.arena.pages[holder.pages[i]].size,
                )
                remove_page(&self.arena, holder.pages[i])
            empty(holder)
            return False
        holder.state = LOADED
        holder.last_used = now
        for i in range(holder.page_count):
            self.page_updates.append(holder.pages[i])
        self.state_updates.append(executable)
        return True

    def load_none(self, uint32_t executable):
        """Says that an executable has no rows: from now on frame pointers have to do for it."""
        cdef Holder *holder = holder_of(&self.arena, executable)
        if holder == NULL:
            raise MemoryError
        self.evict(executable)
        holder.state = NO_ROWS
        self.state_updates.append(executable)

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
        ) < 0:
            raise MemoryError
        gone = set()
        for i in range(holder.page_count):
            row = &self.arena.pages[holder.pages[i]]
            self.page_deletes.append((row.key.executable, row.key.page))
            gone.add(holder.pages[i])
            self.arena.withdrawn[self.arena.withdrawn_count].start = row.start
            self.arena.withdrawn[self.arena.withdrawn_count].size = row.size
            self.arena.withdrawn[self.arena.withdrawn_count].flushed_at = 0
            self.arena.withdrawn_count += 1
            remove_page(&self.arena, holder.pages[i])
        self.page_updates = [number for number in self.page_updates if number not in gone]
        self.state_updates = [number for number in self.state_updates if number != executable]
        self.state_deletes.append(executable)
        empty(holder)
        holder.state = NOT_LOADED
        self.arena.evictions += 1
        return freed

    def forget(self, uint32_t executable):
        """Takes back what load_none said: sampled again, its rows are wanted again."""
        cdef Holder *holder = holder_of(&self.arena, executable)
        if holder != NULL and holder.state == NO_ROWS:
            holder.state = NOT_LOADED
            self.state_updates = [number for number in self.state_updates if number != executable]
            self.state_deletes.append(executable)

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
        return [i for i in range(self.arena.holder_count) if self.arena.holders[i].state >= LOADED]

    def oldest(self, uint64_t before):
        """The loaded executable that was sampled longest ago, before a time; 0 where there is none."""
        cdef uint32_t i, found = 0
        for i in range(self.arena.holder_count):
            if self.arena.holders[i].state == LOADED and self.arena.holders[i].page_count:
                if self.arena.holders[i].last_used < before:
                    before = self.arena.holders[i].last_used
                    found = i
        return found

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

    def reclaim(self, uint64_t before):
        """Gives memory free whose entries were out of the kernel before a time; bytes freed."""
        cdef uint64_t i, kept = 0, freed = 0
        for i in range(self.arena.withdrawn_count):
            if self.arena.withdrawn[i].flushed_at and self.arena.withdrawn[i].flushed_at < before:
                extents_give(&self.arena.extents, self.arena.withdrawn[i].start, self.arena.withdrawn[i].size)
                freed += self.arena.withdrawn[i].size
            else:
                self.arena.withdrawn[kept] = self.arena.withdrawn[i]
                kept += 1
        self.arena.withdrawn_count = kept
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
            "rules": self.arena.rule_count,
            "evictions": self.arena.evictions,
            "refused_rules": self.arena.refused_rules,
        }
