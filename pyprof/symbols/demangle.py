# SPDX-License-Identifier: Apache-2.0
"""C++ (Itanium ABI) and Rust (legacy and v0) names as people write them."""

import re
from functools import lru_cache

MAX_MANGLED = 1 << 14
"""Longest name that is demangled; a longer one is shown as it stands. Real ones reach about 8,000
characters.
"""

# The prefixes that the two ABIs reserve; everything else is a C name and costs no call.
_MANGLED = re.compile(r"_{1,2}Z|_R\d*[BCIMNXY]")

# The library's form of thunks of virtual functions, in braces, which hides the function's name.
_THUNK = re.compile(r"\{virtual override thunk\(\{(?:(virtual) )?offset\([^)]*\)\}, (.*)\)\}")


@lru_cache(maxsize=1 << 11)
def demangle(name: str) -> str:
    """Demangles a symbol's name, as c++filt does; of Rust names the hash is left out.

    Args:
        name: as it stands in the symbol table, without a version. `name@plt` keeps its ending.

    Returns:
        The demangled name, or `name` itself where it is not mangled, not valid or too long.
    """
    if len(name) > MAX_MANGLED or not _MANGLED.match(name):
        return name
    from multi_demangle import demangle_symbol

    mangled, at, ending = name.partition("@")
    try:
        demangled: str = demangle_symbol(mangled)
    except BaseException as error:
        # A panic of the Rust library is not an Exception; of what else is none, nothing is ours to keep.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            return name
        raise
    thunk = _THUNK.fullmatch(demangled)
    if thunk:
        demangled = f"{thunk[1] or 'non-virtual'} thunk to {thunk[2]}"
    return demangled + at + ending
