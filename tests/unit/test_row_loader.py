# SPDX-License-Identifier: Apache-2.0
"""The loader of unwind rows, over real files and an arena of ordinary memory."""

import gc
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from pyprof._native.arena import RowArena
from pyprof.bpf.library import BpfObject
from pyprof.elf.file import ElfFile
from pyprof.elf.identity import address_of_offset
from pyprof.errors import HostError
from pyprof.process.files import MappedFile, MappedFiles
from pyprof.unwind import loader as module
from pyprof.unwind.cache import RowCache
from pyprof.unwind.loader import DELAY, RETRY, Job, RowLoader
from pyprof.unwind.row_entry import Rows
from tests.support.arena import CHUNK, LOADED, MAX_RULES, NO_ROWS, NOT_LOADED, Holder, number_rule
from tests.support.compile import compile_source
from tests.support.elfwriter import PT_LOAD, Segment, build_elf
from tests.support.unwind_files import file_rows

SECOND = 1_000_000_000
PATIENCE = 30.0


class Asked(RowArena):
    """An arena that is asked for what a test says."""

    asked: list[int]

    def wanted(self) -> list[int]:
        asked, self.asked = self.asked, []
        return asked


class Gate(RowCache):
    """No cache: makes rows, those of files named `held` only once it is opened."""

    def __init__(self) -> None:
        super().__init__("")
        self.open = threading.Event()
        self.entered = threading.Event()
        self.read: list[str] = []

    def rows(self, file: ElfFile, key: str) -> Rows | None:
        name = Path(file.name).name
        self.read.append(name)
        if name.startswith("held"):
            self.entered.set()
            assert self.open.wait(PATIENCE)
        if name.startswith("broken"):
            raise RuntimeError("a defect of the reader")
        return super().rows(file, key)


