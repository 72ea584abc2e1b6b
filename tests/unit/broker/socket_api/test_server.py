"""The listening side on its own: whose turn it is, who is too slow, who has only closed half."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from penstock.access import Operation, Rule
from penstock.access.credentials import Credentials
from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset
from penstock.broker.security.authentication import BrokerAuthenticator
from penstock.broker.socket_api.acceptor import bind
from penstock.broker.socket_api.connection import Caller
from penstock.broker.socket_api.server import Server
from penstock.client.users import token_credential
from penstock.messages import (
    AppendRequest,
    AuthenticateRequest,
    AuthenticateResponse,
    CreateUserRequest,
    DeleteUserRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Request,
    StatusRequest,
)
from penstock.node.security.access import Access
from penstock.wire import decode_response, encode_request
from tests.broker_process import eventually
from tests.extent import each_change
from tests.integration.raw_client import HELLO, RawClient, raw_client
from tests.unit.node.harness import Broker
from tests.unit.node.security.test_access import asking, user

ANSWER = RemoteError(ErrorCode.OVERLOADED, "asked")
TIMEOUT_S = 10.0


class Owner:
    """Answers hello at once, the rest when told to; notes in which turn of the loop each request came."""

    def __init__(self, *, answers: bool = True) -> None:
        self.answers = answers
        self.callers: list[Caller] = []
        self.turns: list[int] = []
        self.turn = 0
        self.changed = asyncio.Event()
        self.now_us = 0
        self.cost_us = 0
        self.gone = 0
        self.answer = ANSWER
        self.failure: Exception | None = None  # raised once, for the next request

    def requests_taken(self) -> None:
        pass

    def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.now_us += self.cost_us
        if isinstance(request, (StatusRequest, ListOffsetsRequest)):
            self.callers.append(caller)
            self.turns.append(self.turn)
            self.changed.set()
            if not self.answers:
                return
        caller.connection.reply(caller, self.answer, None)

    def callers_gone(self, callers: list[Caller]) -> None:
        self.gone += len(callers)

    def peer_came(self, broker_id: int) -> None:
        raise AssertionError("no broker is here")

    def process_of(self, broker_id: int) -> str:
        return ""

    def disk_of(self, broker_id: int) -> str:
        return ""

    def read_ahead(self, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = "") -> None:
        raise AssertionError("there are no files")

    async def until(self, count: int) -> None:
        """Return once so many requests have come."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.callers) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def _serving(owner: Owner) -> AsyncIterator[tuple[Server, str]]:
    loop = asyncio.get_running_loop()
    listeners, address = bind(Address("127.0.0.1", 0))
    server = Server(owner, listeners, loop, lambda: owner.now_us, open_files_max=1_000)
    server.start()

    async def count() -> None:
        while True:
            owner.turn += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(count())
    try:
        yield server, str(address)
    finally:
        ticker.cancel()
        server.stop_listening()
        await server.finish(0.0)


def _most_in_one_turn(owner: Owner) -> int:
    return max(map(owner.turns.count, owner.turns))


async def _floods(clients: list[RawClient], count: int) -> None:
    for client in clients:
        client.send(HELLO + b"".join(encode_request(StatusRequest(), number) for number in range(2, 2 + count)))


async def test_a_turn_takes_so_many_requests_and_every_connection_gets_its_own() -> None:
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as one, raw_client(address) as other:
        await _floods([one, other], 2_000)
        await owner.until(4_000)
        assert _most_in_one_turn(owner) <= limits.REQUESTS_PER_TURN_MAX
        peers = [caller.connection.peer for caller in owner.callers]
        # While both have requests waiting, neither is a whole read ahead of the other.
        ahead = [abs(2 * peers[:end].count(peers[0]) - end) for end in range(0, 4_000, 100)]
        assert max(ahead) <= 2_000
        for client in (one, other):
            for number in range(1, 2_002):
                frame = await client.frame()
                assert frame is not None
                assert frame.correlation_id == number


async def test_requests_that_cost_much_come_one_in_a_turn() -> None:
    owner = Owner()
    owner.cost_us = limits.REQUEST_TURN_US_MAX
    async with _serving(owner) as (_, address), raw_client(address) as one, raw_client(address) as other:
        await _floods([one, other], 100)
        await owner.until(200)
        assert _most_in_one_turn(owner) == 1


