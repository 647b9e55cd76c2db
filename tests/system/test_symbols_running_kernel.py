# SPDX-License-Identifier: Apache-2.0
"""Names of the running kernel, against its own list read line by line."""

from collections import defaultdict
from pathlib import Path

import pytest

from pyprof.symbols.kernel import KernelSymbols


def text_symbols() -> dict[int, set[str]]:
    """Functions by address; without BPF programs, which come and go while the tests run."""
    found = defaultdict(set)
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, kind, name = line.split("\t")[0].split(" ")
        if kind in "tTwW" and not line.endswith("[bpf]"):
            found[int(address, 16)].add(name)
    return found


@pytest.fixture(scope="module")
def expected() -> dict[int, set[str]]:
    symbols = text_symbols()
    if set(symbols) <= {0}:
        pytest.skip("kernel addresses are hidden from this user (kernel.kptr_restrict)")
    return symbols


def is_mark(name: str) -> bool:
    return name in {"_text", "_stext", "_etext", "_sinittext", "_einittext"} or name.endswith(
        ("_text_start", "_text_end")
    )


def test_every_function_has_one_of_its_own_names(expected: dict[int, set[str]]) -> None:
    addresses = sorted(expected)
    for address, found in zip(addresses, KernelSymbols.load().resolve(addresses), strict=True):
        names = {name for name in expected[address] if not is_mark(name)}
        if names:
            assert found is not None, hex(address)
            assert found.name in names
            assert found.offset == 0
        else:
            assert found is None


def test_low_address_is_found_without_reading_the_whole_list(expected: dict[int, set[str]]) -> None:
    whole = KernelSymbols.load()
    addresses = sorted(expected)[:3000]
    partial = KernelSymbols.load().resolve(addresses)
    assert partial == whole.resolve([*addresses, (1 << 64) - 1])[:-1]


def test_user_address_is_no_kernel_function(expected: dict[int, set[str]]) -> None:
    assert KernelSymbols.load().resolve([0x400000, 0x7FFFFFFFFFFF]) == [None, None]
