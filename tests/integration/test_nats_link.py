"""The link against a real nats-server: messages, barriers, reconnects, gaps, back-pressure."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.broker.nats.connection import LinkTiming
from penstock.broker.nats.link import ConnectFailed, LinkDown, LinkEvent, LinkUp, NatsLink
from penstock.broker.security.nats_credentials import NatsAccess, parse_nats_urls
from penstock.hot.message_group import MessageGroup
from penstock.ingest.connect import ErrorKind
from penstock.ingest.nats import BarrierReached, InfoChanged, LameDuck, SubscriptionRefused
from penstock.node.step import NatsAnswers
from tests.broker_process import eventually
from tests.extent import each_change, needs_time
from tests.nats_servers import TIMEOUT_S, listening, publishing, running_nats


def _now_us() -> int:
    return time.time_ns() // 1000


async def test_messages_headers_and_wildcards(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as listener:
        link = listener.link
        link.subscribe(1, "flights.*.AA")
        link.subscribe(2, "flights.>")
        await link.wait_barrier(5000)
        async with publishing(server) as client:
            client.publish("flights.JFK.AA", b"one", reply="answer.me")
            client.publish("flights.LGA.AA", b"", headers=b"NATS/1.0\r\nPenstock-Key: N1\r\n\r\n")
            client.publish("flights.LGA.DL", b"three")
            client.publish("other", b"four")
            await client.flush()
            await link.wait_barrier(5000)
            assert listener.rows[1] == [
                (b"flights.JFK.AA", b"answer.me", None, b"one"),
                (b"flights.LGA.AA", None, b"NATS/1.0\r\nPenstock-Key: N1\r\n\r\n", b""),
            ]
            assert listener.values(2) == [b"one", b"", b"three"]
            link.unsubscribe(2)
            await link.wait_barrier(5000)
            client.publish("flights.LGA.DL", b"five")
            await client.flush()
            await link.wait_barrier(5000)
            assert listener.values(2) == [b"one", b"", b"three"]


async def test_queue_groups_share(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as one, listening(server.url) as other:
        for listener in (one, other):
            listener.link.subscribe(1, "work", "group")
            await listener.link.wait_barrier(5000)
        async with publishing(server) as client:
            for number in range(100):
                client.publish("work", b"%d" % number)
            await client.flush()
            for listener in (one, other):
                await listener.link.wait_barrier(5000)
            assert sorted(map(int, one.values(1) + other.values(1))) == list(range(100))
            assert one.values(1)
            assert other.values(1)


async def test_after_the_barrier_every_message_is_seen(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as listener, publishing(server) as client:
        for sid in range(1, 201):
            listener.link.subscribe(sid, f"s.{sid}")
            token = listener.link.barrier()
            await listener.until(lambda token=token: BarrierReached(token) in listener.events)  # type: ignore[misc]
            client.publish(f"s.{sid}", b"%d" % sid)
        await client.flush()
        await listener.link.wait_barrier(5000)
        assert [listener.values(sid) for sid in range(1, 201)] == [[b"%d" % sid] for sid in range(1, 201)]


async def test_a_burst_keeps_order_and_a_large_message_gets_through(tmp_path: Path) -> None:
    async with (
        running_nats(tmp_path, "max_payload: 8MB\nmax_pending: 256MB\n") as server,
        listening(server.url) as listener,
    ):
        listener.link.subscribe(1, "a.>")
        await listener.link.wait_barrier(5000)
        async with publishing(server) as client:
            large = random.Random(7).randbytes(7 * limits.MIB)
            client.publish("a.before", b"x")
            for number in range(20_000):
                client.publish("a.b", b"%d" % number)
                if number % 10_000 == 5000:
                    client.publish("a.large", large)
            await client.flush()
            await listener.link.wait_barrier(15_000)
            assert listener.values(1).count(large) == 2
            small = [row[3] for row in listener.rows[1] if row[0] == b"a.b"]
            assert small == [b"%d" % number for number in range(20_000)]


async def test_what_publishers_choose_does_not_cut_the_link(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as listener:
        listener.link.subscribe(1, "evil.>")
        await listener.link.wait_barrier(5000)
        subjects = [b"evil." + bytes([byte]) + b"x" for byte in range(256) if byte not in b" \t\r\n.*>"]
        async with publishing(server) as client:
            for subject in subjects:
                client.write(b"PUB %b %b 1\r\nx\r\n" % (subject, subject))
            client.write(b"PUB evil.a\rb re\rply 1\r\nx\r\n")
            client.write(b"HPUB evil.h 2 3\r\nabc\r\n")
            client.write(b"HPUB evil.h 0 1\r\nx\r\n")
            client.write(b"PUB evil.last 0\r\n\r\n")
            await client.flush()
        await listener.link.wait_barrier(5000)
        seen = {row[0] for row in listener.rows[1]}
        assert set(subjects) <= seen
        assert b"evil.last" in seen
        assert not [event for event in listener.events if isinstance(event, LinkDown)]


async def test_a_message_trace_is_a_message(tmp_path: Path) -> None:
    # nats-server publishes it, with an empty reply subject. Any publisher can ask for one.
    async with running_nats(tmp_path) as server, listening(server.url) as listener, publishing(server) as client:
        listener.link.subscribe(1, "orders.>")
        await listener.link.wait_barrier(5000)
        client.publish("nobody", b"x", headers=b"NATS/1.0\r\nNats-Trace-Dest: orders.trace\r\n\r\n")
        await listener.until(lambda: 1 in listener.rows)
        subject, reply, _, value = listener.rows[1][0]
        assert (subject, reply) == (b"orders.trace", None)
        assert b'"nobody"' in (value or b"")
        assert not [event for event in listener.events if isinstance(event, LinkDown)]


async def test_comes_back_with_its_subscriptions_and_reports_the_gap(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as listener:
        link = listener.link
        link.subscribe(1, "a")
        await link.wait_barrier(5000)
        before_us = _now_us()
        await server.kill()
        down = await listener.event(LinkDown)
        assert down.gap_start_us is not None
        assert down.gap_start_us <= before_us
        assert not link.is_up
        assert link.gap_start_us == down.gap_start_us
        link.subscribe(2, "b")  # while there is no connection
        token = link.barrier()
        link.answer([NatsAnswers(1, b"PUB b 5\r\nwhile\r\n")])
        failed = await listener.event(ConnectFailed)
        assert "refused" in failed.reason.lower()
        assert BarrierReached(token) not in listener.events
        await server.start()
        up = await listener.event(LinkUp, after=listener.events.index(down))
        assert up.gap_start_us == down.gap_start_us
        assert link.gap_start_us is None
        await listener.until(lambda: BarrierReached(token) in listener.events)
        async with publishing(server) as client:
            client.publish("a", b"1")
            client.publish("b", b"2")
            await client.flush()
            await link.wait_barrier(5000)
            assert listener.values(1) == [b"1"]
            assert listener.values(2) == [b"while", b"2"]


@each_change
async def test_an_outage_is_logged_once_and_its_reason_is_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as listener:
        for _ in range(2):
            caplog.clear()
            await server.kill()
            before = len(listener.events)
            await listener.until(
                lambda before=before: sum(isinstance(event, ConnectFailed) for event in listener.events[before:]) >= 20  # type: ignore[misc]
            )
            warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len(warnings) == 2  # that it is lost, and why it does not come back
            assert "closed the connection" in warnings[0] or "broke" in warnings[0]
            assert warnings[1].startswith(f"no connection to {server.url}: Connection refused (tried ")
            assert [text.count(server.url) for text in warnings] == [1, 1]
            await server.start()
            await listener.event(LinkUp, after=len(listener.events) - 1)
            assert listener.link.last_failure == f"{server.url}: Connection refused"


async def test_tries_several_servers_in_turn(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(f"nats://127.0.0.1:1,{server.url}") as listener:
        assert listener.link.server is not None
        assert listener.link.server.port == server.port
        assert isinstance(listener.events[0], ConnectFailed)


async def test_a_refused_subscription_is_reported_before_its_barrier(tmp_path: Path) -> None:
    config = 'authorization { users: [ { user: u, password: p, permissions: { subscribe: { deny: "secret.>" } } } ] }'
    async with running_nats(tmp_path, config) as server, listening(f"nats://u:p@127.0.0.1:{server.port}") as listener:
        listener.link.subscribe(1, "secret.x")
        listener.link.subscribe(2, "open.x")
        token = listener.link.barrier()
        await listener.until(lambda: BarrierReached(token) in listener.events)
        [refused] = [event for event in listener.events if isinstance(event, SubscriptionRefused)]
        assert (refused.sid, refused.subject) == (1, "secret.x")
        assert listener.events.index(refused) < listener.events.index(BarrierReached(token))
        assert listener.link.is_up


async def test_a_slow_reader_is_cut_off_and_the_gap_begins_before_it_paused(tmp_path: Path) -> None:
    config = 'max_pending: 1MB\nwrite_deadline: "200ms"\nmax_payload: 512KB\n'
    async with running_nats(tmp_path, config) as server, listening(server.url) as listener:
        link = listener.link
        link.subscribe(1, "a")
        await link.wait_barrier(5000)
        link.pause_reading()
        paused_us = _now_us()
        async with publishing(server) as client:
            for _ in range(200):
                client.publish("a", bytes(256 * 1024))
                await client.flush()
            link.resume_reading()
            down = await listener.event(LinkDown)
            assert down.gap_start_us is not None
            assert down.gap_start_us <= paused_us
            up = await listener.event(LinkUp, after=listener.events.index(down))
            assert up.gap_start_us == down.gap_start_us
            assert len(listener.values(1)) < 200


async def test_a_paused_link_leaves_messages_where_they_are(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, listening(server.url) as listener:
        listener.link.subscribe(1, "a")
        await listener.link.wait_barrier(5000)
        listener.link.pause_reading()
        async with publishing(server) as client:
            for number in range(100):
                client.publish("a", b"%d" % number)
            await client.flush()
            await client.flush()  # another round trip: nats-server has written what it had
            assert listener.values(1) == []
            listener.link.resume_reading()
            await listener.until(lambda: len(listener.values(1)) == 100)


async def test_stop_delivers_what_was_published_before(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server, publishing(server) as client, listening(server.url) as acks:
        acks.link.subscribe(1, "ack")
        await acks.link.wait_barrier(5000)
        async with listening(server.url) as listener:
            listener.link.subscribe(1, "a")
            await listener.link.wait_barrier(5000)
            for number in range(5000):
                client.publish("a", b"%d" % number)
            await client.flush()
            assert await listener.link.drain(5000)
            assert len(listener.values(1)) == 5000
            listener.link.answer([NatsAnswers(1, b"PUB ack 2\r\nok\r\n")])
            assert await listener.link.stop(5000)
        assert isinstance(listener.events[-1], LinkDown)
        assert listener.events[-1].reason == "stopped"
        await acks.until(lambda: acks.values(1) == [b"ok"])


async def test_lame_duck_and_reconfiguration_are_passed_on(tmp_path: Path) -> None:
    config = 'lame_duck_duration: "30s"\nlame_duck_grace_period: "1s"\n'
    async with running_nats(tmp_path, config) as server, listening(server.url) as listener:
        assert server.process is not None
        server.process.send_signal(signal.SIGUSR2)
        await listener.event(LameDuck)
        await listener.event(InfoChanged)


class Raising:
    """An owner with a bug."""

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        raise ValueError("a mistake in the program")

    def link_event(self, event: LinkEvent) -> None:
        pass


async def test_an_owner_that_raises_ends_the_link(tmp_path: Path) -> None:
    async with running_nats(tmp_path) as server:
        link = NatsLink(
            Raising(), NatsAccess(parse_nats_urls(server.url)), clock_us=_now_us, random=random.Random(1).random
        )
        link.subscribe(1, "a")
        task = asyncio.create_task(link.run())
        await link.wait_up(5000)
        link.answer([NatsAnswers(1, b"PUB a 0\r\n\r\n")])
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(ValueError, match="a mistake in the program"):
                await task


async def test_stop_while_connecting_is_quick(tmp_path: Path) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        timing = LinkTiming(connect_timeout_ms=3_600_000)
        async with fake_server(b"") as port:
            async with listening(f"nats://127.0.0.1:{port}", wait_up=False, timing=timing) as listener:
                with pytest.raises(OperationalError, match="within 10 ms"):
                    await listener.link.wait_up(10)
            assert listener.events == []


# Servers that are none


_INFO = b'INFO {"headers":true,"max_payload":1048576}\r\n'


@asynccontextmanager
async def fake_server(*parts: bytes) -> AsyncIterator[int]:
    """A server (its port) that says the first part, one more after each PING that it hears, and then keeps silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(parts[0])
            for part in parts[1:]:
                await reader.readuntil(b"PING\r\n")
                writer.write(part)
            while await reader.read(65536):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "parts",
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n",),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
        (b"\x16\x03\x01\x02\x00\x01\n",),
        (b"x" * (limits.NATS_CONTROL_LINE_BYTES_MAX + 1),),
        (b"INFO {\r\n",),
        (_INFO + b"MSG a 1 99999999999\r\n",),
        (_INFO, b"PONG\r\nPONG\r\n"),
        (_INFO, b"PONG\r\n", b"PONG\r\nPONG\r\n"),
        (_INFO, b"PONG\r\n", b"PONG\r\nMSG a 1 1\r\nxx\r\n"),
    ],
)
async def test_garbage_ends_the_connection_and_the_next_server_is_tried(
    tmp_path: Path, parts: tuple[bytes, ...]
) -> None:
    async with (
        running_nats(tmp_path) as server,
        fake_server(*parts) as port,
        listening(f"nats://127.0.0.1:{port},{server.url}", wait_up=False) as listener,
    ):
        await listener.until(lambda: any(isinstance(e, LinkUp) and e.server.port != port for e in listener.events))
        ends = [event for event in listener.events if isinstance(event, ConnectFailed | LinkDown)]
        assert ends[0].kind is ErrorKind.PROTOCOL
        assert "not NATS protocol" in ends[0].reason or "INFO" in ends[0].reason


