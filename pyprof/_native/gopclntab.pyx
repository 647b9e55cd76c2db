# SPDX-License-Identifier: Apache-2.0
"""Functions of Go's program counter table as ELF symbols; no value of the table is used unchecked."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t
from libc.stdint cimport uint16_t
from libc.stdint cimport uint32_t
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

cdef extern from "elf.h" nogil:
    ctypedef struct Elf64_Sym:
        uint32_t st_name
        uint8_t st_info
        uint8_t st_other
        uint16_t st_shndx
        uint64_t st_value
        uint64_t st_size

    ctypedef struct Elf64_Rela:
        uint64_t r_offset
        uint64_t r_info
        uint64_t r_addend

cdef enum:
    STT_FUNC = 2


cdef uint64_t field_at(const uint8_t *table, uint64_t index, uint32_t width) noexcept nogil:
    cdef uint64_t value = 0
    memcpy(&value, table + index * width, width)
    return value


cdef uint64_t read_functions(
    const uint8_t *table, uint64_t count, uint32_t width, const uint8_t *functions, uint64_t size, uint64_t names_size,
    uint64_t text, uint8_t *ret,
) noexcept nogil:
    """Writes a symbol for each function whose address, extent and name make sense; returns how many."""
    cdef Elf64_Sym symbol
    cdef uint64_t made = 0
    cdef uint64_t i
    cdef uint64_t start
    cdef uint64_t end
    cdef uint64_t at
    symbol.st_info = STT_FUNC
    symbol.st_other = 0
    symbol.st_shndx = 1
    for i in range(count):
        start = field_at(table, 2 * i, width)
        end = field_at(table, 2 * i + 2, width)
        at = field_at(table, 2 * i + 1, width)
        if end <= start or at > size or size - at < width + 4:
            continue
        memcpy(&symbol.st_name, functions + at + width, 4)
        if symbol.st_name >= names_size:
            continue
        symbol.st_value = text + start
        symbol.st_size = end - start
        memcpy(ret + made * sizeof(Elf64_Sym), &symbol, sizeof(Elf64_Sym))
        made += 1
    return made


def function_symbols(
    const uint8_t[::1] table not None, uint32_t width, const uint8_t[::1] functions not None, uint64_t names_size,
    uint64_t text
):
    """Symbols of a function table.

    Args:
        table: pairs of (start, position in `functions`), ascending, and the end of the last function.
        width: bytes of each of these numbers, 4 or 8.
        functions: descriptions of functions: the start once more, in `width` bytes, and the name's position.
        names_size: bytes of all names.
        text: what the starts count from.

    Returns:
        ELF symbols, in the order of the table; a function that makes no sense is left out.
    """
    cdef uint64_t numbers
    cdef uint64_t count
    cdef uint64_t made = 0
    cdef uint8_t *symbols
    if width != 4 and width != 8:
        raise ValueError("numbers of 4 or 8 bytes")
    numbers = <uint64_t>table.shape[0] // width
    count = (numbers - 1) // 2 if numbers else 0
    packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * sizeof(Elf64_Sym)))
    if count and functions.shape[0]:
        symbols = <uint8_t *>PyBytes_AS_STRING(packed)
        with nogil:
            made = read_functions(
                &table[0], count, width, &functions[0], <uint64_t>functions.shape[0], names_size, text, symbols
            )
    return packed[: made * sizeof(Elf64_Sym)]


def relocate(uint8_t[::1] data not None, uint64_t address, const uint8_t[::1] relocations not None, uint32_t kind):
    """Writes into loaded bytes the pointers that the loader would write there, for a file loaded where it says.

    Args:
        data: the bytes.
        address: of the first.
        relocations: entries of a table with addends.
        kind: the type of a relative relocation.
    """
    cdef Elf64_Rela entry
    cdef uint64_t size = <uint64_t>data.shape[0]
    cdef uint64_t count = <uint64_t>relocations.shape[0] // sizeof(Elf64_Rela)
    cdef uint64_t i
    cdef uint64_t at
    if size < 8:
        return
    with nogil:
        for i in range(count):
            memcpy(&entry, &relocations[i * sizeof(Elf64_Rela)], sizeof(Elf64_Rela))
            at = entry.r_offset - address
            if entry.r_info == kind and at <= size - 8:
                memcpy(&data[at], &entry.r_addend, 8)
