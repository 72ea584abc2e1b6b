"""Inputs to begin with, valid ones and nearly valid ones, and the pieces that mutations put in."""

from __future__ import annotations

import struct

from penstock.hot.crc import crc32c
from tests.fuzz.appends import STEP
from tests.fuzz.hot_runs import BASES, COMPRESSED_BASES

_FRAMES = (
    b"PING\r\n",
    b"+OK\r\n",
    b"-ERR 'Unknown'\r\n",
    b"MSG a.b 1 5\r\nhello\r\n",
    b"MSG a.b 1 _INBOX.x.1 0\r\n\r\n",
    b"MSG orders.* 2 r 1\r\nx\r\n",
    "MSG größe.→ 3 2\r\nab\r\n".encode(),
    b"HMSG a.b 1 r 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
    b"HMSG a.b 1 r 31 33\r\nNATS/1.0\r\nPenstock-Key: k1\r\n\r\nab\r\n",
    b"HMSG a.b 1 $JS.FC.x 36 36\r\nNATS/1.0 100 FlowControl Request\r\n\r\n\r\n",
    b"MSG a 1 70000000\r\n",
    b"HMSG a 12 r 12 70000000\r\nNATS/1.0\r\n\r\n",
)
_BLOCKS = (
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nPenstock-Key: k\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\nPenstock-Key-Base64: AP8=\r\nPenstock-Ack: leader\r\n\r\n",
    b"NATS/1.0\r\nPenstock-Tombstone: 1\r\nPenstock-Ack:none\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Stream: orders\r\nNats-Expected-Last-Sequence: 41\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: 1\r\nNats-Rollup: all\r\nPenstock-Later: x\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: $JS.FC.x\r\n\r\n",
)
_BODIES = (
    b"",
    bytes.fromhex("08011201611a0568656c6c6f4a060a01411201420a60013002"),
    bytes.fromhex("1a0168") + bytes.fromhex("52065f494e424f58") + bytes.fromhex("5a02313230ffffffffffffffffff01"),
    bytes.fromhex("4a080a034b65791201564a000a0178"),
)


def _hmsg(block: bytes, value: bytes = b"") -> bytes:
    return b"HMSG a.b 1 _INBOX.r.7 %d %d\r\n%s%s\r\n" % (len(block), len(block) + len(value), block, value)


def _envelope(body: bytes) -> tuple[bytes, bytes]:
    plain = b"\x00" + bytes.fromhex("b90e43b400080000") + body
    summed = b"\xff" + bytes.fromhex("b90e43b4000c0100") + struct.pack(">I", crc32c(body)) + body
    return plain, summed


_GETS = (
    b"MSG $JS.API.DIRECT.GET.s.a 1 _INBOX.1 0\r\n\r\n",
    b"MSG $JS.x.API.DIRECT.GET.s.b 1 _INBOX.2 0\r\n\r\n",
    b'MSG $JS.API.DIRECT.GET.s 1 _INBOX.3 20\r\n{"last_by_subj":"c"}\r\n',
    b"MSG $JS.API.DIRECT.GET.s.d 1 _INBOX.4 0\r\n\r\n",
    b"MSG $JS.API.DIRECT.GET.s.e 1 _INBOX.5 0\r\n\r\n",
    b"MSG $JS.API.DIRECT.GET.t.a 1 _INBOX.6 0\r\n\r\n",
    b"MSG $JS.API.INFO 1 _INBOX.7 0\r\n\r\n",
)


_ENVELOPED = tuple(
    _hmsg(block, _envelope(body + more)[0][1:])
    for body in (*_BODIES, bytes.fromhex("0829"), bytes.fromhex("6001"), bytes.fromhex("6002"), bytes.fromhex("6003"))
    for more in (b"", bytes.fromhex("5202242e"), bytes.fromhex("5203612e625a0163"), bytes.fromhex("4a060a0141120142"))
    for block in (_BLOCKS[0], _BLOCKS[2])
)
_WIRE = (*_FRAMES, b"".join(_FRAMES[:9]), *map(_hmsg, _BLOCKS), b"".join(_hmsg(block, b"v") for block in _BLOCKS))

