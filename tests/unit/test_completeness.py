# SPDX-License-Identifier: Apache-2.0
"""Complete and incomplete stacks by process and by executable, and exporters that do not tell them apart."""

import io
import json

import pytest

from pyprof.export import flamegraph, folded, pprof, speedscope
from pyprof.profile.completeness import Completeness, Share, as_json, completeness, render
from pyprof.profile.hottest import Hot, hottest
from pyprof.profile.model import By, Process, Profile, Sample, Thread
from tests.support.pprof_decoder import decode
from tests.support.profiles import APP, JIT, LIBC, MAIN, READ, SPIN, VFS_READ, make_profile

ENDS = ["complete", "rows missing", "memory gone"]


def mixed(by: By = By.PROCESS) -> Profile:
    """Three processes, two of one name.

    ===========  ==============================================  ============  =====
    process      stack, root first                               end           count
    ===========  ==============================================  ============  =====
    app 100      main, ns::spin(int)                             complete      95
    app 100      main, ns::spin(int)                             rows missing  2
    app 101      main, ns::spin(int)                             rows missing  1
    app 101      libc.so.6+0xf7a10, vfs_read (kernel)            memory gone   2
    kworker 3    vfs_read (kernel)                               complete      7
    app 100      [unknown]                                       rows missing  1
    app 101      no frame                                        memory gone   1
    ===========  ==============================================  ============  =====
    """
    main, spin, read, vfs_read, jit = range(5)
    profile = make_profile(
        [
            (0, 0, (spin, main), 95),
            (0, 0, (spin, main), 2),
            (1, 0, (spin, main), 1),
            (1, 0, (vfs_read, read), 2),
            (2, 0, (vfs_read,), 7),
            (0, 0, (jit,), 1),
            (1, 0, (), 1),
        ],
        by=by,
        processes=[Process(100, "app", 1), Process(101, "app", 2), Process(3, "kworker/0:1", 3)],
        threads=[Thread(0, "")],
        executables=[APP, LIBC],
        frames=[MAIN, SPIN, READ, VFS_READ, JIT],
    )
    profile.ends = ENDS
    profile.sample_end = type(profile.sample_end)("B", [0, 1, 1, 2, 0, 1, 2])
    if by is By.NONE:
        profile.processes = [Process(0, "", 0)]
        profile.sample_process = type(profile.sample_process)("I", [0] * 7)
    return profile


EXECUTABLES = [
    Share("/usr/bin/app", 98, 95, {"rows missing": 3}),
    Share("/lib/libc.so.6", 2, 0, {"memory gone": 2}),
    Share("[unknown]", 2, 0, {"rows missing": 1, "memory gone": 1}),
    Share("[kernel]", 7, 7, {}),
]


def test_shares_are_by_process_name_and_by_executable_of_the_outermost_frame() -> None:
    assert completeness(mixed()) == Completeness(
        [
            Share("app", 102, 95, {"rows missing": 4, "memory gone": 3}),
            Share("kworker/0:1", 7, 7, {}),
        ],
        EXECUTABLES,
    )


def test_processes_that_are_not_kept_apart_have_no_shares() -> None:
    assert completeness(mixed(By.NONE)) == Completeness([], EXECUTABLES)


def test_samples_of_every_grouping_add_up_to_those_reported() -> None:
    found = completeness(mixed())
    for shares in found:
        assert sum(share.samples for share in shares) == 109
        assert all(share.samples == share.complete + sum(share.incomplete.values()) for share in shares)


def test_table_names_each_reason_under_its_group() -> None:
    assert render(completeness(mixed())).splitlines() == [
        " samples  complete    share  process",
        "     102        95   93.14%  app",
        "                 4    3.92%    rows missing",
        "                 3    2.94%    memory gone",
        "       7         7  100.00%  kworker/0:1",
        " samples  complete    share  executable in which stacks end",
        "      98        95   96.94%  /usr/bin/app",
        "                 3    3.06%    rows missing",
        "       2         0    0.00%  /lib/libc.so.6",
        "                 2  100.00%    memory gone",
        "       2         0    0.00%  [unknown]",
        "                 1   50.00%    rows missing",
        "                 1   50.00%    memory gone",
        "       7         7  100.00%  [kernel]",
    ]


def test_table_never_rounds_up_to_all() -> None:
    found = Completeness([], [Share("/a", 1_000_000, 999_999, {"rows missing": 1})])
    assert "99.99%  /a" in render(found)


def test_table_holds_no_control_characters() -> None:
    assert "a\\x1b[2J" in render(Completeness([Share("a\x1b[2J", 1, 1, {})], []))


def test_json_holds_what_the_table_shows() -> None:
    shares = as_json(completeness(mixed()))
    assert json.loads(json.dumps(shares)) == shares
    assert [list(part) for part in (shares, shares["processes"][0])] == [
        ["processes", "executables"],
        ["name", "samples", "complete", "incomplete"],
    ]
    assert shares["executables"][1] == {
        "name": "/lib/libc.so.6", "samples": 2, "complete": 0, "incomplete": {"memory gone": 2}
    }  # fmt: skip


def test_empty_profile_has_no_shares() -> None:
    assert completeness(make_profile()) == Completeness([], [])


def test_samples_that_differ_in_their_end_only_are_one() -> None:
    assert list(mixed().samples()) == [
        Sample(0, 0, 0, 97),
        Sample(1, 0, 0, 1),
        Sample(1, 0, 1, 2),
        Sample(2, 0, 2, 7),
        Sample(0, 0, 3, 1),
        Sample(1, 0, 4, 1),
    ]
    assert hottest(mixed(), 1) == [Hot("ns::spin(int)", "/usr/bin/app", 98, 98)]


@pytest.mark.parametrize("write", [folded.write, pprof.write, speedscope.write, flamegraph.write])
def test_writers_do_not_tell_ends_apart(write: object) -> None:
    assert callable(write)
    merged = mixed()
    rows = list(merged.samples())
    for column, field in (
        ("sample_process", 0), ("sample_thread", 1), ("sample_stack", 2), ("sample_count", 3)
    ):  # fmt: skip
        old = getattr(merged, column)
        setattr(merged, column, type(old)(old.typecode, [row[field] for row in rows]))
    merged.sample_end = type(merged.sample_end)("B", [0] * len(rows))
    outputs = []
    for profile in (mixed(), merged):
        out = io.BytesIO()
        write(profile, out)
        outputs.append(out.getvalue())
    assert outputs[0] == outputs[1]


def test_pprof_has_each_stack_once() -> None:
    out = io.BytesIO()
    pprof.write(mixed(), out)
    decoded = decode(out.getvalue())
    assert sorted(sample.values[0] for sample in decoded.samples) == [1, 1, 1, 2, 7, 97]
