"""The compiled modules of the hot path: each function feeds one input to some of them and says what came of it.

Rules: a target takes the modules that it is given, compiled or plain, so that both can be compared. What it returns is
plain data, the errors that may come included; any other exception is a finding. What was written must pass the checks.

| target     | an input is                                                                                     |
|------------|-------------------------------------------------------------------------------------------------|
| scan       | where the reads end, then NATS protocol                                                         |
| headers    | a NATS header block                                                                             |
| codes      | the same, as the headers of rows: whole, cut and null                                           |
| ingest     | the stream's rules, then NATS protocol: scanned, sorted, encoded, acked or refused              |
| enveloped  | the stream's rules, then an envelope (its checksum mended), alone and between others; as ingest |
| message    | whether to mend the checksum, then a batch message                                              |
| rows       | which message, then patches of its metadata and its body; checked, then its rows                |
| join       | the same for several messages behind each other, gathered and joined                            |
| envelope   | whether to mend the checksum, then an envelope                                                  |
| keyhash    | how many value offsets, these, then keys                                                        |
| compressed | the same as `rows` for compressed messages, from the compression on; unpacked, then its rows    |
| numbers    | how many offsets, these, then timestamps; the first and the last bound them, or nearly          |
| projected  | patches of an Arrow stream of some columns, under a checksum that fits; opened as a client does |
| gets       | what is kept of which subjects, then NATS protocol: its gets sorted, answered or refused        |
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout, projecting
from penstock.batch.header import CRC_POSITION
from penstock.hot.crc import crc32c, crc32c_with_gap
from tests.batch_samples import MIXED, Row, message_of
from tests.fuzz.target import Modules

_PATCH = struct.Struct("<HI")
_NAME = b"orders"
_BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"
_TAIL = b',"partition":0}'
_PATTERNS = (b"a.b", b">", b"*.b", b"orders.*", b"$JS.>")
_GETS = [b"$JS.x.API.DIRECT.GET.", b"$JS.API.DIRECT.GET."]
_COMMAND = re.compile(rb"(?:PUB .+?|HPUB .+? (\d+)) (\d+)\r\n", re.DOTALL)  # the scan lets a line feed pass


def scan(modules: Modules, data: bytes) -> object:
    """Frames out of reads that end anywhere."""
    frames, error = _frames(modules, data[1:], data[0] if data else 0)
    return [_seen(sink) for sink in frames], error


def _frames(modules: Modules, data: bytes, cut: int) -> tuple[list[Any], object]:
    """As a connection does it: what a scan leaves over is scanned again with what comes next."""
    module = modules("scan")
    found = []
    position = 0
    skip = 2 + cut % 11 if cut % 5 == 1 else 0  # the rest of a message that was too large
    if cut % 5 == 2:
        skip = -1 - cut % 3  # the rest of a line that is not understood
    for end in sorted({len(data) * cut // 256, len(data)}):
        sink = module.Frames(skip)
        found.append(sink)
        try:
            position = module.scan(bytearray(data), position, end, sink)
        except module.ProtocolError as error:
            return found, (str(error), error.position)
        assert 0 <= position <= end
        skip = sink.skip_bytes
    return found, position


def _seen(sink: Any) -> object:
    groups = {sid: (_rows(group), list(map(tuple, group.too_large))) for sid, group in sink.groups.items()}
    counted = sink.skipped, sink.skipped_line, sink.unanswerable
    return groups, sink.lines, sink.needed_bytes, sink.skip_bytes, counted


def _rows(group: Any) -> object:
    parts = (group.subject, group.reply, group.early, group.headers, group.value, group.key)
    return [[part(row) for part in parts] for row in range(len(group))]


def headers(modules: Modules, data: bytes) -> object:
    """What a header block says."""
    module = modules("headers")
    fields = module.HeaderFields()
    fields.read(data, 0, len(data))
    names = ("ack", "encoded_key", "id", "key", "last_id", "sequence", "stream", "tombstone")
    found = [(getattr(fields, name), getattr(fields, name + "_end")) for name in names]
    values = [data[begin:end] if begin >= 0 else None for begin, end in found]
    assert all(begin <= end <= len(data) for begin, end in found if begin >= 0)
    return values, fields.unsupported, module.unsupported(data)


def header_codes(modules: Modules, data: bytes) -> object:
    """What codes the headers of rows have: of the block, of its halves, and of none."""
    names = (b"Nats-Msg-Id", b"Penstock-Key", b"A")
    known: tuple[dict[bytes, int], ...] = ({b"1": 1}, {b"k": 8}, {b"1": 64, b"": 128})
    codes = modules("header_codes").HeaderCodes(names, known, lambda place, value: 2 * 8**place + len(value) % 2)
    middle = len(data) // 2
    ends = struct.pack("<4i", 0, middle, middle, len(data))
    valid = memoryview(bytes((0b101,)))
    found = [codes.read(each, memoryview(ends), memoryview(data), 0, 3) for each in (None, valid)]
    whole = codes.read(None, memoryview(struct.pack("<2i", 0, len(data))), memoryview(data), 0, 1)
    return bytes(whole), list(map(bytes, found))


def ingest(modules: Modules, data: bytes) -> object:
    """From the bytes of NATS to a batch message and its acks."""
    if len(data) < 2:
        return None
    out: list[object] = []
    flags = data[1]
    frames, error = _frames(modules, data[2:], data[0])
    for sink in frames:
        for sid, group in sink.groups.items():
            bytes_max = 40 if flags & 4 else limits.MESSAGE_BYTES_MAX
            out += (sid, *_sorted(modules, group, flags, bytes_max, data[0]))
    return out, error


def enveloped(modules: Modules, data: bytes) -> object:
    """From one payload to rows, records and acks."""
    flags = data[0] if data else 0
    text = bytearray(data[1:])
    if flags & 1 and len(text) >= 12:
        struct.pack_into(">I", text, 8, crc32c(bytes(text[12:])))
    out: list[object] = []
    for around in ((), (b"v", b"\xb9\x0e")):
        values = [*around, bytes(text), *around]
        headers = [_BLOCK if flags & 4 else None] * len(values)
        subjects, replies = [b"a.b"] * len(values), [b"r%d" % number for number in range(len(values))]
        group = modules("message_group").MessageGroup.of(subjects, values, headers=headers, replies=replies)
        bytes_max = 40 if flags & 2 else limits.MESSAGE_BYTES_MAX
        out += _sorted(modules, group, 1 | flags & 128, bytes_max, flags >> 3 | flags & 7)
    return out


def _sorted(modules: Modules, group: Any, flags: int, bytes_max: int, more: int) -> list[object]:
    """What becomes of one group. `more`: what the stream allows, and what is known of its log."""
    acks_envelopes = not flags & 128
    ids = modules("message_ids").MessageIds(2)
    lasts = modules("subject_table").SubjectTable(2, 41 if more & 1 else 0)
    elsewhere = modules("message_ids").RemoteMessageIds(9)
    elsewhere.gather(3, [(7, 1_000, b"41")])
    ids.know(elsewhere)
    known_ids = None if more & 24 == 8 else ids
    known_lasts = None if more & 24 == 16 else lasts
    tracks_ids, allows = more & 7 != 6, (bool(more & 2), bool(more & 4), more & 31 == 31)
    found = modules("classification").classify(
        group,
        _NAME,
        bool(flags & 1),
        bytes_max,
        bool(flags & 2),
        41,
        acks_envelopes,
        known_ids,
        tracks_ids,
        known_lasts,
        40,
        *allows,
        bytes(row % 3 for row in range(len(group))) if more & 9 == 9 else None,
        {b"a.b": (7, -1, -2)[flags % 3]} if more & 5 == 1 else None,
        more & 10 == 10,
    )
    if found.needs_ids or found.needs_lasts:
        return [found.needs_ids, found.needs_lasts, found.unknown]
    again = modules("acks").waiting_again(found.group, found.duplicates, 41, 43)
    enveloped = modules("acks").enveloped_again(found.duplicates, 41, 43)
    refused = [(one.row, one.verdict, one.number, one.is_answered, one.enveloped) for one in found.refused]
    flow_replies = None if found.flow_replies is None else bytes(found.flow_replies)
    out: list[object] = [refused, found.other_stream, found.reserved, found.controls, flow_replies, _rows(found.rows)]
    out += (len(ids), ids.forgotten, len(lasts), lasts.known_from, modules("acks").pubacks_again(_NAME, *again, _TAIL))
    out.append(modules("acks").enveloped_pubacks_again(enveloped, b"\n\1s", 1, b""))
    out.append(modules("refusals").answers(found.group, found.refused, _body_of, 3, b"\n\1s"))
    out.append(modules("refusals").answers(found.group, found.elsewhere, _body_of, 3, b"\n\1s"))
    replies = b"".join((group.reply(row) or b"") + b" " for row in range(len(group)))
    out.append(modules("refusals").answers_alike(replies, b"none"))
    closed = modules("classification").close(group, _NAME, bool(flags & 1), bool(flags & 2), acks_envelopes)
    out.append(modules("refusals").answers(closed.group, closed.refused, _body_of, 3, b"\n\1s"))
    return out + _batches(modules, modules("encode").Encoder(codec.LAYOUT), found.rows, flags >> 3 & 15)


def _body_of(verdict: int, quoted: bytes | None) -> bytes:
    return b"%d: \0 %b" % (verdict, quoted or b"")


def _batches(modules: Modules, encoder: Any, rows: Any, rows_max: int) -> list[object]:
    acks = modules("acks")
    out: list[object] = []
    start = 0
    while start < len(rows):
        end = rows.batch_end(start, rows_max or limits.BATCH_ROWS_MAX, limits.BATCH_ROWS_BYTES_MAX)
        assert start < end <= len(rows)
        message, fields = encoder.encode(rows, start, end, 41 + start, 1_700_000_000_000_000, 7, 0)
        checked = modules("message").MessageChecker(codec.LAYOUT).message(message)
        assert checked[: len(fields)] == fields
        looked_at = modules("rows").BatchRows(message, codec.LAYOUT)
        assert looked_at.mistake() is None
        out += (
            looked_at.asked(),
            looked_at.lifetimes_us(7, 3, 9),
            looked_at.rollups(),
            *map(bytes, looked_at.subjects()),
        )
        assert looked_at.refused_subject(b">") in (None, *(rows.subject(row) for row in range(start, end)))
        out.append(bytes(message))
        for is_early in (False, True):
            waiting = acks.waiting(rows, start, end, is_early)
            out += (waiting, acks.waiting_count(waiting), acks.pubacks(_NAME, waiting, 41 + start, _TAIL))
            enveloped = modules("envelope_acks").waiting(rows, start, end, is_early)
            liftbridge_acks = modules("envelope_acks").acks(enveloped, b"\n\1s", 41 + start, 1, b"X\7")
            assert liftbridge_acks.count(b"PUB ") >= modules("envelope_acks").waiting_count(enveloped)
            out.append(liftbridge_acks)
        start = end
    return out


def message(modules: Modules, data: bytes) -> object:
    """The checks of metadata and checksum."""
    body = bytearray(data[1:])
    if data[:1] > b"\x7f":
        _seal(body)
    checker = modules("message").MessageChecker(codec.LAYOUT)
    header, whole = checker.header(bytes(body)), checker.message(body)
    assert not isinstance(whole, tuple) or whole == header
    return header, whole


def _seal(message: bytearray) -> None:
    """Let the checksum fit what the message is now."""
    if len(message) > CRC_POSITION + 8:
        message[CRC_POSITION : CRC_POSITION + 8] = b"%08x" % crc32c_with_gap(bytes(message), CRC_POSITION)


_ASKING = (
    b"Nats-TTL: 1h30m\r\nNats-Msg-Id: x",
    b"Nats-TTL: 1s\r\nNats-Rollup: sub",
    b"Nats-TTL: never\r\nNats-Rollup: all",
    b"Nats-TTL: x\r\nNats-Rollup: x",
    b"Nats-Msg-Id: 1",
)
BASES = (
    bytes(message_of(MIXED, base_offset=5)),
    bytes(message_of([Row(b"a.b", None, b"x" * 20, None)] * 9, base_offset=5)),
    bytes(
        message_of([Row(b"a.%d" % n, b"k" * n, None if n % 3 else b"v", b"h" * n) for n in range(20)], base_offset=5)
    ),
    bytes(message_of([Row("größe.→".encode(), b"", b"", b"")] * 3, base_offset=5)),
    bytes(
        message_of([Row(b"a.b", b"k", b"v", b"NATS/1.0\r\n" + lines + b"\r\n\r\n") for lines in _ASKING], base_offset=5)
    ),
)
"""Sound messages, which begin at the same offset, so that one can stand in another's place."""


