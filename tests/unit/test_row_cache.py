# SPDX-License-Identifier: Apache-2.0
"""Unwind rows on disk: what comes back is what was made, or nothing comes back."""

import errno
import os
import resource
import stat
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from pyprof.elf.file import ElfFile, open_regular
from pyprof.elf.identity import Identity, identity_of
from pyprof.unwind import row_entry
from pyprof.unwind.cache import RowCache, cache_key, default_folder
from pyprof.unwind.row_entry import DamagedEntry, StoredRows, decode, encode, new_seal
from pyprof.unwind.rows import rows_of
from pyprof.unwind.tables import CfiSource, find
from tests.support.compile import compile_source
from tests.support.unwind_files import SHARED

LIBS = Path("/usr/lib/x86_64-linux-gnu")
FUNCTION = "int f{0}(int x) {{ volatile char room[{1}]; room[x] = 1; return room[0] + f{0}(x); }}\n"
Columns = tuple[list[int], list[int], bytes]


class Library:
    """A small library with rows, its source of rows, and what they are without a cache."""

    def __init__(self, folder: Path, name: str, functions: int = 5) -> None:
        text = "".join(FUNCTION.format(number, 16 * number + 16) for number in range(functions))
        self.path = compile_source(folder, f"{name}.c", text, *SHARED, "-O1", output=f"{name}.so")
        fd = open_regular(self.path)
        self.file = ElfFile.from_bytes(os.pread(fd, 1 << 20, 0), name)
        os.close(fd)
        self.key = cache_key(identity_of(self.file))
        source = find(self.file, [])
        assert source is not None
        self.source: CfiSource = source
        self.rows = columns(rows_of(source, 62))

    def ask(self, cache: RowCache) -> Columns:
        rows = cache.rows(self.file, self.key)
        cache.flush()
        return columns(rows)

    def entry(self) -> bytes:
        made = encode(rows_of(self.source, 62), new_seal(self.source, 62))
        assert made is not None
        return made


def columns(rows: row_entry.Rows | None) -> Columns:
    assert rows is not None
    return list(rows.addresses), list(rows.numbers), bytes(rows.rules)


def counters(cache: RowCache) -> tuple[int, int, int]:
    return cache.hits, cache.misses, cache.errors


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.rows"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(folder: Path) -> RowCache:
    return RowCache(folder, min_source=1)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path, "library")


@pytest.mark.parametrize(
    "path",
    [
        LIBS / "libc.so.6",
        LIBS / "libstdc++.so.6",
        LIBS / "libcrypto.so.3",
        Path("/bin/bash"),
        Path("/usr/bin/node"),
    ],
    ids=lambda path: path.name,
)
def test_rows_of_real_files_come_back_as_they_were_made(folder: Path, path: Path) -> None:
    cache = RowCache(folder)
    fd = open_regular(path)
    try:
        file = ElfFile(fd, str(path))
        source = find(file, [])
        assert source is not None
        key = cache_key(identity_of(file))
        made = columns(cache.rows(file, key))
        cache.flush()
        found = cache.rows(file, key)
    finally:
        os.close(fd)
    assert isinstance(found, StoredRows)
    assert columns(found) == made == columns(rows_of(source, 62))
    assert counters(cache) == (1, 1, 0)


def test_small_file_is_not_kept(folder: Path, library: Library) -> None:
    cache = RowCache(folder)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 0, 0)
    assert not folder.exists()


def test_file_without_rows_has_none(cache: RowCache, tmp_path: Path) -> None:
    path = compile_source(tmp_path, "none.s", ".text\nnop\n", *SHARED, output="none.so")
    fd = open_regular(path)
    try:
        assert cache.rows(ElfFile(fd, "none"), "00-1") is None
    finally:
        os.close(fd)


def test_nothing_is_written_before_flush(folder: Path, cache: RowCache, library: Library) -> None:
    assert columns(cache.rows(library.file, library.key)) == library.rows
    assert not folder.exists()
    cache.flush()
    assert len(entries(folder)) == 1


def test_only_the_owner_can_read_what_is_written(folder: Path, cache: RowCache, library: Library) -> None:
    library.ask(cache)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600]


# What is refused


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_entry_with_any_byte_changed_is_refused(library: Library, mask: int) -> None:
    entry = library.entry()
    for position in range(len(entry)):
        changed = bytearray(entry)
        changed[position] ^= mask
        with pytest.raises(DamagedEntry):
            decode(bytes(changed), library.source, 62)
    assert columns(decode(entry, library.source, 62)) == library.rows


def test_entry_of_any_other_length_is_refused(library: Library) -> None:
    entry = library.entry()
    for length in range(len(entry)):
        with pytest.raises(DamagedEntry):
            decode(entry[:length], library.source, 62)
    with pytest.raises(DamagedEntry):
        decode(entry + b"\0", library.source, 62)


HEADER = struct.Struct("<8sHHIQQQ32s")


