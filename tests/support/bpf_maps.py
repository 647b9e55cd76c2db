# SPDX-License-Identifier: Apache-2.0
"""Maps of the kernel, read by the bpf(2) system call itself."""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterator

from tests.support.bpf import shown

NUMBER = {"x86_64": 321, "aarch64": 280}[platform.machine()]  # of bpf(2)
LOOKUP, NEXT_KEY, BY_ID = 1, 4, 14  # enum bpf_cmd, linux/bpf.h
_libc = ctypes.CDLL(None, use_errno=True)


def bpf(command: int, attributes: bytes) -> int:
    data = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result: int = _libc.syscall(NUMBER, command, data, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class Map:
    """A map by its number. A context manager."""

    def __init__(self, number: int) -> None:
        row = shown("map")[number]
        self.key_size, self.value_size = int(row["bytes_key"]), int(row["bytes_value"])
        self.fd = bpf(BY_ID, struct.pack("=I", number))

    def __enter__(self) -> "Map":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def _call(self, command: int, key: bytes | None, size: int) -> bytes | None:
        # {u32 map_fd; u64 key; u64 value or next_key; u64 flags}; None where there is none.
        found = ctypes.create_string_buffer(size)
        given = ctypes.create_string_buffer(key, len(key)) if key is not None else None
        at = ctypes.addressof(given) if given is not None else 0
        try:
            bpf(command, struct.pack("=IIQQQ", self.fd, 0, at, ctypes.addressof(found), 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return found.raw

    def get(self, key: bytes) -> bytes | None:
        return self._call(LOOKUP, key, self.value_size)

    def each_key(self) -> Iterator[bytes]:
        key = self._call(NEXT_KEY, None, self.key_size)
        while key is not None:
            yield key
            key = self._call(NEXT_KEY, key, self.key_size)

    def items(self) -> dict[bytes, bytes]:
        return {key: self.get(key) or b"" for key in self.each_key()}
