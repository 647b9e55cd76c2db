# SPDX-License-Identifier: Apache-2.0
"""`pyprof inspect process PID`: what the profiler would know of a process."""

import argparse
import json
import os
import time
from dataclasses import dataclass

from pyprof._native.trie import prefixes
from pyprof.cli.arguments import process_id
from pyprof.errors import TargetError
from pyprof.process.files import MappedFile, MappedFiles, is_special
from pyprof.process.maps import Mapping, read_maps
from pyprof.process.proc import Stat, Status, escape, read_exe, read_stat, read_status

EPILOG = """\
examples:
  sudo pyprof inspect process 4711
  sudo pyprof inspect process $$ --json

PREFIXES is what a mapping takes in the kernel's map; ELF ADDRESS is where its first byte lies in the file's
own address space, which is what profiles name code by.
exit codes: 0 done; 1 there is no such process, or its mappings may not be read.
"""

ANONYMOUS = "memory without a file, such as code made at run time"


@dataclass(slots=True)
class Mapped:
    """A mapping, its file, and whether the file can be opened."""

    mapping: Mapping
    file: MappedFile
    readable: bool
    note: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.description = "Show what pyprof knows of a process: identity, executable mappings and their files."
    parser.epilog = EPILOG
    parser.add_argument("pid", metavar="PID", type=process_id, help="a process")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints what is known of a process.

    Raises:
        TargetError: there is none, or it may not be looked at.
    """
    stat, status = read_identity(args.pid)
    mapped = [] if stat.is_kernel_thread else read_mapped(stat)
    exe = read_exe(args.pid)
    shown = as_object(stat, status, exe, mapped)
    print(json.dumps(shown) if args.json else as_text(stat, status, exe, mapped))
    return 0


def read_identity(pid: int) -> tuple[Stat, Status]:
    """Who a process is.

    Raises:
        TargetError: there is none, or it is a thread of one.
    """
    stat = read_stat(pid)
    status = read_status(pid)
    if stat is None or status is None:
        raise TargetError(f"there is no process {pid}")
    # /proc has folders of threads, too, though it does not list them.
    if status.tgid != pid:
        raise TargetError(f"{pid} is a thread of process {status.tgid}: inspect that")
    return stat, status


def read_mapped(stat: Stat) -> list[Mapped]:
    """The executable mappings of a process, each file opened once to see who it is.

    Raises:
        TargetError: they may not be read, or the process went away.
    """
    mappings = read_maps(stat.pid)
    if mappings is None:
        refuse_unreadable(stat.pid)
        return []
    files = MappedFiles(keep_open=0)
    numbers: dict[tuple[int, int, int, bytes], int] = {}
    found = []
    for mapping in mappings:
        key = (mapping.dev_major, mapping.dev_minor, mapping.inode, mapping.path)
        number = numbers.setdefault(key, len(numbers))
        file = files.get(number)
        if file is None:
            file = MappedFile(mapping.path, b"", mapping.inode, stat.pid, mapping.start, mapping.end - 1)
            if mapping.path:
                files.add(number, file)
        found.append(Mapped(mapping, file, file.identity is not None, note(file)))
    files.close()
    return found


def refuse_unreadable(pid: int) -> None:
    """Says why a process shows no mappings; a zombie has none.

    Raises:
        TargetError: they may not be read, or the process went away.
    """
    try:
        os.close(os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError as error:
        raise TargetError(
            f"the mappings of process {pid} may not be read: that takes root with CAP_SYS_PTRACE"
        ) from error
    except OSError as error:
        raise TargetError(f"process {pid} has ended") from error


def note(file: MappedFile) -> str:
    """What is special about a file, or why it cannot be read; "" where all is well."""
    if file.identity is not None:
        return ""
    if not file.path:
        return ANONYMOUS
    if is_special(file):
        return "named by the kernel, no file"
    return file.problem


def elf_address(item: Mapped) -> int | None:
    return item.file.address_of(item.mapping.offset) if item.readable else None


def as_object(stat: Stat, status: Status, exe: bytes | None, mapped: list[Mapped]) -> dict[str, object]:
    return {
        "pid": stat.pid,
        "comm": escape(stat.comm),
        "exe": None if exe is None else escape(exe),
        "parent": stat.ppid,
        "state": stat.state,
        "threads": stat.num_threads,
        "kernel_thread": stat.is_kernel_thread,
        "start_ns": stat.start_ns,
        "namespace_pids": list(status.nspids),
        "mappings": [as_row(item) for item in mapped],
        "prefixes": sum(prefix_count(item.mapping) for item in mapped),
    }


def prefix_count(mapping: Mapping) -> int:
    return len(prefixes(mapping.start, mapping.end - 1))


def as_row(item: Mapped) -> dict[str, object]:
    mapping, identity = item.mapping, item.file.identity
    address = elf_address(item)
    return {
        "start": mapping.start,
        "end": mapping.end,
        "offset": mapping.offset,
        "elf_start": address,
        "elf_end": None if address is None else address + mapping.end - mapping.start,
        "prefixes": prefix_count(mapping),
        "path": escape(mapping.path),
        "device": f"{mapping.dev_major}:{mapping.dev_minor}",
        "inode": mapping.inode,
        "readable": item.readable,
        "build_id": identity.build_id if identity else "",
        "go_build_id": identity.go_build_id if identity else "",
        "htlhash": identity.htlhash if identity else "",
        "note": item.note,
    }


def printable(name: bytes) -> str:
    """A name for a terminal: a program may call itself anything, control characters too."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in escape(name))


