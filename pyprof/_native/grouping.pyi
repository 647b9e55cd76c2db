# SPDX-License-Identifier: Apache-2.0
from array import array
from typing import final

from typing_extensions import Buffer

@final
class Merged:
    locations: array[int]
    stack_starts: array[int]
    process: array[int]
    stack: array[int]
    attributes: array[int]
    values: array[int]
    times: array[int]
    time_starts: array[int]

@final
class SampleRows:
    def __init__(
        self,
        process: Buffer,
        thread: Buffer,
        stack: Buffer,
        count: Buffer,
        starts: Buffer,
        frames: Buffer,
        times: Buffer,
        time_rows: Buffer,
    ) -> None: ...
    @property
    def time_starts(self) -> memoryview[int]: ...
    def __len__(self) -> int: ...
    def samples(self, first: int, end: int, first_time: int, end_time: int) -> int: ...
    def used_frames(self, first: int, end: int, frames: int) -> array[int]: ...
    def used_threads(self, first: int, end: int) -> set[int]: ...
    def merge(
        self, first: int, end: int, first_time: int, end_time: int, locations: Buffer, attributes: Buffer
    ) -> Merged: ...
