"""Batch messages, made with the encoder and then wrong in one place or several, under a checksum that fits."""

from __future__ import annotations

import struct
from random import Random

from penstock.base.config import Compression
from penstock.batch import codec, layout
from penstock.batch.header import CRC_POSITION, HEADER_HEX_BYTES, HEADER_POSITION, PACKING
from penstock.hot.crc import crc32c_with_gap
from tests.batch_samples import Row, message_of

_SUBJECTS = (b"orders.x", b"orders.y", b"a.b", "größe.→".encode(), b"$JS.x", b"orders.*")
_KEYS = (None, b"", b"k", b"\x00\xff" * 8)
_VALUES = (None, b"", b"v", b"x" * 200, bytes(range(256)))
_BLOCKS = (
    None,
    None,
    b"",
    b"NATS/1.0\r\nA: 1\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: never\r\nNats-Rollup: sub\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: x\r\n\r\n",
    b"NATS/1.0\r\nPenstock-Tombstone: 1\r\n\r\n",
    b"\xff",
)
_EDGES = (0, 1, 2, 7, 8, 64, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def sealed(data: bytes) -> bytes:
    """Batch messages behind each other, each with the checksum that it needs, as far as they can be told."""
    out = bytearray(data)
    position = 0
    while position + codec.PREFIX_BYTES <= len(out):
        size = _size_at(out, position)
        end = min(position + size, len(out)) if size >= codec.PREFIX_BYTES else len(out)
        crc = crc32c_with_gap(bytes(out[position:end]), CRC_POSITION)
        out[position + CRC_POSITION : position + CRC_POSITION + 8] = b"%08x" % crc
        position = end
    return bytes(out)


def _size_at(data: bytearray, position: int) -> int:
    try:
        packed = bytes.fromhex(data[position + HEADER_POSITION : position + codec.PREFIX_BYTES].decode("ascii"))
        return int(PACKING.unpack(packed)[2])
    except (ValueError, struct.error):
        return 0


def made_rows(chance: Random, count_max: int = 12) -> list[Row]:
    """Rows of every kind; mostly on the subjects of one stream."""
    pick = chance.choice
    alike = chance.random() < 0.6
    return [
        Row(_SUBJECTS[0] if alike else pick(_SUBJECTS), pick(_KEYS), pick(_VALUES), None if alike else pick(_BLOCKS))
        for _ in range(1 + int(chance.random() * chance.random() * count_max))
    ]


def made_message(
    chance: Random, *, base_offset: int = 5, leader_epoch: int = 1, timestamp_us: int = 1_700_000_000_000_000
) -> bytes:
    """A sound one, compressed or not."""
    message = message_of(
        made_rows(chance), base_offset=base_offset, leader_epoch=leader_epoch, timestamp_us=timestamp_us
    )
    if chance.random() < 0.2:
        return bytes(codec.compressed(message, chance.choice((Compression.LZ4, Compression.ZSTD)))[0])
    return bytes(message)


def harmed(chance: Random, message: bytes) -> bytes:
    """The same with one to three numbers of its header, its metadata or its body changed; its checksum fits."""
    out = bytearray(message)
    for _ in range(1 + int(chance.random() * 3)):
        kind = int(chance.random() * 4)
        if kind == 0:
            _change_header(chance, out)
        elif kind == 1:
            places = layout.BUFFERS_POSITION + 8 * int(chance.random() * 32)
            layout.INT64.pack_into(out, min(places, len(out) - 8), chance.choice(_EDGES[:-2]))
        elif kind == 2:
            layout.INT64.pack_into(
                out, layout.NODES_POSITION + 8 * int(chance.random() * 12), chance.choice(_EDGES[:-2])
            )
        else:
            at = layout.BODY_POSITION + 4 * int(chance.random() * max(1, (len(out) - layout.BODY_POSITION) // 4))
            struct.pack_into(
                "<I", out, min(at, len(out) - 4), chance.choice((0, 1, 8, 2**31 - 1, 2**32 - 1, 0x80, 200))
            )
    return sealed(bytes(out))


def _change_header(chance: Random, out: bytearray) -> None:
    values = list(PACKING.unpack(bytes.fromhex(out[HEADER_POSITION : codec.PREFIX_BYTES].decode())))
    number = int(chance.random() * len(values))
    if isinstance(values[number], bytes):
        values[number] = chance.randbytes(16)
    else:
        values[number] = chance.choice((values[number] + 1, values[number] - 1, *_EDGES))
    try:
        packed = PACKING.pack(*values)
    except struct.error:
        return
    assert len(packed) * 2 == HEADER_HEX_BYTES
    out[HEADER_POSITION : codec.PREFIX_BYTES] = packed.hex().encode()


def made_messages(chance: Random, count_max: int = 4) -> bytes:
    """Some behind each other, contiguous in three of four cases, harmed in one of four."""
    out, offset = b"", 5
    for _ in range(1 + int(chance.random() * count_max)):
        message = made_message(chance, base_offset=offset if chance.random() < 0.95 else 77)
        offset = codec.read_header(message).end_offset
        out += harmed(chance, message) if chance.random() < 0.15 else message
    return out
