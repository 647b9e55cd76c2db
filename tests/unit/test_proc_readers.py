# SPDX-License-Identifier: Apache-2.0
"""Readers of /proc/PID on hand-made bytes and hand-made trees whose files vanish."""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import ProcError
from pyprof.process import proc
from pyprof.process.maps import read_maps
from pyprof.process.proc import Stat, Status, escape, parse_stat, parse_status

# Fields 3 to 52 of proc_pid_stat(5): each number says which field it is, but for the flags (9).
TAIL = b"S 4 5 6 7 -1 2097152 " + b" ".join(b"%d" % field for field in range(10, 53))
READERS: list[Callable[[int, str], object]] = [
    proc.read_stat,
    proc.read_status,
    proc.read_exe,
    proc.list_tids,
    read_maps,
    lambda pid, root: proc.read_comm(pid, root=root),
    lambda pid, root: proc.read_comm(pid, pid, root=root),
]


@pytest.mark.parametrize(
    "comm",
    [
        b"cat",
        b"",
        b"a) R 1 (\xff\n9",
        b") (",
        b"))) S 1",
        b"(",
        b"a b",
        b"\n",
        b"kworker/u4:1-events_unbound",
    ],
)
def test_stat_takes_the_name_to_the_last_parenthesis(comm: bytes) -> None:
    assert parse_stat(b"1234 (" + comm + b") " + TAIL + b"\n") == Stat(
        pid=1234,
        comm=comm,
        state="S",
        ppid=4,
        pgrp=5,
        session=6,
        tty=7,
        tpgid=-1,
        flags=2097152,
        num_threads=20,
        cpu_ticks=14 + 15,
        start_ticks=22,
    )


def test_stat_of_a_kernel_thread_is_told_by_its_flags() -> None:
    thread = parse_stat(b"2 (kthreadd) " + TAIL)
    assert thread.is_kernel_thread
    assert not thread._replace(flags=0x400140).is_kernel_thread


def test_start_is_in_nanoseconds_of_whole_ticks() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    start = parse_stat(b"2 (a) " + TAIL)._replace(start_ticks=ticks * 86400 * 400 + 1).start_ns
    assert start == 86400 * 400 * 1_000_000_000 + 1_000_000_000 // ticks


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"1",
        b"1 (a",
        b"1 (a)",
        b"1 (a) ",
        b"1 (a) S 1 2 3",
        b"x (a) " + TAIL,
        b"1 a " + TAIL,
        b"1 (a " + TAIL,
        b"1 (a) " + TAIL.replace(b"22", b"zz"),
        b"1 (a) " + TAIL.replace(b"22", b"9" * 5000),
        b"1 (a) \xff" + TAIL,
    ],
)
def test_stat_of_another_form_is_an_error(data: bytes) -> None:
    with pytest.raises(ProcError, match="stat has a form that is not known"):
        parse_stat(data)


@settings(deadline=None)
@given(st.binary())
def test_stat_of_any_bytes_is_a_stat_or_an_error(data: bytes) -> None:
    with suppress(ProcError):
        assert parse_stat(data).pid >= 0


def test_status_gives_process_and_all_its_ids() -> None:
    data = b"Name:\ta\\nTgid:\t9\rTgid:\t8\nUmask:\t0022\nTgid:\t40\nPid:\t41\nNSpid:\t41\t7\t1\nGroups:\t \n"
    assert parse_status(data) == Status(tgid=40, nspids=(41, 7, 1))


def test_status_without_namespaces_has_the_one_id() -> None:
    assert parse_status(b"Name:\ta\nTgid:\t40\nPid:\t41\n") == Status(tgid=40, nspids=(41,))


@pytest.mark.parametrize("data", [b"", b"Name:\ta\n", b"Tgid:\tx\nPid:\t1\n", b"Tgid:\t1\nNSpid:\t1\tx\n"])
def test_status_of_another_form_is_an_error(data: bytes) -> None:
    with pytest.raises(ProcError, match="status has a form that is not known"):
        parse_status(data)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"python3", "python3"),
        ("naïve 函数".encode(), "naïve 函数"),
        (b"a\xffb", "a\\xffb"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
        (b"caf\xe9", "caf\\xe9"),
        (b"dev-disk-by\\x2dlabel", "dev-disk-by\\x2dlabel"),
        (b"back\\012slash", "back\\012slash"),
        (b"a\\xffb", "a\\\\xffb"),
        (b"a\\\xffb", "a\\\\\\xffb"),
    ],
)
def test_escaped_name_is_text(name: bytes, text: str) -> None:
    assert escape(name) == text