async def test_frames_that_are_no_requests_count_as_well() -> None:
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as client:
        await client.hello()
        before = owner.turn
        client.send(encode_request(StatusRequest(), 2).replace(b"\x80", b"\xc1") * 5_000)
        for _ in range(5_000):
            assert await client.frame() is not None
        assert owner.callers == []
        assert owner.turn - before >= 5_000 // limits.REQUESTS_PER_TURN_MAX


async def test_whoever_only_stops_sending_gets_all_answers() -> None:
    owner = Owner(answers=False)
    count = limits.IN_FLIGHT_REQUESTS_MAX + 50  # more than may be open at once
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await _floods([client], count)
        client.send(HELLO[:-1])  # half a frame
        client.writer.write_eof()
        await owner.until(limits.IN_FLIGHT_REQUESTS_MAX)
        answered = 0
        while answered < count:
            await owner.until(answered + 1)
            caller = owner.callers[answered]
            caller.connection.reply(caller, ANSWER, None)
            answered += 1
        for number in range(1, count + 2):
            frame = await client.frame()
            assert frame is not None
            assert frame.correlation_id == number
        assert await client.frame() is None
        assert not server.connections
        assert owner.gone == 0


async def test_whoever_leaves_with_nothing_open_is_closed() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as client, raw_client(address) as silent:
        await client.hello()
        client.writer.write_eof()
        silent.writer.write_eof()
        assert await client.is_closed()
        assert await silent.is_closed()
        assert not server.connections


async def test_the_time_for_a_hello_counts_from_the_beginning() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address):
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()

        def has_read(number: int) -> Callable[[], Awaitable[bool]]:
            async def look() -> bool:
                return [one._decoder.buffered_bytes for one in server.connections] == [number]

            return look

        with socket.socket() as slow:
            slow.setblocking(False)
            await loop.sock_connect(slow, (host, int(port)))
            for number in range(4):
                await eventually(has_read(number), "what was sent is read")
                owner.now_us += limits.HELLO_TIMEOUT_MS * 1_000 // 4
                server.sweep()
                assert server.connections
                await loop.sock_sendall(slow, HELLO[number : number + 1])
            owner.now_us += 100_000
            server.sweep()
            assert not server.connections


def _reads(server: Server, wanted: bool) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return [one._watch.reading for one in server.connections] == [wanted]

    return look


def _passes(owner: Owner, server: Server, time_ms: int) -> bool:
    """Whether all are still connected after that time."""
    owner.now_us += time_ms * 1_000
    count = len(server.connections)
    server.sweep()
    return len(server.connections) == count


async def test_the_wait_for_room_in_the_buffers_is_not_the_clients() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await client.hello()
        server.buffers.take_anyway(server.buffers.total)
        client.send(encode_request(AppendRequest(stream_id=1), 2, raw_bytes=limits.MIB))  # its rest never comes
        await eventually(_reads(server, False), "the broker waits for room")
        assert _passes(owner, server, 2 * limits.WRITE_STALL_MS_MAX)
        server.buffers.give(server.buffers.total)
        await eventually(_reads(server, True), "the broker reads on")
        assert _passes(owner, server, limits.WRITE_STALL_MS_MAX)
        assert not _passes(owner, server, 1)


async def test_the_wait_for_our_own_answers_is_not_the_clients() -> None:
    owner = Owner(answers=False)
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await _floods([client], limits.IN_FLIGHT_REQUESTS_MAX)
        client.send(HELLO[:-1])  # half a frame
        await owner.until(limits.IN_FLIGHT_REQUESTS_MAX)
        await eventually(_reads(server, False), "as many as may be are open")
        assert _passes(owner, server, 2 * limits.WRITE_STALL_MS_MAX)
        owner.callers[0].connection.reply(owner.callers[0], ANSWER, None)
        await eventually(_reads(server, True), "the broker reads on")
        assert _passes(owner, server, limits.WRITE_STALL_MS_MAX)
        assert not _passes(owner, server, 1)


BIG = bytes(32 * limits.MIB)  # more than the sockets hold
OFFSETS = ListOffsetsResponse(
    offset=Offset(0), log_start=Offset(0), committed_end=Offset(0), leader_epoch=LeaderEpoch(1)
)


