# SPDX-License-Identifier: Apache-2.0
"""Random sections against a naive decoder that keeps every register's rule of every address."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.dwarf import (
    REMEMBER,
    RESTORE,
    Frames,
    advance,
    def_cfa,
    def_cfa_offset,
    def_cfa_register,
    offset,
    register,
    restore,
    same_value,
    undefined,
)
from tests.support.unwind_rows import rows_of, shown

NAMES = ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{i}" for i in range(8, 16)), "rip"]
RBP, RIP = 6, 16


@dataclass(frozen=True)
class State:
    """CFA as register and offset; the text of each register's rule."""

    cfa: tuple[int, int] = (7, 8)
    rules: dict[int, str] = field(default_factory=lambda: {RIP: "c-8"})

    def text(self) -> str:
        """As `shown` writes it."""
        return f"{NAMES[self.cfa[0]]}{self.cfa[1]:+d} {self.rules.get(RBP, 'u')} {self.rules.get(RIP, 'u')}"

    def with_rule(self, reg: int, text: str) -> "State":
        """A state that differs in one register's rule."""
        return replace(self, rules={**self.rules, reg: text})


INITIAL = State()

Instruction = tuple[object, ...]
Function = tuple[int, int, list[Instruction]]
"""Start, size, instructions."""

general = st.integers(0, 15)
saved = st.sampled_from([3, 6, 6, 12, 16])
instructions = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 70)),
    st.tuples(st.just("def_cfa"), general, st.integers(0, 1 << 20)),
    st.tuples(st.just("def_cfa_register"), general),
    st.tuples(st.just("def_cfa_offset"), st.integers(0, 1 << 20)),
    st.tuples(st.just("offset"), saved, st.integers(-9, 300)),
    st.tuples(st.just("register"), saved, st.integers(0, 5)),
    st.tuples(st.just("restore"), saved),
    st.tuples(st.just("undefined"), saved),
    st.tuples(st.just("same_value"), st.sampled_from([3, 6, 12])),
    st.tuples(st.just("remember")),
    st.tuples(st.just("restore_state")),
)
functions = st.tuples(st.integers(1, 600), st.integers(1, 120), st.lists(instructions, max_size=20))


def encode(program: list[Instruction]) -> bytes:
    """The instructions' bytes."""
    code = {
        "advance": advance, "def_cfa": def_cfa, "def_cfa_register": def_cfa_register,
        "def_cfa_offset": def_cfa_offset, "offset": offset, "register": register, "restore": restore,
        "undefined": undefined, "same_value": same_value, "remember": lambda: REMEMBER,
        "restore_state": lambda: RESTORE,
    }  # fmt: skip
    return b"".join(code[str(name)](*operands) for name, *operands in program)  # type: ignore[operator]


def run(start: int, end: int, program: list[Instruction]) -> dict[int, str]:
    """The text of each address, from the standard's words."""
    texts: dict[int, str] = {}
    state, location, stack = INITIAL, start, []

    def fill(upto: int, text: str) -> None:
        for address in range(location, min(upto, end)):
            texts[address] = text

    for name, *numbers in program:
        operands = [int(str(number)) for number in numbers]
        if name == "advance":
            fill(location + operands[0], state.text())
            location += operands[0]
        elif name == "def_cfa":
            state = replace(state, cfa=(operands[0], operands[1]))
        elif name == "def_cfa_register":
            state = replace(state, cfa=(operands[0], state.cfa[1]))
        elif name == "def_cfa_offset":
            state = replace(state, cfa=(state.cfa[0], operands[0]))
        elif name == "offset":
            state = state.with_rule(operands[0], f"c{-8 * operands[1]:+d}")
        elif name == "register":
            state = state.with_rule(operands[0], NAMES[operands[1]])
        elif name == "restore":
            state = state.with_rule(operands[0], INITIAL.rules.get(operands[0], "u"))
        elif name in {"undefined", "same_value"}:
            state = state.with_rule(operands[0], "u")
        elif name == "remember":
            stack.append(state)
            if len(stack) > 16:
                fill(end, "remembered states unbalanced or too deep")
                return texts
        elif name == "restore_state":
            if not stack:
                fill(end, "remembered states unbalanced or too deep")
                return texts
            state = stack.pop()
    fill(end, state.text())
    return texts


def expected(placed: list[Function]) -> list[tuple[int, str]]:
    """Rows of functions; of two that claim an address, the first by start and then by place."""
    texts: dict[int, str] = {}
    for start, size, program in sorted(placed, key=lambda function: function[0]):
        for address, text in run(start, start + size, program).items():
            texts.setdefault(address, text)
    rows: list[tuple[int, str]] = []
    for address in range(min(texts), max(texts) + 2):
        text = texts.get(address, "-")
        if not rows or rows[-1][1] != text:
            rows.append((address, text))
    return rows


def merged(rows: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Neighbours with one text are one: "undefined" and "same" look alike."""
    return [row for i, row in enumerate(rows) if not i or rows[i - 1][1] != row[1]]


@settings(max_examples=600, deadline=None)
@given(st.lists(functions, min_size=1, max_size=6))
def test_rows_are_those_of_the_model(
    given_functions: list[Function],
) -> None:
    frames = Frames()
    cie = frames.cie()
    placed = []
    for at, size, program in given_functions:
        frames.fde(cie, 0x1000 + at, size, encode(program))
        placed.append((0x1000 + at, size, program))
    assert merged(shown(rows_of(frames))) == expected(placed)
