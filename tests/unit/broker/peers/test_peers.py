"""Connections to other brokers, on real sockets, with another side that says what the test wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peers import PeerConnections, Timing
from penstock.messages import (
    Api,
    ApiVersions,
    ClusterMember,
    HelloResponse,
    JoinRequest,
    JoinResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    Request,
    Response,
    api_versions,
)
from penstock.node.step import JoinAttempt, PeerRequest
from penstock.wire import Frame, decode_request, encode_answer, encode_response_head
from tests.checked_frames import checked
from tests.integration.raw_client import RawClient

OURS = PeerHelloRequest(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1")
THEIRS = PeerHelloResponse(cluster_id="c", broker_id=2, data_dir_id="disk-2", broker_version="1")
HELLO = HelloResponse(broker_id=2, broker_version="1", cluster_id="c", format_version=1, api_versions=api_versions())
PEER = BrokerId(2)
RAFT = RaftRequest(data_dir_id="disk-1")
FETCH = ReplicaFetchRequest(broker_id=1, incarnation=1, session=1)
TIMEOUT_S = 10.0


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.refusals: list[tuple[int, RemoteError]] = []
        self.answers: dict[int, tuple[Response | RemoteError, bytes]] = {}
        self.members: list[int] = []
        self.pauses = 0
        self.now_us = 1_000_000
        self._changed = asyncio.Event()

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        self._note(f"up {broker_id}")

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        self.refusals.append((broker_id, error))

    def peer_lost(self, broker_id: BrokerId) -> None:
        self._note(f"lost {broker_id}")

    def peer_answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        self.answers[token] = (response, bytes(raw))
        self._note(f"answered {token}")

    def peer_receiving(self, broker_id: BrokerId, size_bytes: int) -> None:
        pass

    def peer_joined(self, response: JoinResponse) -> None:
        self.members = [member.broker_id for member in response.members]
        self._note("joined")

    def chance(self) -> float:
        """Asked for each pause."""
        self.pauses += 1
        self._changed.set()
        return 0.5

    async def until_pause(self) -> None:
        """Return once a pause has begun."""
        async with asyncio.timeout(TIMEOUT_S):
            while not self.pauses:
                self._changed.clear()
                await self._changed.wait()

    def _note(self, event: str) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, *events: str) -> None:
        """Return once exactly these have happened, and forget them."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.events) < len(events):
                self._changed.clear()
                await self._changed.wait()
        assert self.events == list(events)
        self.events.clear()


class Theirs(RawClient):
    """The other side of one connection."""

    async def request(self, kind: type[Request]) -> Frame:
        """The next frame, which is a request of that type."""
        frame = await self.frame()
        assert frame is not None
        assert isinstance(decode_request(frame), kind)
        return frame

    def answer(self, frame: Frame, response: Response, raw: bytes = b"") -> None:
        """Answer one request."""
        self.send(encode_answer(frame, response, len(raw), (raw,)) + raw)

    async def greet(self, hello: HelloResponse = HELLO, behind: bytes = b"") -> None:
        """Answer hello."""
        frame = await self.frame()
        assert frame is not None
        assert frame.api == Api.HELLO
        self.send(encode_answer(frame, hello) + behind)

    async def introduce(self, who: PeerHelloResponse = THEIRS) -> PeerHelloRequest:
        """Say who we are, and return who they are."""
        frame = await self.request(PeerHelloRequest)
        self.answer(frame, who)
        request = decode_request(frame)
        assert isinstance(request, PeerHelloRequest)
        return request


