"""Raft: messages of other voters, and the files of its storage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.raft import RaftMembership, RaftStorage, Snapshot
from penstock.raft.disk_state import stored_entries, stored_snapshot
from penstock.raft.membership import encode_membership
from penstock.raft.messages import Message
from penstock.raft.records import decode_record, read_contents, read_records
from penstock.raft.snapshot_file import decode_snapshot, encode_snapshot
from penstock.raft.terms import next_term
from penstock.raft.values import NUMBER_MAX
from penstock.raft.wire import contradiction, decode_message, encode_message, is_believable
from penstock.vfs.synced_mark import SyncedMark
from tests.fuzz.disks import all_files, holding
from tests.fuzz.parts import joined, parted
from tests.fuzz.shapes import DEEP, made_msgpack, maker_of
from tests.fuzz.target import Cover, Modules, Target

_MESSAGES = tuple(maker_of(kind) for kind in Message.__args__)
_membership = maker_of(RaftMembership)
_NO_DIGITS = str.maketrans("", "", "0123456789")
_RECORD = struct.Struct("<II")
_EDGES = (0, 1, 2, 3, 4, 2**31, 2**62, 2**63, 2**64 - 1)


def _kind(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:70]}".translate(_NO_DIGITS)


def raft_message(modules: Modules, data: bytes) -> object:
    """A message within its bounds, of which it can be told whether it contradicts itself; or bad_frame."""
    try:
        message = decode_message(data)
    except RemoteError as error:
        assert error.code == ErrorCode.BAD_FRAME, error
        return _kind(error)
    assert decode_message(encode_message(message)) == message
    flaw = contradiction(message)
    for term in (0, 1, message.term, 2**62):
        assert not (is_believable(message, message.to, term) and flaw)
        assert not is_believable(message, message.to + 1, term)
    return f"{type(message).__name__} {flaw}".translate(_NO_DIGITS)


def made_raft_message(chance: Random) -> bytes:
    """A message of any kind, as brokers send it or nearly."""
    kind = chance.random()
    if kind < 0.3:
        return _believable(chance)
    if kind < 0.305:
        return b"\x9d\x01" + DEEP
    return made_msgpack(chance, _MESSAGES[int(chance.random() * len(_MESSAGES))])


def _believable(chance: Random) -> bytes:
    """An append or a chunk whose numbers fit each other."""
    term = (
        next_term(chance.choice((0, 1, 2**33)), BrokerId(1), 7) if chance.random() < 0.9 else chance.choice(_EDGES[1:7])
    )
    membership = [[1, 2, 3], []] if chance.random() < 0.7 else _membership(chance, 0.1)
    if chance.random() < 0.3:
        data = b"d" * int(chance.random() * 9)
        size = len(data) + chance.choice((0, 0, 1, 2**30))
        position, last = chance.choice((0, 0, 1)), chance.choice((1, 1, 1, term, term + 1))
        fields = [7, 1, 2, term, 9, last, membership, size, crc32c(data), position, data]
    elif chance.random() < 0.2:
        fields = [
            chance.choice((1, 5, 11)),
            1,
            chance.choice((1, 2, 2)),
            term,
            9,
            chance.choice((1, 1, term, 2**62)),
            False,
        ]
    else:
        index = int(chance.random() * 5)
        entries: list[Any] = []
        for _ in range(int(chance.random() * 4)):
            index += 1 if chance.random() < 0.97 else 2
            content = b"c" if chance.random() < 0.7 else msgspec.msgpack.encode(membership)
            entries.append([max(1, term - (chance.random() < 0.1)), index, 1 if content == b"c" else 2, content])
        if entries and chance.random() < 0.05:
            entries[-1][3] = bytes(chance.choice((limits.RAFT_ENTRY_BYTES_MAX + 1, limits.RAFT_APPEND_BYTES_MAX)))
        before = chance.choice((0, 0, 1, term + 1))
        fields = [3, 1, 2, term, index - len(entries), before, 0, entries]
    return msgspec.msgpack.encode(fields)


def _record(number: int, synced: int, kind: int, body: bytes) -> bytes:
    content = struct.pack("<QQB", number, synced, kind) + body
    return _RECORD.pack(len(content), crc32c(content)) + content


def made_log(chance: Random) -> bytes:
    """The file of a log: a base, entries, hard states; one number of it may be wrong."""
    pick, edge = chance.choice, lambda sound: sound if chance.random() < 0.97 else chance.choice(_EDGES)
    base = pick((0, 0, 0, 3))
    out = b"PNRL" + struct.pack("<I", edge(1) % 2**32)
    out += _record(edge(1), edge(0), edge(1) % 256, struct.pack("<QQB", edge(base), edge(min(base, 1)), edge(0) % 256))
    number, index = 1, base
    for _ in range(int(chance.random() * 6)):
        number += 1
        if chance.random() < 0.7:
            index = index + 1 if chance.random() < 0.8 else max(base + 1, index - 1)
            data = (
                b"c" * int(chance.random() * 20) if chance.random() < 0.8 else encode_membership(RaftMembership((1, 2)))
            )
            body = struct.pack("<QQB", edge(index), edge(1), edge(1 if data[:1] == b"c" else 2) % 256) + data
            out += _record(edge(number), edge(number - 1), edge(2) % 256, body)
        else:
            out += _record(edge(number), edge(number - 1), 3, struct.pack("<QQQ", edge(1), edge(1), edge(base)))
    return out[: int(chance.random() * len(out))] if chance.random() < 0.1 else out


def sealed_log(data: bytes) -> bytes:
    """Its records, as far as they can be told, with right checksums."""
    out = bytearray(data)
    position = 8
    while position + _RECORD.size <= len(out):
        (size,) = struct.unpack_from("<I", out, position)
        start = position + _RECORD.size
        if start + size > len(out):
            break
        struct.pack_into("<I", out, position + 4, crc32c(bytes(out[start : start + size])))
        position = start + size
    return bytes(out)


def _mark_bytes(index: int) -> bytes:
    content = struct.pack("<Q", index % 2**64)
    return struct.pack("<4sI8s", b"PNSM", crc32c(content), content)


def raft_records(modules: Modules, data: bytes) -> object:
    """What a log's records add up to: a prefix of them, up to a torn tail, or damage."""
    try:
        records = list(read_records(data, "log"))
    except (CorruptionError, RemoteError) as error:
        assert not isinstance(error, RemoteError) or error.code == ErrorCode.UNSUPPORTED_VERSION
        return _kind(error)
    out = f"{len(records)}"
    for mark in (0, records[-1].number):
        try:
            contents = read_contents(data, "log", mark)
        except (CorruptionError, RemoteError) as error:
            return f"{out} {_kind(error)}"
        assert contents.end_position == records[-1].end_position <= len(data)
        # What lies behind the end says nothing: without it the same comes out.
        assert read_contents(data[: contents.end_position], "log", mark) == contents
        for record in records:
            decode_record(record, "log")
        assert contents.behind(contents.base_index) == tuple(contents.entries)
        assert contents.term_at(contents.base_index) == contents.base_term
        assert contents.term_at(contents.base_index + len(contents.entries) + 1) is None
    return f"{out} {len(contents.entries)} {contents.end_position == len(data)}"


