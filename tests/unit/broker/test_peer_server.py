"""The side that is asked: a connection of another broker, beside those of clients; then both sides together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peers import PeerConnections, Timing
from penstock.broker.socket_api.acceptor import bind
from penstock.broker.socket_api.connection import Caller
from penstock.broker.socket_api.server import Server
from penstock.messages import (
    HelloRequest,
    HelloResponse,
    JoinResponse,
    PeerHelloRequest,
    PeerHelloResponse,
    RaftRequest,
    RaftResponse,
    Request,
    Response,
    StatusRequest,
    api_versions,
)
from penstock.node.quorum.peer_client import introduced
from penstock.node.step import PeerRequest
from penstock.wire import Frame, decode_response, encode_answer, encode_checked_request
from tests.extent import each_change
from tests.integration.raw_client import HELLO, RawClient, raw_client

OURS = PeerHelloResponse(cluster_id="c", broker_id=2, data_dir_id="disk-2", broker_version="1")
THEIRS = PeerHelloRequest(cluster_id="c", broker_id=1, data_dir_id="disk-1", broker_version="1")
SAID_HELLO = HelloResponse(
    broker_id=2, broker_version="1", cluster_id="c", format_version=1, api_versions=api_versions()
)
RAFT = RaftRequest(data_dir_id="disk-1")
PEER_HELLO = encode_checked_request(HelloRequest(client_name="penstock broker 1", client_version="1"), 1)
TIMEOUT_S = 10.0


class Owner:
    """Answers hellos at once; keeps the rest for the test."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.raws: list[bytes] = []
        self.gone: list[Caller] = []
        self.came: list[int] = []
        self.now_us = 0
        self.turns: list[int] = []  # how many requests had come when a turn was over
        self._came = asyncio.Event()
        self.processes: dict[int, str] = {}  # as registered, by broker
        self.disks: dict[int, str] = {}

    def process_of(self, broker_id: BrokerId) -> str:
        return self.processes.get(broker_id, "")

    def disk_of(self, broker_id: BrokerId) -> str:
        return self.disks.get(broker_id, "")

    def requests_taken(self) -> None:
        self.turns.append(len(self.callers))

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        answer: Response | RemoteError
        if isinstance(request, HelloRequest):
            answer = SAID_HELLO
        elif isinstance(request, PeerHelloRequest):
            try:
                answer = introduced(request, OURS)
            except RemoteError as error:
                answer = error
        else:
            self.callers.append(caller)
            self.raws.append(bytes(raw))
            self._came.set()
            return
        caller.connection.reply(caller, answer, None)

    def callers_gone(self, callers: list[Caller]) -> None:
        self.gone += callers

    def peer_came(self, broker_id: BrokerId) -> None:
        self.came.append(broker_id)

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        raise AssertionError("there are no files")

    async def until(self, count: int) -> None:
        """Return once so many requests have come."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.callers) < count:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def _serving(owner: Owner) -> AsyncIterator[tuple[Server, str]]:
    listeners, address = bind(Address("127.0.0.1", 0))
    server = Server(owner, listeners, asyncio.get_running_loop(), lambda: owner.now_us, open_files_max=1_000)
    server.start()
    try:
        yield server, str(address)
    finally:
        server.stop_listening()
        await server.finish(0.0)


async def _said(client: RawClient) -> Frame:
    frame = await client.frame()
    assert frame is not None
    return frame


async def _code(client: RawClient, kind: type[Request]) -> str:
    """The code of the refusal that comes next."""
    try:
        decode_response(await _said(client), kind)
    except RemoteError as error:
        return error.code
    raise AssertionError("it was not refused")


async def _peer(client: RawClient, who: PeerHelloRequest = THEIRS) -> None:
    client.send(PEER_HELLO + encode_checked_request(who, 2))
    await _said(client)
    assert decode_response(await _said(client), PeerHelloRequest) == OURS


async def test_a_turn_is_over_when_what_a_broker_asked_was_taken() -> None:
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as broker:
        await _peer(broker)
        broker.ask_as_broker(RAFT, 4)
        await owner.until(1)
        assert owner.turns[-1] == 1, "with the request, and not in a later turn of the loop"


async def test_what_brokers_ask_is_answered_to_brokers_only() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await client.hello()
        client.ask(RAFT, 2)
        assert await _code(client, RaftRequest) == ErrorCode.BAD_REQUEST
        assert (owner.callers, server.peers, owner.came) == ([], {}, [])
    async with _serving(owner) as (server, address), raw_client(address) as broker:
        await _peer(broker)
        broker.ask_as_broker(RAFT, 4)
        await owner.until(1)
        assert (list(server.peers), owner.came) == ([1], [1])
    assert owner.gone == owner.callers


async def test_not_everybody_is_a_broker_that_nobody_knows() -> None:
    owner = Owner()
    owner.processes[1_000] = "registered"
    async with AsyncExitStack() as stack:
        server, address = await stack.enter_async_context(_serving(owner))
        unknown_max = max(limits.UNKNOWN_PEERS_MIN, server.connections_max // limits.STRANGERS_SHARE)
        clients = [await stack.enter_async_context(raw_client(address)) for _ in range(unknown_max + 2)]
        names = range(100, 100 + unknown_max)
        for broker_id, client in zip(names, clients, strict=False):
            await _peer(client, msgspec.structs.replace(THEIRS, broker_id=broker_id, data_dir_id=f"disk {broker_id}"))
        *_, one_more, registered = clients
        one_more.send(
            PEER_HELLO + encode_checked_request(msgspec.structs.replace(THEIRS, broker_id=99, data_dir_id="disk 99"), 2)
        )
        await _said(one_more)
        assert await _code(one_more, PeerHelloRequest) == ErrorCode.OVERLOADED
        await _peer(registered, msgspec.structs.replace(THEIRS, broker_id=1_000, data_dir_id="disk 1000"))
        assert list(server.peers) == [*names, 1_000]


async def test_a_broker_whose_frames_have_no_checksums_is_told_to_be_upgraded() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await client.hello()
        client.ask(THEIRS, 3)
        refusal = await _said(client)
        assert not refusal.is_checked
        with pytest.raises(RemoteError, match="upgrade the older of the two") as caught:
            decode_response(refusal, PeerHelloRequest)
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert await client.is_closed()
        assert server.peers == {}


async def test_all_frames_of_a_connection_have_checksums_or_none() -> None:
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as peer, raw_client(address) as client:
        await _peer(peer)
        peer.ask(RAFT, 3)
        assert await _code(peer, RaftRequest) == ErrorCode.BAD_FRAME
        assert await peer.is_closed()
        await client.hello()
        client.ask_as_broker(StatusRequest(), 3)
        assert await _code(client, StatusRequest) == ErrorCode.BAD_FRAME
        assert await client.is_closed()
    assert owner.callers == []


async def test_a_damaged_frame_is_counted_told_and_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    async with _serving(owner) as (server, address):
        for _ in range(2):
            async with raw_client(address) as peer:
                await _peer(peer)
                damaged = bytearray(encode_checked_request(RAFT, 3, raw=b"message") + b"message")
                damaged[-1] ^= 1
                peer.send(bytes(damaged))
                told = await _said(peer)
                assert (told.correlation_id, told.is_checked) == (0, True)
                assert b"damaged_frame" in told.body
                assert await peer.is_closed()
        assert server.damaged_frames == 2
    assert owner.callers == []
    assert len([record for record in caplog.records if "damaged on its way" in record.getMessage()]) == 1


async def test_clients_that_take_every_connection_keep_no_broker_out() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), AsyncExitStack() as clients:
        server.connections_max = 2
        for _ in range(2):
            await (await clients.enter_async_context(raw_client(address))).hello()
        async with raw_client(address) as third, raw_client(address) as broker:
            third.send(HELLO)
            assert await _code(third, HelloRequest) == ErrorCode.OVERLOADED
            await _peer(broker)
            assert list(server.peers) == [1]
            broker.ask_as_broker(RAFT, 3)
            await owner.until(1)


async def test_whoever_names_itself_a_broker_and_is_none_is_told_so_and_closed() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address):
        server.connections_max = 0
        async with raw_client(address) as liar:
            liar.send(PEER_HELLO)
            await _said(liar)
            liar.ask_as_broker(StatusRequest(), 2)
            assert await _code(liar, StatusRequest) == ErrorCode.OVERLOADED
            assert await liar.is_closed()
            assert owner.callers == []


async def test_those_that_never_say_who_they_are_give_way() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), AsyncExitStack() as silent:
        count = server.connections_max // limits.STRANGERS_SHARE
        server.connections_max = 0
        strangers = [await silent.enter_async_context(raw_client(address)) for _ in range(count)]
        async with raw_client(address) as broker:
            await _peer(broker)
            told = await strangers[0].frame()
            assert told is not None
            assert b"overloaded" in told.body
            assert await strangers[0].frame() is None
            assert len(server.connections) == count


async def test_a_broker_of_another_cluster_or_with_our_id_is_told_so_and_closed() -> None:
    owner = Owner()
    for field, value in (("cluster_id", "d"), ("data_dir_id", "disk-2"), ("broker_id", 2)):
        who = PeerHelloRequest(
            **{"cluster_id": "c", "broker_id": 1, "data_dir_id": "x", "broker_version": "1", field: value}
        )
        async with _serving(owner) as (server, address), raw_client(address) as client:
            client.send(PEER_HELLO + encode_checked_request(who, 2))
            await _said(client)
            assert await _code(client, PeerHelloRequest) == ErrorCode.CLUSTER_MISMATCH
            assert await client.is_closed()
            assert server.peers == {}


async def test_a_connection_does_not_change_its_broker() -> None:
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as client:
        await _peer(client)
        other = PeerHelloRequest(cluster_id="c", broker_id=3, data_dir_id="disk-3", broker_version="1")
        client.ask_as_broker(THEIRS, 3)  # the same again is how a peer asks whether we live
        assert decode_response(await _said(client), PeerHelloRequest) == OURS
        client.ask_as_broker(other, 4)
        assert await _code(client, PeerHelloRequest) == ErrorCode.CLUSTER_MISMATCH
        assert await client.is_closed()


async def test_a_broker_that_connects_anew_has_its_old_connection_closed() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as old, raw_client(address) as new:
        await _peer(old)
        old.ask_as_broker(RAFT, 3)
        await owner.until(1)
        await _peer(new)
        assert await old.is_closed()
        assert owner.gone == owner.callers
        assert [server.peers[BrokerId(1)]] == list(server.connections)


async def test_a_broker_may_have_more_open_than_a_client_and_needs_none_of_their_room() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await _peer(client)
        server.buffers.take_anyway(server.buffers.total)
        count = limits.PEER_REQUESTS_MAX
        assert count > limits.IN_FLIGHT_REQUESTS_MAX
        client.send(
            b"".join(encode_checked_request(RAFT, number + 10, raw=b"four") + b"four" for number in range(count - 1))
        )
        large = bytes(limits.MIB)
        client.send(encode_checked_request(RAFT, 9, raw=large) + large)
        await owner.until(count)
        assert owner.raws[-1] == large
        for caller in reversed(owner.callers):
            caller.connection.reply(caller, RaftResponse(), None)
        for _ in range(count):
            await _said(client)
        assert server.peer_buffers.used == 0
        assert server.buffers.used == server.buffers.total


async def test_a_broker_that_says_nothing_is_closed_a_client_is_not() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as peer, raw_client(address) as client:
        await _peer(peer)
        await client.hello()
        owner.now_us += limits.PEER_SILENCE_MS_MAX * 1_000
        server.sweep()
        assert len(server.connections) == 2
        owner.now_us += 1_000
        server.sweep()
        assert (len(server.connections), server.peers) == (1, {})


class Asking:
    """The owner of the other side of both."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.answers: dict[int, Response | RemoteError] = {}

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        self.events.put_nowait(f"up {broker_id}")

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        raise AssertionError(where)

    def peer_lost(self, broker_id: BrokerId) -> None:
        self.events.put_nowait(f"lost {broker_id}")

    def peer_answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        self.answers[token] = response
        self.events.put_nowait(f"answered {token}")

    def peer_receiving(self, broker_id: BrokerId, size_bytes: int) -> None:
        pass

    def peer_joined(self, response: JoinResponse) -> None:
        raise AssertionError(response)

    async def next(self) -> str:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.events.get()


