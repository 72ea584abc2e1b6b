"""Batches: what a client wants appended, and what it is sent when it fetches."""

from __future__ import annotations

import struct
from random import Random

import pyarrow as pa

from penstock.base.config import StreamConfig
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.partitioning import PartitionSplit, parse_split
from penstock.batch import codec, projecting
from penstock.client.read import batches
from penstock.client.read.batches import OffsetRange
from penstock.hot.crc import crc32c
from penstock.hot.keymap import key_map_of
from penstock.node.partition.log_queries import CheckAppend, OwnKeys, RowRules
from tests.batch_samples import rows_of
from tests.fuzz.messages_made import harmed, made_message, made_messages, sealed
from tests.fuzz.target import Cover, Modules, Target

_REFUSALS = frozenset({ErrorCode.CORRUPT_BATCH, ErrorCode.BAD_REQUEST, ErrorCode.TOO_LARGE, ErrorCode.KEY_ELSEWHERE})
_SPLIT: PartitionSplit = parse_split("key")
_CONFIG = StreamConfig(name="orders", subject="orders.>", partitions=3, partition_by="key")
_OWN = OwnKeys(1, _SPLIT, key_map_of(_CONFIG, ()))
_RULES = (
    RowRules(("orders.>", "prices"), 1_000_000, True, True),
    RowRules(("orders.>", "prices"), 250, False, False),
    RowRules((">",), 1_000_000, True, False),
    RowRules(("orders.>", "prices"), 1_000_000, True, True, _OWN),
)


def _kind(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:60]}".translate(_NO_DIGITS)


_NO_DIGITS = str.maketrans("", "", "0123456789")


def checked_append(modules: Modules, data: bytes) -> object:
    """A batch that a client built: refused with a reason, or in a message of our own that any Arrow reader can use."""
    if not data:
        return "empty"
    raw = data[1:]
    check = CheckAppend(raw, _RULES[data[0] % 4], is_staged=data[0] >= 128)
    try:
        check.run()
    except RemoteError as error:
        assert error.code in _REFUSALS, error
        return _kind(error)
    assert check.raw == b""
    before = codec.read_rows(raw)
    message = bytearray(check.message)
    header = codec.renumber(message, base_offset=41, timestamp_us=7, leader_epoch=3)
    assert codec.verify(message) == header
    assert (header.base_offset, header.end_offset, header.count) == (41, 41 + check.count, check.count)
    after = codec.check_rows(message)
    after.validate(full=True)
    assert rows_of(after) == [row._replace(key=row.key or None) for row in rows_of(before)]  # an empty key is none
    assert list(codec.offsets(message)) == list(range(41, 41 + check.count))
    return f"stored {check.asked is not None and check.asked.has_ttls}"


def made_append(chance: Random) -> bytes:
    """Which rules, and a batch."""
    message = made_message(chance, base_offset=0)
    if chance.random() < 0.5:
        message = harmed(chance, message)
    return bytes((int(chance.random() * 256),)) + message


_WANTED = struct.Struct("<qqqqH")


def fetched(modules: Modules, data: bytes) -> object:
    """The answer to a fetch: rows in the range that was asked for, each safe in any Arrow reader, or damage."""
    if len(data) < _WANTED.size:
        return "short"
    start, end, first, last, rows_max = _WANTED.unpack_from(data)
    raw = data[_WANTED.size :]
    covers, wanted = OffsetRange(start, end), OffsetRange(first, last)
    found: list[pa.RecordBatch] = []
    out = "whole"
    try:
        for batch in batches.batches_of(raw, covers, wanted, 1 + rows_max % 300, source="s"):
            batch.validate(full=True)
            assert batch.num_rows <= 1 + rows_max % 300
            found.append(batch)
    except CorruptionError as error:
        out = _kind(error)
    rows = 0
    for batch in found:
        for message in batches.messages_of(batches.of_partition(batch, 3)):
            assert message.partition == 3
            assert message.offset < max(wanted.end, wanted.start + 1) or batch.num_rows
            rows += 1
    for look in (lambda: batches.last_epoch(raw, source="s"), lambda: batches.one_message(raw, first, 0, source="s")):
        try:
            look()
        except CorruptionError:
            out += " none"
    return f"{out} {min(rows, 20)}"


