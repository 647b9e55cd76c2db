# SPDX-License-Identifier: Apache-2.0
"""The files that processes have mapped, by the numbers of the process table."""

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyprof.elf.file import PF_X, ElfFile, open_regular
from pyprof.elf.identity import Identity, address_of_offset, identity_of, read_identity, read_vdso
from pyprof.errors import ElfError
from pyprof.process.maps import map_file
from pyprof.process.proc import escape
from pyprof.profile.model import Executable

_serials = itertools.count(1)


@dataclass(slots=True)
class MappedFile:
    """A mapped file. Attributes: path: as the process saw it; build_id: as the kernel told, or b"";
    inode: its number where the kernel told no build ID, else 0; pid, start, last: a mapping of it; fd: -1
    where it is not open; identity: None where it could not be read; problem: why, or ""; serial: a number
    that no other one has or will have."""

    path: bytes
    build_id: bytes
    inode: int
    pid: int
    start: int
    last: int
    fd: int = -1
    identity: Identity | None = None
    problem: str = ""
    serial: int = field(default_factory=lambda: next(_serials))

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def address_of(self, offset: int) -> int:
        """ELF virtual address of a file offset; the offset itself where the file could not be read."""
        if self.identity is None:
            return offset
        address = address_of_offset(self.identity.segments, offset)
        return offset if address is None else address

    def addresses_of(self, offsets: Sequence[int]) -> list[int]:
        """address_of() of each."""
        code = [each for each in self.identity.segments if each.flags & PF_X] if self.identity else []
        if len(code) != 1:
            return [self.address_of(offset) for offset in offsets]
        # So it is with most files, and an interval has thousands of addresses.
        first, end, bias = code[0].offset, code[0].offset + code[0].filesz, code[0].vaddr - code[0].offset
        return [offset + bias if first <= offset < end else self.address_of(offset) for offset in offsets]

    def describe(self) -> Executable:
        identity = self.identity
        if identity is None:
            return Executable(escape(self.path), self.build_id.hex())
        code = [segment for segment in identity.segments if segment.flags & PF_X]
        return Executable(
            path=escape(self.path),
            build_id=identity.build_id or self.build_id.hex(),
            go_build_id=identity.go_build_id,
            htlhash=identity.htlhash,
            memory_start=min((segment.vaddr for segment in code), default=0),
            memory_limit=max((segment.vaddr + segment.memsz for segment in code), default=0),
            file_offset=min((segment.offset for segment in code), default=0),
        )


class MappedFiles:
    """Opens each file when it is first seen mapped, since it may be deleted or its process gone later.

    A file that was opened stays so until `close`, up to a limit: a compiler's test program, built, run
    and removed during a recording, can still be named. Beyond the limit files are opened again when
    their names are wanted.
    """

    def __init__(self, keep_open: int = 512) -> None:
        self._files: dict[int, MappedFile] = {}
        self._keep_open = keep_open
        self._open = 0
        self.unreadable = 0

    def __contains__(self, number: int) -> bool:
        return number in self._files

    def __len__(self) -> int:
        return len(self._files)

    @property
    def open(self) -> int:
        """Files that are open."""
        return self._open

    def get(self, number: int) -> MappedFile | None:
        return self._files.get(number)

    def add(self, number: int, file: MappedFile) -> None:
        """Takes a file under a number of the process table, and opens it unless it is open."""
        if number in self._files:
            file.close()
            return
        self._files[number] = file
        if file.identity is None:
            self._identify(file)
        if file.fd >= 0 and self._open >= self._keep_open:
            file.close()
        self._open += file.fd >= 0

    def _identify(self, file: MappedFile) -> None:
        try:
            if file.path == b"[vdso]":
                file.identity = identity_of(ElfFile.from_bytes(vdso_image(), "[vdso]"))
            elif not is_special(file):
                open_mapped(file)
        except ElfError as error:
            file.problem = str(error)
            self.unreadable += 1

    def forget(self, number: int) -> None:
        """Closes a file and forgets it."""
        file = self._files.pop(number, None)
        if file is not None:
            self._open -= file.fd >= 0
            file.close()

    def elf(self, number: int) -> ElfFile | None:
        """The file for reading symbols, opened again where it was closed; None where that cannot be."""
        file = self._files.get(number)
        if file is None or is_special(file):
            return None
        try:
            if file.path == b"[vdso]":
                return ElfFile.from_bytes(vdso_image(), "[vdso]")
            if file.fd < 0:
                open_mapped(file)
            return ElfFile(file.fd, escape(file.path))
        except ElfError as error:
            file.problem = str(error)
            return None

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._open = 0


def vdso_image() -> bytes:
    image = read_vdso()
    if image is None:
        raise ElfError("the kernel gives no vDSO")
    return image


def is_special(file: MappedFile) -> bool:
    """[vsyscall], [uprobes] and the like: named by the kernel, with no file behind them."""
    return file.path.startswith(b"[") and file.path != b"[vdso]" and not file.inode and not file.build_id


def is_same(file: MappedFile, identity: Identity, fd: int) -> bool:
    """Whether an open file is the one that was mapped. The device is not compared: with overlay file systems
    the one in a process's maps is not the one that stat tells."""
    if file.build_id:
        return identity.build_id == file.build_id.hex()
    return os.fstat(fd).st_ino == file.inode


def open_mapped(file: MappedFile) -> None:
    """Opens a file through its mapping, or where its process or we find its path, if it is the same.

    Raises:
        ElfError: it is gone, or another one is in its place.
    """
    problem: ElfError | None = None
    places = [
        os.fsencode(map_file(file.pid, file.start, file.last + 1)),
        b"/proc/%d/root" % file.pid + file.path,
        file.path,
    ]
    for place in places:
        fd = -1
        try:
            fd = open_regular(place)
            identity = read_identity(fd, escape(file.path))
            if is_same(file, identity, fd):
                file.fd, file.identity = fd, identity
                file.problem = ""
                return
            problem = ElfError(f"{escape(file.path)} is not the file that was mapped any more")
        except ElfError as error:
            problem = problem or error
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
    raise problem or ElfError(f"cannot open {escape(file.path)}")