async def test_whoever_takes_an_answer_at_the_end_of_a_wait_of_ours_has_time_for_it() -> None:
    owner = Owner(answers=False)
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await _floods([client], limits.IN_FLIGHT_REQUESTS_MAX)
        client.send(HELLO[:-1])  # half a frame
        await owner.until(limits.IN_FLIGHT_REQUESTS_MAX)
        await eventually(_reads(server, False), "as many as may be are open")
        assert _passes(owner, server, 2 * limits.WRITE_STALL_MS_MAX)
        caller = owner.callers[0]
        caller.connection.reply(caller, OFFSETS, BIG)
        caller.connection.finish()
        assert _passes(owner, server, limits.WRITE_STALL_MS_MAX - 1)
        for wanted in (None, BIG):  # the hello's, then its own
            frame = await client.frame()
            assert frame is not None
            assert wanted is None or frame.raw == wanted
        assert await client.is_closed()


async def test_a_wait_of_ours_makes_no_slow_hello_quicker_and_none_endless() -> None:
    owner = Owner()
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await eventually(_reads(server, True), "it is accepted")
        assert _passes(owner, server, limits.HELLO_TIMEOUT_MS - 10)
        server.buffers.take_anyway(server.buffers.total)
        client.send(HELLO[:-1])
        await eventually(_reads(server, False), "the broker waits for room")
        assert _passes(owner, server, 2 * limits.HELLO_TIMEOUT_MS)
        server.buffers.give(server.buffers.total)
        await eventually(_reads(server, True), "the broker reads on")
        assert _passes(owner, server, 10)
        assert not _passes(owner, server, 1)


async def test_whoever_is_in_line_behind_a_failure_keeps_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as one, raw_client(address) as other:
        await one.hello()
        await other.hello()
        failure = owner.failure = RuntimeError("a mistake of ours")
        for client in (one, other):  # both are read in the same turn of the loop
            client.send(encode_request(StatusRequest(), 2))
        await owner.until(1)
        failed, answered = (one, other) if owner.callers[0].connection.peer == other.address else (other, one)
        assert await failed.is_closed(), "nobody would answer it"
        assert await answered.frame() is not None
        assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [failure]
        assert owner.gone == 1


async def _half_closed(owner: Owner, client: RawClient, server: Server) -> None:
    """It has asked for something, and sends nothing more."""
    await client.hello()
    asked = len(owner.callers) + 1
    client.ask(StatusRequest(), 2)
    await owner.until(asked)
    client.writer.write_eof()
    await eventually(_reads(server, False), "the broker has seen the end")


async def test_a_client_that_has_closed_its_sending_half_has_its_answer_while_nobody_needs_its_place() -> None:
    owner = Owner(answers=False)
    async with _serving(owner) as (server, address), raw_client(address) as client:
        await _half_closed(owner, client, server)
        caller = owner.callers[0]
        caller.connection.reply(caller, OFFSETS, None)
        frame = await client.frame()
        assert frame is not None
        assert frame.correlation_id == 2
        assert await client.is_closed()


async def test_a_client_that_may_be_gone_gives_way_to_one_that_comes() -> None:
    owner = Owner(answers=False)
    async with _serving(owner) as (server, address), raw_client(address) as gone:
        server.connections_max = 1
        await _half_closed(owner, gone, server)
        async with raw_client(address) as comes:
            await comes.hello()
            assert await gone.is_closed()
            assert owner.gone == 1
            async with raw_client(address) as refused:
                refused.send(HELLO)
                frame = await refused.frame()
                assert frame is not None
                assert b"takes no more" in frame.body, "who is there stays"


async def test_what_is_denied_is_told_in_the_log_but_not_over_and_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="penstock")
    owner = Owner()
    async with _serving(owner) as (_, address), raw_client(address) as client:
        await client.hello()
        owner.answer = RemoteError(ErrorCode.NOT_AUTHORIZED, "user 'bob' may not look\n" + "x" * 5_000)

        async def ask(request: Request, times: int) -> None:
            for number in range(2, 2 + times):
                client.send(encode_request(request, number))
                assert await client.frame() is not None

        await ask(StatusRequest(), 50)
        await ask(ListOffsetsRequest(stream_id=1, at=0), 3)  # is not hidden by many of another kind
        lines = [record.getMessage() for record in caplog.records]
        assert [line.split(" ")[:2] for line in lines] == [["denied:", "status"], ["denied:", "list_offsets"]]
        assert all("user 'bob' may not look" in line and len(line) < 500 and "\n" not in line for line in lines)
        owner.now_us += limits.RATE_LIMITED_LOG_INTERVAL_MS * 1_000
        await ask(StatusRequest(), 1)
        assert "49 more like it" in caplog.records[-1].getMessage()


