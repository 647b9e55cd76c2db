# SPDX-License-Identifier: Apache-2.0
"""Call frame information that no tool writes: some answer, in bounded time and memory, never a crash."""

import itertools
import os
import random
import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof._native.cfi import CFA_NAMES, UnwindRows
from pyprof.elf.file import ElfFile, open_regular
from pyprof.unwind.tables import CfiSource, find
from tests.support.dwarf import (
    DEREF,
    REMEMBER,
    Frames,
    advance,
    breg,
    def_cfa_expression,
    def_cfa_offset,
    uleb,
)
from tests.support.unwind_rows import EM_AARCH64, EM_X86_64, START, rows_of, shown

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def survive(data: bytes, address: int = 0x100000, **options: bool) -> UnwindRows:
    """Decodes as either machine; checks what holds of all rows."""
    UnwindRows(data, address, EM_AARCH64, **options)  # type: ignore[arg-type]
    rows = UnwindRows(data, address, EM_X86_64, **options)  # type: ignore[arg-type]
    addresses, numbers = rows.addresses, rows.numbers
    assert all(a < b for a, b in itertools.pairwise(addresses))
    assert all(a != b for a, b in itertools.pairwise(numbers))
    assert all(number < rows.rule_count for number in numbers)
    assert not len(rows) or numbers[-1] == 0
    assert len(rows) <= len(data)
    for number in range(rows.rule_count):
        assert rows.rule(number)[0] in CFA_NAMES
    return rows


def spent(data: bytes, **options: bool) -> float:
    """Seconds of CPU for one machine."""
    started = time.thread_time()
    UnwindRows(data, 0x100000, EM_X86_64, **options)  # type: ignore[arg-type]
    return time.thread_time() - started


@pytest.fixture(scope="module")
def libc() -> CfiSource:
    fd = open_regular(LIBC)
    try:
        found = find(ElfFile(fd, LIBC), [])
    finally:
        os.close(fd)
    assert found is not None
    return found


def small() -> bytes:
    """Two functions with most of what there is."""
    frames = Frames()
    cie = frames.cie(letters=b"zPLR", augmentation=b"\x9b\0\0\0\0\x1b\x1b")
    program = advance(1) + REMEMBER + def_cfa_expression(breg(7, 8) + DEREF) + advance(300) + b"\x0b\x86\x02"
    frames.fde(cie, START, 0x1000, program, augmentation=b"\0\0\0\0")
    frames.fde(frames.cie(), 0x3000, 0x10)
    return bytes(frames.data)


def test_every_truncation_is_survived() -> None:
    data = small()
    counts = [len(survive(data[:length])) for length in range(len(data) + 1)]
    assert counts[0] == 0
    assert counts[-1] == max(counts)


def test_every_changed_byte_is_survived() -> None:
    data = small()
    for at in range(len(data)):
        for bits in (0x01, 0x80, 0xFF, data[at], 0x7F):
            changed = bytearray(data)
            changed[at] ^= bits
            survive(bytes(changed))
            survive(bytes(changed), debug_frame=True)


def test_libc_with_changed_bytes_is_survived(libc: CfiSource) -> None:
    source = random.Random(7)
    for _ in range(30):
        changed = bytearray(libc.data[: 20000 + source.randrange(5000)])
        for _ in range(200):
            changed[source.randrange(len(changed))] = source.randrange(256)
        survive(bytes(changed), libc.address)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2**64 - 1), st.booleans(), st.booleans())
def test_garbage_is_survived(data: bytes, address: int, debug_frame: bool, stop_at_zero: bool) -> None:
    survive(data, address, debug_frame=debug_frame, stop_at_zero=stop_at_zero)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 300))
def test_garbage_instructions_are_survived(program: bytes, size: int) -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, size, program)
    rows = survive(bytes(frames.data))
    assert rows.skipped == {}
    if size:
        assert (rows.addresses[0], rows.addresses[-1]) == (START, START + size)