def unescape(text: str) -> bytes:
    """The name that `escape` made `text` of."""
    result, at = b"", 0
    for found in re.finditer(r"(\\+)x([89a-f][0-9a-f])", text):
        pairs, single = divmod(len(found[1]), 2)
        result += text[at : found.start()].encode() + b"\\" * pairs
        result += bytes([int(found[2], 16)]) if single else b"x" + found[2].encode()
        at = found.end()
    return result + text[at:].encode()


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(), st.lists(st.sampled_from([b"\\", b"x", b"ff", b"8", b"\xff", b"\xc3\xa9"])).map(b"".join)
    )
)
def test_escaped_name_tells_which_bytes_it_was(name: bytes) -> None:
    assert unescape(escape(name)) == name


def tree(root: Path, pid: int) -> Path:
    """A process in a hand-made proc."""
    folder = root / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "stat").write_bytes(b"%d (a) %b\n" % (pid, TAIL))
    (folder / "status").write_bytes(b"Name:\ta\nTgid:\t%d\nPid:\t%d\n" % (pid, pid))
    (folder / "comm").write_bytes(b"a\n")
    (folder / "task" / str(pid) / "comm").write_bytes(b"a\n")
    (folder / "maps").write_bytes(
        b"00400000-00401000 r-xp 00000000 08:01 7                          /bin/a\n"
    )
    (folder / "exe").symlink_to("/bin/a")
    return folder


def test_pids_are_the_numbers_in_order(tmp_path: Path) -> None:
    for name in ("10", "9", "self", "12x", "sys", "１２", "-1"):
        (tmp_path / name).mkdir()
    assert proc.list_pids(str(tmp_path)) == [9, 10]


def test_pids_without_proc_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProcError, match=r"cannot list processes in .*No such file"):
        proc.list_pids(str(tmp_path / "proc"))


@pytest.mark.parametrize("reader", READERS)
def test_reader_gives_something_of_a_process_that_is_there(
    tmp_path: Path, reader: Callable[[int, str], object]
) -> None:
    tree(tmp_path, 7)
    assert reader(7, str(tmp_path))


@pytest.mark.parametrize("reader", READERS)
def test_reader_gives_none_of_a_process_that_vanished_after_the_listing(
    tmp_path: Path, reader: Callable[[int, str], object]
) -> None:
    folder = tree(tmp_path, 7)
    assert proc.list_pids(str(tmp_path)) == [7]
    shutil.rmtree(folder)
    assert reader(7, str(tmp_path)) is None


@pytest.mark.parametrize("reader", READERS)
def test_reader_gives_none_of_a_process_whose_files_are_gone_or_empty(
    tmp_path: Path, reader: Callable[[int, str], object]
) -> None:
    folder = tree(tmp_path, 7)
    for name in ("stat", "status", "comm", "maps", f"task/{7}/comm"):
        (folder / name).write_bytes(b"")
    (folder / "exe").unlink()
    shutil.rmtree(folder / "task" / "7")
    assert reader(7, str(tmp_path)) is None


@pytest.mark.parametrize("name", ["stat", "status", "comm", "maps"])
def test_reader_gives_none_of_a_file_cut_before_its_first_line_ends(tmp_path: Path, name: str) -> None:
    folder = tree(tmp_path, 7)
    line = (folder / name).read_bytes().split(b"\n")[0]
    reader = {"stat": READERS[0], "status": READERS[1], "comm": READERS[5], "maps": READERS[4]}[name]
    for length in range(len(line) + 1):
        (folder / name).write_bytes(line[:length])
        assert reader(7, str(tmp_path)) is None


def test_maps_cut_in_a_line_are_those_before(tmp_path: Path) -> None:
    folder = tree(tmp_path, 7)
    whole = (folder / "maps").read_bytes()
    (folder / "maps").write_bytes(whole + b"00402000-00403000 r-xp 000")
    mappings = read_maps(7, str(tmp_path))
    assert mappings is not None
    assert [mapping.start for mapping in mappings] == [0x400000]


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_reader_goes_on_until_the_end_when_reads_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    folder = tree(tmp_path, 7)
    lines = [b"%08x-%08x r-xp 00000000 08:01 7 /bin/a\n" % (at << 12, (at + 1) << 12) for at in range(1000)]
    (folder / "maps").write_bytes(b"".join(lines))
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, _: read(fd, size))
    mappings = read_maps(7, str(tmp_path))
    assert mappings is not None
    assert [mapping.start >> 12 for mapping in mappings] == list(range(1000))


def test_file_that_cannot_be_read_for_another_reason_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "7" / "stat").mkdir(parents=True)
    with pytest.raises(ProcError, match=r"cannot read .*/7/stat: Is a directory"):
        proc.read_stat(7, str(tmp_path))


def test_exe_that_is_no_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "exe").touch()
    with pytest.raises(ProcError, match=r"cannot read .*/7/exe: Invalid argument"):
        proc.read_exe(7, str(tmp_path))
