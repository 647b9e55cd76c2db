# SPDX-License-Identifier: Apache-2.0
"""Entries of .eh_frame and .debug_frame, and how rows of many functions come together."""

import struct

import pytest

from pyprof._native.cfi import CFA_NAMES, REASONS, RULE_SIZE, UnwindRows
from pyprof.errors import ElfError
from tests.support.dwarf import X86_INITIAL, Frames, advance, def_cfa_offset, sleb, uleb
from tests.support.unwind_rows import EM_X86_64, START, rows_of, shown

FIRST = "rsp+8 u c-8"
PUSHED = "rsp+16 u c-8"
PUSH = advance(1) + def_cfa_offset(16)


# Rows of several functions


def test_gap_between_functions_has_no_rule() -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x10)
    frames.fde(cie, 0x1011, 0x10)
    assert shown(rows_of(frames)) == [(0x1000, FIRST), (0x1010, "-"), (0x1011, FIRST), (0x1021, "-")]


def test_equal_rows_are_one_across_functions() -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x10, PUSH)
    frames.fde(cie, 0x1010, 0x10, def_cfa_offset(16))
    frames.fde(cie, 0x1020, 0x10)
    assert shown(rows_of(frames)) == [(0x1000, FIRST), (0x1001, PUSHED), (0x1020, FIRST), (0x1030, "-")]


def test_functions_in_any_order_are_sorted_by_address() -> None:
    frames = Frames()
    cie = frames.cie(augmentation=b"\x1c")  # pcrel sdata8
    starts = [0x3000, 0x1000, 0x7F_0000_2000, 0x2000, 0xFFFF_FFFF_FFFF_0000]
    for start in starts:
        frames.fde(cie, start, 0x10, form="q")
    expected = [row for start in sorted(starts) for row in ((start, FIRST), (start + 0x10, "-"))]
    assert shown(rows_of(frames)) == expected


def test_functions_that_overlap_belong_to_the_one_that_begins_first() -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1008, 0x10, PUSH)  # its second half only
    frames.fde(cie, 0x1000, 0x10)
    frames.fde(cie, 0x1004, 0x04, PUSH)  # nothing of it
    rows = rows_of(frames)
    assert shown(rows) == [(0x1000, FIRST), (0x1010, PUSHED), (0x1018, "-")]
    assert rows.overlaps == 2


def test_functions_that_begin_together_belong_to_the_first_in_the_section() -> None:
    frames = Frames()
    cie = frames.cie()
    frames.fde(cie, 0x1000, 0x10, def_cfa_offset(24))
    frames.fde(cie, 0x1000, 0x20, def_cfa_offset(32))
    assert shown(rows_of(frames)) == [(0x1000, "rsp+24 u c-8"), (0x1010, "rsp+32 u c-8"), (0x1020, "-")]


def test_functions_that_a_linker_removed_are_counted() -> None:
    frames = Frames(address=0x1000)
    cie = frames.cie()
    frames.fde(cie, 0, 0x2000)
    frames.fde(cie, 0x1100, 0)
    frames.fde(cie, 0x1200, 1)
    rows = rows_of(frames)
    assert shown(rows) == [(0x1200, FIRST), (0x1201, "-")]
    assert (rows.discarded, rows.fde_count) == (2, 1)


def test_rules_are_stored_once_and_number_0_is_no_rule() -> None:
    frames = Frames()
    cie = frames.cie()
    for i in range(100):
        frames.fde(cie, 0x1000 + 0x20 * i, 0x10, PUSH)
    rows = rows_of(frames)
    assert len(rows) == 300
    assert rows.rule_count == 3
    assert rows.rule(0) == ("NONE", "SAME", "BELOW_CFA", 0, 0, 0, 0, 0)
    assert list(rows.numbers) == [1, 2, 0] * 100


def test_many_distinct_rules_are_all_kept() -> None:
    frames = Frames()
    cie = frames.cie()
    program = b"".join(advance(1) + def_cfa_offset(8 * i) for i in range(2, 5002))
    frames.fde(cie, 0x1000, 0x10000, program)
    rows = rows_of(frames)
    assert rows.rule_count == 5002
    assert shown(rows)[1:-1] == [(0x0FFF + i, f"rsp+{8 * i} u c-8") for i in range(2, 5002)]


def test_row_that_covers_an_address_is_found() -> None:
    frames = Frames()
    frames.fde(frames.cie(), 0x1000, 0x10, PUSH)
    rows = rows_of(frames)
    asked = [0, 0xFFF, 0x1000, 0x1001, 0x100F, 0x1010, 2**64 - 1]
    assert [rows.find(address) for address in asked] == [-1, -1, 0, 1, 1, 2, 2]


def test_columns_are_read_only_and_outlive_the_rows() -> None:
    frames = Frames()
    frames.fde(frames.cie(), 0x1000, 0x10)
    rows = rows_of(frames)
    addresses, numbers, rules = rows.addresses, rows.numbers, rows.rules
    count = rows.rule_count
    del rows
    assert (addresses.tolist(), numbers.tolist()) == ([0x1000, 0x1010], [1, 0])
    assert len(rules) == count * RULE_SIZE
    # cfa, fp, ra, flags, cfa_offset, fp_offset, other
    assert struct.unpack_from("<4B3i", rules, RULE_SIZE) == (CFA_NAMES.index("SP"), 0, 0, 0, 8, 0, 0)
    assert addresses.readonly and numbers.readonly and rules.readonly


