"""Acks taken before nats-py's parser: the same replies as from that parser alone, however the reads are cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from penstock.base.errors import RemoteError
from penstock.client.publish.nats_client import Acks, StrictNatsClient
from penstock.client.publish_format import parse_ack, parse_acks
from penstock.client.values import PubAck

INBOX, SID = "_INBOX.Ab+c", 7

Reply = tuple[int, bytes, bytes, bytes | None]


class Reading(StrictNatsClient):
    """A client that keeps what it is told, with or without the parser of acks."""

    def __init__(self, *, takes_acks: bool) -> None:
        super().__init__()
        self.told: list[Reply | bytes] = []
        if takes_acks:
            self.acks = Acks(INBOX, SID, many=self._many, one=self._one)
        else:
            self._ps = Parser(self)

    def _many(self, tokens: Sequence[int], bodies: Sequence[bytes]) -> None:
        assert all(type(body) is bytes for body in bodies)
        self.told += [
            (SID, b"%b.%d" % (INBOX.encode(), token), body, b"") for token, body in zip(tokens, bodies, strict=True)
        ]

    def _one(self, subject: bytes, data: bytes) -> None:
        self.told.append((SID, subject, data, b""))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.told.append((sid, bytes(subject), data, headers or b""))

    async def _process_ping(self) -> None:
        self.told.append(b"PING")

    async def _process_pong(self) -> None:
        self.told.append(b"PONG")

    async def _process_err(self, err_msg: str) -> None:
        self.told.append(err_msg.encode())

    async def _process_info(self, info: dict[str, object], initial_connection: bool = False) -> None:
        self.told.append(b"INFO")

    def read(self, reads: Sequence[bytes]) -> list[Reply | bytes | str]:
        """As nats-py's loop: what was told, and at which read the bytes were refused."""
        for data in reads:
            parsing = self._ps.parse(data)
            try:
                parsing.send(None)
            except StopIteration:
                continue
            except ProtocolError:
                return [*self.told, "refused"]
            raise AssertionError("it waits for something")
        return list(self.told)


_tokens = st.sampled_from([b"1", b"2", b"2", b"77", b"9" * 18, b"9" * 19, b"x", b"", b"1.2"])
_plain = st.sampled_from([b'{"stream":"s","seq":1}', b'{"seq":2}', b"{}", b"{x}"])
_forged = st.builds(
    lambda token, body: b"%b\r\nMSG %b.%b %d %d\r\n%b" % (body, INBOX.encode(), token, SID, len(body), body),
    _tokens,
    _plain,
)
_bodies = _plain | _forged | st.sampled_from([b"", b"{", b"}", b'{"error":{}}', b"{\r\n}", b"{}\r\n", b"\r\n"])


@st.composite
def _messages(draw: st.DrawFn) -> bytes:
    body, token = draw(_bodies), draw(_tokens)
    sid = draw(st.sampled_from([SID, SID, SID, 8, 77]))
    middle = draw(st.sampled_from([b"", b"", b"", b"answer.to "]))
    head = draw(st.sampled_from([b"", b"", b"", b"NATS/1.0 503\r\n\r\n"]))
    space = draw(st.sampled_from([b" ", b" ", b" ", b"  "]))
    line = b"%bMSG%b%b.%b %d %b" % (b"H" if head else b"", space, INBOX.encode(), token, sid, middle)
    sizes = b"%d %d" % (len(head), len(head) + len(body)) if head else b"%d" % len(body)
    return b"%b%b\r\n%b%b\r\n" % (line, sizes, head, body)


@st.composite
def _lying(draw: st.DrawFn) -> bytes:
    """A message whose size is not that of its data, which nats-py believes."""
    body = draw(_bodies)
    size = draw(st.sampled_from([0, 1, len(body) - 1, len(body) + 1, len(body) + 30, 999_999_999, 10**12]))
    return b"MSG %b.1 %d %d\r\n%b\r\n" % (INBOX.encode(), SID, max(size, 0), body)


_lines = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'no'\r\n", b'INFO {"a":1}\r\n'])
_streams = st.lists(_messages() | _messages() | _lines, max_size=10).map(b"".join)
_hostile = st.lists(_messages() | _lines | _lying() | st.just(b"what is this\r\n"), max_size=10).map(b"".join)


def _pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(_streams, st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cuts_give_what_nats_py_alone_gives(data: bytes, cuts: list[int]) -> None:
    alone = Reading(takes_acks=False).read([data])
    assert Reading(takes_acks=True).read(_pieces(data, cuts)) == alone


@given(_hostile, st.lists(st.integers(0, 10_000), max_size=30))
def test_lying_sizes_give_what_nats_py_alone_gives(data: bytes, cuts: list[int]) -> None:
    """The same reads, for nats-py itself refuses a line only if it has its end."""
    pieces = _pieces(data, cuts)
    assert Reading(takes_acks=True).read(pieces) == Reading(takes_acks=False).read(pieces)


@given(_streams)
def test_a_cut_at_each_place(data: bytes) -> None:
    alone = Reading(takes_acks=False).read([data])
    for cut in range(len(data)):
        assert Reading(takes_acks=True).read([data[:cut], data[cut:]]) == alone
    assert Reading(takes_acks=True).read([data[place : place + 1] for place in range(len(data))]) == alone


_values = st.sampled_from(
    [
        b"1",
        b"0",
        b"-1",
        b"1e3",
        b"1.0",
        b"NaN",
        b"null",
        b"true",
        b'"s"',
        b'""',
        b'"\xff"',
        b'"\\u0000"',
        b'"\\ud800"',
        b"[1]",
        b"18446744073709551616",
        b"9223372036854775808",
        b"9" * 400,
        b"[" * 2000,
        b'"',
        b"",
        b'"a,b"',
    ]
)
_fields = st.sampled_from(
    [b"stream", b"seq", b"offset", b"partition", b"duplicate", b"epoch", b"fsynced", b"error", b"x"]
)
_odd = st.lists(st.tuples(_fields, _values), max_size=5).map(
    lambda found: b'{"stream":"s","seq":1%b}' % b"".join(b',"%b":%b' % one for one in found)
)
_unlike = st.lists(
    st.sampled_from([b'"', b",", b":", b"[", b"]", b" ", b"1", b"a", b"\\", b'"seq":1', b'"stream":"s"']), max_size=8
)
_ack_bodies = st.lists(_odd | _unlike.map(lambda found: b"{%b}" % b"".join(found)), max_size=5)


def _judged(body: bytes) -> PubAck | str:
    try:
        return parse_ack(body)
    except RemoteError as error:
        return str(error)


@given(_ack_bodies)
def test_acks_parsed_together_are_those_parsed_alone(bodies: list[bytes]) -> None:
    alone = [_judged(body) for body in bodies]
    together = parse_acks(bodies)
    if together is not None:
        assert together == alone


def test_ten_thousand_acks_are_parsed_together() -> None:
    bodies = [b'{"stream":"s","seq":%d}' % number for number in range(1, 10_001)]
    assert parse_acks(bodies) == [parse_ack(body) for body in bodies]
