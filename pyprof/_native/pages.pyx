# SPDX-License-Identifier: Apache-2.0
"""Bodies of pages.pxd.

A page is one piece of a chunk (layout: struct pyprof_page). It begins with a row for its first byte, so that a
search never leaves it.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pyprof._native.arena cimport (
    PYPROF_CHUNK_BYTES,
    PYPROF_PAGE_BITS,
    PYPROF_PAGE_PARTS,
    SHORT_OF_CHUNKS,
    SHORT_OF_NOTHING,
    SHORT_OF_PAGES,
    Arena,
    Holder,
    PageRow,
)
from pyprof._native.extents cimport extents_give, extents_take
from pyprof._native.hashing cimport pyprof_hash_two
from pyprof._native.index cimport index_add, index_remove, index_reserve, slot_id
from pyprof._native.memory cimport grow
from pyprof._native.rules cimport PYPROF_RULE_NONE

cdef uint32_t MAX_FILE_PAGES = 16384  # 1 GiB of code: no file may take all that the host has
cdef uint64_t ALIGN = 64  # a cache line
cdef uint64_t MAX_OFFSET = <uint64_t>1 << 47
cdef uint32_t PAGE_BYTES = 1 << PYPROF_PAGE_BITS


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


cdef bint place_page(
    Arena *arena, Holder *holder, uint32_t executable, uint32_t page, PageRows *rows
) noexcept nogil:
    """Copies a page's rows into the arena; False where there is no room, with arena.short_of saying of what."""
    cdef uint64_t size = (<uint64_t>rows.count * 4 + ALIGN - 1) & ~(ALIGN - 1)
    cdef int64_t start
    cdef uint32_t number, part, row
    cdef uint8_t *chunk
    cdef PageRow *made
    arena.short_of = SHORT_OF_PAGES
    if arena.page_index.used >= arena.max_pages:
        return False
    start = extents_take(&arena.extents, size)
    if start < 0:
        arena.short_of = SHORT_OF_CHUNKS
        return False
    if index_reserve(&arena.page_index) < 0 or grow(
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
    arena.short_of = SHORT_OF_NOTHING
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


cdef int builder_init(Builder *b, Arena *arena, Holder *holder, uint32_t executable) noexcept nogil:
    """0, or -1 without memory."""
    memset(b, 0, sizeof(Builder))
    b.arena = arena
    b.holder = holder
    b.executable = executable
    b.page = -1
    b.carried = PYPROF_RULE_NONE
    b.rows.offsets = <uint16_t *>calloc(PAGE_BYTES, 2)
    b.rows.numbers = <uint16_t *>calloc(PAGE_BYTES, 2)
    return 0 if b.rows.offsets != NULL and b.rows.numbers != NULL else -1


cdef void builder_deinit(Builder *b) noexcept nogil:
    free(b.rows.offsets)
    free(b.rows.numbers)


cdef bint builder_finish(Builder *b) noexcept nogil:
    """Places the page in the making; False where there is no room."""
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
            if not builder_finish(b):
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


cdef bint builder_add(
    Builder *b, const uint64_t *addresses, const uint32_t *numbers, uint64_t count,
    const uint16_t *translation, uint64_t offset, uint64_t size, uint64_t vaddr,
) noexcept nogil:
    """Places the rows of one segment; False where there is no room."""
    cdef uint64_t low = 0, high = count, middle, taken
    if offset >= MAX_OFFSET:
        return True
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


cdef void page_remove(Arena *arena, uint32_t number) noexcept nogil:
    """Forgets a page; its piece of the arena is the caller's to free."""
    cdef PageRow *row = &arena.pages[number]
    index_remove(&arena.page_index, page_slot(arena, row.key.executable, row.key.page))
    arena.rows -= row.page.last + 1
    row.key.executable = 0
    arena.free_pages.items[arena.free_pages.count] = number
    arena.free_pages.count += 1
