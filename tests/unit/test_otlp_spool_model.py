# SPDX-License-Identifier: Apache-2.0
"""A spool beside a list: whatever is put, sent, torn or survived, every sample is somewhere."""

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pyprof.export.otlp.batch import Batch
from pyprof.export.otlp.spool import DAMAGED, SPOOL_FULL, TOO_OLD, Entry, Spool

BLOCK = 4096
MAX_BLOCKS = 6
MAX_AGE = 100


class SpoolModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1000.0
        self.waiting: list[tuple[Batch, float, bool]] = []  # batch, when it was made, whether it is damaged
        self.sent = 0
        self.put_samples = 0
        self.lost: Counter[str] = Counter()
        self.lost_before: Counter[str] = Counter()
        self.out: Entry | None = None
        self.spool = self.opened()

    def opened(self) -> Spool:
        return Spool(
            self.folder,
            MAX_BLOCKS * BLOCK,
            MAX_AGE,
            clock=lambda: self.now + 7,
            wall=lambda: self.now,
        )

    def teardown(self) -> None:
        self.spool.close()
        shutil.rmtree(self.folder)

    def lose(self, at: int, reason: str) -> None:
        batch, _, _ = self.waiting.pop(at)
        self.lost[reason] += batch.samples

    def drop_old(self) -> None:
        held = 1 if self.out is not None else 0
        while len(self.waiting) > held and self.waiting[held][1] < self.now - MAX_AGE:
            self.lose(held, TOO_OLD)

    @rule(samples=st.integers(0, 1000), data=st.binary(max_size=50))
    def put(self, samples: int, data: bytes) -> None:
        batch = Batch(data, samples, int(self.now * 1e9))
        self.spool.put(batch)
        self.put_samples += samples
        self.drop_old()
        held = 1 if self.out is not None else 0
        while len(self.waiting) >= MAX_BLOCKS:
            self.lose(held, SPOOL_FULL)
        self.waiting.append((batch, self.now, False))

    @precondition(lambda self: self.out is None)
    @rule()
    def first(self) -> None:
        found = self.spool.first()
        self.drop_old()
        while self.waiting and self.waiting[0][2]:
            self.lose(0, DAMAGED)
            self.drop_old()
        if not self.waiting:
            assert found is None
        else:
            assert found is not None and found[1] == self.waiting[0][0]
            self.out = found[0]

    @precondition(lambda self: self.out is not None)
    @rule(taken=st.booleans())
    def settle(self, taken: bool) -> None:
        assert self.out is not None
        if taken:
            self.spool.remove(self.out)
            self.sent += self.waiting.pop(0)[0].samples
        else:
            self.spool.release()
        self.out = None

    @precondition(lambda self: self.out is not None)
    @rule()
    def postpone(self) -> None:
        assert self.out is not None
        self.spool.postpone(self.out)
        self.spool.release()
        self.waiting.append(self.waiting.pop(0))
        self.out = None

    @rule(seconds=st.integers(0, 60))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.waiting) > (self.out is not None))
    @rule(which=st.integers(0, 100), place=st.integers(0, 10_000), cut=st.booleans())
    def damage(self, which: int, place: int, cut: bool) -> None:
        held = 1 if self.out is not None else 0
        at = held + which % (len(self.waiting) - held)
        if self.waiting[at][2]:
            return
        path = sorted(self.folder.iterdir())[at]
        place %= path.stat().st_size
        if cut:
            os.truncate(path, place)
        else:
            content = bytearray(path.read_bytes())
            content[place] ^= 1 << (place % 8)
            path.write_bytes(content)
        batch, born, _ = self.waiting[at]
        self.waiting[at] = (batch, born, True)

    @rule(unfinished=st.booleans(), torn=st.booleans())
    def crash(self, unfinished: bool, torn: bool) -> None:
        self.spool.close()  # as the kernel does
        self.out = None
        self.lost_before += self.spool.lost
        lost_at_start = 0
        if unfinished and self.waiting:
            path = sorted(self.folder.iterdir())[-1]
            batch, _, damaged = self.waiting[-1]
            if torn and not damaged:
                os.truncate(path, path.stat().st_size - 1)
            path.rename(self.folder / f".{path.name}.tmp")
            if torn or damaged:
                lost_at_start = batch.samples
                self.lose(len(self.waiting) - 1, DAMAGED)
        found = sum(batch.samples for batch, _, _ in self.waiting)
        self.spool = self.opened()
        assert self.spool.found == found + lost_at_start
        self.drop_old()

    @invariant()
    def every_sample_is_somewhere(self) -> None:
        assert self.spool.samples == sum(batch.samples for batch, _, _ in self.waiting)
        assert len(self.spool) == len(self.waiting) == len(list(self.folder.iterdir()))
        assert self.spool.bytes == BLOCK * len(self.waiting) <= MAX_BLOCKS * BLOCK
        assert self.lost_before + self.spool.lost == +self.lost
        assert self.put_samples == self.sent + self.spool.samples + sum(self.lost.values())


TestSpool = SpoolModel.TestCase
TestSpool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
