# SPDX-License-Identifier: Apache-2.0
from typing import Self, final

from typing_extensions import Buffer

REASONS: tuple[str, ...]
CFA_NAMES: tuple[str, ...]
FP_NAMES: tuple[str, ...]
RA_NAMES: tuple[str, ...]
RULE_SIZE: int
SIGNAL_FRAME: int
SIGNED: int
STACK_SWITCH: int

@final
class Column: ...

@final
class UnwindRows:
    def __new__(
        cls,
        data: Buffer,
        address: int,
        machine: int,
        *,
        debug_frame: bool = ...,
        stop_at_zero: bool = ...,
        text_base: int = ...,
        data_base: int = ...,
        trampolines: Buffer | None = ...,
    ) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def addresses(self) -> memoryview[int]: ...
    @property
    def numbers(self) -> memoryview[int]: ...
    @property
    def rules(self) -> memoryview[int]: ...
    @property
    def rule_count(self) -> int: ...
    @property
    def cie_count(self) -> int: ...
    @property
    def fde_count(self) -> int: ...
    @property
    def overlaps(self) -> int: ...
    @property
    def discarded(self) -> int: ...
    @property
    def unsupported(self) -> dict[str, int]: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    def rule(self, number: int) -> tuple[str, str, str, int, int, int, int, int]: ...
    def find(self, address: int) -> int: ...

def rows_of_go(
    pairs: Buffer,
    width: int,
    text: int,
    functions: Buffer,
    deltas: Buffer,
    names: Buffer,
    code: Buffer,
    code_address: int,
    machine: int,
    *,
    deltas_at: int,
    flags_at: int,
    quantum: int,
    other: UnwindRows | None = ...,
) -> UnwindRows: ...