@pytest.mark.parametrize(
    ("field", "value"),
    [(2, 0), (2, 5), (2, 65535), (3, 0), (3, 1), (3, 1 << 31), (4, 0), (4, 1), (4, 1 << 27),
     (4, (1 << 64) - 1), (5, (1 << 64) - 2), (6, 0), (6, 1 << 40)],
)  # fmt: skip
def test_entry_that_states_what_cannot_be_is_refused_though_its_checksum_is_right(
    library: Library, field: int, value: int
) -> None:
    entry = library.entry()
    fields = list(HEADER.unpack_from(entry))
    fields[field] = value  # 2 bytes of a step, 3 rules, 4 rows, 5 first address, 6 packed bytes
    header = HEADER.pack(*fields)
    content = entry[HEADER.size + 4 :]
    forged = header + struct.pack("<I", zlib.crc32(header + content)) + content
    with pytest.raises(DamagedEntry):
        decode(forged, library.source, 62)


def test_damaged_entry_is_counted_and_replaced(folder: Path, cache: RowCache, library: Library) -> None:
    library.ask(cache)
    (path,) = entries(folder)
    path.write_bytes(path.read_bytes()[:-1])
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 1)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (1, 2, 1)


def test_file_with_the_identity_of_another_gets_its_own_rows(
    folder: Path, cache: RowCache, library: Library, tmp_path: Path
) -> None:
    library.ask(cache)
    other = Library(tmp_path, "other", 6)
    other.key = library.key
    assert other.ask(cache) == other.rows != library.rows
    assert counters(cache) == (0, 2, 0)


def test_rows_for_one_machine_are_not_those_of_another(library: Library) -> None:
    assert decode(library.entry(), library.source, 183) is None


def test_entry_of_another_version_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, cache: RowCache, library: Library
) -> None:
    library.ask(cache)
    monkeypatch.setattr(row_entry, "FORMAT", row_entry.FORMAT + 1)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 0)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (1, 2, 0)


def test_entry_made_by_other_code_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, cache: RowCache, library: Library
) -> None:
    library.ask(cache)
    monkeypatch.setattr(row_entry, "_maker", lambda: 1)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 0)


# Who may write there


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_folder_that_others_can_write_to_is_not_used(
    folder: Path, cache: RowCache, library: Library, mode: int
) -> None:
    library.ask(cache)
    folder.chmod(mode)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 2)  # of reading, and of writing


def test_folder_of_somebody_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, cache: RowCache, library: Library
) -> None:
    library.ask(cache)
    somebody_else = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody_else)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 2)


def test_folder_that_is_a_link_is_not_used(
    folder: Path, cache: RowCache, library: Library, tmp_path: Path
) -> None:
    library.ask(cache)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 2)


def test_entry_that_others_can_write_to_is_not_used(folder: Path, cache: RowCache, library: Library) -> None:
    library.ask(cache)
    entries(folder)[0].chmod(0o620)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 1)


def test_entry_that_is_a_link_is_not_followed(folder: Path, cache: RowCache, library: Library) -> None:
    library.ask(cache)
    (path,) = entries(folder)
    path.rename(folder / "moved")
    path.symlink_to("moved")
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 1)


def test_entry_that_is_a_pipe_does_not_block(folder: Path, cache: RowCache, library: Library) -> None:
    library.ask(cache)
    (path,) = entries(folder)
    path.unlink()
    os.mkfifo(path, 0o600)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 1)


def test_entry_of_no_end_is_not_read(folder: Path, cache: RowCache, library: Library) -> None:
    library.ask(cache)
    (path,) = entries(folder)
    os.truncate(path, 1 << 40)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 1)


# Where nothing can be written


def test_folder_that_cannot_be_made_costs_a_counter(tmp_path: Path, library: Library) -> None:
    (tmp_path / "file").write_text("")
    cache = RowCache(tmp_path / "file" / "cache", min_source=1)
    assert library.ask(cache) == library.rows
    assert (cache.hits, cache.misses) == (0, 1)
    assert cache.errors > 0


def test_full_disk_leaves_no_piece_of_an_entry(folder: Path, cache: RowCache, library: Library) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # a write that is cut off, then one refused
    try:
        assert library.ask(cache) == library.rows
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert counters(cache) == (0, 1, 1)
    assert list(folder.iterdir()) == []


def test_cache_that_is_turned_off_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, library: Library, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYPROF_CACHE_DIR", "")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert library.ask(RowCache.of_environment()) == library.rows
    assert sorted(tmp_path.iterdir()) == before


def test_own_code_that_cannot_be_read_costs_only_the_cache(
    monkeypatch: pytest.MonkeyPatch, folder: Path, cache: RowCache, library: Library
) -> None:
    def gone() -> int:
        raise OSError(errno.ENOENT, "gone")

    library.ask(cache)
    monkeypatch.setattr(row_entry, "_maker", gone)
    assert library.ask(cache) == library.rows
    assert counters(cache) == (0, 2, 1)


# Bounds


@pytest.fixture
def three(tmp_path: Path) -> list[Library]:
    return [Library(tmp_path, f"library{number}", number + 3) for number in range(3)]


