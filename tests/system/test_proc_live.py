# SPDX-License-Identifier: Apache-2.0
"""Readers of /proc/PID on real processes with names, paths and lives that are odd."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pyprof.process import proc
from pyprof.process.maps import Mapping, map_file, read_maps
from tests.support.children import child

ROOT = Path(__file__).parent.parent.parent
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

SET_NAME = r"""
import ctypes
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, b"a) R 1 (\xff\n9", 0, 0, 0)
"""
NAME = b"a) R 1 (\xff\n9"

MAP_FILES = """
import mmap, os, sys
kept = []
for name in os.listdir(os.fsencode(sys.argv[1])):
    fd = os.open(os.path.join(os.fsencode(sys.argv[1]), name), os.O_RDONLY)
    kept.append(mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    os.close(fd)
"""
# Name of a mapped file -> how maps prints it.
NAMES = {
    b"two  spaces.so": b"two  spaces.so",
    b"tab\t": b"tab\t",
    b"new\nline": b"new\\012line",
    b"back\\012slash": b"back\\012slash",
    b" trail ": b" trail ",
    b"live (deleted)": b"live (deleted)",
    b"\xff\r": b"\xff\r",
    b"x r-xp 00000000 00:00 0": b"x r-xp 00000000 00:00 0",
}


def named(folder: Path, mappings: list[Mapping]) -> dict[bytes, Mapping]:
    """The mappings of files in a folder, by how maps prints the name."""
    start = os.fsencode(folder) + b"/"
    return {mapping.path[len(start) :]: mapping for mapping in mappings if mapping.path.startswith(start)}


def test_stat_of_a_process_with_a_hostile_name() -> None:
    with child(SET_NAME) as pid:
        stat = proc.read_stat(pid)
    assert stat is not None
    assert (stat.pid, stat.comm, stat.ppid, stat.num_threads) == (pid, NAME, os.getpid(), 1)
    assert (stat.pgrp, stat.session) == (os.getpgrp(), os.getsid(0))
    assert stat.state in "SR"
    assert not stat.is_kernel_thread


def test_comm_of_a_process_and_its_threads() -> None:
    code = SET_NAME.replace("ctypes.CDLL(None)", "import threading\nctypes.CDLL(None)") + (
        "both = threading.Barrier(2)\n"
        "def run():\n"
        "    ctypes.CDLL(None).prctl(PR_SET_NAME, b'\\nsecond', 0, 0, 0)\n"
        "    both.wait()\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "both.wait()\n"
    )
    with child(code) as pid:
        tids = proc.list_tids(pid)
        assert tids is not None
        names = [proc.read_comm(pid, tid) for tid in tids]
        stat = proc.read_stat(pid)
        assert proc.read_comm(pid) == NAME
    assert names == [NAME, b"\nsecond"]
    assert stat is not None
    assert stat.num_threads == 2


def test_start_is_when_the_process_was_started() -> None:
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with child("") as pid:
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        stat = proc.read_stat(pid)
    assert stat is not None
    assert before - tick <= stat.start_ns <= after


def test_status_of_this_process_is_what_the_system_says() -> None:
    status = proc.read_status(os.getpid())
    assert status is not None
    assert (status.tgid, status.nspids[0]) == (os.getpid(), os.getpid())


@needs_root
def test_status_has_the_id_in_the_process_own_namespace() -> None:
    with child("", prefix=["unshare", "--pid", "--fork"]) as parent:
        stats = [proc.read_stat(pid) for pid in proc.list_pids()]
        (pid,) = [stat.pid for stat in stats if stat and stat.ppid == parent]
        status = proc.read_status(pid)
    assert status == proc.Status(tgid=pid, nspids=(pid, 1))


def test_exe_is_the_path_even_when_odd_or_deleted(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/odd \xff\n(deleted)"
    shutil.copy(b"/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"started\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"started\n"
        assert proc.read_exe(process.pid) == program
        os.unlink(program)  # noqa: PTH108 - bytes
        assert proc.read_exe(process.pid) == program + b" (deleted)"
        process.communicate(b"")


def test_kernel_thread_has_no_exe_and_no_maps() -> None:
    threads = [stat for pid in proc.list_pids() if (stat := proc.read_stat(pid)) and stat.is_kernel_thread]
    if not threads:
        pytest.skip("no kernel threads in this PID namespace")
    assert {proc.read_exe(thread.pid) for thread in threads} == {None}
    assert {read_maps(thread.pid) is None for thread in threads} == {True}


def test_user_processes_are_no_kernel_threads() -> None:
    stat = proc.read_stat(os.getpid())
    assert stat is not None
    assert not stat.is_kernel_thread


READERS: list[Callable[[int], object]] = [
    proc.read_stat,
    proc.read_status,
    proc.read_comm,
    proc.read_exe,
    proc.list_tids,
    read_maps,
]


@pytest.mark.parametrize("reader", READERS)
def test_reader_gives_none_of_a_process_that_ended(reader: Callable[[int], object]) -> None:
    with child("") as pid:
        assert reader(pid) is not None
    assert reader(pid) is None


@pytest.mark.parametrize("reader", [proc.read_stat, proc.read_status, proc.read_comm, read_maps])
def test_reader_gives_none_of_a_process_that_ends_between_open_and_read(
    reader: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        system_open = os.open

        def open_then_end(path: str, flags: int) -> int:
            fd = system_open(path, flags)
            process.kill()
            process.wait()
            return fd

        monkeypatch.setattr(os, "open", open_then_end)
        assert reader(process.pid) is None
    assert process.returncode == -signal.SIGKILL


def test_zombie_has_a_stat_but_no_maps_and_no_exe() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    try:
        stat = proc.read_stat(pid)
        assert stat is not None
        assert (stat.state, stat.comm) == ("Z", b"true")
        assert (read_maps(pid), proc.read_exe(pid)) == (None, None)
    finally:
        os.waitpid(pid, 0)


@needs_root
def test_reader_gives_none_where_it_is_not_allowed() -> None:
    program = (
        "import os, sys\n"
        "from pyprof.process import maps, proc\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(maps.read_maps(int(sys.argv[1])), proc.read_exe(int(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout == "None None\n"


def test_maps_have_each_file_by_its_name(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / os.fsdecode(name)).write_bytes(b"\xc3" * 4096)
    with child(MAP_FILES, str(tmp_path)) as pid:
        mappings = read_maps(pid)
    assert mappings is not None
    found = named(tmp_path, mappings)
    assert found.keys() == set(NAMES.values())
    for name, shown in NAMES.items():
        mapping = found[shown]
        assert (mapping.end - mapping.start, mapping.offset) == (4096, 0)
        assert mapping.inode == (tmp_path / os.fsdecode(name)).stat().st_ino


@needs_root
def test_map_file_opens_exactly_the_file_that_is_mapped(tmp_path: Path) -> None:
    # "live (deleted)" looks in maps like "live" does once it is deleted.
    contents = {b"live (deleted)": b"\x90" * 4096, b"live": b"\xc3" * 4096, b"new\nline": b"\xcc" * 4096}
    inodes = {}
    for name, content in contents.items():
        path = tmp_path / os.fsdecode(name)
        path.write_bytes(content)
        inodes[path.stat().st_ino] = content
    with child(MAP_FILES, str(tmp_path)) as pid:
        (tmp_path / "live").unlink()
        mappings = [mapping for mapping in read_maps(pid) or [] if mapping.inode in inodes]
        files = {}
        for mapping in mappings:
            fd = os.open(map_file(pid, mapping.start, mapping.end), os.O_RDONLY | os.O_NONBLOCK)
            try:
                assert os.fstat(fd).st_ino == mapping.inode
                files[mapping.inode] = os.pread(fd, 5000, 0)
            finally:
                os.close(fd)
    assert files == inodes
    paths = sorted(mapping.path.rpartition(b"/")[2] for mapping in mappings)
    assert paths == [b"live (deleted)", b"live (deleted)", b"new\\012line"]


def test_maps_agree_with_a_plain_reading() -> None:
    with child(
        "import mmap; kept = mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)"
    ) as pid:
        mappings = read_maps(pid)
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    expected = []
    for line in lines:
        addresses, permissions, offset, device, inode, *path = line.split(maxsplit=5)
        if permissions[2] == "x":
            start, end = (int(address, 16) for address in addresses.split("-"))
            major, minor = (int(number, 16) for number in device.split(":"))
            label = os.fsencode(path[0]) if path else b""
            writable = permissions[1] == "w"
            expected.append(Mapping(start, end, int(offset, 16), major, minor, int(inode), label, writable))
    assert mappings == expected
    assert b"" in {mapping.path for mapping in expected}
    assert b"[vdso]" in {mapping.path for mapping in expected}


def test_maps_of_a_process_with_very_many_mappings(capsys: pytest.CaptureFixture[str]) -> None:
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    # Every second page becomes executable: two mappings each, with some left for the interpreter.
    count = min(limit, 65530) // 2 - 200
    code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
READ, READ_EXEC, PRIVATE_ANONYMOUS = 1, 5, 0x22
base = libc.mmap(None, {count} * 8192, READ, PRIVATE_ANONYMOUS, -1, 0)
for at in range({count}):
    assert libc.mprotect(base + at * 8192, 4096, READ_EXEC) == 0
"""
    with child(code) as pid:
        start = time.perf_counter()
        mappings = read_maps(pid)
        seconds = time.perf_counter() - start
    assert mappings is not None
    with capsys.disabled():
        print(f"\nread_maps: {len(mappings)} executable mappings in {seconds * 1000:.0f} ms")
    pages = [mapping for mapping in mappings if mapping.end - mapping.start == 4096 and not mapping.path]
    assert len(pages) == count
    assert {after.start - before.start for before, after in pairwise(pages)} == {8192}
    assert seconds < 5


BURNER = r"""
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(void)
{
    for (int i = 0; i < 1000; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return 1;
        if (pid == 0) {
            while (now(CLOCK_PROCESS_CPUTIME_ID) < 0.002)
                ;
            _exit(0);
        }
        waitpid(pid, NULL, 0);
    }
    return 0;
}
"""


def test_scanning_while_1000_short_processes_come_and_go(tmp_path: Path) -> None:
    source = tmp_path / "burner.c"
    source.write_text(BURNER)
    subprocess.run(["gcc", "-O2", "-o", str(tmp_path / "burner"), str(source)], check=True)
    seen: set[int] = set()
    with subprocess.Popen([str(tmp_path / "burner")]) as burner:
        while burner.poll() is None:
            # The burner's own child first: it lives for 2 ms only.
            children = proc.read_bytes(f"/proc/{burner.pid}/task/{burner.pid}/children") or b""
            for pid in [*map(int, children.split()), *proc.list_pids()]:
                stat = proc.read_stat(pid)
                if stat is not None and stat.ppid == burner.pid:
                    seen.add(pid)
                proc.read_status(pid)
                proc.read_comm(pid)
                proc.read_exe(pid)
                proc.list_tids(pid)
                for mapping in read_maps(pid) or []:
                    assert mapping.start < mapping.end
    assert burner.returncode == 0
    assert seen
