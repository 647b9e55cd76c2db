# SPDX-License-Identifier: Apache-2.0
"""`pyprof inspect elf`: what it prints, and that its figures are those of readelf and nm."""

import argparse
import json
import re
from pathlib import Path

import pytest

from pyprof.cli import inspect_elf
from pyprof.errors import ElfError
from tests.support.compile import compile_source, run

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def inspect(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    inspect_elf.add_arguments(parser)
    return inspect_elf.run(parser.parse_args(arguments))


def test_json_has_build_id_and_segments_of_readelf(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(LIBC, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["build_id"] in run("readelf", "-n", LIBC)
    loads = re.findall(r"LOAD +(\w+) (\w+) \w+ (\w+) (\w+)", run("readelf", "-lW", LIBC))
    assert [
        [segment[key] for key in ("offset", "vaddr", "filesz", "memsz")] for segment in shown["segments"]
    ] == [[int(field, 16) for field in load] for load in loads]


def test_json_counts_functions_by_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "int f(void) { return 1; }\nstatic int g(void) { return 2; }\nint (*const t[])(void) = {g};\n"
    path = compile_source(tmp_path, "two.c", source, "-shared", "-fPIC", "-nostdlib", output="two.so")
    assert inspect(str(path), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["symbols"] == {"symtab": 2, "dynsym": 1, "gnu_debugdata": 0, "gopclntab": 0}
    assert shown["problems"] == []


def test_text_names_the_file_and_what_identifies_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(LIBC) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{LIBC}: {Path(LIBC).stat().st_size} bytes\n")
    assert re.search(r"GNU build ID +[0-9a-f]{40}\n", text)
    assert re.search(r"0x[0-9a-f]+ +0x[0-9a-f]+ +0x[0-9a-f]+ +0x[0-9a-f]+  r-x\n", text)


def test_file_that_is_no_elf_file_is_an_elf_error() -> None:
    with pytest.raises(ElfError, match="not an ELF file"):
        inspect(__file__)
