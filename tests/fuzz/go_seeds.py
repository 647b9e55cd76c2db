# SPDX-License-Identifier: Apache-2.0
"""Makes the seed inputs of the fuzzer of Go's tables: a few functions of a real program each.

Usage: python -m tests.fuzz.go_seeds FOLDER PROGRAM
"""

import os
import struct
import sys
from pathlib import Path

from pyprof.elf.file import EM_X86_64, ElfFile, open_regular
from pyprof.unwind.go import GoSource, all_sources

HEAD = struct.Struct("<BBBB4IQQ")
FUNCTIONS = 6
EVERY = 40
NAMED = (
    b"runtime.systemstack",
    b"runtime.mcall",
    b"runtime.goexit",
    b"runtime.gogo",
    b"runtime.sigreturn__sigaction",
)


def seed(source: GoSource, machine: int, first: int) -> bytes:
    """Functions from a number on as an input: descriptions, distances and names cut out and numbered anew."""
    table, pairs = source.table, source.pairs
    width, data = table.width, table.data
    numbers = [int.from_bytes(pairs[at : at + width], "little") for at in range(0, len(pairs), width)]
    chosen = numbers[2 * first : 2 * (first + FUNCTIONS) + 1]
    described, deltas, names = b"\0" * 8, b"\0", b"\0"
    made = []
    for start, position in zip(chosen[:-1:2], chosen[1::2], strict=True):
        description = bytearray(data[table.functions + position :][:48])
        (name,) = struct.unpack_from("<I", description, width)
        (delta,) = struct.unpack_from("<I", description, table.deltas_at)
        struct.pack_into("<I", description, width, len(names))
        struct.pack_into("<I", description, table.deltas_at, len(deltas) if delta else 0)
        names += data[table.names + name :].split(b"\0", 1)[0] + b"\0"
        values = data[table.deltas + delta :]
        deltas += values[: values.index(0, 1) + 1]
        made += [start, len(described)]
        described += bytes(description)
    made.append(chosen[-1])
    low = source.text + made[0] - source.code_address
    code = source.code[low : source.text + made[-1] - source.code_address]
    parts = [b"".join(number.to_bytes(width, "little") for number in made), described, deltas, names]
    variant = 2 * (width == 8) + (machine != EM_X86_64)
    head = HEAD.pack(
        variant, table.deltas_at, table.flags_at, table.quantum, *map(len, parts), source.text,
        source.text + made[0],
    )  # fmt: skip
    return head + b"".join(parts) + code


def main(folder: str, program: str) -> None:
    """Writes the seeds."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    fd = open_regular(program)
    file = ElfFile(fd, program)
    source = next(source for source in all_sources(file, []) if isinstance(source, GoSource))
    total = source.table.total - FUNCTIONS
    chosen = set(range(0, total, max(total // EVERY, 1)))
    names, data = {}, source.table.data
    for number in range(total):
        at = source.table.functions + int.from_bytes(
            source.pairs[(2 * number + 1) * source.table.width :][: source.table.width], "little"
        )
        (name,) = struct.unpack_from("<I", data, at + source.table.width)
        names[data[source.table.names + name :][:40].split(b"\0", 1)[0]] = number
    chosen |= {names[name] for name in NAMED if name in names}
    for number in sorted(chosen):
        (Path(folder) / f"go-{number}").write_bytes(seed(source, file.machine, number))
    os.close(fd)


if __name__ == "__main__":
    main(*sys.argv[1:])
