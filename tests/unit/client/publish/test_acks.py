"""Acks that are read together are taken together, whatever stands between them and wherever a read ends."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from urllib.parse import urlparse

import pytest
from nats.aio.client import Srv
from nats.errors import ProtocolError

from penstock.base.errors import RemoteError
from penstock.client import envelope_format
from penstock.client.publish.nats_client import Acks, StrictNatsClient
from penstock.client.publish_format import parse_ack, parse_acks
from penstock.client.values import PubAck
from penstock.hot import acks as hot
from penstock.ingest import acks

INBOX, SID = "_INBOX.Ab+c", 7


def message(token: int | str, data: bytes, *, sid: int = SID, inbox: str = INBOX) -> bytes:
    return b"MSG %b.%b %d %d\r\n%b\r\n" % (inbox.encode(), str(token).encode(), sid, len(data), data)


def ack(number: int) -> bytes:
    return b'{"stream":"orders","seq":%d,"offset":%d,"partition":0,"epoch":1}' % (number + 1, number)


REFUSAL = b'{"error":{"code":400,"err_code":10054,"description":"no"},"stream":"orders","seq":0}'
NOBODY = b"HMSG %b.9 %d 16 16\r\nNATS/1.0 503\r\n\r\n\r\n" % (INBOX.encode(), SID)


class Counted(Acks):
    """Counts the bytes that it looks at."""

    looked_bytes = 0

    def taken(self, data: bytes) -> bytes:
        self.looked_bytes += len(data)
        return super().taken(data)


class Heard:
    """A client with a subscription for acks, that is given bytes as from its server."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, bytes]] = []
        self.together: list[int] = []  # how many acks came at once
        self.client = StrictNatsClient()
        self.client.acks = self.acks = Counted(INBOX, SID, many=self._many, one=self._one)

    def _many(self, tokens: list[int], bodies: object) -> None:
        assert isinstance(bodies, tuple)
        self.together.append(len(tokens))
        self.replies += zip(tokens, bodies, strict=True)

    def _one(self, subject: bytes, data: bytes) -> None:
        self.replies.append((int(subject.rpartition(b".")[2]), data))

    async def read(self, *reads: bytes) -> None:
        for data in reads:
            await self.client._ps.parse(data)


async def test_acks_of_one_read_come_together() -> None:
    heard = Heard()
    await heard.read(b"".join(message(number, ack(number)) for number in range(100)))
    assert heard.replies == [(number, ack(number)) for number in range(100)]
    assert heard.together == [100]


async def test_an_ack_that_a_read_cuts_comes_with_the_next_ones() -> None:
    """At any place: each read but the last ends within an ack, and what follows it still comes together."""
    data = b"".join(message(number, ack(number)) for number in range(6))
    one = len(message(0, ack(0)))
    for cut in range(one + 1):
        heard = Heard()
        await heard.read(data[: one + cut], data[one + cut : 4 * one + cut], data[4 * one + cut :])
        assert heard.replies == [(number, ack(number)) for number in range(6)]
        assert len(heard.together) <= 3


async def test_what_is_no_plain_ack_is_left_to_nats_py_and_nothing_is_lost_around_it() -> None:
    between = [
        b"+OK\r\n",
        NOBODY,
        message(50, REFUSAL),
        message(51, b""),
        message(52, b"\x01{\r\n}\r\nMSG"),
        message(53, b'{"stream":"orders"}', sid=8),
        message(54, b'{"stream":"orders"}', sid=77),
        message(55, b'{"stream":"orders"}').replace(b"MSG ", b"MSG  "),
        message(56, b'{"stream":"orders"}', inbox=INBOX).replace(b" 7 ", b" 7 answer.to "),
        message(57, b"{" + b"x" * 5_000 + b"}}"),
    ]
    wanted = [(50, REFUSAL), (51, b""), (52, b"\x01{\r\n}\r\nMSG"), (55, b'{"stream":"orders"}')]
    wanted += [(56, b'{"stream":"orders"}'), (57, b"{" + b"x" * 5_000 + b"}}")]
    pieces = [[message(number, ack(number)), one] for number, one in enumerate(between)]
    data = b"".join(itertools.chain(*pieces))
    expected = [(number, ack(number)) for number in range(len(between))]
    for seed in range(60):
        chance = random.Random(seed)
        cuts = sorted(chance.sample(range(len(data)), chance.randrange(1, 40)))
        heard = Heard()
        await heard.read(*(data[start:end] for start, end in itertools.pairwise([0, *cuts, len(data)])))
        assert [one for one in heard.replies if one[0] < 50] == expected
        assert [one for one in heard.replies if one[0] >= 50] == wanted
        await heard.read(message(98, ack(98)) + message(99, ack(99)))
        assert heard.replies[-2:] == [(98, ack(98)), (99, ack(99))]
        assert heard.together[-1] == 2


async def test_data_that_looks_like_acks_is_the_data_of_its_message() -> None:
    forged = message(5, ack(5))
    data = b'{"a":1}\r\n' + forged
    heard = Heard()
    await heard.read(message(1, data[:-2]) + message(2, ack(2)))
    assert heard.replies == [(1, data[:-2]), (2, ack(2))]


