"""The metadata: commands, the bytes of an image, and the journal of brokers from before there was Raft."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.hot.crc import crc32c
from penstock.metadata.commands import Command, decode_command, encode_command
from penstock.metadata.image import BrokerState, StreamState
from penstock.metadata.persistence.journal import JOURNAL_PATH, MARK_PATH, read_journal
from penstock.metadata.persistence.snapshot import decode_brokers, decode_image, encode_image, image_digest
from tests.fuzz.disks import all_files, holding
from tests.fuzz.parts import joined, parted
from tests.fuzz.shapes import DEEP, as_msgpack, made_msgpack, maker_of
from tests.fuzz.target import Cover, Modules, Target
from tests.fuzz.targets_raft import _mark_bytes as mark_bytes

_NO_DIGITS = str.maketrans("", "", "0123456789")
_COMMANDS = tuple(maker_of(kind) for kind in Command.__args__)
_ENTRY = struct.Struct("<II")
_GOLDEN = Path(__file__).resolve().parents[1] / "compat" / "golden"
_IMAGES = tuple(path.read_bytes() for path in sorted(_GOLDEN.glob("image*.bin")))
_GOLDEN_COMMANDS = tuple(path.read_bytes() for path in sorted(_GOLDEN.glob("command-*.bin")))
_stream = maker_of(StreamState)
_broker = maker_of(BrokerState)


def _kind(error: Exception) -> str:
    return f"{type(error).__name__} {str(error)[:70]}".translate(_NO_DIGITS)


def command(modules: Modules, data: bytes) -> object:
    """A command that this version knows all of, or msgspec's error."""
    try:
        found = decode_command(data)
    except msgspec.DecodeError as error:
        return _kind(error)
    again = encode_command(found)
    assert encode_command(decode_command(again)) == again
    return type(found).__name__


def made_command(chance: Random) -> bytes:
    """A command of any kind, with all of its fields or some."""
    kind = chance.random()
    if kind < 0.2:
        return chance.choice(_GOLDEN_COMMANDS)
    if kind < 0.21:
        return as_msgpack({"type": "change_isr"})[:-1] + DEEP
    return made_msgpack(chance, _COMMANDS[int(chance.random() * len(_COMMANDS))])


def image(modules: Modules, data: bytes) -> object:
    """An image that breaks none of its rules, with the same bytes again; or a refusal."""
    try:
        decode_brokers(data)
    except RemoteError as error:
        assert error.code == ErrorCode.BAD_FRAME, error
    try:
        found = decode_image(data)
    except RemoteError as error:
        assert error.code in (ErrorCode.BAD_FRAME, ErrorCode.UNSUPPORTED_VERSION), error
        return _kind(error)
    again = encode_image(found)
    assert encode_image(decode_image(again)) == again
    assert len(image_digest(found)) == 32
    assert len(decode_brokers(again)) == len(found.brokers)
    return f"{len(found.streams)} {len(found.brokers)}"


def made_image(chance: Random) -> bytes:
    """One of those that are kept, with some fields of it anew; or one made of the types."""
    kind = chance.random()
    if kind < 0.05:
        return as_msgpack([chance.choice((1, 2, 3, 0, -1)), 5, "c", DEEP])[:-1] + DEEP
    fields: list[Any] = msgspec.msgpack.decode(chance.choice(_IMAGES))
    if kind < 0.3:
        rate = chance.choice((0.0, 0.1))
        fields[3:5] = [_broker(chance, rate)], [_stream(chance, rate)]
    else:
        for _ in range(int(chance.random() * 3)):
            _change(chance, fields)
    return as_msgpack(fields)


def _change(chance: Random, fields: list[Any]) -> None:
    """One place anywhere in it becomes what stands near it, or a number at a bound."""
    place: Any = fields
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = place[key]
        if isinstance(inner, list | dict) and inner and chance.random() < 0.9:
            place = inner
            continue
        kind = int(chance.random() * 5)
        if kind == 0:
            place[key] = place[chance.choice(keys)]
        elif kind == 1 and isinstance(inner, int) and not isinstance(inner, bool):
            place[key] = inner + chance.choice((-1, 1))
        elif kind == 2 and isinstance(place, list):
            del place[key]
        elif kind == 3 and isinstance(place, list):
            place.append(inner)
        else:
            place[key] = chance.choice((0, 1, 2, -1, 2**31, 2**32, 2**63 - 1, None, "", "x", [], [1], [1, 2], True))
        return


def journal(modules: Modules, data: bytes) -> object:
    """The journal, up to a torn tail; or damage. Nothing is written."""
    parts = [*parted(data), b"", b""]
    files = {JOURNAL_PATH: parts[0], **({MARK_PATH: parts[1]} if parts[1] else {})}
    vfs = holding(files)
    try:
        entries, note = read_journal(vfs)
    except (CorruptionError, RemoteError) as error:
        assert not isinstance(error, RemoteError) or error.code == ErrorCode.UNSUPPORTED_VERSION
        return _kind(error)
    finally:
        assert all_files(vfs) == files
    assert [entry.index for entry in entries] == list(range(1, len(entries) + 1))
    return f"{len(entries)} {note is None}"


def made_journal(chance: Random) -> bytes:
    """Entries behind each other, and a mark."""
    out = b"PNSJ" + struct.pack("<I", 1 if chance.random() < 0.95 else chance.choice((0, 2, 2**32 - 1)))
    count = int(chance.random() * 5)
    for index in range(1, count + 1):
        indexes = struct.pack("<QQ", index if chance.random() < 0.97 else 9, max(0, index - 1))
        content = indexes + made_command(chance)
        out += _ENTRY.pack(len(content), crc32c(content)) + content
    if chance.random() < 0.2:
        out = out[: int(chance.random() * len(out))]
    return joined((out, mark_bytes(chance.choice((0, count, count + 1))) if chance.random() < 0.6 else b""))


def sealed_journal(data: bytes) -> bytes:
    """Its entries, as far as they can be told, with right checksums."""
    parts = [*parted(data), b""]
    out = bytearray(parts[0])
    position = 8
    while position + _ENTRY.size <= len(out):
        (size,) = struct.unpack_from("<I", out, position)
        start = position + _ENTRY.size
        if start + size > len(out):
            break
        struct.pack_into("<I", out, position + 4, crc32c(bytes(out[start : start + size])))
        position = start + size
    return joined((bytes(out), *parts[1:-1]))


TARGETS: tuple[Target, ...] = (
    Target(
        "command", command, made_command, (Cover("penstock.metadata.commands", ("decode_command", "encode_command")),)
    ),
    Target(
        "image",
        image,
        made_image,
        (Cover("penstock.metadata.persistence.snapshot", (), {}),),
        memory_bytes=8 * 1024 * 1024,
    ),
    Target("journal", journal, made_journal, (Cover("penstock.metadata.persistence.journal"),), seal=sealed_journal),
)
