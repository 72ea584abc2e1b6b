"""The schema message: the first 568 bytes of every segment file, equal except for the stream id and partition.

Rules: the rest is compared byte by byte with a template, so a corrupt schema message is detected without a checksum.
The template is what Arrow C++ writes for `arrow_schema`; a test compares them. Every later format keeps the format
number and its name at this position, so that an older reader can report the version it met.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.base.errors import CorruptionError, ErrorCode, RemoteError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1

PARTITION_KEY = b"penstock.partition"
"""Key of the partition number in the metadata of a schema: 8 hexadecimal digits."""

_STREAM_ID_POSITION = 144
_STREAM_ID_DIGITS = 16
_PARTITION_POSITION = 92
_PARTITION_DIGITS = 8
_VERSION_POSITION = 212
_VERSION_NAME = b"penstock.format"
_VERSION_NAME_POSITION = 220

_TEMPLATE = bytes.fromhex(
    """
    ffffffff300200001000000000000a000e000600050008000a000000000104001000000000000a000c000000040008000a000000b8000000
    0400000003000000840000003c0000000400000090ffffff1800000004000000080000003030303030303030000000001200000070656e73
    746f636b2e706172746974696f6e0000c4ffffff200000000400000010000000303030303030303030303030303030300000000012000000
    70656e73746f636b2e73747265616d5f6964000008000c000400080008000000100000000400000001000000310000000f00000070656e73
    746f636b2e666f726d617400060000000c010000b4000000840000005c00000030000000040000001cffffff000001041000000018000000
    04000000000000000700000068656164657273008cffffff44ffffff00000104100000001800000004000000000000000500000076616c75
    65000000b4ffffff6cffffff0000010410000000140000000400000000000000030000006b657900d8ffffff90ffffff0000010510000000
    1c0000000400000000000000070000007375626a656374000400040004000000bcffffff0000010a10000000240000000400000000000000
    0900000074696d657374616d7000000008000c00060008000800000000000200040000000300000055544300100014000800060007000c00
    00001000100000000000010210000000200000000400000000000000060000006f6666736574000008000c00080007000800000000000001
    4000000000000000
    """
)
SCHEMA_BYTES = len(_TEMPLATE)
_HEX_DIGITS = b"0123456789abcdef"


def schema_message(stream_id: int, partition: int) -> bytes:
    """Return the encapsulated Arrow schema message of one partition, SCHEMA_BYTES long."""
    assert 0 <= stream_id < 2**63, stream_id
    assert 0 <= partition < 2**31, partition
    out = bytearray(_TEMPLATE)
    out[_STREAM_ID_POSITION : _STREAM_ID_POSITION + _STREAM_ID_DIGITS] = b"%016x" % stream_id
    out[_PARTITION_POSITION : _PARTITION_POSITION + _PARTITION_DIGITS] = b"%08x" % partition
    return bytes(out)


def check_schema_message(data: bytes | bytearray | memoryview, *, file: str = "") -> tuple[int, int]:
    """Return (stream id, partition) of the schema message at the start of `data`.

    CorruptionError if it is invalid; RemoteError (unsupported_version) if a newer Penstock wrote it.
    """
    head = bytes(data[:SCHEMA_BYTES])
    if len(head) < SCHEMA_BYTES:
        raise CorruptionError(file, 0, f"a schema message of {SCHEMA_BYTES} bytes", f"{len(head)} bytes")
    _check_version(head, file)
    stream_id = _hex_number(head, _STREAM_ID_POSITION, _STREAM_ID_DIGITS, file)
    partition = _hex_number(head, _PARTITION_POSITION, _PARTITION_DIGITS, file)
    expected = schema_message(stream_id, partition)
    if head != expected:
        position = next(i for i, (a, b) in enumerate(zip(head, expected, strict=True)) if a != b)
        raise CorruptionError(file, position, hex(expected[position]), hex(head[position]))
    return stream_id, partition


def _check_version(head: bytes, file: str) -> None:
    name_end = _VERSION_NAME_POSITION + len(_VERSION_NAME)
    if head[:4] != _TEMPLATE[:4] or head[_VERSION_NAME_POSITION:name_end] != _VERSION_NAME:
        return  # not a segment of any format: the comparison with the template reports the difference
    version = head[_VERSION_POSITION] - ord("0")
    if FORMAT_VERSION < version <= 9:
        raise RemoteError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{file or 'the segment'} has format {version}; this Penstock reads up to {FORMAT_VERSION}: upgrade it",
            format_version=version,
        )


def _hex_number(head: bytes, position: int, digits: int, file: str) -> int:
    text = head[position : position + digits]
    if text.strip(_HEX_DIGITS) or text[:1] > b"7":
        raise CorruptionError(file, position, f"{digits} lower-case hex digits from 0 to 7f…", repr(text))
    return int(text, 16)


@cache
def arrow_schema() -> pa.Schema:
    """Return the six columns as a pyarrow schema without the stream's metadata; all nullable, as Spark requires."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("offset", pa.int64()),
            pa.field("timestamp", pa.timestamp("us", "UTC")),
            pa.field("subject", pa.utf8()),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.binary()),
        ]
    )
