# SPDX-License-Identifier: Apache-2.0
"""Writes exactly the call frame information that a test needs, independently of the code that reads it."""

import struct

# Instructions (DWARF 5, 7.24) as functions of their operands.


def uleb(value: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    """Signed LEB128."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        done = value == (-1 if byte & 0x40 else 0)
        out.append(byte | (0 if done else 0x80))
        if done:
            return bytes(out)


def advance(delta: int) -> bytes:
    """DW_CFA_advance_loc, in the shortest form."""
    if delta < 0x40:
        return bytes([0x40 | delta])
    if delta < 1 << 8:
        return struct.pack("<BB", 0x02, delta)
    if delta < 1 << 16:
        return struct.pack("<BH", 0x03, delta)
    return struct.pack("<BI", 0x04, delta)


def offset(reg: int, factored: int) -> bytes:
    """DW_CFA_offset, or _extended, or _extended_sf: saved at CFA + factored * data alignment."""
    if factored < 0:
        return b"\x11" + uleb(reg) + sleb(factored)
    if reg < 0x40:
        return bytes([0x80 | reg]) + uleb(factored)
    return b"\x05" + uleb(reg) + uleb(factored)


def restore(reg: int) -> bytes:
    """DW_CFA_restore."""
    return bytes([0xC0 | reg])


def def_cfa(reg: int, value: int) -> bytes:
    """DW_CFA_def_cfa."""
    return b"\x0c" + uleb(reg) + uleb(value)


def def_cfa_register(reg: int) -> bytes:
    """DW_CFA_def_cfa_register."""
    return b"\x0d" + uleb(reg)


def def_cfa_offset(value: int) -> bytes:
    """DW_CFA_def_cfa_offset."""
    return b"\x0e" + uleb(value)


def def_cfa_expression(code: bytes) -> bytes:
    """DW_CFA_def_cfa_expression."""
    return b"\x0f" + uleb(len(code)) + code


def expression(reg: int, code: bytes) -> bytes:
    """DW_CFA_expression: saved at the address that code computes."""
    return b"\x10" + uleb(reg) + uleb(len(code)) + code


def val_expression(reg: int, code: bytes) -> bytes:
    """DW_CFA_val_expression: is the value that code computes."""
    return b"\x16" + uleb(reg) + uleb(len(code)) + code


def register(reg: int, other: int) -> bytes:
    """DW_CFA_register: saved in another register."""
    return b"\x09" + uleb(reg) + uleb(other)


def undefined(reg: int) -> bytes:
    """DW_CFA_undefined."""
    return b"\x07" + uleb(reg)


def same_value(reg: int) -> bytes:
    """DW_CFA_same_value."""
    return b"\x08" + uleb(reg)


def breg(reg: int, value: int) -> bytes:
    """DW_OP_breg: the register's value + value."""
    return bytes([0x70 + reg]) + sleb(value)


REMEMBER, RESTORE = b"\x0a", b"\x0b"
DEREF, PLUS = b"\x06", b"\x22"


def plus(value: int) -> bytes:
    """DW_OP_plus_uconst."""
    return b"\x23" + uleb(value)


# What every x86-64 compiler puts into common information: CFA = rsp + 8, return address below it.
X86_INITIAL = def_cfa(7, 8) + offset(16, 1)
ARM64_INITIAL = def_cfa(31, 0)


class Frames:
    """A .eh_frame or .debug_frame section under construction.

    Attributes:
        address: ELF virtual address of the section.
        data: its bytes so far.
    """

    def __init__(self, address: int = 0x100000, debug: bool = False, wide: bool = False) -> None:
        """Begins a section.

        Args:
            address: of the section.
            debug: the layout of .debug_frame.
            wide: 64-bit lengths.
        """
        self.address = address
        self.debug = debug
        self.wide = wide
        self.data = bytearray()

    def entry(self, identity: int, body: bytes) -> int:
        """Appends an entry, padded to 8 bytes; its position."""
        position = len(self.data)
        form = "<Q" if self.debug and self.wide else "<I"
        body = struct.pack(form, identity) + body
        body += b"\0" * (-len(body) % 8)
        length = struct.pack("<IQ", 0xFFFFFFFF, len(body)) if self.wide else struct.pack("<I", len(body))
        self.data += length + body
        return position

    def cie(
        self,
        initial: bytes = X86_INITIAL,
        letters: bytes = b"zR",
        augmentation: bytes = b"\x1b",
        *,
        version: int = 1,
        code_align: int = 1,
        data_align: int = -8,
        ra: int = 16,
    ) -> int:
        """Appends common information; its position.

        Args:
            initial: instructions.
            letters: the augmentation string.
            augmentation: what it stands for; pointer encoding 0x1b is pcrel sdata4.
            version: 1, 3 or 4.
            code_align: code alignment factor.
            data_align: data alignment factor.
            ra: number of the return address' column.
        """
        body = bytes([version]) + letters + b"\0"
        if letters == b"eh":
            body += b"\0" * 8
        if version >= 4:
            body += b"\x08\x00"  # address size, segment selector size
        body += uleb(code_align) + sleb(data_align)
        body += bytes([ra]) if version == 1 else uleb(ra)
        if letters.startswith(b"z"):
            body += uleb(len(augmentation)) + augmentation
        identity = 0
        if self.debug:
            identity = (1 << 64) - 1 if self.wide else (1 << 32) - 1
        return self.entry(identity, body + initial)

    def fde(
        self, cie: int, start: int, size: int, program: bytes = b"", *, form: str = "i", pcrel: bool = True,
        augmentation: bytes | None = b"",
    ) -> int:  # fmt: skip
        """Appends a function; its position.

        Args:
            cie: position of its common information.
            start: address.
            size: bytes.
            program: instructions.
            form: struct format of the pointer; in .debug_frame always "Q".
            pcrel: relative to where the pointer is.
            augmentation: None where the CIE has no "z".
        """
        head = 12 if self.wide else 4
        if self.debug:
            return self.entry(cie, struct.pack("<QQ", start, size) + program)
        at = len(self.data) + head
        value = start - (self.address + at + 4 if pcrel else 0)
        wrapped = value % (1 << 8 * struct.calcsize(form))
        body = struct.pack(f"<{form.upper()}", wrapped) + struct.pack(f"<{form}", size)
        if augmentation is not None:
            body += uleb(len(augmentation)) + augmentation
        return self.entry(at - cie, body + program)

    def zero(self) -> None:
        """Appends a terminator."""
        self.data += b"\0\0\0\0"