def test_instructions_that_stay_at_one_address_take_linear_time() -> None:
    frames = Frames()
    frames.fde(
        frames.cie(),
        START,
        0x1000,
        (advance(0) + def_cfa_offset(16) + advance(0) + def_cfa_offset(8)) * 500_000,
    )
    assert spent(bytes(frames.data)) < 0.5
    assert shown(rows_of(frames)) == [(START, "rsp+8 u c-8"), (START + 0x1000, "-")]


def test_functions_that_all_overlap_take_linear_time() -> None:
    frames = Frames()
    cie = frames.cie()
    program = b"".join(advance(1) + def_cfa_offset(8 * (i % 9)) for i in range(40))
    for i in range(20_000):
        frames.fde(cie, START + i, 1 << 30, program)
    data = bytes(frames.data)
    assert spent(data) < 0.5
    assert len(survive(data)) < len(data) // 4


def test_functions_at_one_address_take_linear_time() -> None:
    frames = Frames()
    cie = frames.cie()
    for _ in range(50_000):
        frames.fde(cie, START, 0x10)
    assert spent(bytes(frames.data)) < 0.5


def test_functions_that_claim_any_bytes_as_common_information_take_linear_time() -> None:
    frames = Frames()
    # 8-byte steps, each of which looks like common information of a megabyte with an endless program.
    lure = struct.pack("<II", 1 << 20, 0) * 20_000
    big = frames.entry(0, b"\x01zR\0\x01\x78\x10\x01\x1b" + lure)
    for i in range(20_000):
        frames.entry(len(frames.data) + 4 - (big + 16 + 8 * i), struct.pack("<ii", 0, 16) + b"\0")
    data = bytes(frames.data)
    assert spent(data) < 0.5
    assert sum(survive(data).skipped.values()) == 20_000


def test_many_common_informations_used_in_turn_take_linear_time() -> None:
    frames = Frames()
    cies = [frames.cie(initial=def_cfa_offset(8) * 20) for _ in range(5000)]
    for i in range(20_000):
        frames.fde(cies[i * 7919 % len(cies)], START + 16 * i, 16)
    assert spent(bytes(frames.data)) < 0.5


def test_many_distinct_rules_take_linear_time() -> None:
    frames = Frames()
    program = b"".join(advance(1) + b"\x0e" + uleb(0x1000 + i) for i in range(300_000))
    frames.fde(frames.cie(), START, 1 << 30, program)
    data = bytes(frames.data)
    assert spent(data) < 1.0
    assert UnwindRows(data, 0x100000, EM_X86_64).rule_count == 300_002


def test_numbers_padded_for_ever_take_linear_time() -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, 16, b"\x0e" + b"\x80" * 4_000_000)
    assert spent(bytes(frames.data)) < 0.5
    # The padding of the entry is the end of the number.
    assert shown(rows_of(frames))[0] == (START, "rsp+0 u c-8")


def test_terminators_without_end_take_linear_time() -> None:
    assert spent(b"\0" * (1 << 24)) < 1.0


@pytest.mark.parametrize("length", [0xFFFFFFF0, 0xFFFFFFFE, 0x7FFFFFFF, 0xFFFFFFEF])
def test_length_that_leads_out_of_the_section_ends_it(length: int) -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, 16)
    data = bytes(frames.data) + struct.pack("<I", length) + bytes(64)
    rows = survive(data)
    assert len(rows) == 2
    assert sum(rows.skipped.values()) == 1


def test_extended_length_of_64_bits_ends_the_section() -> None:
    frames = Frames()
    frames.fde(frames.cie(), START, 16)
    rows = survive(bytes(frames.data) + struct.pack("<IQ", 0xFFFFFFFF, 2**64 - 1) + bytes(64))
    assert len(rows) == 2


def test_alignment_factors_that_overflow_are_unsupported() -> None:
    frames = Frames()
    frames.fde(frames.cie(code_align=2**63), START, 16, advance(2) + def_cfa_offset(16))
    frames.fde(frames.cie(data_align=-(2**63)), START + 16, 16, b"\x86\x02")
    texts = [text for _, text in shown(rows_of(frames))]
    # The common information itself saves the return address at 1 * -2^63.
    assert texts == ["call frame instructions go back", "offset of more than 32 bits", "-"]
