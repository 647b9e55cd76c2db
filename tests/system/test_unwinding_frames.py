# SPDX-License-Identifier: Apache-2.0
"""C programs without frame pointers: every stack is the program's own, from its start to the leaf."""

from functools import partial

import pytest

from tests.support.programs import ENOUGH, Program, Recording, check, check_reasons
from tests.support.truth import LIBC, PROCESS, THREAD, Chain, Some, any_of, build, user_half

# Building and recording all programs is part of the first test.
pytestmark = [pytest.mark.bpf, pytest.mark.timeout(600)]

TOO_DEEP = "more frames than a sample holds"
MAIN: Chain = (PROCESS, "main")
# main compares its argument for each turn of the loop.
STRCMP = (*MAIN, Some(f"strcmp(@plt)?|{LIBC}", 0))
INLINED = any_of("work|stay|ready")  # at -O0 they are not


def frames(
    name: str, mode: str, *chains: Chain, flags: str = "-O2", compiler: str = "gcc", **more: object
) -> Program:
    make = partial(build, source="frames.c", flags=flags.split(), compiler=compiler)
    return Program(name, make, chains, tuple(mode.split()), **more)  # type: ignore[arg-type]


def chain(name: str, compiler: str, flags: str) -> Program:
    return frames(name, "chain", (*MAIN, "outer", "middle", "leaf", INLINED), flags=flags, compiler=compiler)


def deep(name: str, times: int) -> Program:
    return frames(name, f"deep {times}", (*MAIN, Some("recurse", times, times), "leaf"))


def sized(mode: str) -> list[Program]:
    return [
        frames(
            f"{mode}-{short}{flags}", mode,
            (*STRCMP, INLINED), (*MAIN, mode, INLINED), (*MAIN, mode, "inner", INLINED),
            flags=flags, compiler=compiler,
        )
        for short, compiler in (("g", "gcc"), ("c", "clang-19")) for flags in ("-O0", "-O2")
    ]  # fmt: skip


WHOLE = [
    *(
        chain(f"chain-{compiler[:5]}{flags}", compiler, flags)
        for compiler in ("gcc", "clang-19")
        for flags in ("-O0", "-O2", "-O3")
    ),
    # Not -mstackrealign alone: it takes the stack that main is called with for aligned.
    chain("chain-realign", "gcc", "-O2 -mstackrealign -mincoming-stack-boundary=3"),
    *(program for mode in ("varying", "sparse", "large", "huge", "realigned") for program in sized(mode)),
    deep("deep-512", 512 - 5),
    deep("deep-1000", 1000 - 5),
    frames(
        "jumping", "jumping",
        STRCMP,
        (*MAIN, "jumping"),
        (*MAIN, "jumping", Some(f"_?setjmp(@plt)?|__sigsetjmp|{LIBC}", 1, 3)),
        (*MAIN, "jumping", "before"),
        (*MAIN, "jumping", "before", "jump"),
        (*MAIN, "jumping", "before", "jump", Some(f"[a-z_]*longjmp(@plt)?|{LIBC}", 1, 4)),
    ),
    frames(
        "sort", "sort",
        STRCMP,
        (*MAIN, "sort", Some("qsort@plt", 0)),
        (*MAIN, "sort", Some("qsort(_r)?", 1, 2), Some(rf"c?free|malloc|memcpy|{LIBC}|.*@plt", 0, 20)),
        (*MAIN, "sort", Some("qsort(_r)?"), Some(LIBC, 1, 20), "compare"),
    ),
    frames(
        "clock", "clock",
        (*MAIN, "read_clock", Some("clock_gettime@plt", 0)),
        (*MAIN, "read_clock", "clock_gettime", Some(r"\[vdso\].*|(__vdso_)?clock_gettime", 0, 4)),
    ),
    Program(
        "threads",
        partial(build, source="threads.c", flags=["-pthread"]),
        ((THREAD, "worker", "outer", "leaf"),),
    ),
]  # fmt: skip
PROGRAMS = [*WHOLE, deep("deep-5000", 5000)]


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.name)
def test_every_stack_is_whole(recording: Recording, program: Program) -> None:
    check(recording, program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_stack_that_is_not_whole_has_a_reason(recording: Recording, program: Program) -> None:
    check_reasons(recording, program)


def test_time_is_read_in_the_vdso(recording: Recording) -> None:
    stacks = recording.rest["clock"].stacks
    assert sum(n for stack, n in stacks.items() if any("vdso" in f for f in stack)) > 20


@pytest.mark.parametrize("name", ["deep-512", "deep-1000"])
def test_recursion_has_every_frame(recording: Recording, name: str) -> None:
    lengths = {
        sum(not frame.endswith("_[k]") for frame in stack) - 1 for stack in recording.rest[name].stacks
    }
    assert lengths == {int(name.removeprefix("deep-"))}


def test_recursion_is_cut_at_the_root_end_when_it_does_not_fit(recording: Recording) -> None:
    seen = recording.rest["deep-5000"]
    # Judged to be the leaf end of its only chain: 1,024 frames of it.
    assert seen.verdict.total == seen.verdict.cut > ENOUGH, seen
    assert {len(user_half(stack)) - 1 for stack in seen.stacks} == {1024}
    assert {stack[-1] for stack in map(user_half, seen.stacks)} == {"leaf"}
    assert seen.cut == {TOO_DEEP: seen.verdict.total}
