"""Who acks at once: one ack for each message, to its own reply subject, however the bytes are cut."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.acks import pubacks
from penstock.ingest.acks import ack_tails
from penstock_bench.load.frames import audit
from penstock_bench.systems.responders import NullReplies, Replies

SIZE = 5
PUBLISHED = re.compile(rb"PUB (\S+) (\d+)\r\n(.*?)\r\n")


def delivered(reply: str) -> bytes:
    return b"MSG bench.echo 1 %b %d\r\n%b\r\n" % (reply.encode(), SIZE, b"\r\nMSG"[:SIZE])


@given(st.lists(st.sampled_from(["_INBOX.aa", "_INBOX.bb"])), st.lists(st.integers(0, 500)))
def test_every_message_is_answered_once_on_its_reply(replies: list[str], cuts: list[int]) -> None:
    stream = b"".join(delivered(reply) for reply in replies)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    responder = Replies(b"MSG", b"PUB ")
    answers = b"".join(responder.take(stream[start:end]) for start, end in pairwise(places))
    published = PUBLISHED.findall(answers)
    assert PUBLISHED.sub(b"", answers) == b""
    assert [reply.decode() for reply, _, _ in published] == replies
    assert all(int(size) == len(body) and b'"seq"' in body for _, size, body in published)


@given(st.lists(st.sampled_from(["_INBOX.aa", "_INBOX.bb", "PING"])), st.lists(st.integers(0, 500)))
def test_a_ping_may_come_between_messages(frames: list[str], cuts: list[int]) -> None:
    stream = b"".join(b"PING\r\n" if one == "PING" else delivered(one) for one in frames)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    responder = Replies(b"MSG", b"PUB ")
    answers = b"".join(responder.take(stream[start:end]) for start, end in pairwise(places))
    told = [reply.decode() or "PING" for reply in re.findall(rb"(?:PUB (\S+) .*\r\n.*|PONG)\r\n", answers)]
    assert told == frames


def test_an_ack_is_as_long_as_one_of_ours() -> None:
    _, synced = ack_tails(0, 1, 1)
    ours = PUBLISHED.findall(pubacks(b"bench-1", b"_INBOX.aa ", 99_999, synced))
    assert PUBLISHED.findall(Replies(b"MSG", b"PUB ").take(delivered("_INBOX.aa"))) == ours


def test_a_payload_may_look_like_a_ping() -> None:
    payload = b"x\r\nPING\r\n"
    frame = b"MSG bench.echo 1 _INBOX.aa %d\r\n%b\r\n" % (len(payload), payload)
    published = PUBLISHED.findall(Replies(b"MSG", b"PUB ").take(frame * 3))
    assert [reply for reply, _, _ in published] == [b"_INBOX.aa"] * 3


def test_the_null_responder_speaks_as_nats_server() -> None:
    responder = NullReplies()
    assert responder.take(b'CONNECT {"verbose":false}\r\nSUB _INBOX.x 1\r\nPING\r\n') == b"PONG\r\n"
    frame = b"PUB bench.null _INBOX.x 3\r\nabc\r\n"
    answers = responder.take(frame * 3 + frame[:10]) + responder.take(frame[10:])
    assert audit(answers, len(answers)) == (4, 0, "")


def test_nats_server_is_answered_its_ping() -> None:
    assert Replies(b"MSG", b"PUB ").take(b"+OK\r\nPING\r\nPING\r\n") == b"PONG\r\nPONG\r\n"