def test_empty_section_has_no_rows() -> None:
    rows = UnwindRows(b"", 0, EM_X86_64)
    assert (len(rows), list(rows.addresses), list(rows.numbers), rows.rule_count) == (0, [], [], 1)
    assert rows.find(0x1000) == -1


def test_unknown_machine_is_refused() -> None:
    with pytest.raises(ElfError, match="machine 8"):
        UnwindRows(b"", 0, 8)


def test_rule_of_no_number_is_refused() -> None:
    with pytest.raises(IndexError):
        UnwindRows(b"", 0, EM_X86_64).rule(1)


def test_reasons_have_distinct_texts() -> None:
    assert len(set(REASONS)) == len(REASONS)


# Forms of entries


@pytest.mark.parametrize(
    ("encoding", "form", "pcrel"),
    [
        (0x00, "Q", False),  # absptr
        (0x02, "H", False),  # udata2
        (0x03, "I", False),
        (0x04, "Q", False),
        (0x0A, "h", False),
        (0x0B, "i", False),
        (0x0C, "q", False),
        (0x1A, "h", True),
        (0x1B, "i", True),
        (0x1C, "q", True),
    ],
)
def test_pointers_in_every_encoding(encoding: int, form: str, pcrel: bool) -> None:
    frames = Frames(address=0x2000)
    frames.fde(frames.cie(augmentation=bytes([encoding])), START, 0x100, PUSH, form=form, pcrel=pcrel)
    assert shown(rows_of(frames)) == [(START, FIRST), (START + 1, PUSHED), (START + 0x100, "-")]


@pytest.mark.parametrize(("encoding", "encode"), [(0x01, uleb), (0x09, sleb)])
def test_pointers_of_variable_length(encoding: int, encode: object) -> None:
    frames = Frames()
    cie = frames.cie(augmentation=bytes([encoding]))
    body = encode(START) + encode(0x100) + b"\0" + PUSH  # type: ignore[operator]
    frames.entry(len(frames.data) + 4 - cie, body)
    assert shown(rows_of(frames))[1] == (START + 1, PUSHED)


@pytest.mark.parametrize(("encoding", "option"), [(0x2B, "text_base"), (0x3B, "data_base")])
def test_pointers_relative_to_text_and_data_need_their_base(encoding: int, option: str) -> None:
    frames = Frames()
    frames.fde(frames.cie(augmentation=bytes([encoding])), 0x10, 0x100, form="i", pcrel=False)
    assert shown(rows_of(frames, **{option: START}))[0] == (START + 0x10, FIRST)
    assert rows_of(frames).skipped == {"unknown pointer encoding": 1}


@pytest.mark.parametrize("encoding", [0x05, 0x0D, 0x40, 0x50, 0x60, 0x9B, 0xFF])
def test_function_with_a_pointer_of_unknown_encoding_is_counted(encoding: int) -> None:
    frames = Frames()
    frames.fde(frames.cie(augmentation=bytes([encoding])), START, 0x100, form="q")
    frames.fde(frames.cie(), 0x5000, 0x10)
    rows = rows_of(frames)
    assert rows.skipped == {"unknown pointer encoding": 1}
    assert shown(rows) == [(0x5000, FIRST), (0x5010, "-")]


@pytest.mark.parametrize(
    ("letters", "augmentation"),
    [
        (b"zR", b"\x1b"),
        (b"zPLR", b"\x9b\0\0\0\0\x1b\x1b"),  # personality: indirect pcrel sdata4
        (b"zPLR", b"\x03\0\0\0\0\x03\x1b"),
        (b"zPR", b"\xff\x1b"),  # personality omitted
        (b"zPR", b"\x00\0\0\0\0\0\0\0\0\x1b"),
        (b"zLRS", b"\x1b\x1b"),
        (b"zRB", b"\x1b"),
        (b"zRG", b"\x1b"),
        (b"zR", b"\x1b\x55\x55"),  # data that no letter asks for
    ],
)
def test_augmentations_of_common_information(letters: bytes, augmentation: bytes) -> None:
    frames = Frames()
    frames.fde(frames.cie(letters=letters, augmentation=augmentation), START, 0x100, PUSH)
    assert shown(rows_of(frames))[1] == (START + 1, PUSHED)


def test_augmentation_data_of_a_function_is_passed_over() -> None:
    frames = Frames()
    cie = frames.cie(letters=b"zPLR", augmentation=b"\x9b\0\0\0\0\x1b\x1b")
    frames.fde(cie, START, 0x100, PUSH, augmentation=b"\x0e\x55\x0e\x55")
    assert shown(rows_of(frames))[1] == (START + 1, PUSHED)