_PATHS = ("raft/log", "raft/snapshot", "raft/synced")


def raft_storage(modules: Modules, data: bytes) -> object:
    """A start on any files: refused with nothing touched, or a state that the next start finds again."""
    flags, *parts = parted(data) or [b""]
    files = {path: part for path, part in zip(_PATHS, parts, strict=False) if part}
    vfs = holding(files)
    bootstrap = Snapshot(0, 0, RaftMembership((1,)), b"") if flags[:1] == b"\1" else None
    try:
        stored_snapshot(vfs)
        list(stored_entries(vfs))
    except (CorruptionError, RemoteError):
        pass
    try:
        storage = RaftStorage.open(vfs, bootstrap)
    except (CorruptionError, RemoteError) as error:
        assert not isinstance(error, RemoteError) or error.code == ErrorCode.UNSUPPORTED_VERSION
        left = all_files(vfs)
        assert {path: left.get(path) for path in files} == files, "a file was changed of a storage that was refused"
        return _kind(error)
    state = storage.state
    storage.close()
    if storage._contents.last_number > NUMBER_MAX - 10:
        return "late"  # the next record has a number that none can have; a billion starts a second do not come there
    again = RaftStorage.open(vfs, bootstrap)
    assert again.state == state, (again.state, state)
    assert not again.notices
    again.close()
    return f"{len(state.entries)} {state.snapshot.index > 0} {len(storage.notices)}"


def made_storage(chance: Random) -> bytes:
    """A log, a snapshot and a mark that belong together, or nearly."""
    log = made_log(chance) if chance.random() < 0.95 else b""
    snapshot = made_snapshot(chance) if chance.random() < 0.5 else b""
    mark = _mark_bytes(chance.choice((0, 1, 2, 3, 9))) + bytes(496) + _mark_bytes(chance.choice((0, 1, 2, 2**64 - 1)))
    return joined((chance.choice((b"\0", b"\1")), log, snapshot, mark if chance.random() < 0.5 else b""))


