# SPDX-License-Identifier: Apache-2.0
"""Names that are kept are those that would be found anew; what is dropped is found again."""

import subprocess
from pathlib import Path

import pytest

from pyprof.elf.file import PF_X
from pyprof.process.files import MappedFile, MappedFiles
from pyprof.symbols.kernel import KernelSymbols
from pyprof.symbols.kernel_list import KernelList
from pyprof.symbols.names import FrameNames, Limits

SECOND = 1_000_000_000
SOURCE = (
    "int one(int x) { return x + 1; } int two(int x) { return one(x) * 2; } int main() { return two(3); }"
)


class Program:
    """A program of three functions in a table of mapped files, and where nm says they are."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "program"
        command = ["gcc", "-O0", "-x", "c", "-", "-o", str(self.path)]
        subprocess.run(command, input=SOURCE, text=True, check=True)
        listing = subprocess.run(["nm", self.path], check=True, capture_output=True, text=True).stdout
        lines = [line.split() for line in listing.splitlines() if line[0] != " "]
        symbols = {name: int(address, 16) for address, _, name in lines}
        self.names = ["one", "two", "main"]
        self.addresses = [symbols[name] + 1 for name in self.names]
        self.files = MappedFiles()
        self.add(2)

    def add(self, number: int) -> None:
        self.files.add(number, MappedFile(bytes(self.path), b"", self.path.stat().st_ino, 0, 0, 0))

    def named(self, names: FrameNames, number: int = 2) -> list[str]:
        names.tick()
        return [symbol.name if symbol else "" for symbol in names.native(self.files, number, self.addresses)]

    def lose(self) -> None:
        """Makes the file unreadable: it is gone, and not open any more."""
        self.path.unlink()
        file = self.files.get(2)
        assert file is not None
        file.close()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_names_are_those_of_nm(program: Program) -> None:
    assert any(segment.flags & PF_X for segment in program.files.get(2).identity.segments)  # type: ignore[union-attr]
    assert program.named(FrameNames()) == program.names


def test_names_that_are_kept_need_no_file(program: Program) -> None:
    names = FrameNames()
    program.named(names)
    program.lose()
    assert program.named(names) == program.names


@pytest.mark.parametrize(
    "limits", [Limits(names=1, tables=1), Limits(names=2, tables=1 << 20), Limits(idle=1e-9)]
)
def test_names_that_were_dropped_are_found_again(program: Program, limits: Limits) -> None:
    names = FrameNames(limits)
    for _ in range(3):
        assert program.named(names) == program.names


def test_use_extends_what_is_kept(program: Program) -> None:
    now = [0]
    names = FrameNames(Limits(idle=10), lambda: now[0])
    program.named(names)
    program.lose()
    for now[0] in (3 * SECOND, 12 * SECOND, 21 * SECOND, 30 * SECOND):
        assert program.named(names) == program.names
    now[0] = 41 * SECOND
    assert program.named(names) == ["", "", ""]


def test_number_of_another_file_has_that_files_names(program: Program, tmp_path: Path) -> None:
    names = FrameNames()
    program.named(names)
    program.files.forget(2)
    other = tmp_path / "other"
    source = SOURCE.replace("one", "uno").replace("two", "dos")
    subprocess.run(["gcc", "-O0", "-x", "c", "-", "-o", str(other)], input=source, text=True, check=True)
    program.files.add(2, MappedFile(bytes(other), b"", other.stat().st_ino, 0, 0, 0))
    assert program.named(names) == ["uno", "dos", "main"]


def test_file_that_could_not_be_read_is_tried_again(program: Program) -> None:
    hidden = program.path.with_suffix(".hidden")
    program.path.rename(hidden)
    file = program.files.get(2)
    assert file is not None
    file.close()
    names = FrameNames()
    assert program.named(names) == ["", "", ""]
    hidden.rename(program.path)
    assert program.named(names) == program.names


def kernel_functions() -> list[int]:
    lines = [line.split() for line in Path("/proc/kallsyms").read_text().splitlines()]
    found = [int(line[0], 16) for line in lines if line[1] in "tT" and len(line) == 3]
    if not any(found):
        pytest.skip("the addresses in /proc/kallsyms are hidden")
    return found[::50]


def test_kernel_names_are_kept_and_right() -> None:
    addresses = kernel_functions()
    expected = KernelSymbols.load().resolve(addresses)
    names = FrameNames()
    assert names.kernel(addresses) == expected
    before = names.counts()["kernel_functions"]["hits"]
    assert names.kernel(addresses, changes=1) == expected
    assert names.counts()["kernel_functions"]["hits"] == before + len(addresses)


def test_address_in_a_function_that_is_known_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = kernel_functions()[1:-1]
    inside = [address + 1 for address in addresses]
    expected = KernelSymbols.load().resolve(inside)
    names = FrameNames()
    names.kernel(addresses)
    monkeypatch.setattr(KernelList, "find", lambda *_: pytest.fail("the list was asked"))
    assert names.kernel(inside) == expected


def test_kernel_functions_that_were_dropped_are_found_again() -> None:
    addresses = kernel_functions()
    names = FrameNames(Limits(names=3))
    for _ in range(2):
        assert names.kernel(addresses) == KernelSymbols.load().resolve(addresses)
    assert names.counts()["kernel_functions"]["entries"] <= 3


def test_names_of_what_is_loaded_are_looked_up_again_after_a_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listing = tmp_path / "kallsyms"
    core = "ffffffff81000000 T startup\nffffffff81001000 T shutdown\nffffffff81002000 T _etext\n"
    load = KernelSymbols.load
    monkeypatch.setattr(KernelSymbols, "load", lambda: load(str(listing)))
    monkeypatch.setattr("pyprof.symbols.kernel_names.RELOAD_SHARE", 0)

    def named(changes: int) -> list[str]:
        found = names.kernel([0xFFFFFFFF81000010, 0xFFFFFFFFC0000010], changes)
        return [symbol.name if symbol else "" for symbol in found]

    names = FrameNames()
    listing.write_text(core + "ffffffffc0000000 t first_program\t[bpf]\nffffffffc0001000 t end\t[bpf]\n")
    assert named(0) == ["startup", "first_program"]
    listing.write_text(core + "ffffffffc0000000 t second_program\t[bpf]\nffffffffc0001000 t end\t[bpf]\n")
    assert named(0) == ["startup", "first_program"]  # nothing told of a change
    assert named(1) == ["startup", "second_program"]
