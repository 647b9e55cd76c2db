# SPDX-License-Identifier: Apache-2.0
"""Unwind rows as bytes for the cache on disk, with a seal that says what they were made from, and by what."""

import os
import struct
import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from pyprof._native import cfi
from pyprof._native.hashing import hash_bytes, hash_two
from pyprof._native.row_codec import pack_rows, packed_size, unpack_rows
from pyprof.errors import PyprofError
from pyprof.unwind.go import GoSource
from pyprof.unwind.tables import CfiSource

FORMAT = 2
"""Version of the entries; all others are ignored."""

MAX_UNPACKED = 1 << 28
"""Most bytes of rows, unpacked: 40 million of them."""

_MAGIC = b"pyprofUR"
# Magic, format, bytes of a step, rules, rows, address of the first, packed bytes, seal; then CRC-32 of all
# this and of the packed bytes, which follow: LZ4 of what pack_rows makes, and of the rules.
_HEADER = struct.Struct("<8sHHIQQQ32s")
_CRC = struct.Struct("<I")
_SEEDS = struct.Struct("<QQ")
_LZ4_BEST = 256  # bytes that one packed byte can stand for, at most


class Rows(Protocol):
    """Columns of unwind rows, as UnwindRows has them."""

    @property
    def addresses(self) -> "memoryview[int]": ...
    @property
    def numbers(self) -> "memoryview[int]": ...
    @property
    def rules(self) -> "memoryview[int]": ...
    def __len__(self) -> int: ...


class StoredRows(NamedTuple):
    """Rows that were read from an entry. Attributes: as those of UnwindRows."""

    addresses: "memoryview[int]"
    numbers: "memoryview[int]"
    rules: "memoryview[int]"

    def __len__(self) -> int:
        return len(self.addresses)


class DamagedEntry(PyprofError):
    """An entry is none, or was changed."""


def new_seal(source: CfiSource | GoSource, machine: int) -> bytes:
    """A seal for rows of a source: random seeds, and hashes by them.

    Raises:
        OSError: our own code cannot be read.
    """
    seeds = os.urandom(_SEEDS.size)
    return seeds + _hashes(seeds, source, machine)


def encode(rows: Rows, seal: bytes) -> bytes | None:
    """An entry; None for rows that have no packed form, or too large a one.

    Args:
        rows: one or more.
        seal: what `new_seal` gave for their source.
    """
    import lz4.block

    rule_count = len(rows.rules) // cfi.RULE_SIZE
    packed = pack_rows(rows.addresses, rows.numbers, rule_count)
    if packed is None or len(packed[1]) + len(rows.rules) > MAX_UNPACKED:
        return None
    step_bytes, columns = packed
    content = lz4.block.compress(columns + rows.rules, store_size=False)
    header = _HEADER.pack(
        _MAGIC, FORMAT, step_bytes, rule_count, len(rows), rows.addresses[0], len(content), seal
    )
    return b"".join((header, _CRC.pack(zlib.crc32(content, zlib.crc32(header))), content))


def decode(entry: bytes, source: CfiSource | GoSource, machine: int) -> StoredRows | None:
    """Rows of an entry.

    Args:
        entry: its bytes; nothing in them is believed.
        source: what the rows would be made from now.
        machine: EM_* of the file.

    Returns:
        The rows; None where the entry was made from something else, or by another version.

    Raises:
        DamagedEntry: there are none in it.
        OSError: our own code cannot be read.
    """
    start = _HEADER.size + _CRC.size
    if len(entry) < start:
        raise DamagedEntry("an entry ends within its header")
    magic, version, step_bytes, rule_count, row_count, first, size, seal = _HEADER.unpack_from(entry)
    content = memoryview(entry)[start:]
    (crc,) = _CRC.unpack_from(entry, _HEADER.size)
    if crc != zlib.crc32(content, zlib.crc32(entry[: _HEADER.size])) or magic != _MAGIC:
        raise DamagedEntry("an entry was changed")
    if version != FORMAT:
        return None
    columns_size = packed_size(min(row_count, MAX_UNPACKED), step_bytes, rule_count)
    unpacked_size = columns_size + cfi.RULE_SIZE * rule_count
    if size != len(content) or unpacked_size > min(MAX_UNPACKED, _LZ4_BEST * size):
        raise DamagedEntry("an entry states sizes that cannot be")
    seeds = seal[: _SEEDS.size]
    if seal[_SEEDS.size :] != _hashes(seeds, source, machine):
        return None
    import lz4.block

    try:
        unpacked = lz4.block.decompress(content, uncompressed_size=unpacked_size)
    except lz4.block.LZ4BlockError as error:
        raise DamagedEntry("an entry cannot be unpacked") from error
    rules = memoryview(unpacked)[columns_size:]
    columns = unpack_rows(memoryview(unpacked)[:columns_size], row_count, step_bytes, first, rule_count)
    if columns is None or len(unpacked) != unpacked_size:
        raise DamagedEntry("an entry has no rows")
    return StoredRows(*columns, rules)


def _hashes(seeds: bytes, source: CfiSource | GoSource, machine: int) -> bytes:
    """Hashes of all that rows are made from, and of what makes them.

    Who writes an executable does not know the seeds, which differ from entry to entry and stand in files that
    only their owner can read, and so cannot make two sources of one hash; see csrc/hash.h.
    """
    rest = struct.pack("<QI", _maker(), machine) + source.name.encode()
    parts = (rest, *source.parts())
    hashes = []
    for seed in _SEEDS.unpack(seeds):
        found = seed
        for part in parts:
            found = hash_two(found, hash_bytes(part, seed), seed)
        hashes.append(found)
    return _SEEDS.pack(*hashes)


@lru_cache(maxsize=1)
def _maker() -> int:
    """Hash of the module that makes rows."""
    return hash_bytes(Path(cfi.__file__).read_bytes())