@pytest.mark.parametrize("count", [2, 15])
async def test_a_connection_whose_bytes_are_nonsense_is_made_anew_at_once(count: int) -> None:
    # The first time without a wait; after that with the shortest, however often it happens.
    shortest_ms = 3_600_000 if count == 2 else 10
    timing = LinkTiming(reconnect_ms_min=shortest_ms, reconnect_ms_max=3_600_000, steady_ms=3_600_000)
    parts = (_INFO, b"PONG\r\n", b"PONG\r\nMSG a 1 x\r\n")
    async with fake_server(*parts) as port, listening(f"nats://127.0.0.1:{port}", timing=timing) as listener:
        await listener.until(lambda: sum(isinstance(event, LinkUp) for event in listener.events) >= count)
        downs = [event for event in listener.events if isinstance(event, LinkDown)]
        assert {(event.kind, "a message without a size" in event.reason) for event in downs} == {
            (ErrorKind.PROTOCOL, True)
        }


async def test_a_server_that_never_says_anything_may_be_none() -> None:
    timing = LinkTiming(connect_timeout_ms=500, reconnect_ms_min=10, reconnect_ms_max=20)
    async with (
        asyncio.timeout(TIMEOUT_S),
        fake_server(b"") as port,
        listening(f"nats://127.0.0.1:{port}", wait_up=False, timing=timing) as listener,
    ):
        with pytest.raises(OperationalError, match=rf"{port}: it takes the connection and says nothing: is it a NATS"):
            await listener.link.wait_up(400)
        failed = await listener.event(ConnectFailed)
        first = "If it speaks TLS first (handshake_first: true), write tls:// in place of nats://"
        assert failed.reason == f"it takes the connection and says nothing: is it a NATS server? {first}"


