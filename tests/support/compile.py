# SPDX-License-Identifier: Apache-2.0
"""Compiles C, C++ and assembly in a test's folder, and asks binutils what is in the result."""

import subprocess
from pathlib import Path

COMPILERS = {".c": "gcc", ".cc": "g++", ".S": "gcc", ".s": "gcc"}


def compile_source(folder: Path, name: str, source: str, *flags: str, output: str | None = None) -> Path:
    """Compiles one file.

    Args:
        folder: where source and result go.
        name: of the source file; its ending selects the compiler.
        source: its text.
        flags: of the compiler, besides -o; libraries may be among them.
        output: name of the result; the source's without its ending where not given.
    """
    path = folder / name
    path.write_text(source)
    target = folder / (output or path.stem)
    run(COMPILERS[path.suffix], str(path), "-o", str(target), *flags)
    return target


def run(*command: str) -> str:
    """Runs a tool and returns what it printed; its messages stand in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="surrogateescape")
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stderr}")
    return done.stdout


def nm_symbols(path: Path | str, *flags: str) -> dict[str, int]:
    """Name (as nm prints it) -> value of all symbols with a value; flags such as -D for the dynamic ones."""
    symbols = {}
    for line in run("nm", *flags, str(path)).splitlines():
        fields = line.split(" ", 2)
        if len(fields) == 3 and fields[0]:
            symbols[fields[2]] = int(fields[0], 16)
    return symbols
