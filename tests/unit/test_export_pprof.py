# SPDX-License-Identifier: Apache-2.0
"""pprof files, decoded by a reader of our own and by the Go tool."""

import io
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import pyprof
from pyprof.export import pprof
from pyprof.profile.model import By, Executable, Frame, FrameKind, Process, Profile, Thread
from tests.support import pprof_decoder
from tests.support.pprof_decoder import Decoded, Label, Mapping
from tests.support.profiles import (
    DURATION,
    JIT,
    MAIN,
    READ,
    SPIN,
    STARTED_AT,
    VFS_READ,
    make_profile,
    many_stacks,
    one_stack,
    two_processes,
)

GO = shutil.which("go")
needs_go = pytest.mark.skipif(GO is None, reason="the Go tool chain is not installed")


def written(profile: Profile) -> bytes:
    out = io.BytesIO()
    pprof.write(profile, out)
    return out.getvalue()


def decoded(profile: Profile) -> Decoded:
    return pprof_decoder.decode(written(profile))


@pytest.fixture
def by_thread() -> Decoded:
    return decoded(two_processes(By.THREAD))


def test_sample_types_are_samples_and_cpu(by_thread: Decoded) -> None:
    assert by_thread.sample_types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert by_thread.default_sample_type == "cpu"


def test_period_is_that_of_the_frequency(by_thread: Decoded) -> None:
    assert by_thread.period_type == ("cpu", "nanoseconds")
    assert by_thread.period == 50_000_000


def test_times_are_those_of_the_profile(by_thread: Decoded) -> None:
    assert (by_thread.time_nanos, by_thread.duration_nanos) == (STARTED_AT, DURATION)


def test_comments_account_for_all_samples(by_thread: Decoded) -> None:
    assert by_thread.comments == [
        f"pyprof {pyprof.__version__}: cpu-clock at 20 Hz",
        "samples taken: 13",
        "samples reported: 10",
        "samples lost, exited: 1",
        "samples lost, ring_full: 2",
        "stacks incomplete, no_rows: 4",
    ]


def test_mappings_are_the_executables_and_the_kernel(by_thread: Decoded) -> None:
    assert by_thread.mappings == [
        Mapping(1, 0x401000, 0x480000, 0x1000, "/usr/bin/app", "aa" * 20, True, False, False, False),
        # No GNU build ID: the hash of the file takes its place.
        Mapping(2, 0x26000, 0x17B000, 0x26000, "/lib/libc.so.6", "22" * 16, True, False, False, False),
        Mapping(3, 1 << 63, (1 << 64) - 1, 0, "[kernel]", "", True, False, False, False),
    ]


def test_locations_have_address_mapping_and_function(by_thread: Decoded) -> None:
    rows = [
        (
            location.id,
            location.address,
            location.mapping.id if location.mapping else 0,
            [
                (function.name, function.system_name, function.filename, line)
                for function, line in location.lines
            ],
        )
        for location in by_thread.locations
    ]
    assert rows == [
        (1, MAIN.address, 1, [("main", "main", "/usr/bin/app", 0)]),
        (2, SPIN.address, 1, [("ns::spin(int)", "_ZN2ns4spinEi", "/usr/bin/app", 0)]),
        (3, READ.address, 2, [("libc.so.6+0xf7a10", "", "/lib/libc.so.6", 0)]),
        (4, VFS_READ.address, 3, [("vfs_read", "vfs_read", "[kernel]", 0)]),
        (5, JIT.address, 0, [("[unknown]", "", "", 0)]),
    ]


def test_samples_are_leaf_first_with_count_and_time(by_thread: Decoded) -> None:
    assert [(sample.names(), sample.values) for sample in by_thread.samples] == [
        (["ns::spin(int)", "main"], [3, 150_000_000]),
        (["vfs_read", "libc.so.6+0xf7a10", "main"], [1, 50_000_000]),
        (["ns::spin(int)", "main"], [2, 100_000_000]),
        (["[unknown]"], [4, 200_000_000]),
    ]


def test_labels_name_process_and_thread(by_thread: Decoded) -> None:
    assert by_thread.samples[1].labels == [
        Label("process", text="app"),
        Label("pid", num=100),
        Label("thread", text="io"),
        Label("tid", num=101),
    ]


def test_labels_by_process_name_no_thread() -> None:
    assert [sample.labels for sample in decoded(two_processes()).samples][-1] == [
        Label("process", text="sh"),
        Label("pid", num=200),
    ]


def test_labels_by_none_are_none() -> None:
    assert [sample.labels for sample in decoded(two_processes(By.NONE)).samples] == [[], [], []]


def test_frames_of_one_function_share_it() -> None:
    profile = make_profile(
        [(0, 0, (0, 1), 1)],
        processes=[Process(1, "p", 0)],
        threads=[Thread(0, "")],
        executables=[Executable("/a")],
        frames=[Frame(FrameKind.NATIVE, 0, 0x10, "f", "f"), Frame(FrameKind.NATIVE, 0, 0x20, "f", "f")],
    )
    result = decoded(profile)
    assert [function.id for function in result.functions] == [1]
    assert [location.address for location in result.locations] == [0x10, 0x20]


