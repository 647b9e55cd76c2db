# SPDX-License-Identifier: Apache-2.0
"""Folded stacks: the lines of hand-made profiles, worked out by hand."""

import io
import re
import time

import pytest

from pyprof.export import folded
from pyprof.profile.model import By, Frame, FrameKind, Process, Profile, Thread
from tests.support.profiles import make_profile, many_stacks, one_stack, two_processes


def lines(profile: Profile) -> list[str]:
    out = io.BytesIO()
    folded.write(profile, out)
    text = out.getvalue().decode()
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]


def test_lines_by_process() -> None:
    assert lines(two_processes()) == [
        "app;main;libc.so.6+0xf7a10;vfs_read_[k] 1",
        "app;main;ns::spin(int) 5",
        "sh;[unknown] 4",
    ]


def test_lines_by_thread_have_the_thread_second() -> None:
    assert lines(two_processes(By.THREAD)) == [
        "app;io;main;libc.so.6+0xf7a10;vfs_read_[k] 1",
        "app;io;main;ns::spin(int) 2",
        "app;main;main;ns::spin(int) 3",
        "sh;sh;[unknown] 4",
    ]


def test_lines_by_none_have_no_lead() -> None:
    assert lines(two_processes(By.NONE)) == [
        "[unknown] 4",
        "main;libc.so.6+0xf7a10;vfs_read_[k] 1",
        "main;ns::spin(int) 5",
    ]


@pytest.mark.parametrize("by", list(By))
def test_counts_sum_to_the_samples_reported(by: By) -> None:
    profile = two_processes(by)
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines(profile)) == profile.accounting.reported == 10


def test_nothing_is_written_for_an_empty_profile() -> None:
    assert lines(make_profile()) == []


def test_equal_lines_of_two_processes_are_merged() -> None:
    profile = make_profile(
        [(0, 0, (0,), 2), (1, 0, (0,), 3)],
        processes=[Process(7, "worker", 0), Process(8, "worker", 0)],
        threads=[Thread(0, "")],
        frames=[Frame(FrameKind.KERNEL, -1, 1 << 63, "idle", "idle")],
    )
    assert lines(profile) == ["worker;idle_[k] 5"]


def test_stack_without_frames_is_its_process() -> None:
    profile = make_profile([(0, 0, (), 2)], processes=[Process(7, "worker", 0)], threads=[Thread(0, "")])
    assert lines(profile) == ["worker 2"]


def test_stack_without_frames_is_unknown_without_processes() -> None:
    profile = make_profile(
        [(0, 0, (), 2)], by=By.NONE, processes=[Process(0, "", 0)], threads=[Thread(0, "")]
    )
    assert lines(profile) == ["[unknown] 2"]


def test_empty_name_is_unknown() -> None:
    assert lines(one_stack("", ["main", "", "[unknown]"])) == ["[unknown];main;[unknown];[unknown] 1"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a;b", "a:b"),
        ("a\nb", "a\\nb"),
        ("a\tb\rc", "a\\tb\\rc"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u2028b\x85c", "a\\u2028b\\u0085c"),
        ("two  spaces ", "two  spaces "),
        ("trailing 7", "trailing 7"),
        ("naïve 函数", "naïve 函数"),
        ("a\\xffb", "a\\xffb"),
        ("a\udcffb", "a\\xffb"),
        ("a\ud800b", "a\\xed\\xa0\\x80b"),
    ],
)
def test_odd_name_stays_one_element_of_one_line(name: str, shown: str) -> None:
    assert lines(one_stack(name, [name, "leaf"], thread=name)) == [f"{shown};{shown};{shown};leaf 1"]


def test_names_that_would_look_alike_stay_apart() -> None:
    assert lines(one_stack("p", ["a;b", "a:b", "a\nb", "a\\nb", "a:b:c;d", "a;b:c:d"])) == [
        "p;a\\x3bb;a:b;a\\x0ab;a\\nb;a:b:c:d;a\\x3bb\\x3ac\\x3ad 1"
    ]


def test_flamegraph_pl_pattern_takes_each_line() -> None:
    # The pattern of flamegraph.pl's reader: what stands before the last run of digits is the stack.
    pattern = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")
    for line in lines(one_stack("p 1", ["a;b", "f 2", "\n", "g(int, int) 3"])):
        found = pattern.match(line)
        assert found is not None
        assert found.groups() == ("p 1;a:b;f 2;\\n;g(int, int) 3", "1")


def test_100_000_stacks_take_bounded_time(capsys: pytest.CaptureFixture[str]) -> None:
    profile = many_stacks(100_000)
    start = time.perf_counter()
    written = lines(profile)
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f"\nfolded: 100,000 stacks of 30 frames in {seconds:.2f} s")
    assert len(written) == 100_000
    assert seconds < 30
