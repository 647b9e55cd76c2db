# SPDX-License-Identifier: Apache-2.0
"""Kernel names from files of the form of /proc/kallsyms, and what is said where there are none."""

from pathlib import Path

import pytest

from pyprof.symbols.kernel import KernelSymbols
from pyprof.symbols.symbol import Symbol

BASE = 0xFFFFFFFF81000000


def kallsyms(folder: Path, *lines: str) -> str:
    path = folder / "kallsyms"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def long_list(folder: Path, count: int) -> str:
    """Core functions of 16 bytes each, then a module below and a BPF program above them."""
    lines = [f"{BASE + 16 * i:x} t function_{i}" for i in range(count)]
    lines += ["ffffffff70000000 t mod_init\t[mod]", "ffffffffc0000000 t bpf_prog_1\t[bpf]"]
    return kallsyms(folder, *lines)


def test_symbol_has_name_offset_and_source(tmp_path: Path) -> None:
    symbols = KernelSymbols.load(kallsyms(tmp_path, f"{BASE:x} T do_work", f"{BASE + 64:x} T next"))
    assert symbols.resolve([BASE + 5]) == [Symbol("do_work", "do_work", 5, source="kallsyms")]


def test_symbol_of_a_module_states_the_module(tmp_path: Path) -> None:
    symbols = KernelSymbols.load(kallsyms(tmp_path, f"{BASE:x} T f", "ffffffffc0201000 t ext4_read\t[ext4]"))
    assert symbols.resolve([0xFFFFFFFFC0201008]) == [
        Symbol("ext4_read", "ext4_read", 8, module="ext4", source="kallsyms")
    ]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 3, 0, 4, 2]])
def test_functions_are_found_in_whatever_order_they_are_asked_for(tmp_path: Path, order: list[int]) -> None:
    symbols = KernelSymbols.load(long_list(tmp_path, 20_000))
    wanted = [
        (BASE + 3, "function_0"),
        (BASE + 16 * 9_999 + 3, "function_9999"),
        (BASE + 16 * 19_999 + 3, "function_19999"),
        (0xFFFFFFFF70000003, "mod_init"),
        (0xFFFFFFFFC0000003, "bpf_prog_1"),
    ]
    for index in order:
        address, name = wanted[index]
        found = symbols.resolve([address])[0]
        if name == "mod_init" and index == order[0]:
            continue  # below the kernel: known once the rest was read
        if name != "mod_init":
            assert found is not None
            assert found.name == name
    assert [found and found.name for found in symbols.resolve([address for address, _ in wanted])] == [
        name for _, name in wanted
    ]


def test_nothing_asked_gives_nothing(tmp_path: Path) -> None:
    assert KernelSymbols.load(long_list(tmp_path, 10)).resolve([]) == []


def test_hidden_addresses_are_said_with_the_remedy(tmp_path: Path) -> None:
    lines = ["0000000000000000 A fixed_percpu_data", *["0000000000000000 T hidden"] * 10_000]
    symbols = KernelSymbols.load(kallsyms(tmp_path, *lines))
    assert symbols.hidden
    assert "kptr_restrict" in symbols.problem
    assert symbols.resolve([0, BASE]) == [None, None]


def test_list_that_is_missing_is_said_and_names_nothing(tmp_path: Path) -> None:
    symbols = KernelSymbols.load(str(tmp_path / "none"))
    assert "No such file" in symbols.problem
    assert not symbols.hidden
    assert symbols.resolve([BASE]) == [None]


def test_list_that_is_empty_is_said(tmp_path: Path) -> None:
    symbols = KernelSymbols.load(kallsyms(tmp_path))
    assert "empty" in symbols.problem


def test_list_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    symbols = KernelSymbols.load(str(tmp_path))
    assert "failed" in symbols.problem
    assert symbols.resolve([BASE]) == [None]


def test_usable_list_is_no_problem(tmp_path: Path) -> None:
    assert KernelSymbols.load(long_list(tmp_path, 10)).problem == ""
