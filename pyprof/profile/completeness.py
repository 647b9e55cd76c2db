# SPDX-License-Identifier: Apache-2.0
"""How many stacks reach their thread's start, by process and by executable, and why the others do not."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyprof.export.names import UNKNOWN, printable, where
from pyprof.profile.model import By, FrameKind, Profile


class Share(NamedTuple):
    """The samples of one process name or executable.

    Attributes:
        name: of the process, or path of the executable; ``[kernel]`` for stacks without user frames.
        samples: all of them.
        complete: those whose stack reaches its thread's start.
        incomplete: the others, by reason, most first; with `complete` they add up to `samples`.
    """

    name: str
    samples: int
    complete: int
    incomplete: dict[str, int]

    @property
    def part(self) -> float:
        """The share of samples that are complete, 0 to 1."""
        return self.complete / self.samples


class Completeness(NamedTuple):
    """Shares by name, those with most incomplete samples first.

    Attributes:
        processes: by name of the process; empty where processes are not kept apart.
        executables: by the file in which the walk ended: that of the outermost user frame.
    """

    processes: list[Share]
    executables: list[Share]


def completeness(profile: Profile) -> Completeness:
    """Sorts the samples of a profile by where their walks ended, and why."""
    places = [_place(profile, index) for index in range(len(profile.stack_starts) - 1)]
    by_process: dict[str, Counter[int]] = {}
    by_executable: dict[str, Counter[int]] = {}
    rows = zip(
        profile.sample_process, profile.sample_stack, profile.sample_end, profile.sample_count, strict=True
    )
    for process, stack, end, count in rows:
        by_executable.setdefault(places[stack], Counter())[end] += count
        if profile.by is not By.NONE:
            name = profile.processes[process].name or UNKNOWN
            by_process.setdefault(name, Counter())[end] += count
    return Completeness(_shares(profile, by_process), _shares(profile, by_executable))


def _place(profile: Profile, index: int) -> str:
    stack = profile.stack(index)
    if not stack:
        return UNKNOWN
    # Kernel frames lie at the leaf end: if the outermost frame is one of them, all are.
    frame = profile.frames[stack[-1]]
    return frame.name if frame.kind == FrameKind.UNKNOWN else where(profile, frame) or UNKNOWN


def _shares(profile: Profile, groups: dict[str, Counter[int]]) -> list[Share]:
    shares = []
    for name, counts in groups.items():
        incomplete = {profile.ends[end]: count for end, count in counts.most_common() if end}
        shares.append(Share(name, counts.total(), counts[0], incomplete))
    return sorted(shares, key=lambda share: (share.complete - share.samples, -share.samples, share.name))


def as_json(found: Completeness) -> dict[str, list[dict[str, Any]]]:
    """For `record --json`: lists of name, samples, complete, incomplete."""
    return {title: [share._asdict() for share in shares] for title, shares in found._asdict().items()}


def render(found: Completeness) -> str:
    """Two tables, or one where processes are not kept apart."""
    lines: list[str] = []
    if found.processes:
        lines += _table("process", found.processes)
    lines += _table("executable in which stacks end", found.executables)
    return "".join(line.rstrip() + "\n" for line in lines)


def _table(title: str, shares: Sequence[Share]) -> Iterable[str]:
    yield f"{'samples':>8}  {'complete':>8}  {'share':>7}  {title}"
    for share in shares:
        # Rounded, a share that is less than all would show as all.
        part = min(share.part, 0.9999) if share.incomplete else 1.0
        yield f"{share.samples:>8}  {share.complete:>8}  {part:>7.2%}  {printable(share.name)}"
        for reason, count in share.incomplete.items():
            yield f"{'':>8}  {count:>8}  {count / share.samples:>7.2%}    {reason}"
