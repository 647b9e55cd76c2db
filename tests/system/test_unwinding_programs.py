# SPDX-License-Identifier: Apache-2.0
"""Signals, forks, exceptions, odd files, other languages: every stack is the program's own, to its start."""

import re
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.compile import nm_symbols
from tests.support.profiling import TARGETS
from tests.support.programs import Program, Recording, check, check_reasons
from tests.support.truth import LIBC, PROCESS, Chain, Some, any_of, build, tool

# Building and recording all programs is part of the first test.
pytestmark = [pytest.mark.bpf, pytest.mark.timeout(600)]

MAIN: Chain = (PROCESS, "main")


def made(source: str, *flags: str, compiler: str = "gcc") -> Callable[[Path], Path]:
    return partial(build, source=source, flags=flags, compiler=compiler)


def plain(name: str, *flags: str, start: Chain = MAIN, compiler: str = "gcc", **more: object) -> Program:
    """frames.c, built in some way."""
    chains = ((*start, "outer", "middle", "leaf"),)
    return Program(name, made("frames.c", *flags, compiler=compiler), chains, ("chain",), **more)  # type: ignore[arg-type]


# In a static program libc's functions have names.
STATIC: Chain = ("_start", Some("__libc_start_main(_impl)?"), "__libc_start_call_main", "main")


def signals(name: str, *arguments: str) -> Program:
    victim: Chain = (*MAIN, "outer", "victim")
    # The trampoline has no symbol that is exported.
    trampoline = Some(f"__restore_rt|{LIBC}")
    return Program(
        name,
        made("signals.c"),
        (victim, (*victim, trampoline), (*victim, trampoline, "handler", Some("handled", 0))),
        arguments,
    )


def stripped_of_sections(folder: Path) -> Path:
    path = build(folder, "frames.c")
    subprocess.run([tool("llvm-objcopy-19"), "--strip-sections", path], check=True)
    return path


def names_of_twin(path: Path) -> Callable[[str], str]:
    """Gives NAME+0xADDRESS the name that the same program has for it with its symbols."""
    twin = build(path.parent, "frames.c")
    symbols = sorted((value, name) for name, value in nm_symbols(twin).items())

    def rename(frame: str) -> str:
        place = re.fullmatch(re.escape(path.name) + r"\+0x([0-9a-f]+)", frame)
        if place is None:
            return frame
        below = [name for value, name in symbols if value <= int(place[1], 16)]
        return below[-1]

    return rename


def with_library(folder: Path) -> Path:
    library = folder / "libtiny.so"
    source = TARGETS / "plt_library.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    flags = ["-no-pie", "-Wl,-z,lazy,-z,norelro", f"-L{folder}", "-Wl,-rpath,$ORIGIN", "-ltiny"]
    return build(folder, "plt.c", flags)


def rust(folder: Path) -> Path:
    path = folder / "rusty"
    subprocess.run(
        [tool("rustc"), "-O", "-C", "force-frame-pointers=no", TARGETS / "rusty.rs", "-o", path], check=True
    )
    return path


STD = Some("(std|core)::.*", 1, 12)
# What the compiler takes out of a function, since it is rarely run.
COLD = r"( \[clone \.cold\])?"
# libgcc_s, libstdc++, and what they call in libc and the dynamic linker.
UNWINDER = any_of(
    r"(_Unwind_|__cxa_)\w+(@plt)?|__gxx_personality_v0|std::\w+(::\w+)?\(.*\)( const)?(@plt)?"
    r"|_dl_find_object(@plt)?|pthread_once(@plt)?|__tls_get_addr(@plt)?|dl_iterate_phdr(@plt)?"
    r"|c?free(@plt)?|malloc(@plt)?|strlen(@plt)?|mem(set|cpy|cmp)(@plt)?"
    r"|abort|\*ABS\*\+0x\w+@plt"
    r"|(libgcc_s|libstdc\+\+|libc|ld-linux-x86-64)\.so\.[\d.]+\+0x\w+"
)
TRANSIT = any_of(rf"(catches\(\)|through\(int\)|throws\(\)){COLD}|__cxa_\w+")
CATCHES: Chain = (*MAIN, Some(rf"catches\(\){COLD}"))

PROGRAMS = [
    plain("static", "-static", start=STATIC),
    plain("static-pie", "-static-pie", start=STATIC),
    Program(
        "no-sections",
        stripped_of_sections,
        ((*MAIN, "outer", "middle", "leaf"),),
        ("chain",),
        rename=names_of_twin,
    ),
    plain("lld", "-fuse-ld=lld-19", compiler="clang-19"),
    Program(
        "two-segments",
        made("segments.c", "-no-pie", "-Wl,--section-start=.text_far=0x40000000"),
        ((*MAIN, "outer", "distant", Some("leaf", 0)),),
    ),
    signals("signals"),
    signals("signals-alt", "alt"),
    Program("sigreturn", made("sigreturn.c"), ((*MAIN, "outer", "landed"),)),
    Program(
        "vfork",
        made("forks.c"),
        (
            (*MAIN, "outer", "spawn"),
            (*MAIN, "outer", "spawn", "childwork"),
            (*MAIN, "outer", "spawn", Some(f"(__)?(v?fork|waitpid)(@plt)?|wait4|_exit(@plt)?|{LIBC}", 1, 2)),
        ),
    ),
    Program("popped", made("forks.c"), ((*MAIN, "outer", Some("popped", 0)),), ("popped",)),
    Program("plt", with_library, ((*MAIN, "hot", Some("tiny|tiny@plt", 0)),)),
    Program(
        "plt-unbound",
        with_library,
        (
            (*MAIN, "hot", Some("tiny", 0)),
            (*MAIN, "hot", Some(r"tiny@plt|plt(-unbound)?\+0x\w+", 0)),
            (*MAIN, "hot", Some(r"ld-linux-x86-64\.so\.2\+0x\w+|_dl_\w+", 1, 8)),
        ),
        ("unbound",),
    ),
    Program(
        "throws",
        made("throws.cc", compiler="g++"),
        (
            (*MAIN, UNWINDER),
            (*CATCHES, UNWINDER),
            (*CATCHES, Some(rf"through\(int\){COLD}", 1, 2), UNWINDER),
            (*CATCHES, Some(rf"through\(int\){COLD}", 1, 2), "Guard::~Guard()"),
            (*CATCHES, Some(rf"through\(int\){COLD}", 2, 2), Some(rf"throws\(\){COLD}"), UNWINDER),
            # libgcc has put the landing pad in the place of its own return address: frames are in transit.
            (*MAIN, TRANSIT, Some("_Unwind_(Resume|RaiseException)"), Some(r"libgcc_s\.so\.1\+0x\w+", 0)),
        ),
    ),
    Program(
        "anonymous",
        made("anonymous.c"),
        ((*MAIN, "enter"), (*MAIN, "enter", Some(r"\[anon\]"), Some("called", 0))),
    ),
    Program(
        "rusty",
        rust,
        ((*MAIN, STD, "rusty::main", "rusty::outer", "rusty::Shape::middle", "rusty::leaf"),),
    ),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_stack_is_whole(recording: Recording, program: Program) -> None:
    check(recording, program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_stack_that_is_not_whole_has_a_reason(recording: Recording, program: Program) -> None:
    check_reasons(recording, program)