@pytest.mark.parametrize(
    "bodies",
    [
        [ack(0)],
        [ack(number) for number in range(50)],
        [b'{"stream":"orders","seq":3}', b'{"stream":"\xc3\xbc","seq":4,"duplicate":true,"more":[1]}'],
    ],
)
def test_acks_that_are_parsed_together_are_those_that_are_parsed_alone(bodies: list[bytes]) -> None:
    assert parse_acks(bodies) == [parse_ack(body) for body in bodies]


async def test_what_a_broker_sends_is_taken_together() -> None:
    replies = b"".join(b"%b.%d " % (INBOX.encode(), number) for number in range(3))
    _, synced = acks.ack_tails(partition=2, leader_epoch=3, replicas=1)
    heard = Heard()
    commands = hot.pubacks(b"orders", replies, 41, synced).split(b"PUB ")[1:]
    await heard.read(b"".join(b"MSG " + re.sub(rb" (\d+)\r", rb" 7 \1\r", one, count=1) for one in commands))
    assert heard.together == [3]
    assert parse_acks([body for _, body in heard.replies]) == [
        PubAck("orders", 41 + number, 2, duplicate=False, leader_epoch=3, replicas=1, fsynced=True)
        for number in range(3)
    ]


@pytest.mark.parametrize(
    "bodies",
    [
        [ack(0), b'{"stream":"orders","seq":0}'],
        [ack(0), b'{"seq":4}'],
        [ack(0), b"{}"],
        [ack(0), b"{"],
        [ack(0), b"{[}"],
        [ack(0), b'{"stream":"\xff","seq":4}'],
        [b'{"stream":"a}', b'{","seq":1}'],
        [b'{"stream":"a}', b'{","seq":1}', ack(0)],
        [ack(0), b'{"stream":"a","seq":1,"x":' + b"[" * 100_000 + b"}"],
    ],
)
def test_one_that_is_no_ack_makes_each_be_parsed_alone(bodies: list[bytes]) -> None:
    assert parse_acks(bodies) is None
    with pytest.raises(RemoteError):
        [parse_ack(body) for body in bodies]


async def test_a_large_reply_is_not_looked_at_again_in_each_read() -> None:
    heard = Heard()
    data = message(1, b"{" + b"x" * 8_000_000 + b"}")
    await heard.read(*(data[start : start + 8_192] for start in range(0, len(data), 8_192)))
    assert heard.acks.looked_bytes < 2 * len(data)  # a thousand times as many if each read looks at all of it
    assert [(token, len(body)) for token, body in heard.replies] == [(1, 8_000_002)]


async def test_near_matches_cost_no_more_than_they_are_long() -> None:
    """A responder fills a reply with what looks like acks; a server sends acks whose sizes are wrong."""
    forged = message(5, ack(5)) * (4_000_000 // len(message(5, ack(5))))
    whole = message(1, b'{"a":1}\r\n' + forged) + message(2, ack(2))
    wrong = b"".join(
        message(number, ack(0)).replace(b" %d\r" % len(ack(0)), b" %d\r" % (len(ack(0)) - 1)) for number in range(2_000)
    )
    heard = Heard()
    await heard.read(*(whole[start : start + 32_768] for start in range(0, len(whole), 32_768)))
    assert [token for token, _ in heard.replies] == [1, 2]
    with contextlib.suppress(ProtocolError):
        await heard.read(*(wrong[start : start + 32_768] for start in range(0, len(wrong), 32_768)))
    assert heard.acks.looked_bytes < 2 * (len(whole) + len(wrong))


async def test_half_an_ack_of_a_connection_is_not_completed_by_the_next() -> None:
    """nats-py empties its parser when it sees a connection break; a read that has ended just then follows that."""
    heard = Heard()
    half = message(1, b'{"stream":"orders","seq":1,"offset":0,"partition":0}')[:-30]
    heard.client._ps.reset()
    await heard.read(half)
    heard.client._current_server = Srv(urlparse("nats://127.0.0.1:4222"))
    await heard.client._process_info({}, initial_connection=True)
    await heard.read(message(2, ack(2)))
    assert heard.replies == [(2, ack(2))]


def _nested(depth: int) -> bytes:
    data = REFUSAL
    for _ in range(depth):
        data = (
            envelope_format._ACK_HEADER + envelope_format.ack_class()(stream="s", error_body=data).SerializeToString()
        )
    return data


@pytest.mark.parametrize("depth", [2, 3_000])
def test_envelopes_in_envelopes_are_no_acks(depth: int) -> None:
    with pytest.raises(RemoteError, match="no ack of a stream"):
        parse_ack(_nested(depth))


def test_an_envelope_that_cannot_be_opened_is_no_ack(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(data: bytes) -> None:
        raise ImportError("no protobuf")

    data = _nested(1)
    monkeypatch.setattr(envelope_format, "ack_in", missing)
    with pytest.raises(RemoteError, match="no ack of a stream"):
        parse_ack(data)
