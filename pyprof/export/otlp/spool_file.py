# SPDX-License-Identifier: Apache-2.0
"""One batch as a file of the spool.

The file is two LZ4 frames (https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md), so that `lz4 -d`
gives the request: a skippable one, which is our header, and the request with its size and content checksum.
Integers are little-endian:

    0   u32  0x184D2A57, a skippable frame
    4   u32  56, bytes of it that follow
    8   8s   "pyprofSP"
    16  u32  version of this layout, 1
    20  u32  CRC-32 of the second frame
    24  u64  samples
    32  u64  when the profile began, nanoseconds since 1970
    40  u64  bytes of the second frame
    48  u64  bytes of the request
    56  u32  0
    60  u32  CRC-32 of the 60 bytes before

Its name has what a start needs to know, and sorts by the order of sending:

    SEQUENCE-SAMPLES-BYTES-TIME.otlp.lz4    SEQUENCE: 16 hexadecimal digits, BYTES: of the file
    .SEQUENCE-SAMPLES-BYTES-TIME.otlp.lz4.tmp    while it is being written
"""

import re
import struct
import zlib
from typing import NamedTuple

from pyprof.errors import PyprofError
from pyprof.export.otlp.batch import Batch

MAX_SEQUENCE = (1 << 64) - 1

_HEADER = struct.Struct("<II8sIIQQQQII")
_SKIPPABLE = 0x184D2A57
_MAGIC = b"pyprofSP"
_VERSION = 1
_MAX_NUMBER = (1 << 63) - 1
_MAX_REQUEST = 1 << 30

_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})\.otlp\.lz4")


class DamagedFile(PyprofError):
    """A file of the spool does not hold what was written."""


class Name(NamedTuple):
    """What a file's name says.

    Attributes:
        sequence: its place in the order of sending.
        samples: in its batch.
        size: bytes of the file.
        time: when its profile began, nanoseconds since 1970.
    """

    sequence: int
    samples: int
    size: int
    time: int

    def __str__(self) -> str:
        return f"{self.sequence:016x}-{self.samples}-{self.size}-{self.time}.otlp.lz4"

    @property
    def temporary(self) -> str:
        """The name while the file is being written."""
        return f".{self}.tmp"


def name_of(text: str) -> Name | None:
    """Reads a name; None where it is not one of the spool's."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    return Name(int(match[1], 16), int(match[2]), int(match[3]), int(match[4]))


def name_of_temporary(text: str) -> Name | None:
    """Reads the name of a file that was being written; None where it is no such name."""
    return name_of(text[1:-4]) if text.startswith(".") and text.endswith(".tmp") else None


def encode(batch: Batch, sequence: int) -> tuple[Name, bytes]:
    """A batch as name and content of a file.

    Args:
        batch: the batch.
        sequence: its place in the order, up to MAX_SEQUENCE.
    """
    import lz4.frame

    frame: bytes = lz4.frame.compress(batch.payload, content_checksum=True, store_size=True)
    samples, time = (min(max(number, 0), _MAX_NUMBER) for number in (batch.samples, batch.time))
    fixed = (_SKIPPABLE, _HEADER.size - 8, _MAGIC, _VERSION, zlib.crc32(frame), samples, time, len(frame))
    header = _HEADER.pack(*fixed, len(batch.payload), 0, 0)[:-4]
    content = b"".join((header, zlib.crc32(header).to_bytes(4, "little"), frame))
    return Name(sequence, samples, len(content), time), content


def decode(content: bytes, name: Name) -> Batch:
    """The batch in a file's content.

    Args:
        content: all of the file.
        name: the file's.

    Raises:
        DamagedFile: the content is not that which was written under this name.
    """
    import lz4.frame

    if len(content) < _HEADER.size or zlib.crc32(content[: _HEADER.size - 4]) != int.from_bytes(
        content[_HEADER.size - 4 : _HEADER.size], "little"
    ):
        raise DamagedFile("its header is damaged")
    fields = _HEADER.unpack_from(content)
    skippable, rest, magic, version, checksum, samples, time, size, request_size, _, _ = fields
    if (skippable, rest, magic, version) != (_SKIPPABLE, _HEADER.size - 8, _MAGIC, _VERSION):
        raise DamagedFile("its header is of another kind or version")
    if (samples, time, _HEADER.size + size) != (name.samples, name.time, name.size):
        raise DamagedFile("its header does not belong to its name")
    frame = memoryview(content)[_HEADER.size :]
    if len(frame) != size or zlib.crc32(frame) != checksum or request_size > _MAX_REQUEST:
        raise DamagedFile("its content is damaged")
    try:
        # Bounded, whatever the frame says of its size.
        unpacker = lz4.frame.LZ4FrameDecompressor()
        payload = unpacker.decompress(frame, max_length=request_size + 1)
    except (RuntimeError, EOFError) as error:
        raise DamagedFile(f"its content cannot be unpacked: {error}") from error
    if len(payload) != request_size or not unpacker.eof or unpacker.unused_data:
        raise DamagedFile("its content is not as long as it says")
    return Batch(payload, samples, time)