def made_fetched(chance: Random) -> bytes:
    """What was asked for, and messages that cover it or nearly."""
    raw = made_messages(chance)
    end = 5
    try:
        position = 0
        while position < len(raw):
            header = codec.read_header(raw[position:])
            position, end = position + header.size_bytes, header.end_offset
    except CorruptionError:
        pass
    if chance.random() < 0.05:
        end += 1
    end = max(-(2**62), min(end, 2**62))
    first, last = 5 + int(chance.random() * 4), end - int(chance.random() * 3)
    if chance.random() < 0.1:
        first, last = chance.choice(((0, 2**63 - 1), (-(2**63), 2**63 - 1), (9, 3)))
    return _WANTED.pack(5, end, first, last, chance.choice((0, 1, 299))) + raw


_NAMES = ("offset", "timestamp", "subject", "key", "value", "headers")


def projection(modules: Modules, data: bytes) -> object:
    """Some columns as a broker takes them out of messages, and as a client opens them again."""
    if len(data) < 2:
        return "short"
    names = [name for bit, name in enumerate(_NAMES) if data[0] >> bit & 1] or ["offset"]
    subjects = None if data[1] & 1 else ["orders.>"]
    wanted = projecting.Projection(names, subjects)
    raw = memoryview(data)[2:]
    try:
        taken = wanted.of_messages(raw, 0, 5, (0, 2**62))
        if taken is None:
            header = codec.verify(raw)
            message = codec.uncompressed(raw[: header.size_bytes])
            rows = [wanted.of_message(message, (0, 2**62))]
        else:
            assert 0 < taken.end <= len(raw)
            rows = [taken.rows]
    except CorruptionError as error:
        return _kind(error)
    sent, crc = projecting.to_stream(rows, wanted.schema)
    if not sent:
        return "no row"
    again = list(projecting.from_stream(sent, crc, wanted.schema, source=""))
    assert pa.Table.from_batches(again).equals(pa.Table.from_batches(rows))
    for broken in (sent[:-9], sent + b"\0" * 8):
        try:
            list(projecting.from_stream(broken, crc32c(broken), wanted.schema, source=""))
        except CorruptionError:
            continue
    return f"{len(rows[0])}"


def made_projection(chance: Random) -> bytes:
    """Which columns, and messages."""
    return bytes((int(chance.random() * 64), int(chance.random() * 2))) + made_messages(chance)


TARGETS: tuple[Target, ...] = (
    Target(
        "checked_append",
        checked_append,
        made_append,
        (
            Cover(
                "penstock.node.partition.log_queries",
                ("CheckAppend", "RowRules", "OwnKeys.check"),
                {"RowRules.of": "of a config"},
            ),
            Cover(
                "penstock.batch.codec",
                ("read_header", "verify", "check_values", "own_copy", "renumber", "check_rows"),
            ),
        ),
        seal=lambda data: data[:1] + sealed(data[1:]),
        memory_bytes=4 * 1024 * 1024,
    ),
    Target(
        "fetched",
        fetched,
        made_fetched,
        (
            Cover("penstock.client.read.batches", (), {"check_format": "one comparison, in the unit tests"}),
            Cover("penstock.batch.joining"),
        ),
        seal=lambda data: data[: _WANTED.size] + sealed(data[_WANTED.size :]),
        memory_bytes=32 * 1024 * 1024,  # a compressed message may unpack to more
    ),
    Target(
        "projection",
        projection,
        made_projection,
        (Cover("penstock.batch.projecting", ("Projection", "to_stream", "from_stream")),),
        seal=lambda data: data[:2] + sealed(data[2:]),
        memory_bytes=32 * 1024 * 1024,
    ),
)
