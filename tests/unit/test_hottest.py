# SPDX-License-Identifier: Apache-2.0
"""The table of hottest functions."""

from pyprof.profile.hottest import Hot, hottest, render
from pyprof.profile.model import By, Executable, Frame, FrameKind, Process, Thread
from tests.support.profiles import make_profile, one_stack, two_processes

ROWS = [
    Hot("ns::spin(int)", "/usr/bin/app", 5, 5),
    Hot("[unknown]", "", 4, 4),
    Hot("vfs_read", "[kernel]", 1, 1),
    Hot("main", "/usr/bin/app", 0, 6),
    Hot("libc.so.6+0xf7a10", "/lib/libc.so.6", 0, 1),
]


def test_rows_are_by_own_then_total_samples() -> None:
    assert hottest(two_processes(), 10) == ROWS


def test_rows_do_not_depend_on_what_samples_are_kept_apart_by() -> None:
    assert [hottest(two_processes(by), 10) for by in By] == [ROWS] * 3


def test_rows_are_at_most_as_many_as_asked() -> None:
    assert hottest(two_processes(), 2) == ROWS[:2]
    assert hottest(two_processes(), 0) == []


def test_recursion_counts_once_in_total() -> None:
    assert hottest(one_stack("p", ["main"]), 9) == [Hot("main", "/usr/bin/app", 1, 1)]
    profile = make_profile(
        [(0, 0, (1, 0, 1, 0, 1), 7)],
        processes=[Process(1, "p", 0)],
        threads=[Thread(0, "")],
        executables=[Executable("/a")],
        frames=[Frame(FrameKind.NATIVE, 0, 0x10, "f", "f"), Frame(FrameKind.NATIVE, 0, 0x20, "g", "g")],
    )
    assert hottest(profile, 9) == [Hot("g", "/a", 7, 7), Hot("f", "/a", 0, 7)]


def test_functions_of_one_name_in_two_files_stay_apart() -> None:
    profile = make_profile(
        [(0, 0, (0,), 2), (0, 0, (1,), 1), (0, 0, (2,), 3)],
        processes=[Process(1, "p", 0)],
        threads=[Thread(0, "")],
        executables=[Executable("/a"), Executable("/b")],
        frames=[
            Frame(FrameKind.NATIVE, 0, 0x10, "read", "read"),
            Frame(FrameKind.NATIVE, 1, 0x10, "read", "read"),
            Frame(FrameKind.KERNEL, -1, 1 << 63, "read", "read"),
        ],
    )
    assert hottest(profile, 9) == [
        Hot("read", "[kernel]", 3, 3),
        Hot("read", "/a", 2, 2),
        Hot("read", "/b", 1, 1),
    ]


def test_empty_profile_has_no_rows() -> None:
    assert hottest(make_profile(), 10) == []
    profile = make_profile([(0, 0, (), 1)], processes=[Process(1, "p", 0)], threads=[Thread(0, "")])
    assert hottest(profile, 10) == []


def test_table_shows_shares_and_file_names() -> None:
    assert render(ROWS, 10).splitlines() == [
        " samples   self% total%              function [where]",
        "       5   50.0%  50.0%  #####       ns::spin(int) [app]",
        "       4   40.0%  40.0%  ####        [unknown]",
        "       1   10.0%  10.0%  #           vfs_read [kernel]",
        "       0    0.0%  60.0%              main [app]",
        "       0    0.0%  10.0%              libc.so.6+0xf7a10 [libc.so.6]",
    ]


def test_table_of_nothing_is_its_head() -> None:
    assert render([], 0) == " samples   self% total%              function [where]\n"


def test_table_cuts_long_names_but_not_the_file() -> None:
    row = render([Hot("f<" + "x" * 200 + ">", "/usr/lib/libx.so", 1, 1)], 1, width=80).splitlines()[1]
    assert len(row) == 80
    assert row.endswith("xxx... [libx.so]")


def test_table_holds_no_control_characters() -> None:
    text = render([Hot("a\x1b[2J\udcff\u202eb", "/tmp/x\ny", 1, 1)], 1)
    assert "a\\x1b[2J\\xff\\u202eb [x\\ny]" in text
