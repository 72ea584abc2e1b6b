"""The batch header: 96 bytes that route, verify and order a batch, as 192 hex digits inside the Arrow message.

Rules: fixed width, at a fixed position (byte 88 of the encapsulated message), ASCII, because Arrow's metadata strings
must be UTF-8. Numbers are big-endian, so that the hex reads as the number. Ranges are half-open. `FORMAT.md` has the
table.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from penstock.hot.rows import HeaderRequests

HEADER_VERSION = 1
HEADER_POSITION = 88
HEADER_HEX_BYTES = 192
CRC_POSITION = HEADER_POSITION + 16
"""Position of the CRC's 8 hex digits in the message."""
CRC_HEX_BYTES = 8

PREFIX_BYTES = HEADER_POSITION + HEADER_HEX_BYTES
"""Length of the part of a message that ends with its header."""

MAY_HOLD_IDS = 1
"""Flag: some rows may have a `Nats-Msg-Id`. Without it none has, or nothing has checked for them yet."""
COMPRESSED_LZ4 = 2
"""Flag: Arrow's body compression, LZ4 in frames."""
COMPRESSED_ZSTD = 4
"""Flag: Arrow's body compression, Zstandard."""
COMPRESSION_FLAGS = COMPRESSED_LZ4 | COMPRESSED_ZSTD
"""Both flags: not compressed, because the cleaner found that compression gains next to nothing."""
INCOMPRESSIBLE = COMPRESSION_FLAGS
MAY_EXPIRE = 0x08
"""Flag: some rows may have a `Nats-TTL`. Without it none has."""
MAY_ROLL_UP_SUBJECTS = 0x10
"""Flag: some rows may have a `Nats-Rollup` of `sub`. Without it none has."""
MAY_ROLL_UP_ALL = 0x20
"""Flag: some rows may have a `Nats-Rollup` of `all`. Without it none has."""
MAY_ROLL_UP = MAY_ROLL_UP_SUBJECTS | MAY_ROLL_UP_ALL
OF_RUN = 0x40
"""Flag: the batch is a piece of a run, which it names."""
ENDS_RUN = 0x80
"""Flag: the last piece of its run."""
RUN_FLAGS = OF_RUN | ENDS_RUN
OF_ROWS = MAY_HOLD_IDS | MAY_EXPIRE | MAY_ROLL_UP
"""Flags about some of the rows: a merged batch has those of all its sources."""
KNOWN_FLAGS = OF_ROWS | COMPRESSION_FLAGS | RUN_FLAGS
"""A batch with any other flag was written by a newer Penstock and is refused."""


def row_flags(*, ids: bool, ttls: bool, subject_rollups: bool, rollups: bool) -> int:
    """Return the flags of a batch whose rows may have ids, times to live, or rollups of a subject or of all."""
    of_rollups = (MAY_ROLL_UP_SUBJECTS if subject_rollups else 0) | (MAY_ROLL_UP_ALL if rollups else 0)
    return (MAY_HOLD_IDS if ids else 0) | (MAY_EXPIRE if ttls else 0) | of_rollups


def asked_flags(asked: HeaderRequests) -> int:
    """Return the same flags for what the rows ask for."""
    return row_flags(
        ids=bool(asked.ids), ttls=asked.has_ttls, subject_rollups=asked.has_rollups, rollups=asked.rollup_row >= 0
    )


NO_RUN = bytes(16)

PACKING = struct.Struct(">BHxIIIIQQqqQIQ16sQ")
assert PACKING.size * 2 == HEADER_HEX_BYTES


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """Fields of a batch header. Offsets are half-open; timestamps are microseconds since 1970 UTC.

    `end_offset` is not `base_offset + count` once compaction has made gaps.
    """

    version: int
    flags: int
    size_bytes: int  # of the whole encapsulated message, length prefix and padding included
    crc: int  # CRC-32C of those bytes with the 8 CRC digits taken as ASCII zeros
    count: int  # number of rows
    leader_epoch: int
    base_offset: int
    end_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    producer_id: int = 0
    producer_epoch: int = 0
    producer_sequence: int = 0
    # With a run id, the sequence above is the query's batch number, and the epoch is the piece's number.
    # Without the flag OF_RUN the rows are staged for that batch.
    run_id: bytes = NO_RUN
    run_plan: int = 0  # one more than the mark of the plan of its pieces; 0: no plan
