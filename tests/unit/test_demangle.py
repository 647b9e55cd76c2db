# SPDX-License-Identifier: Apache-2.0
"""Names as people write them: against c++filt and the Rust reference, and against names made to harm."""

import re
import subprocess
import sys
import time

import pytest

from pyprof.symbols.demangle import MAX_MANGLED, demangle
from tests.support.compile import run

CPLUSPLUS = [
    "_ZN2ns4workEi",
    "_ZNSt6vectorIiSaIiEE9push_backERKi",
    "_ZN3foo3barIiEEvT_",
    "_ZN12_GLOBAL__N_13fooEv",
    "_ZZ4mainENKUlvE_clEv",
    "_ZN3FooC1Ev",
    "_ZN3FooD0Ev",
    "_ZN3foo3barEv.cold",
    "_ZN3foo3barEv.part.0.cold",
    "_ZNKSt4lessIiEclERKiS2_",
    "_Z1fDv4_f",
    "_ZTv0_n24_NSt13basic_ostreamIwSt11char_traitsIwEED0Ev",
    "_ZThn16_N3FooD1Ev",
]


@pytest.mark.parametrize("name", CPLUSPLUS)
def test_cplusplus_name_reads_as_cxxfilt_writes_it(name: str) -> None:
    assert demangle(name) == run("c++filt", name).rstrip("\n")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        # examples of RFC 2603 and of the legacy scheme; the hash says nothing to people
        ("_ZN3std2io4Read11read_to_end17hb85a0f6802e14499E", "std::io::Read::read_to_end"),
        (
            "_ZN4core3ptr85drop_in_place$LT$std..rt..lang_start$LT$$LP$$RP$$GT$..$u7b$$u7b$closure$u7d$$u7d$$GT$"
            "17h1234567890abcdefE",
            "core::ptr::drop_in_place<std::rt::lang_start<()>::{{closure}}>",
        ),
        ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        ("_RINvNtC3std3mem8align_ofdE", "std::mem::align_of::<f64>"),
        ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
    ],
)
def test_rust_name_is_demangled_without_its_hash(name: str, plain: str) -> None:
    assert demangle(name) == plain


@pytest.mark.parametrize(
    "name", ["main", "_start", "__libc_start_main", "_Rb_tree", "_Restore", "_D3fooFZv", "", "Z"]
)
def test_c_name_is_itself(name: str) -> None:
    assert demangle(name) == name


def test_c_names_need_no_demangler() -> None:
    code = "import sys; from pyprof.symbols.demangle import demangle; demangle('main'); demangle('_start')"
    code += "; sys.exit('multi_demangle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "name", ["_Z", "_ZN", "_Z3fo", "_ZNSt", "_R", "_RN", "_RNvC", "_ZN17hE", "_Z\x00f", "_Z\udcff"]
)
def test_damaged_name_is_itself(name: str) -> None:
    assert demangle(name) == name


def test_stub_of_a_cplusplus_function_keeps_its_ending() -> None:
    assert demangle("_ZN2ns4workEi@plt") == "ns::work(int)@plt"


def hostile(length: int) -> list[str]:
    """Names of about `length` characters: nested, repeated, and such that grow when written out."""
    back = "".join(f"1AIS{x}_S{x}_E" for x in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return [
        "_Z1f" + "P" * length + "i",
        "_Z1f" + "I1AI" * (length // 4),
        "_ZN" + "1aS_" * (length // 4) + "Ev",
        "_Z1fI1AE" + "T_" * (length // 2),
        "_Z1fIX" + "ng" * (length // 2) + "Li1EEE",
        "_Z1f" + "PF" * (length // 2) + "v" + "E" * (length // 2),
        "_Z1f" + "1AIiE" + back * max(length // len(back), 1),
        f"_Z{length}" + "a" * length + "v",
        "_RNvC1a" + "R" * length,
        "_RI" * (length // 3) + "C1a",
        "_RMC1a" + "R" * length + "h",
        "_RINvC1a1b" + "TTTTTTTTTTTTB8_B8_EB7_B7_EB6_B6_E" * (length // 33),
        "_RNvC1a" + "B" * length,
        "_R" + "Nv" * (length // 2) + "C1a1b",
    ]


@pytest.mark.parametrize("length", [1000, MAX_MANGLED - 100, 100_000])
def test_name_made_to_harm_neither_crashes_nor_hangs(length: int) -> None:
    # in a child: a native stack overflow would take the test run with it
    code = f"from tests.unit.test_demangle import hostile, demangle\nfor n in hostile({length}): demangle(n)"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - started < 20


def test_name_longer_than_the_cap_is_itself() -> None:
    name = "_Z1f" + "i" * MAX_MANGLED
    assert demangle(name) == name


def test_nearly_every_name_of_libstdcplusplus_reads_as_cxxfilt_writes_it() -> None:
    listing = run("nm", "-D", "--defined-only", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
    names = {line.split()[2].split("@")[0] for line in listing.splitlines() if " T " in line or " W " in line}
    # c++filt writes std::basic_string<char, ...> where the name itself says std::string; that is not compared
    asked = sorted(name for name in names if not re.search("S[abdios]", name))
    filtered = subprocess.run(
        ["c++filt"], input="\n".join(asked), capture_output=True, text=True, check=True
    ).stdout
    different = [
        name for name, text in zip(asked, filtered.splitlines(), strict=True) if demangle(name) != text
    ]
    assert len(asked) > 2000
    assert len(different) < len(asked) // 100, different[:5]