def kept(folder: Path, libraries: list[Library]) -> list[int]:
    names = " ".join(path.name for path in entries(folder))
    return [number for number, library in enumerate(libraries) if library.key in names]


def make_old(folder: Path, libraries: list[Library]) -> None:
    """Says that these were last used in 1970, one after the other."""
    for second, library in enumerate(libraries):
        (path,) = folder.glob(f"{library.key}-*")
        os.utime(path, (second, second))


def test_entry_used_longest_ago_gives_way_to_a_new_one(folder: Path, three: list[Library]) -> None:
    cache = RowCache(folder, max_entries=2, min_source=1)
    three[0].ask(cache)
    three[1].ask(cache)
    make_old(folder, three[:2])
    three[0].ask(cache)  # older, but used since
    three[2].ask(cache)
    assert kept(folder, three) == [0, 2]
    assert (cache.hits, cache.misses, cache.evicted) == (1, 3, 1)


def test_entries_together_stay_below_the_cap(folder: Path, three: list[Library]) -> None:
    sizes = [len(library.entry()) for library in three]
    cache = RowCache(folder, cap_bytes=sum(sizes) - 1, min_source=1)
    three[0].ask(cache)
    three[1].ask(cache)
    make_old(folder, three[:2])
    three[2].ask(cache)
    assert kept(folder, three) == [1, 2]
    assert sum(path.stat().st_size for path in entries(folder)) < sum(sizes)


def test_entry_above_the_cap_is_not_written(folder: Path, library: Library) -> None:
    cache = RowCache(folder, cap_bytes=100, min_source=1)
    assert library.ask(cache) == library.rows
    assert not folder.exists()


def test_other_files_in_the_folder_are_left_alone(folder: Path, three: list[Library]) -> None:
    folder.mkdir(0o700)
    for name in ("mine.rows", "ab-1-62.eh_frame", ".config"):
        (folder / name).write_text("mine")
        os.utime(folder / name, (0, 0))
    cache = RowCache(folder, max_entries=1, min_source=1)
    for library in three:
        library.ask(cache)
    assert len(list(folder.iterdir())) == 3 + 1


def test_what_a_killed_process_left_behind_is_removed_only_when_old(
    folder: Path, cache: RowCache, library: Library
) -> None:
    folder.mkdir(0o700)
    old, new = (folder / f".{digit * 16}.rows.tmp" for digit in "01")
    old.write_text("")
    new.write_text("")
    os.utime(old, (0, 0))
    library.ask(cache)
    assert (old.exists(), new.exists()) == (False, True)


# Together

WRITER = """
import os, sys
from pathlib import Path
from pyprof.elf.file import ElfFile
from pyprof.unwind.cache import RowCache
folder, path, key = sys.argv[1:]
file = ElfFile(os.open(path, os.O_RDONLY), path)
cache = RowCache(folder, min_source=1, max_entries=1)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    cache.rows(file, key)
    cache.flush()
    for entry in Path(folder).glob("*.rows"):
        entry.unlink(missing_ok=True)
print(cache.errors)
"""


def test_processes_that_write_one_entry_do_not_disturb_its_readers(
    folder: Path, cache: RowCache, library: Library
) -> None:
    command = [sys.executable, "-c", WRITER, str(folder), str(library.path), library.key]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    asked = 0
    while any(writer.poll() is None for writer in writers):
        assert columns(cache.rows(library.file, library.key)) == library.rows
        asked += 1
    assert [writer.communicate()[0] for writer in writers] == ["0\n", "0\n"]
    assert cache.errors == 0
    assert cache.hits + cache.misses == asked


def test_threads_share_a_cache(folder: Path, cache: RowCache, three: list[Library]) -> None:
    wrong: list[int] = []

    def work() -> None:
        for number in range(30):
            library = three[number % 3]
            if library.ask(cache) != library.rows:
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert cache.hits + cache.misses == 120
    assert cache.errors == 0
    assert kept(folder, three) == [0, 1, 2]


# Names


def test_default_folder_of_root_is_that_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_folder({"HOME": "/root", "XDG_CACHE_HOME": "/x"}) == "/var/cache/pyprof"


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HOME": "/home/a"}, "/home/a/.cache/pyprof"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "/x"}, "/x/pyprof"),
        ({"HOME": "/home/a", "XDG_CACHE_HOME": "relative"}, "/home/a/.cache/pyprof"),
        ({"HOME": "/home/a", "PYPROF_CACHE_DIR": "/p"}, "/p"),
        ({"HOME": "/home/a", "PYPROF_CACHE_DIR": ""}, ""),
        ({}, ""),
    ],
)
def test_default_folder_of_others_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], folder: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_folder(environ) == folder


@pytest.mark.parametrize(
    ("build_id", "key"),
    [("abcd", "abcd-ff"), ("", "0123-ff"), ("ab" * 256, "0123-ff")],  # the longest would be no file name
    ids=["short", "none", "long"],
)
def test_key_is_the_build_id_or_else_the_hash_and_the_size(build_id: str, key: str) -> None:
    assert cache_key(Identity(build_id, "", "0123", (), 255)) == key