COMPRESSED_BASES = tuple(
    bytes(codec.compressed(message_of(rows * 40, base_offset=5), wished)[0])
    for rows in (MIXED, [Row(b"a.b", b"k", b"x" * 20, _BLOCK)])
    for wished in (Compression.LZ4, Compression.ZSTD)
)
"""The same, compressed."""


PROJECTED_SCHEMA = projecting.schema_of(["offset", "subject", "key"])
PROJECTED_BASES = tuple(
    projecting.to_stream([codec.check_rows(message_of(rows * times)).select(PROJECTED_SCHEMA.names)], PROJECTED_SCHEMA)[
        0
    ]
    for rows, times in ((MIXED, 1), (MIXED[:1], 5))
)
"""Streams of some columns."""


def patched(data: bytes, bases: Sequence[bytes] = BASES, begin: int = layout.ROWS_POSITION) -> bytearray:
    """One of `bases` with 4 bytes overwritten here and there, from `begin` on, under a checksum that fits."""
    base = bytearray(bases[data[0] % len(bases)] if data else bases[0])
    for place in range(1, len(data) - _PATCH.size + 1, _PATCH.size):
        position, number = _PATCH.unpack_from(data, place)
        at = begin + position % (len(base) - begin - 4)
        struct.pack_into("<I", base, at, number)
    _seal(base)
    return base


