# SPDX-License-Identifier: Apache-2.0
"""Signal trampolines, found by their code.

A signal handler returns to a few instructions that ask the kernel to restore what it saved. glibc describes
them by call frame information; musl and Go, and so static programs, do not.
"""

import re
import struct
from itertools import pairwise

from pyprof.elf.file import EM_AARCH64, EM_X86_64, PF_X, PT_DYNAMIC, PT_LOAD, ElfFile
from pyprof.errors import ElfError

Trampoline = tuple[int, int]
"""ELF addresses of the first byte, and of what follows the last."""

MAX_CODE = 64 << 20
"""Most bytes of code that are looked through in a file: some 0.1 s, where they are in memory."""

_BLOCK = 1 << 20
_MAX_FOUND = 64
_MAX_DYNAMIC = 1 << 16
_DT_NEEDED = 1

# What all forms have in common, which regular expressions search much faster than a choice of forms, and what
# stands before it in each; where instructions begin.
_CODES = {
    # mov $15, %rax, or %eax, and not %r8d; syscall
    EM_X86_64: (re.compile(rb"\x0f\0\0\0\x0f\x05"), re.compile(rb"\x48\xc7\xc0|(?<!\x41)\xb8"), 1),
    # mov x8, #139; svc #0
    EM_AARCH64: (re.compile(rb"\x68\x11\x80\xd2\x01\0\0\xd4"), re.compile(rb""), 4),
}
_LONGEST = 10

# Common information with the letter S, of signal frames: an identifier of 0, a version, the letters.
_SIGNAL_FRAME = re.compile(rb"\0\0\0\0[\x01\x03\x04]z[A-RT-Z]{0,8}S[A-Z]{0,8}\0")


def find_trampolines(file: ElfFile, frames: bytes) -> tuple[Trampoline, ...]:
    """The signal trampolines of a file, ascending.

    They are looked for only where some are to be expected: in files that need no others, and so have their
    own libc or are one, and that describe none by call frame information.

    Args:
        file: the file.
        frames: its call frame information.

    Raises:
        ElfError: the file cannot be read.
    """
    if file.machine not in _CODES or _SIGNAL_FRAME.search(frames) or _needs_others(file):
        return ()
    found: list[Trampoline] = []
    rest = MAX_CODE
    for header in file.headers_of(PT_LOAD):
        if header.flags & PF_X:
            size = min(header.filesz, rest)
            rest -= size
            found += _in_segment(file, header.offset, header.vaddr, size)
    found.sort()
    return tuple(found[:1] + [two for one, two in pairwise(found) if two[0] >= one[1]])


def _in_segment(file: ElfFile, offset: int, vaddr: int, size: int) -> list[Trampoline]:
    code, before, alignment = _CODES[file.machine]
    found: list[Trampoline] = []
    for at in range(0, size, _BLOCK):
        # What is cut by the end of a block is in the next one, which begins that much earlier.
        begin = max(at - _LONGEST, 0)
        block = file.read(offset + begin, min(at + _BLOCK, size) - begin)
        for match in code.finditer(block):
            if begin + match.end() <= at:
                continue  # it was whole in the block before
            for start in range(max(match.start() - 3, 0), match.start() + 1):
                address = vaddr + begin + start
                if before.fullmatch(block, start, match.start()) and address % alignment == 0:
                    found.append((address, vaddr + begin + match.end()))
            if len(found) == _MAX_FOUND:
                return found
    return found


def _needs_others(file: ElfFile) -> bool:
    for header in file.headers_of(PT_DYNAMIC)[:1]:
        try:
            table = file.read(header.offset, min(header.filesz, _MAX_DYNAMIC) // 16 * 16)
        except ElfError:
            return True
        return any(tag == _DT_NEEDED for tag, _ in struct.iter_unpack("<qQ", table))
    return False