def sealed_storage(data: bytes) -> bytes:
    """Its log and its snapshot with right checksums."""
    parts = parted(data)
    seals: tuple[Callable[[bytes], bytes], ...] = (bytes, sealed_log, sealed_snapshot)
    return joined([*(seal(part) for seal, part in zip(seals, parts, strict=False)), *parts[3:]])


def raft_snapshot(modules: Modules, data: bytes) -> object:
    """The snapshot's file: the snapshot, or damage."""
    try:
        snapshot = decode_snapshot(data, "snapshot")
    except (CorruptionError, RemoteError) as error:
        assert not isinstance(error, RemoteError) or error.code == ErrorCode.UNSUPPORTED_VERSION
        return _kind(error)
    assert decode_snapshot(b"".join(encode_snapshot(snapshot)), "again") == snapshot
    return f"{len(snapshot.membership.voters)} {bool(snapshot.data)}"


def made_snapshot(chance: Random) -> bytes:
    """One, sound or with a membership that cannot be."""
    index = chance.choice((0, 1, 3, 3, 2**62))
    membership = RaftMembership((1, 2, 3), (4,)) if chance.random() < 0.5 else RaftMembership((1,))
    head, data = encode_snapshot(Snapshot(index, min(index, 1), membership, b"image" * int(chance.random() * 3)))
    if chance.random() < 0.3:
        packed = made_msgpack(chance, _membership) if chance.random() < 0.9 else b"\x93\x91\x01\x90" + DEEP
        size = len(packed) if chance.random() < 0.9 else chance.choice((0, 2**31, 2**32 - 1))
        head = head[:12] + struct.pack("<QQI", index, 1, size) + packed
    return sealed_snapshot(head + data)


def sealed_snapshot(data: bytes) -> bytes:
    """With the checksum of what follows it."""
    return data[:8] + struct.pack("<I", crc32c(data[12:])) + data[12:] if len(data) >= 12 else data


def mark(modules: Modules, data: bytes) -> object:
    """The mark of any bytes: an index, which moves on."""
    vfs = holding({"m/mark": data} if data else {"m/other": b""})
    found = SyncedMark(vfs, "m/mark")
    index = found.index
    assert 0 <= index < 2**64
    found.move(index)  # it never goes back, and says nothing twice
    if index < 2**64 - 1:
        found.move(index + 1)
        again = SyncedMark(vfs, "m/mark")
        assert again.index == index + 1
        again.close()
    found.close()
    return f"{index > 0} {index > 2**63}"


def made_mark(chance: Random) -> bytes:
    """Two slots, or fewer."""
    slots = _mark_bytes(chance.choice(_EDGES)) + bytes(496) + _mark_bytes(chance.choice(_EDGES))
    return slots if chance.random() < 0.9 else slots[: int(chance.random() * len(slots)) * (chance.random() < 0.7)]


TARGETS: tuple[Target, ...] = (
    Target(
        "raft_message",
        raft_message,
        made_raft_message,
        (
            Cover("penstock.raft.wire"),
            Cover("penstock.raft.membership", ("decode_membership", "flaw_in")),
        ),
    ),
    Target(
        "raft_records",
        raft_records,
        made_log,
        (
            Cover(
                "penstock.raft.records",
                (
                    "LogContents",
                    "check_head",
                    "read_contents",
                    "read_records",
                    "_content",
                    "_synced_behind",
                    "decode_record",
                    "_take",
                ),
            ),
        ),
        seal=sealed_log,
    ),
    Target(
        "raft_snapshot",
        raft_snapshot,
        made_snapshot,
        (Cover("penstock.raft.snapshot_file"),),
        seal=sealed_snapshot,
    ),
    Target(
        "raft_storage",
        raft_storage,
        made_storage,
        (
            Cover(
                "penstock.raft.storage",
                ("RaftStorage.open", "RaftStorage._begin", "RaftStorage._cut", "RaftStorage._keep_aside"),
            ),
            Cover("penstock.raft.disk_state"),
            Cover("penstock.raft.tasks", ("checked_state",)),
        ),
        seal=sealed_storage,
        is_slow=True,
    ),
    Target("mark", mark, made_mark, (Cover("penstock.vfs.synced_mark", ("SyncedMark", "_index_in")),)),
)
