# SPDX-License-Identifier: Apache-2.0
"""The flame graph: one HTML file with everything in it, made from a template that web/ is bundled into.

The data stands in the page as one JSON object (web/src/profile.js reads it):

    format, host, started_at (milliseconds since 1970), duration (seconds), hz, event, accounting
    strings    all texts
    kinds      names of the kinds of frame
    functions  {name, kind, detail}: columns of indices into strings and kinds. detail is the path of the
               executable or, of processes and threads, their ids.
    nodes      {depth, function, self}: the tree in depth-first order, node 0 its root at depth 0, children in
               order of name; self is the number of samples that end in the node.

Nothing is left out: every sample of the profile is in the tree.
"""

import json
import platform
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib import resources
from itertools import repeat
from typing import Any, BinaryIO, NamedTuple

from pyprof.errors import OutputError
from pyprof.export.names import UNKNOWN
from pyprof.profile.model import By, FrameKind, Profile

TEMPLATE = "flamegraph_template.html"

_FORMAT = 1
_PLACE = b"@PROFILE@"
_MAX_IDS = 12

_Path = tuple[int, ...]


class _Function(NamedTuple):
    """What nodes are merged by. Equal names in two executables are two functions."""

    name: str
    kind: str
    executable: str


_ROOT = _Function("all", "all", "")


def _kind_name(kind: FrameKind) -> str:
    """The page's word for a kind: what is neither compiled code nor unknown belongs to an interpreter."""
    named = {FrameKind.NATIVE: "native", FrameKind.KERNEL: "kernel", FrameKind.UNKNOWN: "unknown"}
    return named.get(kind, "interpreter")


class _Functions:
    """All functions of a profile, numbered in order of name: paths of numbers sort as paths of names do."""

    def __init__(self, profile: Profile) -> None:
        paths = [executable.path for executable in profile.executables]
        frames = [
            _Function(
                frame.name or UNKNOWN,
                _kind_name(frame.kind),
                paths[frame.executable] if frame.executable >= 0 else "",
            )
            for frame in profile.frames
        ]
        leads: list[list[_Function]] = []
        self.ids: defaultdict[_Function, set[int]] = defaultdict(set)
        if profile.by is not By.NONE:
            leads.append([_Function(process.name or UNKNOWN, "process", "") for process in profile.processes])
            for function, process in zip(leads[-1], profile.processes, strict=True):
                self.ids[function].add(process.pid)
        if profile.by is By.THREAD:
            leads.append([_Function(thread.name or UNKNOWN, "thread", "") for thread in profile.threads])
            for function, thread in zip(leads[-1], profile.threads, strict=True):
                self.ids[function].add(thread.tid)

        self.table = [_ROOT, *sorted(set(frames).union(*leads))]
        numbers = {function: number for number, function in enumerate(self.table)}
        self.of_frame = [numbers[function] for function in frames]
        self.of_lead = [[numbers[function] for function in lead] for lead in leads]

    def detail(self, function: _Function) -> str:
        """What the page says of a function beside its name and kind."""
        ids = sorted(self.ids[function]) if function in self.ids else []
        if not ids:
            return function.executable
        label = "pid" if function.kind == "process" else "tid"
        more = f" and {len(ids) - _MAX_IDS} more" if len(ids) > _MAX_IDS else ""
        return f"{label} {', '.join(map(str, ids[:_MAX_IDS]))}{more}"


def _paths(profile: Profile, functions: _Functions) -> Counter[_Path]:
    """Samples by path of function numbers, root first."""
    stacks = [
        tuple([functions.of_frame[frame] for frame in reversed(profile.stack(index))])
        for index in range(len(profile.stack_starts) - 1)
    ]
    columns = (profile.sample_process, profile.sample_thread)[: len(functions.of_lead)]
    numbered = [map(of.__getitem__, column) for of, column in zip(functions.of_lead, columns, strict=True)]
    leads: Iterable[_Path] = repeat((), len(profile.sample_stack))
    if numbered:
        leads = zip(*numbered, strict=True)
    paths: Counter[_Path] = Counter()
    for lead, stack, count in zip(leads, profile.sample_stack, profile.sample_count, strict=True):
        paths[lead + stacks[stack]] += count
    return paths


def _tree(paths: Counter[_Path]) -> dict[str, list[int]]:
    """The nodes' columns. Sorted paths are the tree depth first: each adds what its forerunner lacks."""
    depths, numbers, selfs = [0], [0], [0]
    previous: _Path = ()
    for path in sorted(paths):
        shared = 0
        for mine, its in zip(path, previous, strict=False):
            if mine != its:
                break
            shared += 1
        new = len(path) - shared
        depths.extend(range(shared + 1, len(path) + 1))
        numbers.extend(path[shared:])
        selfs.extend([0] * new)
        # A new path is longer than what it shares, or empty: then it is the first, and ends in the root.
        selfs[-1] += paths[path]
        previous = path
    return {"depth": depths, "function": numbers, "self": selfs}


def _data(profile: Profile) -> dict[str, Any]:
    """The object described above."""
    functions = _Functions(profile)
    strings: dict[str, int] = {}
    kinds: dict[str, int] = {}
    columns: dict[str, list[int]] = {"name": [], "kind": [], "detail": []}
    for function in functions.table:
        columns["name"].append(strings.setdefault(function.name, len(strings)))
        columns["kind"].append(kinds.setdefault(function.kind, len(kinds)))
        columns["detail"].append(strings.setdefault(functions.detail(function), len(strings)))
    accounting = profile.accounting
    return {
        "format": _FORMAT,
        "host": platform.node(),
        "started_at": profile.started_at // 1_000_000,
        "duration": profile.duration / 1e9,
        "hz": profile.hz,
        "event": profile.event,
        "accounting": {
            "taken": accounting.taken,
            "reported": accounting.reported,
            "lost": accounting.lost,
            "incomplete": accounting.incomplete,
        },
        "strings": list(strings),
        "kinds": list(kinds),
        "functions": columns,
        "nodes": _tree(_paths(profile, functions)),
    }


def _embed(data: dict[str, Any]) -> bytes:
    """JSON that may stand in a script element: without "<" nothing in it can end or change that element.

    It is ASCII, so that neither the page's encoding nor line separators such as U+2028 matter.
    https://html.spec.whatwg.org/multipage/scripting.html#restrictions-for-contents-of-script-elements
    """
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").encode("ascii")


def _template() -> tuple[bytes, bytes]:
    """What stands before and after the data."""
    try:
        page = resources.files("pyprof.export").joinpath(TEMPLATE).read_bytes()
    except OSError as error:
        raise OutputError(
            f"the flame graph page {TEMPLATE} is missing from this installation ({error.strerror}); "
            "in a checkout, `make build` makes it"
        ) from error
    head, place, tail = page.partition(_PLACE)
    if not place or _PLACE in tail:
        raise OutputError(
            f"the flame graph page {TEMPLATE} is damaged; in a checkout, `make build` makes it anew"
        )
    return head, tail


def write(profile: Profile, out: BinaryIO) -> None:
    """Write a profile as an HTML page that needs no other file and no network.

    Args:
        profile: what to draw; its stacks may be empty.
        out: takes the page, UTF-8.

    Raises:
        OutputError: the page's template is not installed or damaged.
    """
    head, tail = _template()
    out.write(head)
    out.write(_embed(_data(profile)))
    out.write(tail)