async def test_a_server_that_served_before_and_hangs_is_told_as_that(tmp_path: Path) -> None:
    timing = LinkTiming(connect_timeout_ms=500, ping_interval_ms=50, reconnect_ms_min=10, reconnect_ms_max=20)
    async with running_nats(tmp_path) as server, listening(server.url, timing=timing) as listener:
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            down = await listener.event(LinkDown)
            failed = await listener.event(ConnectFailed)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert down.kind is ErrorKind.STALE_CONNECTION
        assert failed.reason == "it takes the connection and says nothing, and served before: it hangs, or is suspended"
        await listener.until(lambda: isinstance(listener.events[-1], LinkUp))


async def test_a_server_that_falls_silent_is_left(tmp_path: Path) -> None:
    timing = LinkTiming(ping_interval_ms=20, reconnect_ms_min=10, reconnect_ms_max=20)
    async with (
        fake_server(_INFO, b"PONG\r\n", b"PONG\r\n") as port,
        listening(f"nats://127.0.0.1:{port}", wait_up=False, timing=timing) as listener,
    ):
        down = await listener.event(LinkDown)
        assert down.kind is ErrorKind.STALE_CONNECTION


async def test_a_link_that_is_lost_as_soon_as_it_is_up_was_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_INFO)
        await reader.readuntil(b"PING\r\n")
        # Handled by the link one after the other, before any of its coroutines runs again.
        writer.write(b"PONG\r\n")
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n-ERR 'Stale Connection'\r\n")
        writer.close()

    fake = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening(f"nats://127.0.0.1:{fake.sockets[0].getsockname()[1]}") as listener:
        down = await listener.event(LinkDown)
        assert down.kind is ErrorKind.STALE_CONNECTION
        assert isinstance(listener.events[0], LinkUp)
        assert listener.events[1] == down
        assert down.gap_start_us is not None
    fake.close()
    await fake.wait_closed()