SEEDS: dict[str, tuple[bytes, ...]] = {
    "scan": (*(b"\x80" + frames for frames in _WIRE), *(b"\x00" + frames for frames in _WIRE)),
    "gets": tuple(bytes((0x80, knows, 0)) + b"".join(_GETS) for knows in range(24)),
    "headers": _BLOCKS,
    "codes": _BLOCKS,
    "ingest": (
        *(bytes((0x80, flags)) + frames for frames in _WIRE for flags in (0, 1, 3, 5, 0x19)),
        *(bytes((0x80, flags)) + frames for frames in _ENVELOPED for flags in (1, 5, 0x80)),
    ),
    "enveloped": tuple(
        bytes((flags,)) + frames[1:]
        for flags in (0x00, 0x01, 0x05, 0x82, 0x83)
        for body in (*_BODIES, *map(bytes.fromhex, ("0829", "6001", "6003", "5202242e", "5203612e625a0163")))
        for frames in _envelope(body)
    ),
    "message": tuple(mend + base for base in (*BASES, *COMPRESSED_BASES) for mend in (b"\x00", b"\xff")),
    "rows": (*(bytes((n,)) for n in range(4)), *(bytes((n,)) + struct.pack("<HI", 400, 1) * 2 for n in range(4))),
    "join": (b"\x00|\x01|\x02|\x03", b"\x02|\x02", b"\x00" + struct.pack("<HI", 470, 0) + b"|\x01"),
    "envelope": (
        b"\x00\xb9\x0e\x43\xb4\x00\xff\x00\x00",  # what crashes others
        *(data for body in _BODIES for data in _envelope(body)),
    ),
    "compressed": (
        *(bytes((n,)) for n in range(4)),
        *(bytes((n,)) + struct.pack("<HI", position, 9) for n in range(4) for position in (38, 200, 410, 800)),
    ),
    "numbers": (
        b"\x03" + struct.pack("<3q", 5, 6, 9) + struct.pack("<3q", 1, 1, 4),
        b"\x02" + struct.pack("<2q", -(2**63), 2**63 - 1) * 2,
    ),
    "projected": (
        *(bytes((n,)) for n in range(2)),
        *(b"\x00" + struct.pack("<HI", at, 9) for at in (4, 300, 500, 700)),
    ),
    "appends": (
        b"".join(STEP.pack(0, 0, 0, size, 0, 0) for size in (0, 1, 2)),  # one behind the other, …
        b"".join(STEP.pack(0, 0, how, 0, 0, 0) for how in (0, 0, 1, 5, 3, 4, 2, 6, 7)),  # … again, and out of order
        b"".join(STEP.pack(0, 0, how, 1, 0, 0) for how in (0, 0, 0xE1, 0xE0, 0xC1, 0xC9, 0xC0)),  # killed, and later
        b"".join(
            STEP.pack(who, epoch, 2, 0, 0, 0) for who, epoch in ((0, 0), (1, 0), (0, 1), (0, 0), (251, 0), (3, 251))
        ),
        b"".join(STEP.pack(0, 0, 0, size, 300, 7) for size in (0xC1, 0x31, 0, 0xC2)),  # hostile batches
        b"".join(STEP.pack(0, 0, how, 0, 0, 0) for how in (0,) * 7 + (5, 1, 5)),  # more than are kept
    ),
    "keyhash": (b"\x02" + struct.pack("<2i", 0, 5) + b"hello", b"\x03" + struct.pack("<3i", 0, 2, 70) + b"k" * 70),
}

PIECES = (
    *(b"\r\n", b"\n", b"\r", b" ", b".", b"*", b">", b":", b"MSG ", b"HMSG ", b"NATS/1.0\r\n", b"$JS.", b"_INBOX."),
    *(b"Nats-", b"Penstock-Key: ", b"Penstock-Key-Base64: ", b"Penstock-Ack: ", b"Penstock-Tombstone: 1", b"|"),
    *(b"Nats-Expected-Stream: orders", b"Nats-Expected-Last-Sequence: ", b"none", b"leader", b"all", b"====", b"\x00"),
    *(b"%d" % number for number in (0, 1, 12, 65535, 65536, 67108864, 67108865, 2147483647, 2147483648, 10**18)),
    *(struct.pack("<i", number) for number in (-(2**31), -1, 0, 1, 4, 8, 9, 20, 2**24, 2**31 - 1)),
    *(struct.pack("<q", number) for number in (-(2**63), -1, 0, 1, 8, 2**31, 2**32, 2**63 - 1)),
    *(
        b"\xff" * 9 + b"\x01",
        b"\x80",
        b"\xc3\xb6",
        b"\xed\xa0\x80",
        b"\xe2\x80\x83",
        b"\xf4\x90\x80\x80",
        b"\xb9\x0e\x43\xb4",
    ),
)