def rows(modules: Modules, data: bytes) -> object:
    """The look at rows that a stranger built."""
    whole = patched(data)
    checked = modules("message").MessageChecker(codec.LAYOUT).message(whole)
    if not isinstance(checked, tuple):
        return checked
    found = modules("rows").BatchRows(whole, codec.LAYOUT)
    mistake = found.mistake()
    if mistake is not None:
        return tuple(mistake)
    refused = [found.refused_subject(pattern) for pattern in _PATTERNS]
    asked = found.asked()
    more = (tuple(asked), bytes(found.lifetimes_us(1, 0, 0)), bytes(found.rollups()), *map(bytes, found.subjects()))
    assert bytes(modules("rows").copied(whole)) == bytes(whole)
    return (
        more,
        refused,
        [found.widest_message(0), found.widest_key(0), found.widest_headers(0), found.widest_key(2**62)],
    )


def compressed(modules: Modules, data: bytes) -> object:
    """A compressed message: never taken for a plain one, and unpacked to what its rows want or refused."""
    whole = patched(data, COMPRESSED_BASES, layout.COMPRESSION_FIELD_POSITION)
    checker = modules("message").MessageChecker(codec.LAYOUT)
    checked = checker.message(whole)
    if not isinstance(checked, tuple):
        return checked
    joiner = modules("join").Joiner(codec.LAYOUT, checker)
    assert not joiner.gather(memoryview(whole), 0, 5, (0, 2**62), 1_000, 1_000_000, 100_000).begins
    try:
        modules("rows").BatchRows(whole, codec.LAYOUT)
    except ValueError:
        pass
    else:
        raise AssertionError("rows are looked for in compressed bytes")
    try:
        found = codec.check_rows(whole)
    except CorruptionError:
        return "refused"  # of several reasons any one: buffers are unpacked at the same time
    found.validate(full=True)
    return checked, bytes(codec.uncompressed(whole))