@asynccontextmanager
async def _server_that_takes_nothing() -> AsyncIterator[tuple[str, asyncio.Event, bytearray]]:
    """Its URL; set the event, and it takes what comes: into these bytes."""
    take = asyncio.Event()
    taken = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_INFO)
        await reader.readline()
        await reader.readline()
        writer.write(b"PONG\r\n")
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await take.wait()
        while data := await reader.read(1 << 20):
            taken.extend(data)
        writer.close()

    fake = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{fake.sockets[0].getsockname()[1]}", take, taken
    fake.close()
    await fake.wait_closed()


async def _becomes(look: Callable[[], bool], what: str) -> None:
    async def looked() -> bool:
        return look()

    await eventually(looked, what)


def _acks(stream_id: int, first: int, count: int) -> NatsAnswers:
    body = b"x" * 1000
    return NatsAnswers(
        stream_id, b"".join(b"PUB s%d.%d 1000\r\n%b\r\n" % (stream_id, n, body) for n in range(first, first + count))
    )


def _numbers(taken: bytes, stream_id: int) -> list[int]:
    return [int(number) for number in re.findall(rb"PUB s%d\.(\d+) 1000\r\nx{1000}\r\n" % stream_id, taken)]


@needs_time
async def test_a_server_that_takes_nothing_stops_the_reading_for_a_moment_only() -> None:
    async with _server_that_takes_nothing() as (url, take, _), listening(url) as listener:
        link = listener.link
        assert link._reconnector.connection is not None
        transport = link._reconnector.connection.transport
        assert transport is not None
        for _ in range(2 * limits.NATS_WRITE_BUFFER_BYTES_MAX // limits.MIB + 10):  # the kernel takes some
            link.answer([_acks(1, 0, 1000)])
        assert not transport.is_reading()
        await _becomes(transport.is_reading, "the link reads on")
        take.set()


@each_change
async def test_answers_of_a_flood_are_dropped_and_those_of_other_streams_are_not() -> None:
    async with _server_that_takes_nothing() as (url, take, taken), listening(url) as listener:
        link = listener.link
        sent = 0
        while link.write_buffer_bytes < 2 * limits.NATS_STREAM_ANSWERS_BYTES_MAX:
            link.answer([_acks(1, sent, 1000)])
            sent += 1000
        await _becomes(lambda: link.answers_dropped > 0, "what is over the limit is dropped")
        assert (
            link.write_buffer_bytes
            < limits.NATS_WRITE_BUFFER_BYTES_MAX + limits.NATS_STREAM_ANSWERS_BYTES_MAX + 2 * limits.MIB
        )
        link.answer([_acks(1, sent, 1000), _acks(2, 0, 10), _acks(3, 0, 10)])
        dropped = link.answers_dropped
        take.set()
        await _becomes(lambda: link.write_buffer_bytes == 0, "all is taken")
        link.answer([_acks(2, 10, 1)])
        await _becomes(lambda: _numbers(taken, 2) == list(range(11)), "it has come")
        assert link.answers_dropped == dropped
        assert _numbers(taken, 3) == list(range(10))
        flood = _numbers(taken, 1)
        assert flood == list(range(sent + 1000 - dropped))  # the oldest, in order, each whole
        assert taken.rindex(b"PUB s1.") > taken.index(b"PUB s3.9 ")  # which did not wait for all of the flood


async def test_answers_without_a_connection_are_bounded() -> None:
    link = NatsLink(
        Raising(), NatsAccess(parse_nats_urls("nats://127.0.0.1:1")), clock_us=_now_us, random=random.Random(1).random
    )
    streams = 2 * limits.NATS_ANSWERS_BYTES_MAX // limits.MIB
    for stream_id in range(streams):
        link.answer([_acks(stream_id, 0, 1000)])
    assert limits.NATS_ANSWERS_BYTES_MAX - 2000 < link.write_buffer_bytes <= limits.NATS_ANSWERS_BYTES_MAX
    kept = link.write_buffer_bytes // len(_acks(10, 100, 1).commands)
    assert abs(link.answers_dropped + kept - 1000 * streams) < 100  # their numbers differ in length