class Scene:
    """A loader with all that it works on."""

    def __init__(
        self, cap_chunks: int, keep_open: int, *, max_pages: int = 65_000, max_executables: int = 65_000
    ) -> None:
        self.holder = Holder(0, Asked, max_pages, max_executables)
        self.arena = cast(Asked, self.holder.arena)
        self.arena.asked = []
        self.files = MappedFiles(keep_open)
        self.gate = Gate()
        bpf = cast(BpfObject, self.holder)
        self.loader = RowLoader(bpf, self.arena, self.files, cap_chunks * CHUNK, self.gate)

    def add(self, number: int, path: Path | str) -> None:
        inode = Path(path).stat().st_ino
        self.files.add(number, MappedFile(os.fsencode(path), b"", inode, os.getpid(), 0, 0))

    def ask(self, *numbers: int) -> None:
        self.arena.asked += numbers
        self.loader.request()

    def made(self, number: int, path: Path | str, now: int = SECOND) -> int:
        """Asks for a file, waits until its rows are made, and installs them; the new state."""
        if number not in self.files:
            self.add(number, path)
        self.ask(number)
        self.wait(now)
        return self.arena.state(number)

    def wait(self, now: int) -> None:
        """Installs at a time, until nothing is under way."""
        limit = time.monotonic() + PATIENCE
        while self.loader._under_way:
            assert time.monotonic() < limit
            os.set_blocking(self.loader.fd, True)
            os.eventfd_write(self.loader.fd, os.eventfd_read(self.loader.fd))
            os.set_blocking(self.loader.fd, False)
            self.loader.install(now)

    def close(self) -> None:
        self.gate.open.set()
        self.loader.close()
        self.files.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(2, 512)
    yield made
    made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files whose rows take 0.7 and 2.4 of a chunk, and a small one."""
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in (("large", 180_000), ("giant", 640_000), ("small", 20)):
        turn = ".cfi_def_cfa_offset 16\n.skip 4\n.cfi_def_cfa_offset 24\n.skip 4\n"
        source = f".text\n.cfi_startproc\n.rept {rows // 2}\n{turn}.endr\n.cfi_endproc\n"
        compile_source(folder, f"{name}.s", source, "-shared", "-nostdlib", "-Wl,--build-id=none")
    for name in ("a", "b", "c"):
        shutil.copy(folder / "large", folder / name)
    for name in ("held", "held2", "broken"):
        shutil.copy(folder / "small", folder / name)
    (folder / "text").write_text("no ELF file")
    small = (folder / "small").read_bytes()
    (folder / "other").write_bytes(small[:18] + b"\x08\x00" + small[20:])  # e_machine: MIPS
    return folder


def test_the_rows_of_a_real_library_are_loaded(scene: Scene) -> None:
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line)
    path = line.split()[-1]
    assert scene.made(2, path) == LOADED
    found = file_rows(path)
    assert found is not None
    file = scene.files.get(2)
    assert file is not None
    assert file.identity is not None
    rules = memoryview(found.rows.rules)
    checked = 0
    for segment in file.identity.segments:
        if segment.flags & 1:
            for offset in range(segment.offset, segment.offset + segment.filesz, 37):
                address = address_of_offset(file.identity.segments, offset)
                assert address is not None
                row = found.rows.find(address)
                number = found.rows.numbers[row] if row >= 0 else 0
                assert scene.holder.kernel_rule(2, offset) == bytes(rules[16 * number : 16 * number + 16])
                checked += number != 0
    assert checked > 20_000
    assert scene.loader.failed == scene.loader.no_room == 0


def test_rows_that_are_loaded_are_held_by_nobody(scene: Scene, folder: Path) -> None:
    scene.made(2, folder / "small")
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Job)] == []


def test_a_full_arena_gives_up_what_was_not_sampled_for_longest(scene: Scene, folder: Path) -> None:
    assert scene.made(2, folder / "a", 3 * SECOND) == LOADED
    assert scene.made(3, folder / "b", 2 * SECOND) == LOADED
    now = 10 * SECOND
    assert scene.made(4, folder / "c", now) == NOT_LOADED
    assert [scene.arena.state(number) for number in (2, 3)] == [LOADED, NOT_LOADED]
    assert scene.loader.busy, "it waits for the room"
    # A program of the kernel side may still be reading the rows.
    scene.loader.install(now + DELAY)
    assert scene.arena.state(4) == NOT_LOADED
    scene.loader.install(now + DELAY + 1)
    assert [scene.arena.state(number) for number in (2, 3, 4)] == [LOADED, NOT_LOADED, LOADED]
    assert scene.holder.loaded == {2, 4}
    assert scene.arena.counts()["chunks"] == 2
    assert scene.loader.no_room == 0


def test_where_all_is_in_use_a_file_does_without_rows_for_a_while(scene: Scene, folder: Path) -> None:
    now = 10 * SECOND
    assert scene.made(2, folder / "a", now) == LOADED
    assert scene.made(3, folder / "b", now) == LOADED
    assert scene.made(4, folder / "c", now + SECOND) == NO_ROWS
    assert scene.loader.no_room == 1
    assert not scene.loader.busy
    scene.loader.install(now + SECOND + RETRY - 1)
    assert scene.arena.state(4) == NO_ROWS
    scene.loader.install(now + SECOND + RETRY)
    assert scene.arena.state(4) == NOT_LOADED, "to be asked for again"
    scene.made(4, folder / "c", now + SECOND + RETRY)
    scene.loader.install(now + 2 * SECOND + RETRY)
    assert scene.arena.state(4) == LOADED
    assert scene.loader.no_room == 1


def test_what_can_never_fit_drives_nothing_out(scene: Scene, folder: Path) -> None:
    assert scene.made(2, folder / "a", SECOND) == LOADED
    assert scene.made(3, folder / "giant", 100 * SECOND) == NO_ROWS
    assert scene.arena.state(2) == LOADED
    assert scene.loader.no_room == 1
    assert scene.arena.counts()["evictions"] == 0


def test_a_full_map_of_pages_gives_up_what_was_not_sampled_for_longest(folder: Path) -> None:
    scene = Scene(2, 512, max_pages=15)
    try:
        assert scene.made(2, folder / "a", 3 * SECOND) == LOADED
        assert 8 < len(scene.holder.pages) < 15
        # Entries, other than memory, can be written again at once.
        assert scene.made(3, folder / "b", 10 * SECOND) == LOADED
        assert scene.arena.state(2) == NOT_LOADED
        assert {executable for executable, _ in scene.holder.pages} == {3}
        assert scene.made(4, folder / "c", 10 * SECOND + 1) == NO_ROWS
        assert (scene.loader.evicted, scene.loader.refused) == ({"pages": 1}, {"pages": 1})
        assert scene.arena.counts()["chunks"] == 2, "no chunk was made for want of pages"
    finally:
        scene.close()


def test_a_full_map_of_executables_gives_up_what_was_not_sampled_for_longest(folder: Path) -> None:
    scene = Scene(2, 512, max_executables=2)
    scene.gate.open.set()
    try:
        assert scene.made(2, folder / "small", 3 * SECOND) == LOADED
        assert scene.made(3, folder / "text", 4 * SECOND) == NO_ROWS
        assert scene.made(4, folder / "held2", 10 * SECOND) == LOADED
        assert [scene.arena.state(number) for number in (2, 3)] == [LOADED, NOT_LOADED]
        assert scene.holder.loaded == {2, 4}
        assert scene.made(5, folder / "held", 10 * SECOND) == LOADED
        assert scene.holder.loaded == {4, 5}
        assert scene.loader.evicted == {"executables": 2}
        assert scene.made(6, folder / "other", 10 * SECOND) == NO_ROWS
        assert scene.holder.loaded == {4, 5}
        assert scene.loader.refused == {"executables": 1}
    finally:
        scene.close()


def test_rules_of_what_was_not_sampled_give_way_and_else_stay_unsupported(scene: Scene, folder: Path) -> None:
    scene.holder.add_chunk()
    for number in range(100, 108):  # which take all the numbers there are
        rules = [number_rule(10_000 * number + i) for i in range(4096)]
        assert scene.holder.load(number, [(0, 0)], [(0, 64, 0)], rules=rules, now=SECOND, partial=True)
    assert scene.arena.counts()["rules"] == MAX_RULES
    refused = scene.arena.counts()["refused_rules"]
    now = 10 * SECOND
    assert scene.made(2, folder / "small", now) == NOT_LOADED
    assert scene.loader.busy
    assert scene.loader.evicted == {"rules": 1}
    scene.loader.install(now + DELAY + 1)
    assert scene.arena.state(2) == LOADED
    assert scene.arena.counts()["refused_rules"] == refused
    assert scene.loader.refused == {}


def test_a_small_file_need_not_wait_for_what_needs_more_room(scene: Scene, folder: Path) -> None:
    scene.made(2, folder / "a", SECOND)
    scene.made(3, folder / "b", SECOND)
    assert scene.made(4, folder / "c", 10 * SECOND) == NOT_LOADED
    assert scene.made(5, folder / "small", 10 * SECOND) == LOADED


def test_want_of_kernel_memory_is_want_of_room(
    scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(index: int) -> bytearray:
        raise HostError("no memory for unwind rows")

    now = 100 * SECOND
    assert scene.made(2, folder / "small", now) == LOADED
    monkeypatch.setattr(scene.holder, "make_chunk", refuse)
    scene.made(3, folder / "a", now)
    scene.made(4, folder / "b", now)
    assert scene.arena.state(3) == LOADED
    assert scene.arena.state(4) == NO_ROWS
    assert scene.loader.no_room == 1


def test_a_giant_file_does_not_delay_a_small_one(
    scene: Scene, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.add(2, folder / "held")
    scene.add(3, folder / "small")
    monkeypatch.setattr(module, "BIG_FILE", 0)
    scene.ask(2)
    assert scene.gate.entered.wait(PATIENCE)
    monkeypatch.undo()
    scene.ask(3)
    limit = time.monotonic() + PATIENCE
    while scene.arena.state(3) != LOADED and time.monotonic() < limit:
        scene.loader.finish(0.01)
    assert scene.arena.state(3) == LOADED
    assert scene.arena.state(2) == NOT_LOADED
    assert scene.loader.busy
    scene.gate.open.set()
    scene.wait(SECOND)
    assert scene.arena.state(2) == LOADED


@pytest.mark.parametrize("name", ["text", "other", "broken"])
def test_a_file_without_readable_rows_is_counted_and_does_without(
    scene: Scene, folder: Path, name: str
) -> None:
    assert scene.made(2, folder / name) == NO_ROWS
    assert scene.loader.failed == 1
    assert scene.made(3, folder / "small") == LOADED, "the next one is read"


def test_a_file_that_is_gone_does_without(scene: Scene, tmp_path: Path, folder: Path) -> None:
    scene.files = MappedFiles(0)
    gone = tmp_path / "gone"
    shutil.copy(folder / "small", gone)
    scene.loader._files = scene.files
    scene.add(2, gone)
    gone.unlink()
    scene.ask(2, 77)
    scene.wait(SECOND)
    assert [scene.arena.state(number) for number in (2, 77)] == [NO_ROWS, NO_ROWS]
    assert scene.loader.failed == 1


def test_a_file_that_has_no_rows_does_without_and_is_no_failure(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(build_elf([Segment(PT_LOAD, 5, 0, bytes(64))], []))
    assert scene.made(2, tmp_path / "plain") == NO_ROWS
    assert scene.loader.failed == 0


def test_files_are_left_as_open_as_they_were(folder: Path) -> None:
    scene = Scene(2, 1)
    try:
        scene.made(2, folder / "small")
        scene.made(3, folder / "a")
        scene.made(4, folder / "text")
        assert [scene.arena.state(number) for number in (2, 3)] == [LOADED, LOADED]
        kept, closed = scene.files.get(2), scene.files.get(3)
        assert kept is not None
        assert closed is not None
        assert kept.fd >= 0
        assert closed.fd < 0
    finally:
        scene.close()


def test_the_end_waits_for_what_is_under_way_and_for_room(scene: Scene, folder: Path) -> None:
    scene.add(2, folder / "a")
    scene.ask(2)
    scene.loader.finish(PATIENCE)
    assert scene.arena.state(2) == LOADED
    assert not scene.loader.busy


def test_the_end_waits_no_longer_than_it_may(scene: Scene, folder: Path) -> None:
    scene.add(2, folder / "held")
    scene.ask(2)
    began = time.monotonic()
    scene.loader.finish(0.05)
    assert 0.05 <= time.monotonic() - began < PATIENCE
    assert scene.loader.busy


def test_the_end_with_nothing_to_wait_for_comes_at_once(scene: Scene) -> None:
    began = time.monotonic()
    scene.loader.finish(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2


def test_closing_ends_the_threads_and_drops_what_has_not_begun(folder: Path) -> None:
    scene = Scene(2, 512)
    before = threading.active_count()
    for number, name in ((2, "held"), (3, "small"), (4, "held2")):
        scene.add(number, folder / name)
    scene.ask(2, 3, 4)
    assert scene.gate.entered.wait(PATIENCE)
    assert threading.active_count() == before + 1
    closing = threading.Thread(target=scene.close)
    scene.loader._closing = True  # as close() says before it waits
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert threading.active_count() == before
    assert scene.gate.read == ["held"]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(scene.loader.fd)