async def test_both_sides_together() -> None:
    owner, asking = Owner(), Asking()
    timing = Timing(reconnect_ms_min=1, reconnect_ms_max=2)
    async with _serving(owner) as (server, address):
        peers = PeerConnections(asking, THEIRS, lambda: 0, lambda: 0.5, failed=lambda error: None, timing=timing)
        peers.set_address(BrokerId(2), address)
        assert await asking.next() == "up 2"
        peers.send(PeerRequest(BrokerId(2), 7, RAFT, b"message"))
        await owner.until(1)
        assert owner.raws == [b"message"]
        owner.callers[0].connection.reply(owner.callers[0], RaftResponse(), None)
        assert await asking.next() == "answered 7"
        assert asking.answers == {7: RaftResponse()}
        server.peers[BrokerId(1)].close()
        assert [await asking.next(), await asking.next()] == ["lost 2", "up 2"]
        await peers.stop()
        assert await asking.next() == "lost 2"


class Wire:
    """Between two brokers. `flip` the bit of that number of what goes each way, counted from now on."""

    def __init__(self, there: str) -> None:
        self.address = ""
        self.flipped = 0
        self._there = there
        self._bits: dict[bool, int | None] = {True: None, False: None}
        self._writers: list[asyncio.StreamWriter] = []

    def flip(self, bit: int, *, is_asked: bool) -> None:
        self._bits[is_asked] = bit

    async def came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._there.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        self._writers += [writer, there_writer]
        await asyncio.gather(
            self._pass_on(reader, there_writer, is_asked=True), self._pass_on(there_reader, writer, is_asked=False)
        )

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_asked: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                bit = self._bits[is_asked]
                if bit is not None and bit < len(data) * 8:
                    damaged = bytearray(data)
                    damaged[bit // 8] ^= 1 << bit % 8
                    data, self._bits[is_asked] = bytes(damaged), None
                    self.flipped += 1
                elif bit is not None:
                    self._bits[is_asked] = bit - len(data) * 8
                writer.write(data)
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class Telling(Owner):
    """Answers every Raft message, and keeps it."""

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        super().request_received(caller, request, raw)
        if isinstance(request, RaftRequest):
            caller.connection.reply(caller, RaftResponse(), None)


@each_change
@pytest.mark.parametrize("is_asked", [True, False], ids=["requests", "answers"])
async def test_what_a_flipped_bit_destroys_is_asked_again_and_never_believed(is_asked: bool) -> None:
    owner, asking = Telling(), Asking()
    timing = Timing(reconnect_ms_min=1, reconnect_ms_max=2)
    async with _serving(owner) as (server, address):
        wire = Wire(address)
        between = await asyncio.start_server(wire.came, "127.0.0.1", 0)
        peers = PeerConnections(asking, THEIRS, lambda: 0, lambda: 0.5, failed=lambda error: None, timing=timing)
        peers.set_address(BrokerId(2), f"127.0.0.1:{between.sockets[0].getsockname()[1]}")
        assert await asking.next() == "up 2"
        frame = encode_checked_request(RAFT, 3, raw=b"message") + b"message"
        if not is_asked:
            frame = encode_answer(Frame(65, 1, 3, b"", b"", True), RaftResponse())
        # A length that grows may leave a frame cut short, which silence ends: here no time passes.
        for bit in range(0, len(frame) * 8, 5):
            wire.flip(bit, is_asked=is_asked)
            peers.send(PeerRequest(BrokerId(2), bit, RAFT, b"message"))
            assert [await asking.next(), await asking.next()] == ["lost 2", "up 2"], bit
            peers.send(PeerRequest(BrokerId(2), bit, RAFT, b"message"))
            assert await asking.next() == f"answered {bit}"
        assert wire.flipped == len(range(0, len(frame) * 8, 5))
        assert set(asking.answers.values()) == {RaftResponse()}
        assert set(owner.raws) == {b"message"}
        # One that is longer than any frame may be is refused as such.
        assert wire.flipped - 16 <= (server if is_asked else peers).damaged_frames <= wire.flipped
        await peers.stop()
        wire.close()
        between.close()


@pytest.mark.parametrize(
    ("there_disk", "process", "disk", "is_taken_over"),
    [
        ("disk-1", "p", "disk-1", True),
        ("disk-1", "registered", "disk-1", True),
        ("disk-1", "copy", "disk-1", False),
        ("disk-1", "", "disk-1", False),
        ("disk-9", "registered", "disk-1", True),  # a stranger was there before it, with a disk that nobody knows
        ("disk-9", "restarted", "disk-1", True),
        ("disk-1", "copy", "disk-9", False),
    ],
)
async def test_a_copy_of_a_broker_does_not_take_its_connection(
    there_disk: str, process: str, disk: str, *, is_taken_over: bool
) -> None:
    owner = Owner()
    owner.processes[1], owner.disks[1] = "registered", "disk-1"
    async with (
        _serving(owner) as (server, address),
        AsyncExitStack() as held,
    ):
        first, second = [await held.enter_async_context(raw_client(address)) for _ in range(2)]
        await _peer(first, msgspec.structs.replace(THEIRS, process="p", data_dir_id=there_disk))
        there = server.peers[BrokerId(1)]
        hello = msgspec.structs.replace(THEIRS, process=process, data_dir_id=disk)
        if is_taken_over:
            await _peer(second, hello)
            assert server.peers[BrokerId(1)] is not there
        else:
            second.send(PEER_HELLO + encode_checked_request(hello, 2))
            await _said(second)
            assert await _code(second, PeerHelloRequest) == ErrorCode.CLUSTER_MISMATCH
            assert server.peers[BrokerId(1)] is there
