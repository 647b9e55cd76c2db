# SPDX-License-Identifier: Apache-2.0
"""Unwind rules and stacks made by hand."""

import struct

from pyprof._native.cfi import CFA_NAMES, FP_NAMES, RA_NAMES

SIGNAL = 1  # PYPROF_RULE_SIGNAL
RULE_BYTES = 16


def rule(
    cfa: str = "SP",
    offset: int = 8,
    *,
    fp: str = "SAME",
    fp_offset: int = 0,
    ra: str = "BELOW_CFA",
    other: int = 0,
    register: int = 0,
    flags: int = 0,
    rbx: int = 0,
) -> bytes:
    """struct pyprof_rule. cfa, fp, ra: names of csrc/pyprof_rules.h; register: that of a CFA by REGISTER."""
    kinds = CFA_NAMES.index(cfa), FP_NAMES.index(fp), RA_NAMES.index(ra) | rbx << 4
    return struct.pack("=BBBBiii", *kinds, flags | register << 3, offset, fp_offset, other)


NONE = bytes(RULE_BYTES)


def words(base: int, values: dict[int, int], size: int) -> bytes:
    """`size` bytes of a stack from `base` on: 64-bit words by address, zeros between."""
    data = bytearray(size)
    for address, word in values.items():
        struct.pack_into("<Q", data, address - base, word)
    return bytes(data)
