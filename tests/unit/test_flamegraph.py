# SPDX-License-Identifier: Apache-2.0
"""The flame graph's data, as a reader of the page's JSON finds it."""

import io
import json
from html.parser import HTMLParser
from typing import Any, cast

import pytest

from pyprof.errors import OutputError
from pyprof.export import flamegraph
from pyprof.profile.model import Accounting, By, Executable, Frame, FrameKind, Process, Profile, Thread

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "<img src=x onerror=alert(1)>",
    'it\'s "quoted" `${x}` &amp; &lt;',
    "back\\slash \\u003c",
    "line\u2028and\u2029separators",
    "clef \U0001d11e",
    "nul \x00 and escape \x1b[31m",
    "lone \ud800 surrogate",
    "@PROFILE@",
]


def make_profile(
    frames: list[Frame],
    samples: list[tuple[int, int, list[int], int]],
    *,
    by: By = By.PROCESS,
    processes: list[Process] | None = None,
    threads: list[Thread] | None = None,
) -> Profile:
    """samples: (process, thread, frames leaf first, count)."""
    profile = Profile(started_at=1_700_000_000_250_000_000, duration=2_500_000_000, hz=20, by=by)
    profile.processes = processes or [Process(1, "app", 7)]
    profile.threads = threads or [Thread(0, "")]
    profile.executables = [Executable("/usr/lib/libc.so.6"), Executable("/usr/bin/app")]
    profile.frames = frames
    for process, thread, stack, count in samples:
        profile.sample_process.append(process)
        profile.sample_thread.append(thread)
        profile.sample_stack.append(len(profile.stack_starts) - 1)
        profile.sample_count.append(count)
        profile.sample_end.append(0)
        profile.stack_frames.extend(stack)
        profile.stack_starts.append(len(profile.stack_frames))
        profile.accounting.taken += count
        profile.accounting.reported += count
    return profile


def native(name: str, address: int = 0x1000, executable: int = 1) -> Frame:
    return Frame(FrameKind.NATIVE, executable, address, name, name)


def kernel(name: str) -> Frame:
    return Frame(FrameKind.KERNEL, -1, 0xFFFFFFFF81000000, name, name)


