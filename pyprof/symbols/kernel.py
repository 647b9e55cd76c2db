# SPDX-License-Identifier: Apache-2.0
"""Names of kernel addresses, from /proc/kallsyms."""

import os
from array import array
from collections.abc import Iterable, Iterator

from pyprof._native.symbols import SymbolTable
from pyprof.elf.file import show_bytes
from pyprof.symbols.kernel_list import KernelList
from pyprof.symbols.symbol import Symbol

_CHUNK = 1 << 16
_EVERYTHING = (1 << 64) - 1


class KernelSymbols:
    """The functions of the running kernel, its modules and BPF programs, as far as they were asked for.

    The kernel takes half a microsecond to print a line, some 100 ms for all. Its own symbols come first
    and ascend, so reading stops behind the highest address that is asked for; a higher one later reads the
    rest.

    Attributes:
        hidden: the addresses are withheld from us: nothing can be named.
        problem: "" or one sentence: why kernel functions have no names, and what to do.
    """

    def __init__(self, path: str) -> None:
        self.hidden = False
        self.problem = ""
        self._path = path
        self._limit = -1
        self._table = SymbolTable()

    @classmethod
    def load(cls, path: str = "/proc/kallsyms") -> "KernelSymbols":
        """Opens the kernel's list. It never fails: without it nothing has a name, and `problem` says why."""
        symbols = cls(path)
        symbols._read(0)
        return symbols

    def resolve(self, addresses: Iterable[int]) -> list[Symbol | None]:
        """Names kernel addresses.

        Args:
            addresses: 0 to 2^64 - 1.

        Returns:
            A symbol for each, in order; None where no function is known to cover the address.
        """
        asked = array("Q", addresses)
        highest = max(asked, default=0)
        if highest > self._limit and not self.problem:
            self._read(highest if self._limit <= 0 else _EVERYTHING)
        return [_symbol(hit) for hit in self._table.resolve(asked)]

    def compact(self) -> KernelList:
        """All functions, read anew, in little memory."""
        self._read(_EVERYTHING)
        return KernelList(self._table)

    def _read(self, limit: int) -> None:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.problem = (
                f"kernel functions have no names: {self._path} cannot be read ({error.strerror}); "
                "the kernel needs CONFIG_KALLSYMS, and the container a mounted /proc"
            )
            return
        try:
            self._table = SymbolTable.from_kallsyms(_chunks(fd, limit))
        except OSError as error:
            self.problem = f"kernel functions have no names: reading {self._path} failed ({error.strerror})"
            return
        finally:
            os.close(fd)
        self._limit = limit
        self.hidden = self._table.hidden
        if self.hidden:
            self.problem = _hidden_advice()
        elif len(self._table) == 0:
            self.problem = f"kernel functions have no names: {self._path} is empty"


def _symbol(hit: tuple[bytes, int, bool, int] | None) -> Symbol | None:
    return None if hit is None else kernel_symbol(hit[0], hit[1])


def kernel_symbol(text: bytes, offset: int) -> Symbol:
    """A symbol from a name as kallsyms has it: ``NAME`` or ``NAME<tab>[MODULE]``."""
    raw, _, module = text.partition(b"\t")
    name = show_bytes(raw)
    return Symbol(name, name, offset, module=show_bytes(module.strip(b"[]")), source="kallsyms")


def _chunks(fd: int, limit: int) -> Iterator[bytes]:
    """Whole lines, until a symbol of the kernel itself lies above `limit`. One read gives at most a page."""
    rest = b""
    while True:
        pieces = [rest]
        size = 0
        while size < _CHUNK:
            piece = os.read(fd, _CHUNK)
            if not piece:
                yield b"".join(pieces)
                return
            pieces.append(piece)
            size += len(piece)
        text = b"".join(pieces)
        end = text.rfind(b"\n") + 1
        rest = text[end:]
        yield text[:end]
        if _address_of_core(text[text.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end]) > limit:
            return


def _address_of_core(line: bytes) -> int:
    """The address of a line, 0 where it belongs to a module."""
    if b"\t" in line:
        return 0
    try:
        return int(line.split(b" ", 1)[0], 16)
    except ValueError:
        return 0


def _hidden_advice() -> str:
    try:
        with open("/proc/sys/kernel/kptr_restrict") as setting:
            level = setting.read().strip()
    except OSError:
        level = "unknown"
    remedy = (
        "run pyprof as root (CAP_SYSLOG)" if level in {"0", "1"} else "as root: sysctl kernel.kptr_restrict=1"
    )
    return (
        "kernel functions have no names: their addresses in /proc/kallsyms are hidden "
        f"(kernel.kptr_restrict is {level}); {remedy}"
    )
