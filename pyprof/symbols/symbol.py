# SPDX-License-Identifier: Apache-2.0
"""What a look-up by address gives."""

from typing import NamedTuple


class Symbol(NamedTuple):
    """A function that an address lies in.

    Attributes:
        name: demangled, for people.
        system_name: as it stands in the file, without a version.
        offset: bytes from the function's start to the address.
        is_guess: the symbol has no size; it is only the nearest one before the address in the same piece
        of code. module: of kernel functions: the module, or "bpf"; "" for the kernel itself.
        source: ".symtab", ".dynsym", ".gnu_debugdata", "gopclntab", "plt" or "kallsyms".
    """

    name: str
    system_name: str
    offset: int
    is_guess: bool = False
    module: str = ""
    source: str = ""
