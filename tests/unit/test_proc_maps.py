# SPDX-License-Identifier: Apache-2.0
"""Lines of /proc/PID/maps: hand-made ones, each the form of one kind that kernels print."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.errors import ProcError
from pyprof.process.maps import Mapping, executable_mappings, map_file

# Copied from a running system, paths changed.
LINES = b"""\
55d4c8a00000-55d4c8a2e000 r--p 00000000 fe:00 1057                       /usr/bin/a
55d4c8a2e000-55d4c8ae5000 r-xp 0002e000 fe:00 1057                       /usr/bin/a
55d4c8ae5000-55d4c8b1d000 rw-p 000e5000 fe:00 1057                       /usr/bin/a
55d4ca7b4000-55d4ca7d5000 rw-p 00000000 00:00 0                          [heap]
7f1bb4000000-7f1bb4021000 rwxp 00000000 00:00 0\x20
7f1bb4021000-7f1bb8000000 ---p 00000000 00:00 0\x20
7f1bb9a00000-7f1bb9b00000 rwxs 00000000 00:01 2053                       /memfd:jit code (deleted)
7f1bb9c00000-7f1bb9d00000 --xp 00000000 00:00 0                          [anon:v8 r-xp 0]
7ffd3c5f2000-7ffd3c5f4000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def test_mappings_are_the_executable_ones_in_order() -> None:
    assert executable_mappings(LINES) == [
        Mapping(0x55D4C8A2E000, 0x55D4C8AE5000, 0x2E000, 0xFE, 0, 1057, b"/usr/bin/a"),
        Mapping(0x7F1BB4000000, 0x7F1BB4021000, 0, 0, 0, 0, b"", writable=True),
        Mapping(0x7F1BB9A00000, 0x7F1BB9B00000, 0, 0, 1, 2053, b"/memfd:jit code (deleted)", writable=True),
        Mapping(0x7F1BB9C00000, 0x7F1BB9D00000, 0, 0, 0, 0, b"[anon:v8 r-xp 0]"),
        Mapping(0x7FFD3C5F2000, 0x7FFD3C5F4000, 0, 0, 0, 0, b"[vdso]"),
        Mapping(0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000, 0, 0, 0, 0, b"[vsyscall]"),
    ]


@pytest.mark.parametrize(
    "path",
    [
        b"/tmp/two  spaces.so",
        b"/tmp/tab\t",
        b"/tmp/new\\012line",
        b"/tmp/back\\012slash",
        b"/tmp/ trail ",
        b"/tmp/live (deleted)",
        b"/tmp/\xff\r\x0b\x85.so",
        b"/tmp/0000-1000 r-xp 00000000 00:00 0 ",
        b"(unreachable)/x",
        b"anon_inode:[perf_event]",
        b"/SYSV00000000 (deleted)",
    ],
)
def test_path_is_kept_verbatim(path: bytes) -> None:
    line = b"7f0000000000-7f0000001000 r-xp 00000000 fd:123 18446744073709551615 " + path + b"\n"
    expected = Mapping(0x7F0000000000, 0x7F0000001000, 0, 0xFD, 0x123, (1 << 64) - 1, path)
    assert executable_mappings(line) == [expected]


def test_path_of_a_mapping_that_is_not_executable_does_not_make_it_so() -> None:
    line = b"7f0000000000-7f0000001000 r--p 00000000 00:00 1 /tmp/1000-2000 r-xp 00000000 00:00 0 \n"
    assert executable_mappings(line) == []


@pytest.mark.parametrize("data", [b"", LINES.split(b"\n")[0] + b"\n"])
def test_nothing_executable_is_an_empty_list(data: bytes) -> None:
    assert executable_mappings(data) == []


def test_last_line_may_lack_its_newline() -> None:
    assert executable_mappings(LINES.rstrip(b"\n")) == executable_mappings(LINES)


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"",
        b"7f0000000000 r-xp 00000000 00:00 0 ",
        b"7f0000000000-7f0000001000 r-x 00000000 00:00 0 ",
        b"7f0000000000-7f0000001000 r-Xp 00000000 00:00 0 ",
        b"7f0000000000-7f0000001000 r-xp 00000000 0000 0 ",
        b"7f0000000000-7f0000001000 r-xp 00000000 00:00",
        b"7f0000000000-7f0000001000 r-xp 00000000 00:00 12/path",
        b"7F0000000000-7f0000001000 r-xp 00000000 00:00 0 ",
        b"7f00000000000000000-7f0000001000 r-xp 00000000 00:00 0 ",
    ],
)
def test_line_of_another_form_is_an_error_that_shows_it(line: bytes) -> None:
    with pytest.raises(ProcError, match="maps has a line of a form that is not known") as caught:
        executable_mappings(LINES + line + b"\n" + LINES)
    assert str(caught.value).endswith(f": {line!r}")


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(LINES.splitlines(keepends=True)), st.binary(max_size=90))).map(
        b"".join
    )
)
def test_any_bytes_are_mappings_or_an_error(data: bytes) -> None:
    try:
        mappings = executable_mappings(data)
    except ProcError:
        return
    assert all(mapping.start < 1 << 64 and b"\n" not in mapping.path for mapping in mappings)


@pytest.mark.parametrize(("every", "expected"), [(2, 32766), (1000, 66)])
def test_65_000_lines_take_bounded_time(
    every: int, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data = b"".join(
        b"%x-%x %b 00000000 fe:00 1057                       /usr/lib/x86_64-linux-gnu/libc.so.6\n"
        % (0x7F0000000000 + (at << 12), 0x7F0000001000 + (at << 12), b"rw-p" if at % every else b"r-xp")
        for at in range(65532)
    )
    start = time.perf_counter()
    mappings = executable_mappings(data)
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f"\nmaps: 65,532 lines, {expected} executable, in {seconds * 1000:.1f} ms")
    assert len(mappings) == expected
    assert seconds < 3


def test_map_file_has_the_addresses_without_leading_zeros() -> None:
    # The kernel's own format is %lx-%lx, where maps has %08lx: fs/proc/base.c.
    assert map_file(12, 0x400000, 0x401000) == "/proc/12/map_files/400000-401000"
    assert map_file(12, 0x7F0000000000, 0x7F0000001000, "/host/proc") == (
        "/host/proc/12/map_files/7f0000000000-7f0000001000"
    )