class _DataElements(HTMLParser):
    """Collects the text of script elements, as an HTML parser delimits them."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._open: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self._open = dict(attrs)
            self.scripts.append((self._open, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def page_of(profile: Profile) -> str:
    out = io.BytesIO()
    flamegraph.write(profile, out)
    return out.getvalue().decode("utf-8")


def data_of(profile: Profile) -> dict[str, Any]:
    parser = _DataElements()
    parser.feed(page_of(profile))
    (text,) = [text for attributes, text in parser.scripts if attributes.get("id") == "profile"]
    data = json.loads(text)
    assert isinstance(data, dict)
    return data


def tree_of(profile: Profile) -> list[tuple[int, str, str, str, int]]:
    """Nodes as (depth, name, kind, detail, self)."""
    data = data_of(profile)
    functions, strings, nodes = data["functions"], data["strings"], data["nodes"]
    return [
        (
            depth,
            strings[functions["name"][function]],
            data["kinds"][functions["kind"][function]],
            strings[functions["detail"][function]],
            own,
        )
        for depth, function, own in zip(nodes["depth"], nodes["function"], nodes["self"], strict=True)
    ]


def test_tree_has_process_then_root_to_leaf_for_two_processes() -> None:
    frames = [native("main"), native("work"), native("idle"), kernel("do_idle")]
    profile = make_profile(
        frames,
        [
            (0, 0, [1, 0], 3),  # app: main;work
            (0, 0, [0], 2),  # app: main
            (0, 0, [2, 0], 4),  # app: main;idle
            (1, 0, [3], 5),  # swapper: do_idle
        ],
        processes=[Process(41, "app", 1), Process(0, "swapper", 0)],
    )
    assert tree_of(profile) == [
        (0, "all", "all", "", 0),
        (1, "app", "process", "pid 41", 0),
        (2, "main", "native", "/usr/bin/app", 2),
        (3, "idle", "native", "/usr/bin/app", 4),
        (3, "work", "native", "/usr/bin/app", 3),
        (1, "swapper", "process", "pid 0", 0),
        (2, "do_idle", "kernel", "", 5),
    ]


def test_tree_merges_frames_with_equal_names_under_one_parent() -> None:
    frames = [native("main", 0x10), native("main", 0x20), native("f", 0x30), native("f", 0x40)]
    profile = make_profile(frames, [(0, 0, [2, 0], 1), (0, 0, [3, 1], 10), (0, 0, [2, 3, 0], 100)])
    assert [(depth, name, own) for depth, name, _, _, own in tree_of(profile)] == [
        (0, "all", 0),
        (1, "app", 0),
        (2, "main", 0),
        (3, "f", 11),
        (4, "f", 100),
    ]


def test_tree_keeps_functions_of_different_executables_or_kinds_apart() -> None:
    frames = [native("read", executable=0), native("read", executable=1), kernel("read")]
    profile = make_profile(frames, [(0, 0, [0], 1), (0, 0, [1], 2), (0, 0, [2], 4)])
    assert tree_of(profile)[2:] == [
        (2, "read", "kernel", "", 4),
        (2, "read", "native", "/usr/bin/app", 2),
        (2, "read", "native", "/usr/lib/libc.so.6", 1),
    ]


def test_processes_of_one_name_are_one_node_with_all_pids() -> None:
    processes = [Process(pid, "worker", pid) for pid in (30, 10, 20)]
    profile = make_profile([native("f")], [(i, 0, [0], 1) for i in range(3)], processes=processes)
    assert tree_of(profile)[1:] == [
        (1, "worker", "process", "pid 10, 20, 30", 0),
        (2, "f", "native", "/usr/bin/app", 3),
    ]


def test_pids_beyond_the_shown_ones_are_counted() -> None:
    processes = [Process(pid, "worker", pid) for pid in range(1, 16)]
    profile = make_profile([native("f")], [(i, 0, [0], 1) for i in range(15)], processes=processes)
    assert tree_of(profile)[1][3] == "pid 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 3 more"


def test_threads_stand_below_their_process_by_thread() -> None:
    profile = make_profile(
        [native("f")],
        [(0, 1, [0], 1), (0, 0, [0], 2)],
        by=By.THREAD,
        threads=[Thread(11, "io"), Thread(12, "cpu")],
    )
    assert tree_of(profile) == [
        (0, "all", "all", "", 0),
        (1, "app", "process", "pid 1", 0),
        (2, "cpu", "thread", "tid 12", 0),
        (3, "f", "native", "/usr/bin/app", 1),
        (2, "io", "thread", "tid 11", 0),
        (3, "f", "native", "/usr/bin/app", 2),
    ]


def test_stacks_start_at_the_root_by_none() -> None:
    profile = make_profile(
        [native("f")], [(0, 0, [0], 2), (0, 0, [], 1)], by=By.NONE, processes=[Process(0, "", 0)]
    )
    assert tree_of(profile) == [(0, "all", "all", "", 1), (1, "f", "native", "/usr/bin/app", 2)]


def test_sample_without_frames_counts_for_its_process() -> None:
    assert tree_of(make_profile([], [(0, 0, [], 6)])) == [
        (0, "all", "all", "", 0),
        (1, "app", "process", "pid 1", 6),
    ]


def test_unknown_frames_have_their_own_kind() -> None:
    profile = make_profile([Frame(FrameKind.UNKNOWN, -1, 0x7F00, "[unknown]", "")], [(0, 0, [0], 1)])
    assert tree_of(profile)[2] == (2, "[unknown]", "unknown", "", 1)


def test_frames_of_further_kinds_are_an_interpreters() -> None:
    profile = make_profile([Frame(cast(FrameKind, 99), -1, 0, "handler", "")], [(0, 0, [0], 1)])
    assert tree_of(profile)[2] == (2, "handler", "interpreter", "", 1)


def test_empty_names_are_unknown() -> None:
    profile = make_profile([native("")], [(0, 0, [0], 1)], processes=[Process(1, "", 1)])
    assert [name for _, name, _, _, _ in tree_of(profile)] == ["all", "[unknown]", "[unknown]"]


def test_stack_far_deeper_than_the_recursion_limit_is_kept_whole() -> None:
    profile = make_profile([native("f")], [(0, 0, [0] * 5000, 1)])
    tree = tree_of(profile)
    assert len(tree) == 5002
    assert tree[-1] == (5001, "f", "native", "/usr/bin/app", 1)


def test_empty_profile_is_a_root_without_samples() -> None:
    assert tree_of(Profile(started_at=0, duration=0, hz=20)) == [(0, "all", "all", "", 0)]


def test_header_states_times_rate_and_accounting() -> None:
    profile = make_profile([native("f")], [(0, 0, [0], 4)])
    profile.accounting = Accounting(taken=7, reported=4, lost={"ring_full": 3}, incomplete={"no_rows": 1})
    data = data_of(profile)
    assert data["started_at"] == 1_700_000_000_250
    assert data["duration"] == 2.5
    assert (data["hz"], data["event"]) == (20, "cpu-clock")
    assert data["accounting"] == {
        "taken": 7,
        "reported": 4,
        "lost": {"ring_full": 3},
        "incomplete": {"no_rows": 1},
    }


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_name_is_read_back_unchanged(name: str) -> None:
    profile = make_profile([native(name)], [(0, 0, [0], 1)], processes=[Process(1, name, 1)])
    profile.executables[1].path = name
    profile.accounting.lost = {name: 1}
    assert tree_of(profile)[1:] == [(1, name, "process", "pid 1", 0), (2, name, "native", name, 1)]


def test_hostile_names_add_no_markup_to_the_page() -> None:
    plain = page_of(make_profile([native("f")], [(0, 0, [0], 1)]))
    hostile = page_of(
        make_profile([native(name) for name in HOSTILE], [(0, 0, list(range(len(HOSTILE))), 1)])
    )
    assert hostile.count("<") == plain.count("<")
    assert {c for c in hostile if ord(c) > 0x7E} == {c for c in plain if ord(c) > 0x7E}


def test_page_forbids_all_loading() -> None:
    page = page_of(Profile(started_at=0, duration=0, hz=20))
    policy = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives.pop("default-src") == "'none'"
    assert directives.pop("img-src") == "data:"
    assert directives.pop("script-src").startswith("'sha256-")
    assert directives.pop("style-src").startswith("'sha256-")
    assert set(directives.values()) == {"'none'"}


def test_missing_template_raises_output_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamegraph, "TEMPLATE", "not_there.html")
    with pytest.raises(OutputError, match=r"not_there\.html is missing .*make build"):
        flamegraph.write(Profile(started_at=0, duration=0, hz=20), io.BytesIO())


def test_template_without_a_place_for_the_data_raises_output_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamegraph, "TEMPLATE", "__init__.py")
    with pytest.raises(OutputError, match="damaged"):
        flamegraph.write(Profile(started_at=0, duration=0, hz=20), io.BytesIO())


def test_nothing_is_written_when_the_template_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamegraph, "TEMPLATE", "not_there.html")
    out = io.BytesIO()
    with pytest.raises(OutputError):
        flamegraph.write(Profile(started_at=0, duration=0, hz=20), out)
    assert out.getvalue() == b""