def join(modules: Modules, data: bytes) -> object:
    """Several messages, joined as far as they are sound."""
    parts = [patched(part) for part in data[:400].split(b"|")]
    raw = memoryview(b"".join(parts))
    checker = modules("message").MessageChecker(codec.LAYOUT)
    joiner = modules("join").Joiner(codec.LAYOUT, checker)
    out: list[object] = [joiner.last(raw)]
    position = 0
    for _ in parts:
        gathered = joiner.gather(raw, position, 5, (0, 2**62), 1_000, 1_000_000, 100_000)
        out.append(tuple(gathered))
        if gathered.begins:
            joined = joiner.join(raw, gathered)
            out.append(joined if isinstance(joined, int) else _columns(joined))
            for number in range(6):
                _check_same(joiner.join_some(raw, gathered, (number,)), joined, number)
        position = gathered.end + (gathered.end == position)
    return out


def _check_same(some: Any, joined: Any, number: int) -> None:
    """One column by itself is what it is among all, unless one of all is wrong."""
    if isinstance(joined, int):
        return
    assert some == [(joined.offsets, joined.timestamps, *joined.columns)[number]]


def _columns(joined: Any) -> object:
    columns = [(column.null_count, *map(bytes, column[1:])) for column in joined.columns]
    return bytes(joined.offsets), bytes(joined.timestamps), columns