async def _logged_in(server: Server, address: str, stack: AsyncExitStack, user: str) -> RawClient:
    """A connection that has said hello, and is that user's; how somebody proves that is tested elsewhere."""
    before = set(server.connections)
    client = await stack.enter_async_context(raw_client(address))
    await client.hello()
    (connection,) = server.connections - before
    connection.handshake.who = Principal(user)
    server.login_answered(connection)
    return client


async def test_a_user_with_many_connections_gets_no_more_turns_than_one_with_a_single_one() -> None:
    owner = Owner(answers=False)
    async with _serving(owner) as (server, address), AsyncExitStack() as stack:
        clients = [await _logged_in(server, address, stack, "bob") for _ in range(4)]
        clients.append(await _logged_in(server, address, stack, "eve"))
        for client in clients:
            client.send(b"".join(encode_request(StatusRequest(), number) for number in range(2, 202)))
        await owner.until(1_000)
        names = [str(caller.connection.who) for caller in owner.callers]
    last = max(place for place, name in enumerate(names) if name == "eve")
    begun = names.index("eve")
    of_bob = names[begun:last].count("bob")
    assert of_bob <= 200 + 4 * 65, "one read of each of bob's may be ahead"


def _access_of_users() -> Access:
    """Ann rules; bob and eve may log in."""
    broker = Broker().start()
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("bob"))
        broker.request(user("eve"))
    return broker.node.access


async def test_a_user_who_never_stops_asking_keeps_nobody_waiting() -> None:
    owner = Owner(answers=False)
    async with _serving(owner) as (server, address), AsyncExitStack() as stack:
        clients = [await _logged_in(server, address, stack, name) for name in ("bob", "eve", "kim")]
        for client in clients:
            client.send(b"".join(encode_request(StatusRequest(), number) for number in range(2, 202)))
        await owner.until(600)
        names = [str(caller.connection.who) for caller in owner.callers]
    all_ask = max(map(names.index, ("bob", "eve", "kim")))
    some = names[all_ask : all_ask + 90]
    assert [some.count(one) for one in ("bob", "eve", "kim")] == [30, 30, 30]


async def test_a_user_whose_requests_cost_much_gets_fewer_turns() -> None:
    class OfBobCostMuch(Owner):
        def request_received(self, caller: Caller, request: Request, raw: bytes | memoryview) -> None:
            self.cost_us = 5_000 if str(caller.connection.who) == "bob" else 0
            super().request_received(caller, request, raw)

    owner = OfBobCostMuch(answers=False)
    async with _serving(owner) as (server, address), AsyncExitStack() as stack:
        clients = [await _logged_in(server, address, stack, name) for name in ("bob", "eve")]
        for client in clients:
            client.send(b"".join(encode_request(StatusRequest(), number) for number in range(2, 202)))
        await owner.until(400)
        names = [str(caller.connection.who) for caller in owner.callers]
    last = max(place for place, name in enumerate(names) if name == "eve")
    assert names[names.index("eve") : last].count("bob") <= 10, "while eve waits, bob has as much of the time as she"


async def test_a_user_has_no_more_connections_than_it_leaves_to_others() -> None:
    """Each is there already when it logs in."""
    async with _serving(Owner()) as (server, address), AsyncExitStack() as stack:
        server.connections_max = 8
        names = {"broker_id": BrokerId(1), "cluster_id": str, "nats_urls": (), "nats_urls_of_rulers": ()}
        guarding = BrokerAuthenticator(_access_of_users(), None, lambda: "nonce", **names)
        guarding.count(server.connections_of.__getitem__, server.make_room, server.has_share)

        refusals: list[RemoteError] = []

        async def logs_in(name: str) -> bool:
            client = await stack.enter_async_context(raw_client(address))
            await client.hello()
            try:
                guarding.logged_in(Principal(name), b"", is_here=True)
            except RemoteError as error:
                refusals.append(error)
                client.writer.close()
                await eventually(lambda: _is_closed(server), "the connection is closed")
                return False
            server.connections_of[name] += 1
            return True

        assert [await logs_in("bob") for _ in range(6)] == [True] * 4 + [False] * 2
        assert [await logs_in("eve") for _ in range(3)] == [True] * 2 + [False]
        assert [await logs_in("ann") for _ in range(2)] == [True] * 2, "an administrator has as many as there are"
        assert {one.code for one in refusals} == {ErrorCode.OVERLOADED}
        assert all("than it leaves to others" in one.message for one in refusals)


