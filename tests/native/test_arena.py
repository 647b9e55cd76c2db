# SPDX-License-Identifier: Apache-2.0
"""The arena of unwind rows against a naive model, and against the kernel's copy of what it publishes."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pyprof._native.arena import RowArena
from tests.support.arena import (
    CHUNK,
    LOADED,
    MAX_RULES,
    NO_ROWS,
    NOT_LOADED,
    PAGE,
    Holder,
    Rows,
    Segments,
    interesting,
    model_rule,
    number_rule,
)
from tests.support.stacks import NONE
from tests.support.stacks import rule as make_rule

UNSUPPORTED = make_rule("UNSUPPORTED", 0)
EXECUTABLE = 7


def assert_loaded(holder: Holder, executable: int, rows: Rows, segments: Segments) -> None:
    """The arena and the kernel's copy say of every interesting offset what the model says."""
    assert holder.arena.state(executable) == LOADED
    for offset in interesting(rows, segments):
        wanted = model_rule(rows, segments, offset)
        assert holder.rule(executable, offset) == wanted, hex(offset)
        assert holder.kernel_rule(executable, offset) == wanted, hex(offset)


def loaded(rows: Rows, segments: Segments, chunks: int = 1) -> Holder:
    holder = Holder(chunks)
    assert holder.load(EXECUTABLE, rows, segments)
    holder.flush()
    assert_loaded(holder, EXECUTABLE, rows, segments)
    return holder


@st.composite
def files(draw: st.DrawFn) -> tuple[Rows, Segments]:
    """Rows at near and far distances, in and around segments that lie, share pages or overlap anyhow."""
    segments: Segments = []
    offset = draw(st.integers(0, 3 * PAGE))
    vaddr = draw(st.sampled_from([0, 0x400000, 0x7F00_0000_0000])) + offset
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(0, 300) | st.integers(0, 3 * PAGE))
        segments.append((offset, size, vaddr))
        offset = max(offset + size + draw(st.sampled_from([0, 0, 1, 0x30, 4096, 5 * PAGE, -0x20])), 0)
        vaddr += size + draw(st.integers(0, 0x3000))
    first, last = segments[0][2], segments[-1][2] + segments[-1][1]
    addresses = draw(
        st.sets(
            st.integers(max(first - 64, 0), last + 64)
            | st.integers(0, 15).map(lambda i: (first & ~(PAGE - 1)) + i * PAGE)
            | st.integers(0, 60).map(lambda i: (first & ~4095) + i * 4096)
            | st.integers(0, 300).map(lambda i: first + i),
            max_size=60,
        )
    )
    numbers = draw(st.lists(st.integers(0, 5), min_size=len(addresses), max_size=len(addresses)))
    return list(zip(sorted(addresses), numbers, strict=True)), draw(st.permutations(segments))


@settings(max_examples=200)
@given(files())
def test_every_offset_has_the_rule_of_the_row_before_its_address(file: tuple[Rows, Segments]) -> None:
    loaded(*file)


@settings(max_examples=25)
@given(st.lists(files(), min_size=2, max_size=6))
def test_many_files_are_kept_apart_though_they_share_rules(several: list[tuple[Rows, Segments]]) -> None:
    holder = Holder()
    for number, (rows, segments) in enumerate(several):
        assert holder.load(number, rows, segments)
    holder.flush()
    for number, (rows, segments) in enumerate(several):
        assert_loaded(holder, number, rows, segments)
    assert holder.arena.counts()["rules"] <= 2 + 5, "NONE, UNSUPPORTED, and each rule once"


def test_a_file_without_rows_is_loaded_and_has_no_page() -> None:
    holder = loaded([], [(0, PAGE, 0)])
    assert holder.pages == {}
    assert holder.rule(EXECUTABLE, 100) == NONE


def test_a_file_without_segments_is_loaded_and_has_no_page() -> None:
    holder = loaded([(0, 1)], [])
    assert holder.pages == {}


def test_pages_without_a_rule_take_no_room() -> None:
    holder = loaded([(0x100, 1), (0x200, 0), (50 * PAGE, 2), (50 * PAGE + 8, 0)], [(0, 100 * PAGE, 0)])
    assert set(holder.pages) == {(EXECUTABLE, 0), (EXECUTABLE, 50)}


