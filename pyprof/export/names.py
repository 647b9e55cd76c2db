# SPDX-License-Identifier: Apache-2.0
"""Names on their way out: text that every format can hold, in which no two names become one."""

from collections.abc import Callable, Iterable

from pyprof.process.proc import escape
from pyprof.profile.model import Frame, FrameKind, Profile

UNKNOWN = "[unknown]"
KERNEL = "[kernel]"
"""Stands for an executable's path where frames of the kernel are concerned."""

_SHORT_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def encodable(text: str) -> str:
    r"""`text` with what UTF-8 cannot hold (lone surrogates) escaped as the bytes they stand for, `\xNN`."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            # What os.fsdecode makes of undecodable bytes.
            return escape(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            return escape(text.encode("utf-8", "surrogatepass"))
    return text


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    return _SHORT_ESCAPES.get(char) or _hexadecimal(char)


def _hexadecimal(char: str) -> str:
    code = ord(char)
    # Two digits only below 80: from there on they mean an undecodable byte.
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _fully_escaped(char: str) -> str:
    return char if char.isprintable() and char not in "\\;:" else _hexadecimal(char)


def printable(text: str) -> str:
    """`text` on one line and harmless for a terminal: no control, format or line-separating characters."""
    return text if text.isprintable() else "".join(map(_escaped, encodable(text)))


def distinct(names: Iterable[str], form: Callable[[str], str]) -> dict[str, str]:
    """How to show each name: by `form`, which may be lossy, but different names differently.

    Where `form` gives a name the looks of another one, all that escapes or separates is escaped, too.
    """
    result: dict[str, str] = {}
    taken: set[str] = set()
    # What `form` leaves alone goes first, so that only names that change anyway give way.
    for name in sorted(set(names), key=lambda name: (form(name) != name, name)):
        shown = form(name)
        if shown in taken:
            shown = "".join(map(_fully_escaped, encodable(name)))
        while shown in taken:
            shown += "'"
        taken.add(shown)
        result[name] = shown
    return result


def where(profile: Profile, frame: Frame) -> str:
    """The file that a frame lies in: an executable's path, KERNEL, or "" for code of no file."""
    if frame.kind == FrameKind.KERNEL:
        return KERNEL
    return profile.executables[frame.executable].path if frame.executable >= 0 else ""