@each_change
async def test_who_begins_logins_and_leaves_them_shuts_out_nobody_from_elsewhere() -> None:
    names = {"broker_id": BrokerId(1), "cluster_id": str, "nats_urls": (), "nats_urls_of_rulers": ()}
    access = _access_of_users()
    first = AuthenticateRequest(mechanism="SCRAM-SHA-256", data=b"n,,n=bob,r=" + b"n" * 24)
    async with _serving(Owner()) as (server, address), AsyncExitStack() as stack:
        server.guard = BrokerAuthenticator(access, None, lambda: "m" * 24, **names)

        async def begins(source: str) -> RawClient:
            client = await stack.enter_async_context(raw_client(address, source=source))
            await client.hello()
            client.send(encode_request(first, 2))
            assert await client.frame() is not None
            return client

        slow = await begins("127.0.0.1")  # has a password to hash
        count = server.connections_max // limits.UNKNOWN_SHARE + 50
        for _ in range(count):
            await begins("127.0.0.2")
        assert server.unfinished_logins == 51
        slow.send(encode_request(AuthenticateRequest(mechanism="SCRAM-SHA-256", data=b"guessed"), 3))
        answer = await slow.frame()
        assert answer is not None, "its connection was closed"
        assert answer.correlation_id == 3


@pytest.mark.parametrize("is_challenged", [False, True])
async def test_who_hashes_a_password_has_the_time_of_a_login_for_it(*, is_challenged: bool) -> None:
    """A client whose machine is slow, or busy, is silent for seconds between hello, challenge and proof."""
    owner = Owner()
    names = {"broker_id": BrokerId(1), "cluster_id": str, "nats_urls": (), "nats_urls_of_rulers": ()}
    first = AuthenticateRequest(mechanism="SCRAM-SHA-256", data=b"n,,n=bob,r=" + b"n" * 24)
    async with _serving(owner) as (server, address):
        server.guard = BrokerAuthenticator(_access_of_users(), None, lambda: "m" * 24, **names)
        async with raw_client(address) as client, raw_client(address) as half:
            for one in (client, half):
                await one.hello()
                if is_challenged:
                    one.send(encode_request(first, 2))
                    assert await one.frame() is not None
            half.send(encode_request(first, 3)[:-1])

            async def has_read() -> bool:
                return any(one._decoder.in_frame for one in server.connections)

            await eventually(has_read, "half a request is read")
            assert _passes(owner, server, limits.HELLO_TIMEOUT_MS)
            assert not _passes(owner, server, 1)
            assert await half.is_closed(), "what is half sent needs no hashing"
            assert _passes(owner, server, limits.LOGIN_TIMEOUT_MS - limits.HELLO_TIMEOUT_MS - 1)
            assert not _passes(owner, server, 1)
            assert await client.is_closed()


async def test_a_connection_of_a_user_who_is_gone_does_not_keep_its_place() -> None:
    broker, token = Broker().start(), token_credential("bob")
    broker.request(user("ann", Rule(Operation.ADMIN)))
    owner = Owner()
    names = {"broker_id": BrokerId(1), "cluster_id": str, "nats_urls": (), "nats_urls_of_rulers": ()}
    with asking(broker, "ann"):
        broker.request(CreateUserRequest(name="bob", credentials=(token.credential,)))
    async with _serving(owner) as (server, address), AsyncExitStack() as stack:
        server.guard = BrokerAuthenticator(broker.node.access, None, lambda: "m" * 24, **names)
        client = await stack.enter_async_context(raw_client(address))
        await client.hello()
        login, number = Credentials.token(token.token).proof(lambda: "n" * 24), 2
        data: bytes | None = login.first()
        while data is not None:
            client.send(encode_request(AuthenticateRequest(mechanism=login.mechanism, data=data), number))
            frame = await client.frame()
            assert frame is not None
            answer = decode_response(frame, AuthenticateRequest)
            assert isinstance(answer, AuthenticateResponse)
            data, number = login.take(answer.data, is_done=answer.is_done), number + 1
        owner.now_us += limits.REVOKED_IDLE_MS * 1_000 + 1
        server.sweep()
        assert server.connections_of == {"bob": 1}, "who asks for nothing, and is known, stays"
        with asking(broker, "ann"):
            broker.request(DeleteUserRequest(name="bob"))
        owner.now_us += limits.REVOKED_IDLE_MS * 1_000
        server.sweep()
        assert server.connections_of == {"bob": 1}, "it is not looked at again so soon"
        owner.now_us += 1
        server.sweep()
        assert not server.connections
        assert await client.is_closed()


async def _is_closed(server: Server) -> bool:
    return len(server.connections) == sum(server.connections_of.values())
