# SPDX-License-Identifier: Apache-2.0
"""Makes the seed inputs of the fuzzer: small pieces of real call frame information, whole entries each.

Usage: python -m tests.fuzz.seeds FOLDER FILE...
"""

import os
import struct
import sys
from pathlib import Path

from pyprof.elf.file import ElfFile, open_regular
from pyprof.unwind.tables import DEBUG_FRAME, sources

PIECE = 600


def entries(data: bytes) -> list[bytes]:
    """The entries of a section, 32-bit lengths only."""
    found, at = [], 0
    while at + 4 <= len(data):
        length = struct.unpack_from("<I", data, at)[0]
        if length >= 0xFFFFFFF0:
            break
        found.append(data[at : at + 4 + length])
        at += 4 + length
    return found


def pieces(data: bytes) -> list[bytes]:
    """Runs of entries that begin with common information, so that those behind refer to it."""
    found: list[bytes] = []
    size = 0
    for entry in entries(data):
        if entry[4:8] in {b"\0\0\0\0", b"\xff\xff\xff\xff"}:
            found.append(b"")
            size = 0
        if found and size < PIECE:
            found[-1] += entry
            size += len(entry)
    return found


def main(folder: str, *files: str) -> None:
    """Writes the seeds, each with the head that the harness expects."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in files:
        fd = open_regular(file)
        for source in sources(ElfFile(fd, file), []):
            variant = 2 if source.name == DEBUG_FRAME else 0
            for number, piece in enumerate(pieces(source.data)[:8]):
                head = struct.pack("<BQ", variant, source.address)
                (Path(folder) / f"{Path(file).name}-{number}").write_bytes(head + piece)
        os.close(fd)


if __name__ == "__main__":
    main(*sys.argv[1:])
