# SPDX-License-Identifier: Apache-2.0
"""Go programs: goroutines to where they began, also from other stacks, and through C."""

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.profiling import TARGETS
from tests.support.programs import Program, Recording, check, check_reasons
from tests.support.truth import Chain, Element, Some, any_of, tool

pytestmark = pytest.mark.bpf

STRIPPED = "-ldflags=-s -w"
GOROUTINE = Some(r"runtime\.goexit(\.abi0)?")
# Where the stacks of Go's scheduler, of new threads and of what grows stacks begin.
THREAD = Some(r"runtime\.(mstart|mcall|morestack|clone|rt0_go)(\.abi0)?")
# Where goroutines of the run-time system begin.
OF_RUNTIME = (
    r"runtime\.(main|goexit1|forcegchelper|run\w+|gcBgMarkWorker|[\w.]+\.gowrap\d+|[\w.]+\.func\d+)(\.abi0)?"
)
# What is called from Go code, or runs on its own: names of the standard library, its assembly, the vDSO.
LIBRARY = (
    r"(runtime|internal(/\w+)+|time|sync|sync/atomic|syscall|os)\..*"
    r"|\w+body|gogo|gosave_systemstack_switch|gcWriteBarrier|__vdso_\w+|\[vdso\]\S*"
)
# A signal handler's trampoline: Go's own, or in programs with C that of libc.
TRAMPOLINE = r"[\w-]+\+0x\w+|libc\.so\.6\+0x\w+|__restore_rt"
REST = any_of(f"{LIBRARY}|{TRAMPOLINE}")
SPIN: Chain = ("main.spin", "main.tiny")


def build(folder: Path, source: str, flags: tuple[str, ...], cgo: bool) -> Path:
    path = folder / "program"
    settings = {"CGO_ENABLED": str(int(cgo)), "CGO_CFLAGS": "-O2 -fomit-frame-pointer"}
    subprocess.run(
        [tool("go"), "build", *flags, "-o", path, TARGETS / source], env=os.environ | settings, check=True
    )
    return path


def growing(*body: Element, start: Element = GOROUTINE) -> Iterator[Chain]:
    """The stacks of a goroutine that calls one after another, as each has been called; and what those of the
    standard library do on top."""
    for size in range(1, len(body) + 1):
        yield start, *body[:size], REST


GOPHER = (
    *growing("runtime.main", "main.main", "main.outer", "main.(*shape).middle", "main.leaf"),
    *growing("main.main.gowrap1", "main.worker", "main.leaf"),
)
GOROUTINES = (
    *growing("runtime.main", "main.main", *SPIN),
    *growing("main.recursion", Some("main.recurse", 1, 100)),
    *growing("main.recursion", Some("main.recurse", 101, 101), *SPIN),
    *growing("main.frames", "main.wide", *SPIN),
    (GOROUTINE, "main.frames", "main.wide", "main.tiny", REST),
    *growing("main.closures", "main.apply", "main.closures.func1", *SPIN),
    *growing("main.panicking", "main.panics", "runtime.gopanic", "main.panics.func1", *SPIN),
    *growing(
        "main.faulting", "main.faults", "runtime.sigpanic", "runtime.gopanic", "main.faults.func1", *SPIN
    ),
    *growing("main.growing"),
    *growing("main.growing.func1", Some("main.grow", 1, 101)),
    *growing("main.allocating"),
    *growing("main.calling"),
    *growing("main.clock"),
)
TO_GO: Chain = (
    "Callback",
    "crosscall2",
    *(Some(rf"runtime\.{name}(\.abi0)?") for name in ("cgocallback", "cgocallbackg")),
)


def to_c(name: str) -> Chain:
    return (
        Some(rf"main\._Cfunc_{name}(\.abi0)?"),
        "runtime.cgocall",
        Some(r"runtime\.asmcgocall(\.abi0)?"),
        Some(rf"_cgo_\w+_Cfunc_{name}"),
        name,
    )


BACK_IN_GO: Chain = (
    "runtime.main", "main.main", "main.crossing", *to_c("c_outer"), *TO_GO,
    # cgocallbackg, wrapped or not.
    Some(r"runtime\.cgocallbackg", 0), "runtime.cgocallbackg1", Some(r"_cgoexp_\w+_Callback"), "main.inner",
)  # fmt: skip
CROSSING = (
    *growing("main.staying", *SPIN),
    *growing("runtime.main", "main.main", "main.crossing", *to_c("c_outer"), "c_spin"),
    *growing(*BACK_IN_GO, *SPIN),
    *growing(*BACK_IN_GO, *to_c("c_inner"), "c_spin"),
)


def program(name: str, source: str, chains: tuple[Chain, ...], *flags: str, cgo: bool = False) -> Program:
    own: tuple[Chain, ...] = (
        (GOROUTINE,),
        (GOROUTINE, Some(OF_RUNTIME), REST),
        (THREAD, REST),
    )
    return Program(name, partial(build, source=source, flags=flags, cgo=cgo), (*chains, *own))


PROGRAMS = [
    program("gopher", "gopher.go", GOPHER),
    program("goroutines", "goroutines.go", GOROUTINES),
    # Without a symbol table: names are those that the run-time system has for itself.
    program("gor-stripped", "goroutines.go", GOROUTINES, STRIPPED),
    program("gor-pie", "goroutines.go", GOROUTINES, "-buildmode=pie"),
    program("crossing", "crossing.go", CROSSING, cgo=True),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_stack_is_whole(recording: Recording, program: Program) -> None:
    check(recording, program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_stack_that_is_not_whole_has_a_reason(recording: Recording, program: Program) -> None:
    # Of the run-time system's stacks only the names are known here.
    check_reasons(recording, program, unsure=0.05)