def test_functions_of_one_name_in_two_files_stay_apart() -> None:
    profile = make_profile(
        [(0, 0, (0, 1), 1)],
        processes=[Process(1, "p", 0)],
        threads=[Thread(0, "")],
        executables=[Executable("/a"), Executable("/b")],
        frames=[Frame(FrameKind.NATIVE, 0, 0x10, "f", "f"), Frame(FrameKind.NATIVE, 1, 0x10, "f", "f")],
    )
    assert [function.filename for function in decoded(profile).functions] == ["/a", "/b"]


def test_period_is_rounded_to_the_nearest_and_time_is_not_its_multiple() -> None:
    profile = one_stack("p", ["main"])
    profile.hz = 19  # 1e9 / 19 = 52631578.947..., times 1000 = 52631578947.37
    profile.sample_count[0] = 1000
    result = decoded(profile)
    assert result.period == 52_631_579
    assert result.samples[0].values == [1000, 52_631_578_947]


def test_empty_profile_has_types_and_a_zero_string() -> None:
    result = decoded(make_profile())
    assert not (result.samples or result.locations or result.functions or result.mappings)
    assert result.sample_types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert result.strings[0] == ""


def test_missing_path_and_build_id_are_empty() -> None:
    profile = make_profile(
        [(0, 0, (0,), 1)],
        processes=[Process(1, "p", 0)],
        threads=[Thread(0, "")],
        executables=[Executable("")],
        frames=[Frame(FrameKind.NATIVE, 0, 0, "f", "")],
    )
    result = decoded(profile)
    assert (result.mappings[0].filename, result.mappings[0].build_id) == ("", "")
    assert (result.functions[0].system_name, result.functions[0].filename) == ("", "")


def test_odd_names_are_escaped_and_stay_apart() -> None:
    result = decoded(one_stack("p\udcff", ["a\udcffb", "a\udcfeb", "a\ud800", "é;\n"], thread="t\udc80"))
    assert result.samples[0].names() == ["é;\n", "a\\xed\\xa0\\x80", "a\\xfeb", "a\\xffb"]
    process, thread = result.samples[0].label("process"), result.samples[0].label("thread")
    assert (process, thread) == (Label("process", text="p\\xff"), Label("thread", text="t\\x80"))


def test_equal_profiles_give_equal_bytes() -> None:
    first = written(two_processes(By.THREAD))
    assert first == written(two_processes(By.THREAD))
    # gzip, RFC 1952: magic, deflate, no flags (no name), modification time 0.
    assert first[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"


def test_100_000_stacks_take_bounded_time(capsys: pytest.CaptureFixture[str]) -> None:
    profile = many_stacks(100_000)
    start = time.perf_counter()
    data = written(profile)
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f"\npprof: 100,000 stacks of 30 frames in {seconds:.2f} s, {len(data)} bytes")
    assert len(pprof_decoder.decode(data).samples) == 100_000
    assert seconds < 30


def go_pprof(tmp_path: Path, profile: Profile, *arguments: str) -> str:
    """What ``go tool pprof`` prints of a profile; it must not complain."""
    path = tmp_path / "profile.pb.gz"
    path.write_bytes(written(profile))
    result = subprocess.run(
        [str(GO), "tool", "pprof", *arguments, str(path)], capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    return result.stdout


@needs_go
def test_go_tool_top_shows_times_by_function(tmp_path: Path) -> None:
    table = go_pprof(tmp_path, two_processes(), "-top").split("sum%        cum   cum%\n")[1]
    rows = [line.split(maxsplit=5) for line in table.splitlines()]
    assert {(name, flat, total) for flat, _, _, total, _, name in rows} == {
        ("ns::spin(int)", "250ms", "250ms"),
        ("[unknown]", "200ms", "200ms"),
        ("vfs_read", "50ms", "50ms"),
        ("libc.so.6+0xf7a10", "0", "50ms"),
        ("main", "0", "300ms"),
    }


@needs_go
def test_go_tool_raw_shows_labels_and_mappings(tmp_path: Path) -> None:
    text = go_pprof(tmp_path, two_processes(By.THREAD), "-raw")
    assert "process:[app] thread:[io]" in text
    assert "pid:[100] tid:[101]" in text
    assert f"1: 0x401000/0x480000/0x1000 /usr/bin/app {'aa' * 20} [FN]" in text
    # Newer Go numbers locations otherwise and adds a column.
    assert re.search(r"\d: 0x401200 M=1 ns::spin\(int\) /usr/bin/app:0(:0)? s=0\(_ZN2ns4spinEi\)", text)
    assert "samples/count cpu/nanoseconds[dflt]" in text


@needs_go
def test_go_tool_finds_processes_by_tag(tmp_path: Path) -> None:
    text = go_pprof(tmp_path, two_processes(), "-top", "-tagfocus", "process=sh")
    assert "200ms, 40.00% of 500ms total" in text
    assert text.splitlines()[-1].split()[-1] == "[unknown]"


@needs_go
def test_go_tool_reads_an_empty_profile(tmp_path: Path) -> None:
    assert "Period: 50000000" in go_pprof(tmp_path, make_profile(), "-raw")