def envelope(modules: Modules, data: bytes) -> object:
    """The optional envelope."""
    text = bytearray(data[1:])
    if data[:1] > b"\x7f" and len(text) >= 12:
        struct.pack_into(">I", text, 8, crc32c(bytes(text[12:])))
    found = modules("envelope").parse(bytes(text), 0, len(text))
    if found is None:
        return None
    names = ("key", "value", "stream", "subject", "reply", "ack_inbox", "correlation_id")
    places = [(getattr(found, name), getattr(found, name + "_end")) for name in names]
    assert all(begin == end == -1 or 0 <= begin <= end <= len(text) for begin, end in places)
    assert all(0 <= place <= len(text) for place in found.headers)
    return places, list(found.headers), found.offset, found.timestamp, found.partition, found.ack_policy


def keyhash(modules: Modules, data: bytes) -> object:
    """A column of keys."""
    count = data[0] % 16 if data else 0
    ends, keys = data[1 : 1 + 4 * count], data[1 + 4 * count :]
    module = modules("keyhash")
    try:
        column = bytes(modules("keymap").KeyMap((3, 16)).partitions_of(keys, ends))
    except ValueError as error:
        column = str(error).encode()
    return column, module.xxh64(keys), module.partition_of(keys, 1 + count)


def numbers(modules: Modules, data: bytes) -> object:
    """The offsets and timestamps of a batch, beside what its header says."""
    end = 1 + 8 * (data[0] % 16) if data else 0
    columns = memoryview(data[1:end]), memoryview(data[end:])
    mistake = modules("numbers").number_mistake
    found = []
    for slack in (0, 1, -1):
        bounds = [_int64(column, at, way * slack) for column in columns for at, way in ((0, -1), (-8, 1))]
        try:
            found.append(mistake(*columns, *bounds))
        except IndexError:
            found.append("IndexError")
    return found


def _int64(column: memoryview, at: int, more: int) -> int:
    number = int.from_bytes(column[at : at + 8 or None], "little", signed=True) + more
    return max(-(2**63), min(number, 2**63 - 1))


def projected(modules: Modules, data: bytes) -> object:
    """What a broker sends of some columns: batches that any Arrow reader can use, or damage."""
    base = bytearray(PROJECTED_BASES[data[0] % len(PROJECTED_BASES)] if data else PROJECTED_BASES[0])
    for place in range(1, len(data) - _PATCH.size + 1, _PATCH.size):
        position, number = _PATCH.unpack_from(data, place)
        struct.pack_into("<I", base, position % (len(base) - 4), number)
    raw = bytes(base)
    found = []
    try:
        for batch in projecting.from_stream(raw, modules("crc").crc32c(raw), PROJECTED_SCHEMA, source=""):
            batch.validate(full=True)
            found.append(batch.to_pylist())
            projecting.check_offsets(batch.column(0), (0, 2**62), source="")
    except CorruptionError as error:
        found.append(type(error).__name__)
    return found


