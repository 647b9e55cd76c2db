# SPDX-License-Identifier: Apache-2.0
"""`pyprof inspect elf FILE`: what the profiler knows an executable by, and where it takes names from."""

import argparse
import json
import os
import sys
from typing import Any

from pyprof.elf.file import ElfFile, open_regular, show_path
from pyprof.elf.identity import Identity, identity_of
from pyprof.symbols.gopclntab import GOPCLNTAB
from pyprof.symbols.native import DEBUGDATA, NativeSymbols

_SOURCES = {
    ".symtab": "all functions; `strip` removes it",
    ".dynsym": "exported and imported functions; always there",
    DEBUGDATA: "local functions, compressed; Fedora and its kin have it",
    GOPCLNTAB: "all functions of Go programs; read where .symtab is missing",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.description = "Show what identifies an executable or library, its segments and symbol tables."
    parser.add_argument("file", metavar="FILE", help="an ELF file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what is known of a file.

    Raises:
        ElfError: it cannot be opened, or is not an ELF file that can be profiled.
    """
    name = show_path(args.file)
    fd = open_regular(args.file)
    try:
        file = ElfFile(fd, name)
        identity = identity_of(file)
        symbols = NativeSymbols(file)
    finally:
        os.close(fd)
    if args.json:
        sys.stdout.write(json.dumps(_as_object(identity, symbols)) + "\n")
    else:
        sys.stdout.write(_as_text(name, identity, symbols))
    return 0


def _as_object(identity: Identity, symbols: NativeSymbols) -> dict[str, Any]:
    return {
        "build_id": identity.build_id,
        "go_build_id": identity.go_build_id,
        "htlhash": identity.htlhash,
        "segments": [segment._asdict() for segment in identity.segments],
        "symbols": {source.lstrip("."): symbols.counts.get(source, 0) for source in _SOURCES},
        "problems": symbols.problems,
    }


def _as_text(name: str, identity: Identity, symbols: NativeSymbols) -> str:
    lines = [
        f"{name}: {identity.size} bytes",
        "",
        "What the profiler knows it by:",
        f"  GNU build ID  {identity.build_id or 'none'}",
        f"  Go build ID   {identity.go_build_id or 'none'}",
        f"  htlhash       {identity.htlhash}  (head, tail and length of the file)",
        "",
        "Segments (an address in a profile is file offset - OFFSET + VADDR of the x one that holds it):",
        f"  {'OFFSET':>12} {'FILE SIZE':>12} {'VADDR':>18} {'MEM SIZE':>12}  FLAGS",
    ]
    for segment in identity.segments:
        flags = "".join(
            letter if segment.flags & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1))
        )
        lines.append(
            f"  {segment.offset:>#12x} {segment.filesz:>#12x}"
            f" {segment.vaddr:>#18x} {segment.memsz:>#12x}  {flags}"
        )
    lines += ["", "Functions by symbol table:"]
    for source, what in _SOURCES.items():
        count = f"{symbols.counts[source]:>9}" if source in symbols.counts else "     none"
        lines.append(f"  {source:<14} {count}  ({what})")
    if symbols.problems:
        lines += ["", "Left out:", *(f"  {problem}" for problem in symbols.problems)]
    return "\n".join(lines) + "\n"
