# SPDX-License-Identifier: Apache-2.0
"""Symbol tables: from raw table bytes to names of addresses, with no Python object a symbol.

Everything in a file may be a lie: no value is used as an offset or a length unchecked, and time is n log n.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport UINT64_MAX
from libc.stdint cimport int32_t
from libc.stdint cimport int64_t
from libc.stdint cimport uint8_t
from libc.stdint cimport uint16_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from pyprof._native.kallsyms cimport TextCounts
from pyprof._native.kallsyms cimport end_kernel_symbols
from pyprof._native.kallsyms cimport read_kernel_lines
from pyprof._native.symbol_entries cimport BOUNDARY
from pyprof._native.symbol_entries cimport NO_OWNER
from pyprof._native.symbol_entries cimport RANK_DEFAULT
from pyprof._native.symbol_entries cimport RANK_FUNCTION
from pyprof._native.symbol_entries cimport RANK_GLOBAL
from pyprof._native.symbol_entries cimport RANK_SIZED
from pyprof._native.symbol_entries cimport RANK_WEAK
from pyprof._native.symbol_entries cimport Entries
from pyprof._native.symbol_entries cimport Entry
from pyprof._native.symbol_entries cimport Names
from pyprof._native.symbol_entries cimport entries_push
from pyprof._native.symbol_entries cimport entries_sort
from pyprof._native.symbol_entries cimport is_old_version
from pyprof._native.symbol_entries cimport layout_deinit
from pyprof._native.symbol_entries cimport layout_init
from pyprof._native.symbol_entries cimport layout_owner
from pyprof._native.symbol_entries cimport name_find
from pyprof._native.symbol_entries cimport name_length
from pyprof._native.symbol_entries cimport underscore_rank

from pyprof.errors import ElfError

cdef extern from "elf.h" nogil:
    ctypedef struct Elf64_Sym:
        uint32_t st_name
        uint8_t st_info
        uint8_t st_other
        uint16_t st_shndx
        uint64_t st_value
        uint64_t st_size

cdef enum:
    STT_NOTYPE = 0
    STT_FUNC = 2
    STT_GNU_IFUNC = 10
    STB_LOCAL = 0
    STB_WEAK = 2
    SHN_UNDEF = 0
    SHN_LORESERVE = 0xff00
    SHN_XINDEX = 0xffff
    VERSYM_HIDDEN = 0x8000

    NAME_SHOWN = 1 << 16  # longest name that is handed out


cdef const Range *range_find(const Range *ranges, size_t count, uint64_t address) noexcept nogil:
    """The executable range that holds an address; ranges ascend and do not overlap."""
    cdef size_t low = 0
    cdef size_t high = count
    cdef size_t middle
    while low < high:
        middle = (low + high) // 2
        if ranges[middle].start <= address:
            low = middle + 1
        else:
            high = middle
    if low and address < ranges[low - 1].end:
        return ranges + (low - 1)
    return NULL


cdef bint read_symbols(Entries *entries, const uint8_t *table, size_t count, const uint8_t *versions,
                       size_t version_count, const Names *strings, const Range *ranges,
                       size_t range_count) noexcept nogil:
    """Takes functions, and labels in code, of one ELF symbol table; False: out of memory.

    versions: 16 bits a symbol, the highest of which says that it is not the version to link against (Linux Standard
    Base, Core, section 10.7.2).
    """
    cdef Elf64_Sym symbol
    cdef Entry entry
    cdef const Range *within
    cdef const uint8_t *name
    cdef size_t left
    cdef size_t i
    cdef uint16_t version
    cdef int kind
    cdef int bind
    for i in range(count):
        memcpy(&symbol, table + i * sizeof(Elf64_Sym), sizeof(Elf64_Sym))
        kind = symbol.st_info & 15
        bind = symbol.st_info >> 4
        if kind != STT_FUNC and kind != STT_GNU_IFUNC and kind != STT_NOTYPE:
            continue
        # Reserved indices are SHN_ABS (version markers) and SHN_COMMON; XINDEX stands for an ordinary section.
        if symbol.st_shndx == SHN_UNDEF or SHN_LORESERVE <= symbol.st_shndx < SHN_XINDEX:
            continue
        if symbol.st_name >= strings.size:
            continue
        name = strings.data + symbol.st_name
        left = strings.size - symbol.st_name
        if name[0] == 0:
            continue
        # Mapping symbols ($x, $d) and assembler labels (.L1) mark places; they do not name functions.
        if kind == STT_NOTYPE and (name[0] == c'$' or (left > 1 and name[0] == c'.' and name[1] == c'L')):
            continue
        within = range_find(ranges, range_count, symbol.st_value)
        if within == NULL:
            continue
        entry.value = symbol.st_value
        entry.end = symbol.st_value
        entry.name = strings.base + symbol.st_name
        entry.in_module = 0
        entry.rank = underscore_rank(name, left)
        version = 0
        if i < version_count:
            memcpy(&version, versions + 2 * i, sizeof(version))
        if not version & VERSYM_HIDDEN and not is_old_version(name, left):
            entry.rank |= RANK_DEFAULT
        if kind != STT_NOTYPE:
            entry.rank |= RANK_FUNCTION
        if bind == STB_WEAK:
            entry.rank |= RANK_WEAK
        elif bind != STB_LOCAL:
            entry.rank |= RANK_GLOBAL
        if symbol.st_size:
            entry.rank |= RANK_SIZED
            # No function crosses the end of its section; this also bounds sizes that would wrap.
            entry.end = within.end
            if symbol.st_size < within.end - symbol.st_value:
                entry.end = symbol.st_value + symbol.st_size
        if not entries_push(entries, entry):
            return False
    return True


cdef uint64_t function_start(const uint8_t *starts, size_t index) noexcept nogil:
    cdef int32_t start
    memcpy(&start, starts + 8 * index, sizeof(start))
    return <uint64_t><int64_t>start


cdef uint64_t next_function(const uint8_t *starts, size_t count, uint64_t base, uint64_t address) noexcept nogil:
    """The first start of unwind information after an address; UINT64_MAX where there is none.

    Starts are the .eh_frame_hdr search table: pairs of (function, description), relative to the header's address,
    ascending (Linux Standard Base, Core, section 10.6.2). A table that is not sorted gives some answer, in time.
    """
    cdef size_t low = 0
    cdef size_t high = count
    cdef size_t middle
    cdef uint64_t start
    while low < high:
        middle = (low + high) // 2
        if base + function_start(starts, middle) <= address:
            low = middle + 1
        else:
            high = middle
    if low < count:
        start = base + function_start(starts, low)
        if start > address:
            return start
    return UINT64_MAX


cdef void end_unsized_symbols(Entries *entries, const Range *ranges, size_t range_count, const uint8_t *starts,
                              size_t start_count, uint64_t base) noexcept nogil:
    """Of sorted entries: those without a size end at the next symbol, function or end of their range."""
    cdef uint64_t next_value = UINT64_MAX
    cdef const Range *within
    cdef size_t i = entries.count
    cdef Entry *entry
    while i > 0:
        i -= 1
        entry = entries.items + i
        if i + 1 < entries.count and entries.items[i + 1].value > entry.value:
            next_value = entries.items[i + 1].value
        if entry.rank & RANK_SIZED:
            continue
        within = range_find(ranges, range_count, entry.value)
        entry.end = min(next_value, next_function(starts, start_count, base, entry.value))
        if within != NULL and within.end < entry.end:
            entry.end = within.end


@cython.final
cdef class SymbolTable:
    """Functions by address. It does not change once it is made, so threads may share it.

    Of several symbols that cover an address the innermost one counts, and of aliases the one with a size, then the
    default version before old ones (`name@@VER`, `name@VER`), then global before weak before local, functions before
    labels, fewer leading underscores, the shortest name and the first by alphabet. An address that no symbol covers
    has no name: the nearest symbol before it is not an answer.
    """

    def __cinit__(self, tables=(), ranges=(), const uint8_t[::1] function_starts=None, uint64_t function_base=0):
        cdef const uint8_t[::1] symbols
        cdef const uint8_t[::1] strings
        cdef const uint8_t[::1] versions
        cdef Range *limits = NULL
        cdef size_t limit_count = 0
        cdef size_t before
        cdef const uint8_t *starts = NULL
        cdef size_t start_count = 0
        cdef uint64_t base = 0
        cdef bint done
        self.counts = []
        self.kept = []
        spans = sorted(ranges)
        if len(tables) > MAX_SOURCES:
            raise ElfError(f"more than {MAX_SOURCES} symbol tables")
        limits = <Range *>malloc((len(spans) + 1) * sizeof(Range))
        if limits == NULL:
            raise MemoryError
        try:
            for start, end in spans:
                start = max(start, limits[limit_count - 1].end if limit_count else 0)
                if start < end:
                    limits[limit_count].start = start
                    limits[limit_count].end = end
                    limit_count += 1
            if function_starts is not None and len(function_starts) >= 8:
                starts = &function_starts[0]
                start_count = len(function_starts) // 8
            for table in tables:
                symbols, strings = table[0], table[1]
                versions = table[2] if len(table) > 2 else b""
                if base + <uint64_t>len(strings) >= BOUNDARY:
                    raise ElfError("symbol names of more than 4 GiB")
                before = self.entries.count
                self.kept.append(table[1])
                self.names[self.sources].data = &strings[0] if len(strings) else NULL
                self.names[self.sources].size = len(strings)
                self.names[self.sources].base = <uint32_t>base
                if len(symbols) and len(strings):
                    with nogil:
                        done = read_symbols(
                            &self.entries, &symbols[0], len(symbols) // sizeof(Elf64_Sym),
                            &versions[0] if len(versions) else NULL, len(versions) // 2,
                            &self.names[self.sources], limits, limit_count,
                        )
                    if not done:
                        raise MemoryError
                self.sources += 1
                base += len(strings)
                self.counts.append(self.entries.count - before)
            with nogil:
                done = entries_sort(&self.entries, self.names, self.sources)
                if done:
                    end_unsized_symbols(&self.entries, limits, limit_count, starts, start_count, function_base)
                    done = layout_init(&self.layout, &self.entries)
            if not done:
                raise MemoryError
        finally:
            free(limits)

    def __dealloc__(self):
        layout_deinit(&self.layout)
        free(self.entries.items)
        free(self.arena.data)
        self.entries.items = NULL
        self.arena.data = NULL

    @staticmethod
    def from_kallsyms(chunks):
        """Reads the text of /proc/kallsyms.

        Args:
            chunks: bytes of whole lines.

        Returns:
            A table of kernel functions; the name of one in a module is followed by a tab and the module in brackets.
            `hidden` says that there are functions, but all of their addresses are withheld.
        """
        cdef SymbolTable self = SymbolTable.__new__(SymbolTable)
        cdef const uint8_t[::1] text
        cdef TextCounts counts
        cdef bint done = True
        counts.seen = counts.placed = 0
        for chunk in chunks:
            text = chunk
            if len(text) == 0:
                continue
            with nogil:
                done = read_kernel_lines(&self.entries, &self.arena, &counts, &text[0], len(text))
            if not done:
                raise MemoryError
        self.hidden = counts.seen > 0 and counts.placed == 0
        self.counts.append(counts.placed)
        layout_deinit(&self.layout)
        if self.arena.size:
            self.names[0].data = self.arena.data
            self.names[0].size = self.arena.size
            self.names[0].base = 0
            self.sources = 1
        with nogil:
            done = entries_sort(&self.entries, self.names, self.sources)
            if done:
                end_kernel_symbols(&self.entries)
                done = layout_init(&self.layout, &self.entries)
        if not done:
            raise MemoryError
        return self

    def resolve(self, const uint64_t[::1] addresses not None):
        """Names addresses.

        Args:
            addresses: virtual addresses, in the terms of the file (or of the kernel).

        Returns:
            For each, (name without version, offset into the symbol, whether the symbol has no size so that it is a
            guess, index of the table that it stands in), or None.
        """
        cdef size_t count = len(addresses)
        cdef size_t i
        cdef size_t left
        cdef size_t source
        cdef const Entry *entry
        cdef const uint8_t *name
        cdef uint32_t *owners
        cdef list found = [None] * len(addresses)
        if count == 0 or self.layout.count == 0:
            return found
        owners = <uint32_t *>malloc(count * sizeof(uint32_t))
        if owners == NULL:
            raise MemoryError
        try:
            with nogil:
                for i in range(count):
                    owners[i] = layout_owner(&self.layout, addresses[i])
            for i in range(count):
                if owners[i] == NO_OWNER:
                    continue
                entry = self.entries.items + owners[i]
                source = name_find(self.names, self.sources, entry.name, &name, &left)
                if source == self.sources:
                    continue
                left = name_length(name, left, NAME_SHOWN)
                found[i] = (name[:left], addresses[i] - entry.value, not entry.rank & RANK_SIZED, source)
        finally:
            free(owners)
        return found

    def flattened(self):
        """What a table of one source says, as plain columns: (starts, symbols, names, texts). Piece i begins at
        starts[i] (u64), belongs to a symbol that begins at symbols[i] (u64) and has its name at names[i] (u32) in
        the texts, ended by a NUL; NO_NAME where it belongs to none."""
        cdef const Entry *entry
        cdef size_t i
        if self.sources > 1:
            raise ValueError("more than one source")
        symbols = bytearray(self.layout.count * sizeof(uint64_t))
        names = bytearray(self.layout.count * sizeof(uint32_t))
        cdef uint64_t[::1] values = memoryview(symbols).cast("Q")
        cdef uint32_t[::1] positions = memoryview(names).cast("I")
        for i in range(self.layout.count):
            positions[i] = NO_OWNER
            if self.layout.owners[i] != NO_OWNER:
                entry = self.entries.items + self.layout.owners[i]
                if entry.name != BOUNDARY:
                    values[i] = entry.value
                    positions[i] = entry.name
        return (
            PyBytes_FromStringAndSize(<const char *>self.layout.starts, <Py_ssize_t>(
                self.layout.count * sizeof(uint64_t)
            )),
            bytes(symbols), bytes(names),
            PyBytes_FromStringAndSize(<const char *>self.names[0].data, <Py_ssize_t>self.names[0].size),
        )

    def __len__(self):
        return self.entries.count

    @property
    def nbytes(self):
        """Memory that the table holds."""
        return (
            self.entries.capacity * sizeof(Entry) + self.layout.count * (sizeof(uint64_t) + sizeof(uint32_t))
            + self.arena.capacity + sum(len(strings) for strings in self.kept)
        )
