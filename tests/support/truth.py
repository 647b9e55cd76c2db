# SPDX-License-Identifier: Apache-2.0
"""Programs that know their own stack: what their stacks may be, and whether those sampled are.

A chain is the whole of a stack, from the process's (or thread's) start to the leaf, kernel frames left
out. Every sample must be one of the program's chains or, where the walk ended early, the leaf end of one.
"""

import hashlib
import os
import pickle
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.compile import run
from tests.support.profiling import TARGETS, build_target, running

KERNEL = "_[k]"


class Some(NamedTuple):
    """Frames whose names match a regular expression in full, `least` to `most` of them in a row."""

    pattern: str
    least: int = 1
    most: int | None = 1


Element = str | Some
Chain = tuple[Element, ...]
Stack = tuple[str, ...]

LIBC = r"libc\.so\.6\+0x[0-9a-f]+"


def any_of(pattern: str) -> Some:
    """Any number of frames, none included."""
    return Some(pattern, 0, None)


def _expression(element: Element) -> str:
    if isinstance(element, str):
        return f"(?:{re.escape(element)};)"
    most = "" if element.most is None else element.most
    return f"(?:(?:{element.pattern});){{{element.least},{most}}}"


@cache
def _compiled(chain: Chain) -> re.Pattern[str]:
    return re.compile("".join(map(_expression, chain)))


@cache
def _ends(chain: Chain) -> list[re.Pattern[str]]:
    ends = []
    for start in range(len(chain)):
        first, rest = chain[start], chain[start + 1 :]
        if isinstance(first, Some):
            # The row of frames may have been cut in its middle.
            first = first._replace(least=0)
        elif start == 0:
            continue
        ends.append(re.compile("".join(map(_expression, (first, *rest)))))
    return ends


class Verdict(NamedTuple):
    """Samples by what their stacks are."""

    complete: int
    cut: int
    """The leaf end of a chain."""
    wrong: dict[Stack, int]
    cut_stacks: dict[Stack, int]

    @property
    def total(self) -> int:
        return self.complete + self.cut + sum(self.wrong.values())

    def __str__(self) -> str:
        lines = [f"{self.complete} complete, {self.cut} cut, {sum(self.wrong.values())} wrong"]
        for title, stacks in (("cut", self.cut_stacks), ("wrong", self.wrong)):
            for stack, count in sorted(stacks.items(), key=lambda item: -item[1])[:20]:
                shown = stack if len(stack) < 40 else (*stack[:15], f"({len(stack) - 30} more)", *stack[-15:])
                lines.append(f"{title} {count}: {';'.join(shown)}")
        return "\n".join(lines)


def user_half(stack: Stack) -> Stack:
    """A stack's frames without the kernel's, which must all stand at the leaf end."""
    user = tuple(frame for frame in stack if not frame.endswith(KERNEL))
    assert stack[: len(user)] == user, f"kernel frames lie above user frames: {stack}"
    return user


def _with_starts(chain: Chain) -> Chain:
    found: list[Element] = []
    for element in chain:
        if element == PROCESS:
            found += starts().process
        elif element == THREAD:
            found += starts().thread
        else:
            found.append(element)
    return tuple(found)


def _has_no_stack(stack: Stack) -> bool:
    """Whether a stack without user frames is that of an exit or exec, which give up the user stack."""
    return any(re.fullmatch(r"(do_exit|begin_new_exec|load_elf_binary|\w*execve\w*)_\[k\]", f) for f in stack)


def judge(stacks: Mapping[Stack, int], chains: Iterable[Chain]) -> Verdict:
    """Compares stacks, the process's name first, with the chains of the program."""
    chains = list(map(_with_starts, chains))
    complete = cut = 0
    wrong: Counter[Stack] = Counter()
    cut_stacks: Counter[Stack] = Counter()
    for stack, count in stacks.items():
        user = user_half(stack[1:])
        text = "".join(f"{frame};" for frame in user)
        if any(_compiled(chain).fullmatch(text) for chain in chains) or (not user and _has_no_stack(stack)):
            complete += count
        elif user and any(end.fullmatch(text) for chain in chains for end in _ends(chain)):
            cut += count
            cut_stacks[user] += count
        else:
            wrong[stack] += count
    return Verdict(complete, cut, dict(wrong), dict(cut_stacks))


def build(folder: Path, source: str, flags: Sequence[str] = (), compiler: str = "gcc") -> Path:
    """Compiles a target at -O2 without frame pointers, unless flags say otherwise."""
    return build_target(folder, source, "-fomit-frame-pointer", *flags, compiler=compiler)


def tool(name: str) -> str:
    """The path of a program; the test is skipped where it is not installed."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


PROCESS = Some("the frames before main")
THREAD = Some("the frames before a thread's function")
"""Stand for what starts() finds, which differs from machine to machine."""


class Starts(NamedTuple):
    """The frames before main and before a thread's function, root first, as gdb sees them."""

    process: Chain
    thread: Chain


def _named(offset: int, name: str, module: str, base: int) -> Element:
    """A frame of gdb's: pyprof has its name, where a dynamic symbol tells, or a place in the file."""
    place = re.escape(f"{module}+0x{offset - 1 - base:x}")
    return Some(f"{place}|{re.escape(name)}" if name != "??" else place)


@cache
def starts() -> Starts:
    """Asks gdb what lies below main, and below a thread's function, on this machine.

    PYPROF_TEST_TARGETS names a folder that keeps what it said, for machines on which gdb takes a minute.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = build(Path(folder), "threads.c", ["-pthread"])
        if "PYPROF_TEST_TARGETS" not in os.environ:
            return _starts(target)
        libc = re.search(r"=> (/\S*/libc\.so\.6) ", run("ldd", str(target)))
        assert libc
        texts = (Path(libc[1]).read_bytes(), target.read_bytes(), Path(__file__).read_bytes())
        key = hashlib.sha256(b"".join(texts)).hexdigest()[:16]
        kept = Path(os.environ["PYPROF_TEST_TARGETS"]) / f"starts-{key}"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(_starts(target)))
        found: Starts = pickle.loads(kept.read_bytes())
        return found


def _starts(target: Path) -> Starts:
    with running(target) as process:
        printed = subprocess.run(
            [
                tool("gdb"), "-batch", "-nx", "-p", str(process.pid), "-ex", "set backtrace past-main on",
                "-ex", "set backtrace past-entry on", "-ex", "set print frame-arguments none",
                "-ex", "set print address on", "-ex", "thread apply all bt",
            ],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    base = min(int(line.split("-")[0], 16) for line in maps.splitlines() if line.endswith("/libc.so.6"))
    threads = re.split(r"^Thread ", printed, flags=re.MULTILINE)[1:]
    found: dict[str, Chain] = {}
    for text in threads:
        frames: list[Element] = []
        last = ""
        for line in re.findall(r"^#\d+ .*(?:\n {3,}.*)*", text, flags=re.MULTILINE):
            match = re.match(r"#\d+\s+(?:0x([0-9a-f]+) in )?(\S+) \(", line)
            assert match, line
            address, name = match.groups()
            if name in ("main", "worker"):
                frames, last = [], name
            elif name == "_start":
                frames.append(name)
            elif last:
                name = re.sub(r"_impl$", "", name.partition("@")[0])
                frames.append(_named(int(address, 16), name, "libc.so.6", base))
        found[last] = tuple(reversed(frames))
    return Starts(found["main"], found["worker"])


def source(name: str) -> Path:
    """A target's source, for compilers that build_target does not know."""
    return TARGETS / name
