# SPDX-License-Identifier: Apache-2.0
"""The process table, a naive model and the kernel's LPM trie: after any order of events all three agree."""

from functools import cache

import pytest
from hypothesis import settings
from hypothesis.stateful import rule

from pyprof.bpf.library import BpfObject
from tests.native.test_processes import PAGE, TableMachine

pytestmark = pytest.mark.bpf

RING = 256 * 1024


@cache
def kernel() -> BpfObject:
    return BpfObject(RING, RING // 4, 20_000)


class KernelMachine(TableMachine):
    """Writes what the table has for the kernel into a trie of the kernel's, and looks every page up there."""

    def teardown(self) -> None:
        for pid in self.table.pids():
            self.table.ended(pid, self.tick())
        self.flush()
        assert kernel().mapping_keys() == []
        super().teardown()

    def flush(self) -> None:
        now = self.tick()
        self.table.publish(now)
        assert kernel().write_mappings(self.world.trie, now) == []

    @rule()
    def look_up(self) -> None:
        self.flush()
        trie = self.world.trie
        owned = [(pid, *key) for pid in trie.pids() for key in trie.keys(pid)]
        assert sorted(kernel().mapping_keys()) == sorted(owned)
        for pid in range(1, 5):
            process = self.model.get(pid)
            pages = process.pages if process is not None and process.published else {}
            for page in range(13):
                for address in (page * PAGE, page * PAGE + PAGE - 1):
                    row = trie.mapping(kernel().lookup_mapping(pid, address))
                    assert (row and (row[3], row[4])) == pages.get(page)


KernelMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestKernel = KernelMachine.TestCase
