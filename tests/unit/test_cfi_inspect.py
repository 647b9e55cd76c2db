# SPDX-License-Identifier: Apache-2.0
"""`pyprof inspect unwind`: what it prints, and what it refuses."""

import argparse
import json
from pathlib import Path

import pytest

from pyprof.cli import inspect_unwind
from pyprof.errors import ElfError
from tests.support.compile import compile_source, nm_symbols
from tests.support.readelf_frames import readelf_steps

SOURCE = """
\t.text
\t.globl f, g, h
f:\t.cfi_startproc
\tpush %rbp
\t.cfi_def_cfa_offset 16
\t.cfi_offset %rbp, -16
\tpop %rbp
\t.cfi_def_cfa_offset 8
\t.cfi_restore %rbp
\tret
\t.cfi_endproc
\tnop
g:\t.cfi_startproc
\t.cfi_undefined %rip
\tnop
\t.cfi_endproc
h:\t.cfi_startproc
\t.cfi_escape 0x0f, 1, 0x97
\tnop
\t.cfi_endproc
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three functions; a byte between the first two; a CFA that no tool writes in the third."""
    folder = tmp_path_factory.mktemp("library")
    return compile_source(folder, "rows.S", SOURCE, "-shared", "-nostdlib", output="rows.so")


def inspect(*words: str) -> int:
    """Runs the verb."""
    parser = argparse.ArgumentParser()
    inspect_unwind.add_arguments(parser)
    return inspect_unwind.run(parser.parse_args(words))


def test_text_is_one_row_a_line(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = nm_symbols(library)["f"]
    assert inspect(str(library)) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=4) for line in lines]
    assert rows == [
        [f"{start:016x}", "rsp+8", "u", "c-8"],
        [f"{start + 1:016x}", "rsp+16", "c-16", "c-8"],
        [f"{start + 2:016x}", "rsp+8", "u", "c-8"],
        [f"{start + 4:016x}", "rsp+8", "u", "u"],
        [f"{start + 5:016x}", "?", "?", "?", "# CFA by an expression of unknown form"],
    ]


def test_json_is_one_object(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = nm_symbols(library)["f"]
    assert inspect(str(library), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == [
        {"addr": start, "end": start + 1, "cfa": "rsp+8", "rbp": "u", "ra": "c-8"},
        {"addr": start + 1, "end": start + 2, "cfa": "rsp+16", "rbp": "c-16", "ra": "c-8"},
        {"addr": start + 2, "end": start + 3, "cfa": "rsp+8", "rbp": "u", "ra": "c-8"},
        {"addr": start + 4, "end": start + 5, "cfa": "rsp+8", "rbp": "u", "ra": "u"},
    ]
    assert printed["unsupported"] == [
        {"addr": start + 5, "end": start + 6, "reason": "CFA by an expression of unknown form"}
    ]
    assert printed["counts"]["functions"] == 3
    assert printed["counts"]["unsupported"] == {"CFA by an expression of unknown form": 1}
    assert printed["source"] == ".eh_frame"
    assert printed["problems"] == []


def test_rows_of_a_program_are_those_of_readelf(capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect("/bin/sh", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    ours = {row["addr"]: (row["cfa"], row["rbp"], row["ra"]) for row in rows}
    theirs = {step.addr: step.key for step in readelf_steps("/bin/sh") if step.key is not None}
    assert ours == theirs


@pytest.mark.parametrize(("at", "row"), [(0, 0), (1, 1), (2, 2), (4, 3)])
def test_pc_selects_the_row_that_covers_it(
    library: Path, capsys: pytest.CaptureFixture[str], at: int, row: int
) -> None:
    start = nm_symbols(library)["f"]
    inspect(str(library))
    lines = capsys.readouterr().out.splitlines()
    assert inspect(str(library), "--pc", hex(start + at)) == 0
    assert capsys.readouterr().out.splitlines() == [lines[row]]


@pytest.mark.parametrize("at", [-1, 3, 6])
def test_pc_that_no_row_covers_is_an_error(library: Path, at: int) -> None:
    start = nm_symbols(library)["f"]
    with pytest.raises(ElfError, match=f"no unwind information for address {start + at:#x}"):
        inspect(str(library), "--pc", str(start + at))


@pytest.mark.parametrize("word", ["x", "-1", str(1 << 64), ""])
def test_pc_that_is_no_address_is_a_bad_argument(library: Path, word: str) -> None:
    with pytest.raises(SystemExit) as raised:
        inspect(str(library), f"--pc={word}")
    assert raised.value.code == 2


def test_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ElfError, match="cannot open"):
        inspect(str(tmp_path / "none"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ElfError, match="not an ELF file"):
        inspect(str(tmp_path / "text"))


def test_file_without_unwind_information_is_one_sentence(tmp_path: Path) -> None:
    source = "\t.globl f\n\t.text\nf:\tret\n"
    path = compile_source(tmp_path, "none.S", source, "-shared", "-nostdlib", output="none.so")
    with pytest.raises(ElfError, match="has no unwind information"):
        inspect(str(path))


def test_relocatable_file_is_one_sentence(tmp_path: Path) -> None:
    path = compile_source(tmp_path, "f.c", "int f(void) { return 1; }\n", "-c", output="f.o")
    with pytest.raises(ElfError, match="not linked yet"):
        inspect(str(path))
