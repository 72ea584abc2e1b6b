"""How long an answer of a peer may take: by what comes of it, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peer_connection import PeerConnection, PeerState
from penstock.messages import (
    Api,
    HelloResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    Response,
    api_versions,
)
from penstock.node.step import PeerRequest
from penstock.wire import Frame, FrameDecoder, encode_answer

OURS = PeerHelloRequest(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1")
THEIRS = PeerHelloResponse(cluster_id="c", broker_id=2, data_dir_id="disk-2", broker_version="1")
HELLO = HelloResponse(broker_id=2, broker_version="1", cluster_id="c", format_version=1, api_versions=api_versions())
FETCH = ReplicaFetchRequest(broker_id=1, incarnation=1, session=1)
PEER = BrokerId(2)
SECOND_US = 1_000_000
RATE_MIN = limits.TRANSFER_BYTES_PER_S_MIN


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.decoder = FrameDecoder(limits.REQUEST_BODY_BYTES_MAX)

    def write(self, data: Any) -> None:
        self.decoder.receive(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        pass

    def frames(self) -> list[Frame]:
        found = []
        while (frame := self.decoder.next_frame()) is not None:
            found.append(frame)
        return found


class Peer:
    """A connection that is up, and the other side of it."""

    def __init__(self, sock: socket.socket) -> None:
        self.now_us = 1_000_000
        self.events: list[str] = []
        self.received_bytes = 0
        self.connection = PeerConnection(PEER, OURS, self, lambda: self.now_us)
        self.transport = Transport(sock)
        self.connection.connection_made(self.transport)
        for response in (HELLO, THEIRS):
            (frame,) = self.transport.frames()
            self.answer(frame, response)
        assert self.events == ["up"]

    def up(self, cluster_id: str) -> None:
        self.events.append("up")

    def answered(self, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        self.events.append(f"answered {token}: {len(raw)} bytes")

    def receiving(self, size_bytes: int) -> None:
        self.received_bytes += size_bytes

    def ended(self) -> None:
        self.events.append(f"ended: {self.connection.end_reason}")

    def feed(self, data: bytes) -> None:
        while data:
            buffer = self.connection.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def answer(self, frame: Frame, response: Response, raw: bytes = b"") -> None:
        self.feed(encode_answer(frame, response, len(raw)) + raw)

    def ask(self, *tokens: int, request: Any = FETCH) -> list[Frame]:
        for token in tokens:
            self.connection.send(PeerRequest(PEER, token, request, b""))
        return self.transport.frames()

    def pass_second(self) -> None:
        self.now_us += SECOND_US
        self.connection.sweep()


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


async def test_a_large_answer_may_take_as_long_as_enough_of_it_comes(sock: socket.socket) -> None:
    peer = Peer(sock)
    fetch, raft = peer.ask(1) + peer.ask(2, request=RaftRequest(data_dir_id="disk-1"))
    size = 100 * RATE_MIN  # more than PEER_ANSWER_MS_MAX would give it
    peer.feed(encode_answer(fetch, ReplicaFetchResponse(), size))
    said_us, asked = peer.now_us, []
    for _ in range(100):
        peer.pass_second()
        for frame in peer.transport.frames():
            assert frame.api == Api.PEER_HELLO
            asked.append(frame)
            said_us = peer.now_us
        assert peer.now_us - said_us < limits.PEER_SILENCE_MS_MAX * 1_000, "the leader takes it for dead"
        peer.feed(bytes(RATE_MIN))
    assert peer.received_bytes == size
    for frame in asked:
        peer.answer(frame, THEIRS)
    peer.pass_second()  # what waited behind it has its time still
    peer.answer(raft, RaftResponse())
    assert peer.events == ["up", f"answered 1: {size} bytes", "answered 2: 0 bytes"]
    assert peer.connection.state is PeerState.UP


@pytest.mark.parametrize("bytes_per_s", [1, RATE_MIN // 8, RATE_MIN // 2])
async def test_an_answer_of_which_too_little_comes_ends_the_connection(sock: socket.socket, bytes_per_s: int) -> None:
    peer = Peer(sock)
    (fetch,) = peer.ask(1)
    size = 1_000 * RATE_MIN
    peer.feed(encode_answer(fetch, ReplicaFetchResponse(), size))
    seconds = 0
    while peer.events == ["up"]:
        peer.pass_second()
        peer.feed(bytes(bytes_per_s))
        seconds += 1
        assert seconds <= 2 * limits.PEER_ANSWER_MS_MAX // 1_000 + 2
    assert seconds >= limits.PEER_ANSWER_MS_MAX // 1_000
    assert "did not answer replica_fetch within 60 s" in peer.events[1]


async def test_small_answers_give_those_that_do_not_come_no_time(sock: socket.socket) -> None:
    peer = Peer(sock)
    peer.ask(1)
    for token in range(2, 200):
        if len(peer.events) == token:
            break
        peer.now_us += SECOND_US
        (raft,) = peer.ask(token, request=RaftRequest(data_dir_id="disk-1"))
        peer.answer(raft, RaftResponse())
        peer.connection.sweep()
    assert peer.events[-1].startswith("ended: the broker did not answer replica_fetch within 60 s")
    assert peer.received_bytes == 0


async def test_a_nats_server_where_a_broker_should_be_is_told(sock: socket.socket) -> None:
    peer = Peer(sock)
    peer.feed(b'INFO {"server_id":"N"}\r\n')
    assert peer.events[-1] == "ended: this is a NATS server, and no broker"