def test_a_rule_that_holds_for_many_pages_is_in_each() -> None:
    holder = loaded([(0x100, 1), (5 * PAGE, 0)], [(0, 100 * PAGE, 0)])
    assert set(holder.pages) == {(EXECUTABLE, page) for page in range(5)}
    assert all(len(holder.rows_of(EXECUTABLE, page)) == 1 for page in range(1, 5))


def test_a_rule_ends_with_its_segment() -> None:
    loaded([(0x1000, 3)], [(0x1000, 0x234, 0x1000)])
    loaded([(0x1000, 3)], [(0x1000, 2 * PAGE - 0x1000, 0x1000)])


def test_two_segments_in_one_page_have_the_rows_of_their_own_addresses() -> None:
    # lld without -z separate-code: two executable segments, the second one a page further on in memory.
    loaded(
        [(0x11000, 1), (0x11100, 2), (0x12234, 3), (0x12300, 4)],
        [(0x1000, 0x234, 0x11000), (0x1234, 0x500, 0x12234)],
    )


def test_of_segments_that_overlap_in_the_file_the_first_one_holds() -> None:
    rows = [(0x1000, 1), (0x1100, 2), (0x5000, 3), (0x5100, 4), (0x5200, 5)]
    loaded(rows, [(0x1000, 0x180, 0x1000), (0x1080, 0x300, 0x5000)])
    loaded(rows, [(0x1000, 0x180, 0x1000), (0x1080, 0x10, 0x5000), (0x1100, 0x200, 0x5080)])


