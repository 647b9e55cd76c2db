# SPDX-License-Identifier: Apache-2.0
from typing_extensions import Buffer

class Aggregator:
    def __init__(self, seed: int | None = None, stamped: bool = False) -> None: ...
    def add(
        self,
        process: int,
        thread: int,
        kinds: Buffer,
        executables: Buffer,
        addresses: Buffer,
        count: int = 1,
        end: int = 0,
        time: int = 0,
    ) -> None: ...
    def add_batch(
        self,
        process: int,
        thread: int,
        starts: Buffer,
        kinds: Buffer,
        executables: Buffer,
        addresses: Buffer,
    ) -> None: ...
    def sizes(self) -> tuple[int, int, int]: ...
    def take(self) -> dict[str, bytes]: ...
