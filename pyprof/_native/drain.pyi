# SPDX-License-Identifier: Apache-2.0
from pyprof._native.aggregate import Aggregator
from pyprof._native.arena import RowArena
from pyprof._native.processes import ProcessTable
from pyprof._native.sideband import SidebandReader

class SampleReader:
    def __init__(
        self,
        fd: int,
        size: int,
        table: ProcessTable,
        sideband: SidebandReader,
        aggregator: Aggregator,
        arena: RowArena,
        by: str,
    ) -> None: ...
    def run(self) -> None: ...
    def replay(self, wait_from: int = 0xFFFFFFFFFFFFFFFF) -> int: ...
    @property
    def unread(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    def counts(self) -> dict[str, int]: ...
    def ends(self) -> list[int]: ...