@pytest.mark.parametrize("step", [1, 2, 15, 16, 17])
def test_rows_may_follow_each_other_closely(step: int) -> None:
    # From one page over the next; up to 4096 rows in a part, 65536 in a page.
    rows = [(address, 1 + address // step % 3) for address in range(PAGE // 2, 2 * PAGE + 100, step)]
    loaded(rows, [(0, 3 * PAGE, 0)])


def test_a_page_with_a_row_at_every_byte_has_the_last_one_too() -> None:
    holder = loaded([(address, 1 + address % 2) for address in range(PAGE)], [(0, PAGE, 0)])
    assert holder.rule(EXECUTABLE, PAGE - 1) == number_rule(2)
    assert holder.arena.counts()["rows"] == PAGE


def test_rows_equal_to_their_neighbours_are_one() -> None:
    holder = loaded([(0x10, 1), (0x20, 1), (0x30, 2), (0x40, 2)], [(0, 0x100, 0)])
    assert len(holder.rows_of(EXECUTABLE, 0)) == 4, "none, 1, 2, none"


def test_rows_out_of_order_do_no_harm() -> None:
    holder = Holder()
    addresses = [0x100, 0x50, PAGE + 5, 0x20, 0xFFFF_FFFF_FFFF_FFFF, 0x30] * 20_000
    rows = [(address, 1 + i % 3) for i, address in enumerate(addresses)]
    assert holder.load(EXECUTABLE, rows, [(0, 4 * PAGE, 0), (2, 2**64 - 1, 2**64 - 1)])
    holder.flush()
    for page in range(5):
        if (EXECUTABLE, page) in holder.pages:
            offsets = [offset for offset, _ in holder.rows_of(EXECUTABLE, page)]
            assert offsets == sorted(set(offsets))


def test_a_rule_over_the_whole_address_space_takes_a_bounded_part_of_the_arena() -> None:
    holder = Holder(2)
    rows = [(0x100, 1)]
    assert holder.load(EXECUTABLE, rows, [(0, 2**63, 0)])
    holder.flush()
    assert len(holder.pages) == 16384
    assert holder.rule(EXECUTABLE, 16384 * PAGE - 1) == number_rule(1)
    assert holder.rule(EXECUTABLE, 16384 * PAGE) == NONE
    assert holder.kernel_rule(EXECUTABLE, 1 << 46) == holder.rule(EXECUTABLE, 1 << 46) == NONE


@pytest.mark.parametrize(
    "segment", [(2**47, 10, 0), (2**64 - 1, 2**64 - 1, 2**64 - 1), (2**47 - 1, 2**63, 5)]
)
def test_segments_at_offsets_that_no_file_has_are_cut(segment: tuple[int, int, int]) -> None:
    holder = Holder()
    assert holder.load(EXECUTABLE, [(0, 1), (6, 2)], [segment])
    holder.flush()
    assert len(holder.pages) <= 1


@pytest.mark.parametrize("segments", [[(1, 2)], [(0, 10, 0), (0x1000, -1, 0)], [("a", 1, 1)], None])
def test_what_is_no_segment_is_refused_and_changes_nothing(segments: object) -> None:
    holder = Holder()
    free = holder.arena.counts()["free_bytes"]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        holder.load(EXECUTABLE, [(0, 1)], segments)  # type: ignore[arg-type]
    assert holder.arena.counts()["free_bytes"] == free
    assert holder.load(EXECUTABLE, [(0, 1)], [(0, 10, 0)])
    holder.flush()
    assert set(holder.pages) == {(EXECUTABLE, 0)}


def test_columns_that_do_not_match_are_refused() -> None:
    arena = RowArena(bytearray(16 * MAX_RULES))
    with pytest.raises(ValueError, match="columns differ"):
        arena.load(1, array("Q", [1, 2]), array("I", [0]), NONE, [], 1)
    with pytest.raises(ValueError, match="no rule"):
        arena.load(1, array("Q", [1]), array("I", [1]), NONE, [], 1)
    with pytest.raises(ValueError, match="no rule"):
        arena.load(1, array("Q", [1]), array("I", [0]), NONE[:-1], [], 1)
    assert arena.state(1) == NOT_LOADED


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="rule table"):
        RowArena(bytearray(16 * MAX_RULES - 1))
    arena = RowArena(bytearray(16 * MAX_RULES))
    for size in (0, CHUNK - 1, CHUNK + 1):
        with pytest.raises(ValueError, match="size of a chunk"):
            arena.add_chunk(bytearray(size))


def test_memory_that_is_in_use_cannot_be_taken_away() -> None:
    rules, chunk = bytearray(16 * MAX_RULES), bytearray(CHUNK)
    arena = RowArena(rules)
    arena.add_chunk(chunk)
    for memory in (rules, chunk):
        with pytest.raises(BufferError):
            memory.clear()
    del arena
    rules.clear()


# Each page with this takes 16 KiB: 64 of them fill a chunk.
def dense(pages: int, number: int = 1) -> tuple[Rows, Segments]:
    rows = [(address, number + address // 16 % 2) for address in range(0, pages * PAGE, 16)]
    return rows, [(0, pages * PAGE, 0)]


def test_a_file_that_finds_no_room_changes_nothing() -> None:
    holder = Holder()
    assert holder.load(1, *dense(40))
    holder.flush()
    before = holder.arena.counts()
    assert not holder.load(2, *dense(30))
    assert holder.arena.counts() == before
    assert holder.arena.pending() == (b"", b"", b"", b"", b"")
    assert holder.arena.state(2) == NOT_LOADED
    assert holder.rule(2, 0) is None
    assert_loaded(holder, 1, *dense(40))
    holder.add_chunk()
    assert holder.load(2, *dense(30))
    holder.flush()
    assert_loaded(holder, 2, *dense(30))
    assert_loaded(holder, 1, *dense(40))


def test_an_evicted_file_is_out_and_its_memory_is_kept_until_readers_are_through() -> None:
    holder = Holder()
    assert holder.load(1, *dense(40))
    holder.flush(10)
    pages = dict(holder.pages)
    old = bytes(holder.chunks[0])
    assert holder.arena.evict(1) == 40 * 16384
    assert holder.arena.state(1) == NOT_LOADED
    assert holder.rule(1, 0) is None
    # The entries are still in the kernel: nothing may be given out, however late it is.
    assert holder.arena.reclaim(2**63) == 0
    assert not holder.load(2, *dense(40))
    assert bytes(holder.chunks[0][: 40 * 16384]) == old[: 40 * 16384]
    holder.flush(20)
    assert not holder.pages.keys() & pages.keys()
    assert holder.kernel_rule(1, 0) is None
    assert holder.arena.reclaim(20) == 0, "what was flushed at 20 is not older than 20"
    assert not holder.load(2, *dense(40))
    assert holder.arena.counts()["withdrawn"] == 40
    assert holder.arena.reclaim(21) == 40 * 16384
    assert holder.load(2, *dense(40))
    holder.flush()
    assert_loaded(holder, 2, *dense(40))
    assert holder.arena.counts()["evictions"] == 1


def test_an_evicted_file_can_be_loaded_again_before_anything_is_written() -> None:
    holder = Holder()
    holder.load(1, *dense(2))
    holder.flush()
    holder.arena.evict(1)
    assert holder.load(1, *dense(3, 4))
    holder.flush()
    assert_loaded(holder, 1, *dense(3, 4))
    holder.arena.evict(1)
    holder.load(1, *dense(2))
    holder.arena.evict(1)
    holder.flush()
    assert holder.pages == {}
    assert holder.loaded == set()


def test_a_file_that_is_loaded_stays_as_it_is() -> None:
    holder = loaded(*dense(2))
    assert holder.load(EXECUTABLE, *dense(9, 4))
    assert holder.arena.pending() == (b"", b"", b"", b"", b"")
    assert_loaded(holder, EXECUTABLE, *dense(2))


def test_a_file_without_rows_asks_for_frame_pointers_until_that_is_forgotten() -> None:
    holder = Holder()
    holder.arena.load_none(5)
    holder.flush()
    assert holder.arena.state(5) == NO_ROWS
    assert holder.rule(5, 0x1234) == holder.kernel_rule(5, 0x1234) == NONE
    holder.arena.forget(5)
    holder.flush()
    assert holder.arena.state(5) == NOT_LOADED
    assert holder.rule(5, 0x1234) is holder.kernel_rule(5, 0x1234) is None


def test_a_loaded_file_of_which_the_rows_turn_out_bad_leaves_the_arena() -> None:
    holder = loaded(*dense(2))
    holder.arena.load_none(EXECUTABLE)
    holder.flush(5)
    assert holder.pages == {}
    assert holder.kernel_rule(EXECUTABLE, 0) == holder.rule(EXECUTABLE, 0) == NONE
    assert holder.arena.reclaim(6) == 2 * 16384
    assert holder.arena.counts()["free_bytes"] == CHUNK


def test_only_what_has_no_rows_can_be_forgotten() -> None:
    holder = loaded(*dense(1))
    holder.arena.forget(EXECUTABLE)
    holder.arena.forget(1000)
    holder.arena.forget(1)
    assert holder.arena.state(EXECUTABLE) == LOADED
    assert holder.arena.evict(1) == holder.arena.evict(2000) == 0
    assert holder.arena.pending() == (b"", b"", b"", b"", b"")


def test_the_oldest_is_the_loaded_file_with_pages_that_was_used_longest_ago() -> None:
    holder = Holder()
    assert holder.arena.oldest(100) == 0
    for number, time in ((4, 30), (5, 10), (6, 20)):
        holder.load(number, *dense(1), now=time)
    holder.load(3, [], [], now=1)
    holder.arena.load_none(2)
    assert [holder.arena.oldest(before) for before in (10, 11, 31)] == [0, 5, 5]
    holder.arena.evict(5)
    assert [holder.arena.oldest(before) for before in (20, 21)] == [0, 6]


MAX_NEW = 4096
"""Rules that one file may add to the table."""


def rules_from(first: int, count: int) -> list[bytes]:
    return [number_rule(first + i) for i in range(count)]


def load_rules(holder: Holder, executable: int, first: int, count: int, *, partial: bool = False) -> bool:
    """Loads a file with a row a byte, each of its own rule."""
    rows = [(i, i) for i in range(count)]
    return holder.load(executable, rows, [(0, PAGE, 0)], rules=rules_from(first, count), partial=partial)


def test_a_file_that_brings_more_rules_than_it_may_does_without_the_others() -> None:
    holder = Holder()
    assert load_rules(holder, 1, 1, MAX_NEW + 10)
    holder.flush()
    assert holder.arena.counts()["refused_rules"] == 10
    assert holder.rule(1, MAX_NEW - 1) == holder.kernel_rule(1, MAX_NEW - 1) == number_rule(MAX_NEW)
    assert holder.rule(1, MAX_NEW) == holder.kernel_rule(1, MAX_NEW) == UNSUPPORTED
    # What others have brought it can use; the next file may bring as many.
    assert load_rules(holder, 2, MAX_NEW - 5, 5)
    assert load_rules(holder, 3, 100_000, MAX_NEW)
    assert holder.arena.counts()["refused_rules"] == 10
    assert holder.rule(3, MAX_NEW - 1) == number_rule(100_000 + MAX_NEW - 1)


def full_of_rules() -> Holder:
    """A table in which eight files have taken all numbers; NONE and UNSUPPORTED are there from the start."""
    holder = Holder(2)
    for executable in range(1, 9):
        count = MAX_NEW if executable < 8 else MAX_NEW - 2
        assert load_rules(holder, executable, 10_000 * executable, count)
    assert holder.arena.counts()["rules"] == MAX_RULES
    holder.flush()
    return holder


def test_a_full_table_of_rules_is_want_of_room_or_unsupported_rules() -> None:
    holder = full_of_rules()
    before = holder.arena.counts()
    assert not load_rules(holder, 9, 1, 3)
    assert holder.arena.short_of == "rules"
    assert holder.arena.counts() == before
    assert holder.rule(9, 1) is None
    assert load_rules(holder, 9, 1, 3, partial=True)
    assert holder.rule(9, 1) == UNSUPPORTED
    assert holder.arena.counts()["refused_rules"] == 3
    # Those that are there can still be used.
    assert load_rules(holder, 10, 10_000, 5)
    assert holder.rule(10, 3) == number_rule(10_003)


def test_rules_that_no_file_uses_are_free_once_readers_are_through() -> None:
    holder = full_of_rules()
    assert load_rules(holder, 20, 30_000, 100)  # of the third file's
    holder.flush()
    kept = {offset: holder.kernel_rule(20, offset) for offset in range(100)}
    holder.arena.evict(3)
    assert not load_rules(holder, 21, 1, 1), "the entries of its pages are still there"
    holder.flush(5)
    holder.arena.reclaim(5)
    assert not load_rules(holder, 21, 1, 1), "a walk may still be reading"
    assert holder.arena.withdrawn_rules == 1
    holder.arena.reclaim(6)
    assert holder.arena.withdrawn_rules == 0
    assert holder.arena.counts()["rules"] == MAX_RULES - (MAX_NEW - 100)
    assert load_rules(holder, 21, 1, MAX_NEW - 100)
    assert not load_rules(holder, 22, 90_000, 1)
    holder.flush(7)
    assert {offset: holder.kernel_rule(20, offset) for offset in range(100)} == kept
    assert [holder.kernel_rule(21, offset) for offset in (0, MAX_NEW - 101)] == [
        number_rule(1), number_rule(MAX_NEW - 100),
    ]  # fmt: skip


def test_who_gives_way_for_rules_has_some_of_its_own() -> None:
    holder = full_of_rules()
    assert load_rules(holder, 20, 30_000, 100)
    for executable in range(1, 21):
        holder.load(executable, [], [])
    # 20 was loaded last but would free nothing; all times are the same, and the first one is found.
    assert holder.arena.oldest(100, "rules") == 1
    holder.arena.evict(1)
    assert holder.arena.oldest(100, "rules") == 2
    for executable in range(2, 9):
        holder.arena.evict(executable)
    assert holder.arena.oldest(100, "rules") == 0, "those of 20 are still held by what was withdrawn"
    holder.flush(5)
    holder.arena.reclaim(6)
    assert holder.arena.oldest(100, "rules") == 20


def test_rules_of_files_that_come_and_go_never_run_out() -> None:
    holder = Holder()
    for turn in range(1, 60):
        assert load_rules(holder, turn, 5_000 * turn, MAX_NEW)
        holder.flush(turn)
        assert holder.kernel_rule(turn, 4000) == number_rule(5_000 * turn + 4000)
        holder.arena.evict(turn)
        holder.flush(turn)
        holder.arena.reclaim(turn + 1)
    assert holder.arena.counts()["rules"] == 2


def test_a_full_map_of_pages_is_want_of_room_there() -> None:
    holder = Holder(1, max_pages=3)
    assert holder.load(1, *dense(2, 1))
    before = holder.arena.counts()
    assert not holder.load(2, *dense(2, 1))
    assert holder.arena.short_of == "pages"
    assert holder.arena.counts() == before
    assert holder.load(3, *dense(1, 1))
    assert holder.arena.oldest(100, "pages") == 1


def test_a_full_map_of_executables_is_want_of_room_there() -> None:
    holder = Holder(1, max_executables=2)
    assert holder.arena.load_none(1)
    assert holder.load(2, *dense(1, 1), now=5)
    assert not holder.load(3, *dense(1, 1))
    assert holder.arena.short_of == "executables"
    assert not holder.arena.load_none(4), "the kernel is not told"
    assert holder.arena.state(4) == NO_ROWS
    holder.flush()
    assert holder.loaded == {1, 2} == set(holder.arena.settled())
    # One without rows gives way, too.
    assert holder.arena.oldest(5, "executables") == 1
    holder.arena.forget(1)
    assert holder.arena.load_none(4)
    assert not holder.load(3, *dense(1, 1))
    holder.arena.forget(4)
    assert holder.load(3, *dense(1, 1))
    holder.flush()
    assert holder.loaded == {2, 3} == set(holder.arena.settled())


def test_there_are_no_more_chunks_than_the_kernel_numbers() -> None:
    arena = RowArena(bytearray(16 * MAX_RULES))
    chunk = bytearray(CHUNK)
    for _ in range(1024):
        arena.add_chunk(chunk)
    with pytest.raises(ValueError, match="too many"):
        arena.add_chunk(chunk)


class Arena(RuleBasedStateMachine):
    """Loads, evictions and writes in any order, beside what should be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = Holder()
        self.model: dict[int, tuple[Rows, Segments]] = {}
        self.none: set[int] = set()
        self.time = 1

    numbers = st.integers(2, 6)

    @rule(number=numbers, pages=st.integers(1, 25), kind=st.integers(1, 40))
    def load(self, number: int, pages: int, kind: int) -> None:
        before = self.holder.arena.counts()
        file = dense(pages, kind)
        if self.holder.load(number, *file):
            self.model.setdefault(number, file)
            self.none.discard(number)
        else:
            after = self.holder.arena.counts()
            assert after == before
            assert before["free_bytes"] < pages * 16384 + 65536

    @rule(number=numbers)
    def evict(self, number: int) -> None:
        freed = self.holder.arena.evict(number)
        assert freed == len(self.model.pop(number, ([], []))[0]) * 4

    @rule(number=numbers)
    def load_none(self, number: int) -> None:
        self.holder.arena.load_none(number)
        self.model.pop(number, None)
        self.none.add(number)

    @rule(number=numbers)
    def forget(self, number: int) -> None:
        self.holder.arena.forget(number)
        self.none.discard(number)

    @rule(reclaim=st.booleans())
    def write(self, reclaim: bool) -> None:
        self.time += 1
        self.holder.flush(self.time)
        if reclaim:
            self.holder.arena.reclaim(self.time + 1)
        assert self.holder.loaded == set(self.model) | self.none
        wanted = {
            (n, page) for n, (_, segments) in self.model.items() for page in range(segments[0][1] // PAGE)
        }
        assert set(self.holder.pages) == wanted
        for number, (rows, segments) in self.model.items():
            for offset in range(0, segments[0][1] + 1, 4096 - 5):
                assert self.holder.kernel_rule(number, offset) == model_rule(rows, segments, offset)

    @invariant()
    def answers(self) -> None:
        for number in range(2, 7):
            wanted: bytes | None
            if number in self.model:
                state, wanted = LOADED, model_rule(*self.model[number], 16)
            else:
                state, wanted = (NO_ROWS, NONE) if number in self.none else (NOT_LOADED, None)
            assert self.holder.arena.state(number) == state
            assert self.holder.rule(number, 16) == wanted
        counts = self.holder.arena.counts()
        assert counts["executables"] == len(self.model)
        assert counts["rows"] == sum(len(rows) for rows, _ in self.model.values())


TestArena = Arena.TestCase
TestArena.settings = settings(max_examples=25, stateful_step_count=25)