@pytest.mark.parametrize("letters", [b"", b"eh"])
def test_common_information_without_augmentation_data(letters: bytes) -> None:
    frames = Frames()
    cie = frames.cie(letters=letters)
    frames.fde(cie, START, 0x100, PUSH, form="Q", pcrel=False, augmentation=None)
    assert shown(rows_of(frames))[1] == (START + 1, PUSHED)


def test_unknown_augmentation_with_a_known_encoding_is_unsupported_where_it_applies() -> None:
    frames = Frames()
    frames.fde(frames.cie(letters=b"zRX"), START, 0x100, PUSH)
    assert shown(rows_of(frames)) == [(START, "unknown augmentation"), (START + 0x100, "-")]


@pytest.mark.parametrize("letters", [b"zXR", b"X", b"armcc+", b"z" + b"X" * 100 + b"R"])
def test_unknown_augmentation_that_hides_the_encoding_is_counted(letters: bytes) -> None:
    frames = Frames()
    frames.fde(frames.cie(letters=letters), START, 0x100)
    rows = rows_of(frames)
    assert (len(rows), rows.skipped) == (0, {"unknown augmentation": 1})


@pytest.mark.parametrize(
    ("version", "ok"), [(1, True), (3, True), (4, True), (0, False), (2, False), (5, False)]
)
def test_versions_of_common_information(version: int, ok: bool) -> None:
    frames = Frames()
    frames.fde(frames.cie(version=version, ra=16), START, 0x100, PUSH)
    rows = rows_of(frames)
    if ok:
        assert shown(rows)[1] == (START + 1, PUSHED)
    else:
        assert rows.skipped == {"unknown version, or address size": 1}


def test_extended_lengths_in_eh_frame_keep_the_short_identity() -> None:
    frames = Frames(wide=True)
    frames.fde(frames.cie(), START, 0x100, PUSH)
    assert shown(rows_of(frames))[1] == (START + 1, PUSHED)


def test_terminator_in_the_middle_is_passed_over_where_the_size_is_known() -> None:
    frames = Frames()
    frames.fde(frames.cie(), 0x1000, 0x10)
    frames.zero()
    frames.fde(frames.cie(), 0x2000, 0x10)
    frames.zero()
    assert [address for address, _ in shown(rows_of(frames))] == [0x1000, 0x1010, 0x2000, 0x2010]
    assert [address for address, _ in shown(rows_of(frames, stop_at_zero=True))] == [0x1000, 0x1010]


def test_function_whose_common_information_is_missing_is_counted() -> None:
    frames = Frames()
    cie = frames.cie()
    fde = frames.fde(cie, 0x1000, 0x10)
    for position in (cie + 4, fde, -0x10000):
        frames.entry(len(frames.data) + 4 - position, struct.pack("<ii", 0, 16) + b"\0")
    rows = rows_of(frames)
    assert rows.skipped == {"entry that is damaged, or refers to no common information": 3}
    assert len(rows) == 2


def test_instructions_of_common_information_that_advance_are_unsupported() -> None:
    frames = Frames()
    frames.fde(frames.cie(initial=X86_INITIAL + advance(1)), START, 0x100)
    assert shown(rows_of(frames))[0] == (START, "call frame instructions go back")


def test_function_that_wraps_the_address_space_is_counted() -> None:
    frames = Frames()
    cie = frames.cie(augmentation=b"\x04")
    frames.fde(cie, 2**64 - 0x10, 0x11, form="Q", pcrel=False)
    frames.fde(cie, 2**64 - 0x10, 0x0F, form="Q", pcrel=False)
    rows = rows_of(frames)
    assert shown(rows) == [(2**64 - 0x10, FIRST), (2**64 - 1, "-")]
    assert sum(rows.skipped.values()) == 1


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_debug_frame_of_either_width(wide: bool, version: int) -> None:
    frames = Frames(0, debug=True, wide=wide)
    frames.fde(frames.cie(letters=b"", version=version), 0x2000, 0x10, PUSH)
    cie = frames.cie(letters=b"", version=version, initial=X86_INITIAL + def_cfa_offset(16))
    frames.fde(cie, 0x1000, 0x10)
    assert shown(rows_of(frames)) == [
        (0x1000, PUSHED), (0x1010, "-"), (0x2000, FIRST), (0x2001, PUSHED), (0x2010, "-"),
    ]  # fmt: skip


def test_debug_frame_may_name_common_information_that_follows() -> None:
    frames = Frames(0, debug=True)
    position = frames.fde(0, START, 0x10, PUSH)
    cie = frames.cie(letters=b"")
    struct.pack_into("<I", frames.data, position + 4, cie)
    assert shown(rows_of(frames))[1] == (START + 1, PUSHED)


@pytest.mark.parametrize(("address_size", "selector_size"), [(4, 0), (8, 4)])
def test_debug_frame_of_other_address_sizes_is_counted(address_size: int, selector_size: int) -> None:
    frames = Frames(0, debug=True)
    position = frames.cie(letters=b"", version=4)
    frames.data[position + 10 : position + 12] = bytes([address_size, selector_size])
    frames.fde(position, START, 0x10)
    assert rows_of(frames).skipped == {"unknown version, or address size": 1}