class Place:
    """Where the other side listens."""

    def __init__(self) -> None:
        self.address = ""
        self._came: asyncio.Queue[Theirs] = asyncio.Queue()
        self._open: list[Theirs] = []

    def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(Theirs(reader, writer))
        self._came.put_nowait(self._open[-1])

    async def next(self) -> Theirs:
        """The next connection that is made."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._came.get()

    async def up(self) -> Theirs:
        """The next connection, once both sides have said who they are."""
        theirs = await self.next()
        await theirs.greet()
        await theirs.introduce()
        return theirs

    async def close(self) -> None:
        for theirs in self._open:
            theirs.writer.transport.abort()
        self._open.clear()


@asynccontextmanager
async def _listening() -> AsyncIterator[Place]:
    place = Place()
    server = await asyncio.start_server(place.came, "127.0.0.1", 0)
    place.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield place
    finally:
        server.close()
        await place.close()


@asynccontextmanager
async def _peers(owner: Owner, timing: Timing | None = None) -> AsyncIterator[PeerConnections]:
    failures: list[BaseException] = []
    timing = timing or Timing(reconnect_ms_min=1, reconnect_ms_max=2)
    peers = PeerConnections(owner, OURS, lambda: owner.now_us, owner.chance, failed=failures.append, timing=timing)
    try:
        yield peers
    finally:
        async with asyncio.timeout(TIMEOUT_S):
            await peers.stop()
        assert failures == []


def _ask(peers: PeerConnections, token: int, request: Request = RAFT, payload: bytes = b"") -> None:
    peers.send(PeerRequest(PEER, token, request, payload))


async def test_requests_are_pipelined_and_answers_find_them() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.next()
        await theirs.greet()
        _ask(peers, 99)  # dropped: it is not up yet
        assert await theirs.introduce() == OURS
        await owner.until("up 2")
        _ask(peers, 1, RAFT, b"one")
        _ask(peers, 2, FETCH)
        _ask(peers, 3)
        raft, fetch, other = [await theirs.frame() for _ in range(3)]
        assert raft is not None
        assert fetch is not None
        assert other is not None
        assert raft.raw == b"one"
        raw = bytes(range(256)) * (9 * limits.MIB // 256)
        theirs.answer(fetch, ReplicaFetchResponse(), raw)
        theirs.send(encode_answer(other, RemoteError("fenced_epoch", "no")))
        theirs.answer(raft, RaftResponse())
        await owner.until("answered 2", "answered 3", "answered 1")
        assert owner.answers[2] == (ReplicaFetchResponse(), raw)
        refusal = owner.answers[3][0]
        assert isinstance(refusal, RemoteError)
        assert refusal.code == ErrorCode.FENCED_EPOCH


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        (PeerHelloResponse(cluster_id="d", broker_id=2, data_dir_id="x", broker_version="1"), "belongs to cluster d"),
        (PeerHelloResponse(cluster_id="c", broker_id=3, data_dir_id="x", broker_version="1"), "broker 3 answers there"),
        (
            PeerHelloResponse(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1"),
            "this broker's own data directory",
        ),
    ],
)
async def test_who_is_not_the_peer_is_not_believed_and_asked_again(
    who: PeerHelloResponse, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        for _ in range(3):
            theirs = await place.next()
            await theirs.greet()
            await theirs.introduce(who)
            assert await theirs.is_closed()
        assert owner.events == []
        assert [record.getMessage() for record in caplog.records if reason in record.getMessage()] != []
        assert len(caplog.records) == 1  # in this minute
        ((failed, address, text),) = peers.failures()
        assert (failed, address) == (PEER, place.address)
        assert reason in text
        await place.up()  # somebody has mended it
        await owner.until("up 2")
        assert peers.failures() == []


async def test_a_cluster_without_a_name_yet_may_be_ours() -> None:
    owner = Owner()
    nameless = PeerHelloResponse(cluster_id="", broker_id=2, data_dir_id="x", broker_version="1")
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.next()
        await theirs.greet()
        await theirs.introduce(nameless)
        await owner.until("up 2")


def _no_frame(theirs: Theirs) -> None:
    theirs.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def _answer_to_nothing(theirs: Theirs) -> None:
    theirs.send(checked(encode_response_head(Api.RAFT, 1, 4711, RaftResponse())))


def _oversize(theirs: Theirs) -> None:
    head = encode_response_head(Api.REPLICA_FETCH, 1, 3, ReplicaFetchResponse(), 2**31)
    theirs.send(checked(head))


def _half_a_frame(theirs: Theirs) -> None:
    head = encode_response_head(Api.REPLICA_FETCH, 1, 3, ReplicaFetchResponse(), 100_000)
    theirs.send(checked(head + b"x" * 50_000))
    theirs.writer.close()


def _wrong_answer(theirs: Theirs) -> None:
    theirs.send(checked(encode_response_head(Api.RAFT, 1, 3, RaftResponse())))  # to a fetch


def _unreadable(theirs: Theirs) -> None:
    frame = bytearray(encode_response_head(Api.REPLICA_FETCH, 1, 3, ReplicaFetchResponse()))
    frame[16:] = b"\xc1" * len(frame[16:])
    theirs.send(checked(bytes(frame)))


def _reset(theirs: Theirs) -> None:
    theirs.writer.transport.abort()


@pytest.mark.parametrize(
    "misbehave", [_no_frame, _answer_to_nothing, _oversize, _half_a_frame, _wrong_answer, _unreadable, _reset]
)
async def test_nonsense_ends_the_connection_and_nothing_else(misbehave: Callable[[Theirs], None]) -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.up()
        await owner.until("up 2")
        _ask(peers, 1, FETCH)
        frame = await theirs.request(ReplicaFetchRequest)
        assert frame.correlation_id == 3
        misbehave(theirs)
        await owner.until("lost 2")
        theirs = await place.up()
        await owner.until("up 2")
        _ask(peers, 2)
        theirs.answer(await theirs.request(RaftRequest), RaftResponse())
        await owner.until("answered 2")


async def test_what_comes_behind_the_first_answer_is_told_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.next()
        await theirs.greet(behind=b"\xff" * 40)
        assert await theirs.is_closed()
        await place.up()
        await owner.until("up 2")
    assert not [one for one in caplog.records if one.exc_info]
    assert "damaged" in caplog.text or "broken" in caplog.text


async def test_nonsense_instead_of_a_hello_is_tried_again() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        for nonsense in (b"SSH-2.0-OpenSSH_9.6\r\n", b"", bytes(100)):
            theirs = await place.next()
            theirs.send(nonsense)
            theirs.writer.close()
        refusing = await place.next()
        await refusing.greet()
        frame = await refusing.request(PeerHelloRequest)
        refusing.send(encode_answer(frame, RemoteError("cluster_mismatch", "go away")))
        assert await refusing.is_closed()
        older = await place.next()
        await older.greet(HelloResponse(broker_id=2, broker_version="0", cluster_id="c", format_version=1))
        assert await older.is_closed()
        await place.up()
        await owner.until("up 2")


async def test_a_request_that_an_older_broker_does_not_know_is_refused_here() -> None:
    owner = Owner()
    knows = (ApiVersions(api=int(Api.PEER_HELLO), version_min=1, version_max=1),)
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.next()
        await theirs.greet(
            HelloResponse(broker_id=2, broker_version="0", cluster_id="c", format_version=1, api_versions=knows)
        )
        await theirs.introduce()
        await owner.until("up 2")
        _ask(peers, 1)
        await owner.until("answered 1")
        refusal = owner.answers[1][0]
        assert isinstance(refusal, RemoteError)
        assert refusal.code == ErrorCode.UNSUPPORTED_VERSION


async def test_who_is_silent_is_asked_who_it_is_and_lost_if_it_stays_silent() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.up()
        await owner.until("up 2")
        for _ in range(8):  # two at once would be one too many
            owner.now_us += limits.PEER_PING_MS * 1_000 + 1_000
            peers.sweep()
            peers.sweep()
            await theirs.introduce()
            _ask(peers, 1)  # so that it is known when the other answer has come
            theirs.answer(await theirs.request(RaftRequest), RaftResponse())
            await owner.until("answered 1")
        _ask(peers, 2)
        owner.now_us += limits.PEER_SILENCE_MS_MAX * 1_000
        peers.sweep()
        assert owner.events == []
        owner.now_us += 1_000
        peers.sweep()
        assert owner.events == ["lost 2"]


async def test_a_broker_that_stood_still_itself_does_not_take_that_for_silence() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.up()
        await owner.until("up 2")
        _ask(peers, 1)
        theirs.answer(await theirs.request(RaftRequest), RaftResponse())
        connection = peers._links[PEER].connection
        assert connection is not None
        assert connection._has_unread()  # the loop has not looked
        owner.now_us += max(limits.PEER_SILENCE_MS_MAX, limits.PEER_ANSWER_MS_MAX) * 2_000
        peers.sweep()
        await owner.until("answered 1")


async def test_whoever_only_accepts_is_given_up() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.next()
        frame = await theirs.frame()
        assert frame is not None
        owner.now_us += limits.PEER_SILENCE_MS_MAX * 1_000 + 1_000
        peers.sweep()
        assert await theirs.is_closed()
        await place.up()
        await owner.until("up 2")


async def test_a_question_that_is_never_answered_ends_a_connection_however_lively() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.up()
        await owner.until("up 2")
        _ask(peers, 1, FETCH)
        await theirs.request(ReplicaFetchRequest)
        owner.now_us += limits.PEER_ANSWER_MS_MAX * 1_000
        _ask(peers, 2)
        theirs.answer(await theirs.request(RaftRequest), RaftResponse())
        await owner.until("answered 2")
        peers.sweep()
        assert owner.events == ["lost 2"]


async def test_whoever_takes_nothing_is_cut_off() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.up()
        await owner.until("up 2")
        theirs.writer.transport.pause_reading()  # type: ignore[attr-defined]
        payload = bytes(4 * limits.MIB)
        for token in range(1, 20):
            _ask(peers, token, RAFT, payload)
        assert owner.events == ["lost 2"]


async def test_over_the_number_of_open_requests_the_next_is_refused() -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        await place.up()
        await owner.until("up 2")
        for token in range(limits.PEER_REQUESTS_MAX + 1):
            _ask(peers, token)
        assert owner.events == []
        _ask(peers, 4711)
        refusal = owner.answers[4711][0]
        assert isinstance(refusal, RemoteError)
        assert refusal.code == ErrorCode.OVERLOADED


async def test_a_peer_that_has_moved_is_found_at_its_new_address_and_one_that_is_none_any_more_is_left() -> None:
    owner = Owner()
    async with _listening() as place, _listening() as elsewhere, _peers(owner) as peers:
        peers.set_address(PEER, place.address)
        theirs = await place.up()
        await owner.until("up 2")
        peers.set_address(PEER, place.address)  # no news
        peers.set_address(PEER, elsewhere.address)
        assert owner.events == ["lost 2"]
        assert await theirs.is_closed()
        theirs = await elsewhere.up()
        await owner.until("lost 2", "up 2")
        peers.set_address(PEER, "")
        assert owner.events == ["lost 2"]
        assert await theirs.is_closed()
        peers.set_address(PEER, "nonsense")
        peers.set_address(PEER, "127.0.0.1:1")
        peers.set_address(PEER, "")


@pytest.mark.parametrize("bad", ["h:99999", "h:", "[::1", "a..b:1", "a\0b:1"])
async def test_an_address_that_is_none_keeps_nobody_from_being_found_elsewhere(bad: str) -> None:
    owner = Owner()
    async with _listening() as place, _peers(owner) as peers:
        peers.set_address(PEER, bad)
        peers.set_address(PEER, f"{bad},{place.address}")
        await place.up()
        await owner.until("up 2")


async def test_a_peer_is_looked_for_wherever_it_may_be_and_stays_where_it_was_found() -> None:
    owner = Owner()
    async with _listening() as place, _listening() as elsewhere, _peers(owner) as peers:
        peers.set_address(PEER, f"{place.address},{elsewhere.address}")
        (await place.next()).writer.close()  # whoever it is, it does not say
        theirs = await elsewhere.up()
        await owner.until("up 2")
        peers.set_address(PEER, elsewhere.address)
        _ask(peers, 1)
        await theirs.request(type(RAFT))
        assert owner.events == []
        theirs.writer.close()
        await owner.until("lost 2")
        await elsewhere.up()
        await owner.until("up 2")


async def test_after_a_steady_connection_the_next_is_made_at_once() -> None:
    owner = Owner()
    never = Timing(reconnect_ms_min=10**9, reconnect_ms_max=10**9)
    async with _listening() as place, _peers(owner, never) as peers:
        peers.set_address(PEER, place.address)
        for _ in range(2):
            theirs = await place.up()
            await owner.until("up 2")
            owner.now_us += limits.PEER_STEADY_MS * 1_000
            theirs.writer.close()
            await owner.until("lost 2")
        theirs = await place.up()
        await owner.until("up 2")
        assert owner.pauses == 0
        theirs.writer.close()  # so soon: now comes a pause, and the end of the test ends it
        await owner.until("lost 2")
        await owner.until_pause()


async def test_whoever_calls_is_called_back_at_once() -> None:
    owner = Owner()
    never = Timing(reconnect_ms_min=10**9, reconnect_ms_max=10**9)
    async with _listening() as place, _peers(owner, never) as peers:
        peers.set_address(PEER, place.address)
        for _ in range(2):
            (await place.next()).writer.close()  # as if it were just starting
            await owner.until_pause()
            owner.pauses = 0
            peers.came(BrokerId(7))  # nobody whom this broker knows
            peers.came(PEER)
        theirs = await place.up()
        await owner.until("up 2")
        peers.came(PEER)
        _ask(peers, 1)
        await theirs.request(type(RAFT))
        assert owner.events == []


JOIN = JoinRequest(broker_id=1, data_dir_id="disk-1", address="a:1", broker_version="1")
LET_IN = JoinResponse(cluster_id="c", members=(ClusterMember(broker_id=2, address="b:1", is_voter=True),))


async def test_one_broker_after_the_other_is_asked_to_let_us_join_whoever_it_is() -> None:
    owner = Owner()
    async with _listening() as first, _listening() as second, _peers(owner) as peers:
        peers.join(JoinAttempt(JOIN, ("127.0.0.1:1", first.address, second.address)))
        unready = await first.next()
        await unready.greet()
        await unready.introduce()
        frame = await unready.request(JoinRequest)
        assert decode_request(frame) == JOIN
        unready.send(encode_answer(frame, RemoteError("broker_unavailable", "not yet")))
        assert await unready.is_closed()
        impostor = await second.next()
        await impostor.greet()
        await impostor.introduce(PeerHelloResponse(cluster_id="c", broker_id=1, data_dir_id="x", broker_version="1"))
        assert await impostor.is_closed()
        theirs = await first.next()  # the round begins anew
        await theirs.greet()
        await theirs.introduce()
        theirs.answer(await theirs.request(JoinRequest), LET_IN)
        await owner.until("joined")
        assert owner.members == [2]
        assert await theirs.is_closed()


async def test_who_does_not_answer_is_not_waited_for() -> None:
    owner = Owner()
    timing = Timing(reconnect_ms_min=1, reconnect_ms_max=2, answer_timeout_ms=50)
    async with _listening() as silent, _listening() as place, _peers(owner, timing) as peers:
        peers.join(JoinAttempt(JOIN, (silent.address, place.address)))
        theirs = await place.next()
        assert await (await silent.next()).frame() is not None
        peers.join(JoinAttempt(JOIN, (place.address,)))  # anew, and nowhere else
        theirs = await place.next()
        await theirs.greet()
        await theirs.introduce()
        assert await theirs.request(JoinRequest)
        await peers.stop()
        assert await theirs.is_closed()


def test_pauses_grow_up_to_a_limit_and_are_spread() -> None:
    chance = [0.0]
    peers = PeerConnections(Owner(), OURS, lambda: 0, lambda: chance[0], failed=lambda error: None)
    shortest = [round(1_000 * peers.pause_s(failures)) for failures in range(8)]
    chance[0] = 1.0
    longest = [round(1_000 * peers.pause_s(failures)) for failures in range(8)]
    assert shortest == [0, 25, 50, 100, 200, 400, 500, 500]
    assert longest == [0, 50, 100, 200, 400, 800, 1_000, 1_000]
    assert peers.pause_s(10_000) == 1.0


async def test_what_is_wrong_with_a_peer_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    with caplog.at_level(logging.INFO, "penstock.peers"):
        async with _listening() as place, _peers(owner) as peers:
            peers.set_address(PEER, place.address)
            for _ in range(5):
                theirs = await place.next()
                await theirs.frame()
                theirs.writer.close()
            theirs = await place.up()
            await owner.until("up 2")
            owner.now_us += limits.PEER_LOG_INTERVAL_MS * 1_000
            theirs.writer.close()
            await owner.until("lost 2")
            lines = [record.getMessage().replace(place.address, "there") for record in caplog.records]
    assert lines[1] == "connected to broker 2 at there"
    assert lines[0] == "broker 2: there: it closed the connection"
    assert lines[2].startswith("broker 2: there: it closed the connection (")
    assert len(lines) == 3
