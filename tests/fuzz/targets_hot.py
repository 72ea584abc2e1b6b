"""The compiled modules of the hot path, which plain Python must agree with."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from penstock.hot.crc import crc32c
from tests.fuzz import hot_runs
from tests.fuzz.appends import appends, made_steps
from tests.fuzz.nats_made import made_block, made_protocol
from tests.fuzz.seeds import PIECES, SEEDS
from tests.fuzz.target import Cover, Target

_PLAIN_NEVER = "it stands for what only compiled code has"


def _seeded(name: str, made: Callable[[Random], bytes]) -> Callable[[Random], bytes]:
    """One of the seeds, or one that is made."""
    seeds = SEEDS[name]
    return lambda chance: seeds[int(chance.random() * len(seeds))] if chance.random() < 0.3 else made(chance)


def _patches(count: int) -> Callable[[Random], bytes]:
    """Which message, and where 4 bytes of it are others: at the fields of its metadata, or anywhere."""
    numbers = (0, 1, 7, 8, 9, 64, 2**24, 2**31 - 1, 2**31, 2**32 - 1)

    def make(chance: Random) -> bytes:
        out = bytes((int(chance.random() * count),))
        for _ in range(int(chance.random() * 4)):
            place = 4 * int(chance.random() * 160) if chance.random() < 0.7 else int(chance.random() * 4_000)
            number = (
                numbers[int(chance.random() * len(numbers))] if chance.random() < 0.6 else int(chance.random() * 99)
            )
            out += struct.pack("<HI", place, number)
        return out

    return make


def _messages(chance: Random) -> bytes:
    base = bytes(hot_runs.BASES[int(chance.random() * len(hot_runs.BASES))])
    return (b"\x00" if chance.random() < 0.3 else b"\xff") + base


def _joined(chance: Random) -> bytes:
    return b"|".join(_patches(4)(chance) for _ in range(1 + int(chance.random() * 4)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(chance: Random, number: int) -> bytes:
    """A field of protobuf, of the type that it has or of another one."""
    kind = chance.choice((0, 2, 2, 2, 1, 5, 3, 7))
    head = _varint(number << 3 | kind)
    if kind == 0:
        return head + _varint(chance.choice((0, 1, 2, 3, 41, 2**31, 2**63 - 1, 2**64 - 1)))
    if kind == 2:
        content = chance.choice((b"", b"a.b", b"_INBOX.x.1", b"key", b"$x", b"\xff\xfe", b"a b", b"x" * 40))
        if number == 9:
            content = b"\x0a" + _varint(len(content)) + content + b"\x12\x01v"
        size = len(content) if chance.random() < 0.95 else chance.choice((0, 127, 2**31, 2**63))
        return head + _varint(size) + content
    return head + bytes(8 if kind == 1 else 4)


def made_envelope(chance: Random) -> bytes:
    """A cookie, a head, and fields."""
    body = b"".join(_field(chance, int(chance.random() * 16)) for _ in range(int(chance.random() * 6)))
    if chance.random() < 0.5:
        return bytes.fromhex("b90e43b400080000") + body
    crc = crc32c(body) if chance.random() < 0.9 else 0
    return bytes.fromhex("b90e43b4000c0100") + struct.pack(">I", crc) + body


def _flagged(made: Callable[[Random], bytes], *flags: int) -> Callable[[Random], bytes]:
    return lambda chance: bytes(flags[int(chance.random() * len(flags))] for _ in (0,)) + made(chance)


def _ingested(chance: Random) -> bytes:
    return bytes((int(chance.random() * 256), chance.choice((0, 1, 3, 5, 0x19, 0x80, 0x85)))) + made_protocol(
        chance, made_envelope
    )


def _keys(chance: Random) -> bytes:
    keys = [b"k" * int(chance.random() * 40) for _ in range(int(chance.random() * 15))]
    ends, end = [0], 0
    for key in keys:
        end += len(key)
        ends.append(end if chance.random() < 0.97 else chance.choice((-1, 2**31 - 1, 0)))
    return bytes((len(ends),)) + struct.pack(f"<{len(ends)}i", *ends) + b"".join(keys)


def _numbers(chance: Random) -> bytes:
    count = int(chance.random() * 15)
    offsets = sorted(int(chance.random() * 2**40) for _ in range(count))
    times = sorted(int(chance.random() * 2**50) - 2**49 for _ in range(count))
    return bytes((count,)) + struct.pack(f"<{2 * count}q", *offsets, *times)


def _scanned(chance: Random) -> bytes:
    return bytes((int(chance.random() * 256),)) + made_protocol(chance, made_envelope)


def _gets(chance: Random) -> bytes:
    out = [bytes(int(chance.random() * 256) if chance.random() < 0.5 else 0 for _ in range(3))]
    for _ in range(1 + int(chance.random() * 12)):
        subject = chance.choice((b"$JS.API.DIRECT.GET.", b"$JS.x.API.DIRECT.GET.", b"$JS.API.STREAM.INFO.", b"$JS."))
        subject += chance.choice((b"s", b"s", b"orders", b"", b".")) + chance.choice((b"", b".", b".a", b".b.c", b".d"))
        name = chance.choice((b"a", b"b.c", b"d", b"", b"a b", b"\\u0061", b'"', b"\x01", "größe".encode()))
        body = chance.choice((b"", b"", b'{"last_by_subj":"%b"}', b'{"last_by_subj": "%b"}', b'{"seq":1}%b'))
        body = body.replace(b"%b", name)
        body = body[: int(chance.random() * len(body))] if chance.random() < 0.1 else body
        reply = b"" if chance.random() < 0.1 else b" _INBOX.%d" % int(chance.random() * 999)
        if chance.random() < 0.1:
            body = b"NATS/1.0\r\n\r\n" + body
            out.append(b"HMSG %b 1%b 12 %d\r\n%b\r\n" % (subject, reply, len(body), body))
        else:
            out.append(b"MSG %b 1%b %d\r\n%b\r\n" % (subject, reply, len(body), body))
    return b"".join(out)


def _hot(module: str, *names: str, **but: str) -> Cover:
    return Cover(f"penstock.hot.{module}", names, {name.replace("__", "."): text for name, text in but.items()})


def _target(
    name: str, run: Callable[..., object], make: Callable[[Random], bytes], *covers: Cover, is_slow: bool = False
) -> Target:
    # What a batch or a pool of keys takes is bounded by the seeds, not by the patches in an input.
    memory_bytes = 256 * 1024 * 1024 if is_slow else 16 * 1024 * 1024
    pieces = PIECES
    return Target(
        name, run, _seeded(name, make), covers, pieces=pieces, compares=True, memory_bytes=memory_bytes, is_slow=is_slow
    )


TARGETS: tuple[Target, ...] = (
    _target("scan", hot_runs.scan, _scanned, _hot("scan")),
    _target("headers", hot_runs.headers, made_block, _hot("headers")),
    _target("codes", hot_runs.header_codes, made_block, _hot("header_codes")),
    _target("ingest", hot_runs.ingest, _ingested, _hot("classification"), _hot("refusals")),
    _target("enveloped", hot_runs.enveloped, _flagged(made_envelope, *range(256)), _hot("unwrap")),
    _target("message", hot_runs.message, _messages, _hot("message")),
    _target("rows", hot_runs.rows, _patches(5), _hot("rows", "BatchRows", "copied")),
    _target("join", hot_runs.join, _joined, _hot("join")),
    _target("envelope", hot_runs.envelope, _flagged(made_envelope, 0, 0xFF), _hot("envelope")),
    _target(
        "keyhash",
        hot_runs.keyhash,
        _keys,
        _hot("keyhash"),
        _hot("keymap", "KeyMap.partitions_of", "KeyMap.place", "_mix"),
    ),
    _target(
        "compressed",
        hot_runs.compressed,
        _patches(4),
        Cover("penstock.batch.compression", ("unpacked", "_view", "_lengths", "_wanted", "is_compressed")),
    ),
    _target("numbers", hot_runs.numbers, _numbers, _hot("numbers", "number_mistake")),
    _target(
        "projected",
        hot_runs.projected,
        _patches(2),
        Cover("penstock.batch.projecting", ("from_stream", "check_offsets")),
    ),
    _target("gets", hot_runs.gets, _gets, _hot("kept_rows")),
    _target("appends", appends, made_steps, Cover("penstock.ingest.producers"), is_slow=True),
)