def gets(modules: Modules, data: bytes) -> object:
    """Each get is answered out of what is kept, or left to be looked up; nothing else is taken for a get."""
    cut, knows, bounds = (*data[:3], 0, 0, 0)[:3]
    frames, error = _frames(modules, data[3:], cut)
    kept_rows = modules("kept_rows")
    out: list[object] = [error]
    for sink in frames:
        for group in sink.groups.values():
            begin, end = bounds % 3, len(group) - bounds // 3 % 3
            try:
                found, others = kept_rows.sort_gets(group, begin, end, _GETS)
                texts = [b"$JS."], _GETS, b"NATS/1.0 503 x\r\n\r\n", b"{}", b"Probe"
                refused, left = kept_rows.refuse_rows(group, begin, end, *texts)
            except IndexError as mistake:
                out.append(str(mistake))
                continue
            taken = [one.row(number) for one in found.values() for number in range(one.count)]
            assert sorted((*taken, *others)) == list(range(begin, end))
            taken_by = [row for row in left if group.subject(row).startswith(b"$JS.") and group.reply(row) is not None]
            assert all(b"Probe" in (group.headers(row) or b"") for row in taken_by)
            assert _commands_in(refused) == end - begin - len(left)
            out += (others, refused, left, *(_answered(modules, group, one, knows) for one in found.values()))
    return out


def _answered(modules: Modules, group: Any, gets: Any, knows: int) -> object:
    """Answers to the gets of one stream. `knows`: what is kept, what is in the table, and how large answers may be."""
    kept_rows = modules("kept_rows")
    asked = [gets.subject(group, number) for number in range(gets.count)]
    assert all(asked)
    subjects = sorted(set(asked))
    first = knows % 5
    table = modules("subject_table").SubjectTable(2 * len(subjects), first)
    noted = subjects[knows % 2 :: 1 + knows // 2 % 2]
    table.note(modules("message_group").MessageGroup.of(noted, [b""] * len(noted)), 0, len(noted), first)
    table.written()
    me, other = object(), object()
    kept = {}
    for number, subject in enumerate(subjects):
        kind = (number + knows) % 6
        if kind == 5:
            continue
        offset = -1 if kind == 4 else first + noted.index(subject) if subject in noted else max(first - 1, 0)
        end = first + (kind != 3) * len(noted)
        kept[subject] = row = kept_rows.KeptRow("p", other if kind == 2 else me, subject, end)
        if offset >= 0:
            headers = (None, b"", _BLOCK)[number % 3]
            row.put(offset, 1_700_000_000_000_000 + number, None, b"v" * number, headers)
    payload_max = (40, 150, 1 << 20)[knows % 3]
    shown_end = first + len(noted) - knows // 8 % 3
    pieces, others = kept_rows.answer_kept(gets, group, kept, table, me, knows // 4 % 2, shown_end, payload_max)
    assert _commands_in(b"".join(pieces)) == gets.count - len(others)
    assert all(map(_commands_in, pieces))
    left = gets.only(others)
    assert [left.subject(group, number) for number in range(left.count)] == [asked[number] for number in others]
    return gets.stream, asked, pieces, others, [kept[subject].is_used for subject in subjects if subject in kept]


def _commands_in(commands: bytes) -> int:
    """Return how many whole commands these are."""
    count = position = 0
    while position < len(commands):
        found = _COMMAND.match(commands, position)
        assert found is not None, commands[position : position + 200]
        position = found.end() + int(found[2]) + 2
        assert commands[position - 2 : position] == b"\r\n"
        assert int(found[1] or 0) <= int(found[2])
        count += 1
    return count