def as_text(stat: Stat, status: Status, exe: bytes | None, mapped: list[Mapped]) -> str:
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(boot + stat.start_ns / 1e9))
    threads = "1 thread" if stat.num_threads == 1 else f"{stat.num_threads} threads"
    lines = [f"process {stat.pid} ({printable(stat.comm)}): {threads}, parent {stat.ppid}"]
    lines.append(f"  started   {started}, {stat.start_ns / 1e9:.2f} s after boot")
    if stat.is_kernel_thread:
        return "\n".join([*lines, "A kernel thread: it has no user memory, its stacks are the kernel's."])
    if exe is not None:
        lines.append(f"  program   {printable(exe)}")
    if len(status.nspids) > 1:
        lines.append(f"  PID in its namespaces, from ours to its own   {' '.join(map(str, status.nspids))}")
    if not mapped:
        ended = "It has ended" if stat.state in "ZX" else "It has no executable memory"
        return "\n".join([*lines, f"{ended}: there is nothing to name."])
    total = sum(prefix_count(item.mapping) for item in mapped)
    lines += [
        f"  mapped    {len(mapped)} executable ranges, {total} prefixes in the kernel's map",
        "",
        f"{'ADDRESSES':<33} {'OFFSET':>10} {'ELF ADDRESS':>12} {'PREFIXES':>8}  FILE",
    ]
    described: set[int] = set()
    for item in mapped:
        mapping, address = item.mapping, elf_address(item)
        where = f"{mapping.start:x}-{mapping.end:x}"
        lines.append(
            f"{where:<33} {mapping.offset:>#10x} {'-' if address is None else hex(address):>12}"
            f" {prefix_count(mapping):>8}  {printable(mapping.path) or '-'}"
        )
        if id(item.file) not in described:
            described.add(id(item.file))
            lines.append(" " * 68 + (item.note or describe(item.file)))
    return "\n".join(lines)


def describe(file: MappedFile) -> str:
    identity = file.identity
    if identity is None:
        return ""
    if identity.build_id:
        return f"build ID {identity.build_id}"
    if identity.go_build_id:
        return f"Go build ID {identity.go_build_id}"
    return f"no build ID, htlhash {identity.htlhash}"
