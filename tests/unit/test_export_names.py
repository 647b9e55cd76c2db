# SPDX-License-Identifier: Apache-2.0
"""Names for output: always encodable, never merged."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pyprof.export.names import distinct, encodable, printable

# Text as a reader of the host may hand it on: with surrogates, controls and what is used for escapes.
TEXT = st.text(alphabet=st.one_of(st.sampled_from("a;:\\x3bn'\n\x00\udcff\ud800ÿ\u2028"), st.characters()))


@settings(deadline=None)
@given(TEXT)
def test_encodable_text_has_no_surrogates(text: str) -> None:
    assert encodable(text).encode().decode() == encodable(text)


@settings(deadline=None)
@given(st.text())
def test_encodable_leaves_proper_text_alone(text: str) -> None:
    assert encodable(text) == text


@settings(deadline=None)
@given(TEXT)
def test_printable_text_is_printable(text: str) -> None:
    assert printable(text).isprintable()


@settings(deadline=None)
@given(st.sets(TEXT, max_size=30))
def test_distinct_names_are_shown_differently(names: set[str]) -> None:
    shown = distinct(names, lambda name: printable(name).replace(";", ":"))
    assert shown.keys() == names
    assert len(set(shown.values())) == len(names)
    for text in shown.values():
        assert text.isprintable()
        assert ";" not in text


def test_distinct_names_do_not_depend_on_their_order() -> None:
    names = ["b;c", "b:c", "b\\x3bc", "a\n", "a\\n"]
    assert distinct(names, printable) == distinct(reversed(names), printable)
