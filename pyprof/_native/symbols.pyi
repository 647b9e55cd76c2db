# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable, Sequence
from typing import Self, final

from typing_extensions import Buffer

@final
class SymbolTable:
    counts: list[int]
    hidden: bool
    def __new__(
        cls,
        tables: Sequence[tuple[Buffer, Buffer] | tuple[Buffer, Buffer, Buffer]] = ...,
        ranges: Iterable[tuple[int, int]] = ...,
        function_starts: Buffer | None = ...,
        function_base: int = ...,
    ) -> Self: ...
    @staticmethod
    def from_kallsyms(chunks: Iterable[Buffer]) -> SymbolTable: ...
    def resolve(self, addresses: Buffer) -> list[tuple[bytes, int, bool, int] | None]: ...
    def flattened(self) -> tuple[bytes, bytes, bytes, bytes]: ...
    def __len__(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
