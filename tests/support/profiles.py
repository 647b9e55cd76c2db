# SPDX-License-Identifier: Apache-2.0
"""Hand-made profiles, small enough that what any writer must say of them can be worked out by hand."""

from collections.abc import Iterable, Sequence

from pyprof.profile.model import (
    Accounting,
    By,
    Executable,
    Frame,
    FrameKind,
    Process,
    Profile,
    Thread,
)

STARTED_AT = 1_700_000_000_123_456_789  # 2023-11-14T22:13:20Z
DURATION = 10_000_000_000
HZ = 20

APP = Executable(
    path="/usr/bin/app",
    build_id="aa" * 20,
    go_build_id="go/1",
    htlhash="11" * 16,
    memory_start=0x401000,
    memory_limit=0x480000,
    file_offset=0x1000,
)
LIBC = Executable(
    path="/lib/libc.so.6", htlhash="22" * 16, memory_start=0x26000, memory_limit=0x17B000, file_offset=0x26000
)

MAIN = Frame(FrameKind.NATIVE, 0, 0x401136, "main", "main")
SPIN = Frame(FrameKind.NATIVE, 0, 0x401200, "ns::spin(int)", "_ZN2ns4spinEi")
READ = Frame(FrameKind.NATIVE, 1, 0xF7A10, "libc.so.6+0xf7a10", "")
VFS_READ = Frame(FrameKind.KERNEL, -1, 0xFFFFFFFF81234567, "vfs_read", "vfs_read")
JIT = Frame(FrameKind.UNKNOWN, -1, 0x7F0000001234, "[unknown]", "")


def make_profile(
    samples: Iterable[tuple[int, int, Sequence[int], int]] = (),
    *,
    by: By = By.PROCESS,
    hz: int = HZ,
    processes: Sequence[Process] = (),
    threads: Sequence[Thread] = (),
    executables: Sequence[Executable] = (),
    frames: Sequence[Frame] = (),
    accounting: Accounting | None = None,
) -> Profile:
    """A profile of rows (process, thread, frame indices leaf first, count); equal stacks share one index."""
    profile = Profile(STARTED_AT, DURATION, hz, by=by)
    profile.processes.extend(processes)
    profile.threads.extend(threads)
    profile.executables.extend(executables)
    profile.frames.extend(frames)
    stacks: dict[tuple[int, ...], int] = {}
    for process, thread, stack, count in samples:
        key = tuple(stack)
        if key not in stacks:
            stacks[key] = len(stacks)
            profile.stack_frames.extend(key)
            profile.stack_starts.append(len(profile.stack_frames))
        profile.sample_process.append(process)
        profile.sample_thread.append(thread)
        profile.sample_stack.append(stacks[key])
        profile.sample_count.append(count)
        profile.sample_end.append(0)
    reported = sum(profile.sample_count)
    profile.accounting = accounting or Accounting(taken=reported, reported=reported)
    return profile


def two_processes(by: By = By.PROCESS) -> Profile:
    """Ten samples of a program with two threads and of a shell: 3 + 1 + 2 + 4.

    ========  =========  ==============================================  =====
    process   thread     stack, root first                               count
    ========  =========  ==============================================  =====
    app 100   main 100   main, ns::spin(int)                             3
    app 100   io 101     main, libc.so.6+0xf7a10, vfs_read (kernel)      1
    app 100   io 101     main, ns::spin(int)                             2
    sh 200    sh 200     [unknown]                                       4
    ========  =========  ==============================================  =====
    """
    main, spin, read, vfs_read, jit = range(5)
    if by is By.NONE:
        processes, threads = [Process(0, "", 0)], [Thread(0, "")]
    else:
        processes = [Process(100, "app", 5_000_000_000), Process(200, "sh", 6_000_000_000)]
        threads = [Thread(100, "main"), Thread(101, "io"), Thread(200, "sh")]
    rows = [
        (0, 0, (spin, main), 3),
        (0, 1, (vfs_read, read, main), 1),
        (0, 1, (spin, main), 2),
        (1, 2, (jit,), 4),
    ]
    if by is By.NONE:
        rows = [(0, 0, stack, count) for _, _, stack, count in rows]
    elif by is By.PROCESS:
        threads = [Thread(0, "")]
        rows = [(process, 0, stack, count) for process, _, stack, count in rows]
    return make_profile(
        rows,
        by=by,
        processes=processes,
        threads=threads,
        executables=[APP, LIBC],
        frames=[MAIN, SPIN, READ, VFS_READ, JIT],
        accounting=Accounting(
            taken=13, reported=10, lost={"ring_full": 2, "exited": 1}, incomplete={"no_rows": 4}
        ),
    )


def one_stack(process: str, frames: Sequence[str], *, thread: str | None = None) -> Profile:
    """One sample of a stack of native frames of these names, root first, for tests of odd names."""
    return make_profile(
        [(0, 0, tuple(reversed(range(len(frames)))), 1)],
        by=By.PROCESS if thread is None else By.THREAD,
        processes=[Process(1, process, 0)],
        threads=[Thread(1 if thread else 0, thread or "")],
        executables=[APP],
        frames=[
            Frame(FrameKind.NATIVE, 0, 0x401000 + index, name, name) for index, name in enumerate(frames)
        ],
    )


def many_stacks(count: int, depth: int = 30) -> Profile:
    """`count` distinct stacks of `depth` frames in 50 processes, one sample each."""
    names = [
        Frame(FrameKind.NATIVE, 0, 0x401000 + i, f"function_{i:05}", f"function_{i:05}") for i in range(5000)
    ]
    rows = [
        # The leaf and the one below tell the stacks apart: count < 5000 * 5000.
        (number % 50, 0, (number % 5000, number // 5000, *range(100, 98 + depth)), 1)
        for number in range(count)
    ]
    processes = [Process(1000 + i, f"worker-{i}", 0) for i in range(50)]
    return make_profile(rows, processes=processes, threads=[Thread(0, "")], executables=[APP], frames=names)
