"""Publishes in flight, against a server made of bytes that acks when it is told to: slots, flushes and outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.client.errors import ClientClosed
from penstock.client.publish.ack_waiters import AckFuture, Asked, Reroute
from penstock.client.publish.publishing import Publisher
from penstock.client.values import PubAck

INFO = b'INFO {"server_id":"X","version":"2.10.0","max_payload":1000000,"headers":true}\r\n'
COMMAND = re.compile(rb"H?PUB (\S+) (\S+)? (?:(\d+) )?(\d+)\r\n")
REFUSAL = b'{"error":{"code":503,"err_code":10008,"description":"full"},"stream":"s","seq":0}'


class Server:
    """Keeps what is published, as (subject, reply, header block, payload)."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str, bytes, bytes]] = []
        self.arrived = asyncio.Condition()
        self._writer: asyncio.StreamWriter | None = None
        self._sid = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        writer.write(INFO)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
                elif line.startswith(b"SUB "):
                    self._sid = line.split()[-1]
                elif (command := COMMAND.fullmatch(line)) is not None:
                    subject, reply, head, size = command.groups()
                    body = (await reader.readexactly(int(size) + 2))[:-2]
                    block = int(head or 0)
                    async with self.arrived:
                        self.got.append((subject.decode(), (reply or b"").decode(), body[:block], body[block:]))
                        self.arrived.notify_all()
                    if subject.startswith(b"_INBOX."):
                        self.say(subject.decode(), body)
        writer.close()

    def say(self, subject: str, body: bytes) -> None:
        assert self._writer is not None
        self._writer.write(b"MSG %b %b %d\r\n%b\r\n" % (subject.encode(), self._sid, len(body), body))

    def ack(self, *numbers: int) -> None:
        for number in numbers:
            self.say(self.got[number][1], b'{"stream":"s","seq":%d}' % (number + 1))

    def go_deaf(self) -> None:
        assert self._writer is not None
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # a ReadTransport, too

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()

    async def until(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.got) >= count)


@contextlib.asynccontextmanager
async def connected(reroute: Reroute | None = None) -> AsyncIterator[tuple[Publisher, Server]]:
    server = Server()
    async with asyncio.timeout(20), await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        publisher = Publisher([f"nats://{host}:{port}"], "test", {}, reroute=reroute)
        try:
            yield publisher, server
        finally:
            await publisher.close()


async def sent(publisher: Publisher, value: bytes, *, timeout_s: float = 15.0) -> AckFuture:
    future = publisher.future()
    await publisher.publish(future, "s", value, None, timeout_s=timeout_s, notes_failure=True)
    return future


def offset(future: AckFuture) -> int:
    ack = future.result()
    assert ack is not None
    return ack.offset


async def test_messages_are_sent_as_nats_wants_them() -> None:
    async with connected() as (publisher, server):
        future = publisher.future()
        await publisher.publish(future, "a.b", "ü", {"Penstock-Key": "zürich", "A": ""}, timeout_s=15.0)
        await publisher.publish(publisher.future(), "a.c", b"", None, timeout_s=15.0)
        await publisher.publish_without_ack("a.d", b"\r\n", None, timeout_s=15.0)
        await server.until(3)
        server.ack(0)
        assert await future == PubAck("s", 0)
        assert [(subject, block, value) for subject, _, block, value in server.got] == [
            ("a.b", "NATS/1.0\r\nPenstock-Key: zürich\r\nA: \r\n\r\n".encode(), "ü".encode()),
            ("a.c", b"", b""),
            ("a.d", b"", b"\r\n"),
        ]
        assert [bool(reply) for _, reply, *_ in server.got] == [True, True, False]


async def test_acks_come_in_any_order_with_refusals_between_them_and_twice() -> None:
    async with connected() as (publisher, server):
        futures = [await sent(publisher, b"%d" % number) for number in range(6)]
        await server.until(6)
        server.ack(4, 1)
        server.say(server.got[2][1], REFUSAL)
        server.ack(1, 0, 5)
        server.say(server.got[3][1], b"hello yourself")
        with pytest.raises(penstock.Overloaded, match="full") as caught:
            await publisher.flush(10)
        assert caught.value.__notes__ == ["2 publishes failed; this is the first one"]
        assert [offset(future) for future in futures if not future.exception()] == [0, 1, 4, 5]
        assert isinstance(futures[3].exception(), RemoteError)


async def test_a_flush_waits_for_those_before_it_only() -> None:
    async with connected() as (publisher, server):
        before = [await sent(publisher, b"x") for _ in range(3)]
        flushing = [asyncio.create_task(publisher.flush(10)) for _ in range(2)]
        late = asyncio.create_task(publisher.flush(0.05))
        await asyncio.sleep(0)
        after = await sent(publisher, b"y")
        await server.until(4)
        with pytest.raises(penstock.TimedOut, match="4 messages have no ack yet"):
            await late
        server.ack(2, 0)
        await asyncio.wait(before[::2])
        assert not any(one.done() for one in flushing)
        before[1].cancel()  # nobody waits for its ack any longer
        await asyncio.gather(*flushing)
        assert not after.done()
        server.ack(1, 3)
        await publisher.flush(10)
        assert offset(after) == 3


async def test_a_cancelled_publish_gives_its_slot_to_the_next_in_line() -> None:
    async with connected() as (publisher, server):
        futures = [await sent(publisher, b"x") for _ in range(limits.PUBLISHES_IN_FLIGHT_MAX)]
        with pytest.raises(penstock.TimedOut, match="earlier messages waited"):
            await sent(publisher, b"x", timeout_s=0.01)
        waiting = asyncio.create_task(sent(publisher, b"next"))
        await asyncio.sleep(0)
        assert futures[7].cancel()
        assert not futures[7].cancel()
        future = await waiting
        await server.until(limits.PUBLISHES_IN_FLIGHT_MAX + 1)
        assert server.got[-1][3] == b"next"
        server.ack(*range(limits.PUBLISHES_IN_FLIGHT_MAX + 1))
        await publisher.flush(10)
        assert offset(future) == limits.PUBLISHES_IN_FLIGHT_MAX
        assert publisher._free_slots == limits.PUBLISHES_IN_FLIGHT_MAX
        assert futures[7].cancelled()


async def test_each_is_late_at_its_own_time_and_an_ack_after_that_changes_nothing() -> None:
    async with connected() as (publisher, server):
        futures = [await sent(publisher, b"x", timeout_s=timeout_s) for timeout_s in (10.0, 0.05, 0.02)]
        await server.until(3)
        for future in (futures[2], futures[1]):
            with pytest.raises(penstock.TimedOut, match="whether it is stored is unknown"):
                await future
        assert not futures[0].done()
        server.ack(2, 1, 0)
        await futures[0]
        assert offset(futures[0]) == 0
        assert publisher._free_slots == limits.PUBLISHES_IN_FLIGHT_MAX
        with pytest.raises(penstock.TimedOut):
            await publisher.flush(10)


async def test_what_waited_for_its_turn_is_sent_again_no_sooner_than_what_did_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PUBLISHES_IN_FLIGHT_MAX", 1)
    async with connected() as (publisher, server):
        await sent(publisher, b"first")
        second = publisher.future()
        waiting = asyncio.create_task(publisher.publish(second, "s", b"second", None, timeout_s=9.0, retries=2))
        await server.until(1)
        freed_s = asyncio.get_running_loop().time()
        server.ack(0)
        await waiting
        assert publisher._in_flight[second.token].due_s >= freed_s + 3.0
        await server.until(2)
        server.ack(1)
        await second


async def test_closing_fails_what_is_in_flight_and_what_waits_for_a_slot() -> None:
    async with connected() as (publisher, server):
        futures = [await sent(publisher, b"x") for _ in range(limits.PUBLISHES_IN_FLIGHT_MAX)]
        waiting = asyncio.create_task(sent(publisher, b"never"))
        await server.until(1)
        await publisher.close()
        for future in futures:
            assert isinstance(future.exception(), penstock.Unavailable)
        with pytest.raises(ClientClosed):
            await waiting
    assert all(value == b"x" for *_, value in server.got)


async def test_an_unknown_outcome_has_the_id_with_which_to_publish_again() -> None:
    async with connected() as (publisher, server):
        futures = [publisher.future() for _ in range(3)]
        for number, (future, headers) in enumerate(
            zip(futures, (None, {"Nats-Msg-Id": "é 7", "A": "b"}, {"A": "b"}), strict=True)
        ):  # the first has time to connect
            await publisher.publish(future, "s", b"x", headers, timeout_s=15.0 if number < 2 else 0.02)
        late = publisher.future()
        await publisher.publish(late, "s", b"x", {"Nats-Msg-Id": "8"}, timeout_s=0.02)
        with pytest.raises(penstock.TimedOut) as timed_out:
            await late
        await server.until(4)
        await publisher.close()
        found = [future.exception() for future in futures]
    assert timed_out.value.details == {"message_id": "8"}
    for error, kind, message_id in zip(
        found, (penstock.Unavailable, penstock.Unavailable, penstock.TimedOut), (None, "é 7", None), strict=True
    ):
        assert type(error) is kind
        assert vars(error)["details"].get("message_id") == message_id


async def test_a_publish_that_is_cancelled_while_it_waits_for_its_ack_is_forgotten() -> None:
    async with connected() as (publisher, server):
        waiting = asyncio.create_task(publisher.publish_to_all("s", b"x", None, frozenset(["s"]), timeout_s=15.0))
        await server.until(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert publisher._free_slots == limits.PUBLISHES_IN_FLIGHT_MAX
        server.ack(0)
        await publisher.flush(10)


async def test_a_message_whose_key_is_elsewhere_is_sent_there_and_one_whose_key_moves_is_sent_again() -> None:
    def refusal(reason: str) -> bytes:
        return b'{"error":{"code":503,"err_code":10071,"description":"no"},"stream":"s","seq":0,"reason":"%b"}' % (
            reason.encode()
        )

    async def reroute(asked: Asked) -> str:
        return f"{asked.subject}.of.{asked.deciding!s}"

    async with connected(reroute) as (publisher, server):
        future = publisher.future()
        await publisher.publish(future, "s", b"x", None, timeout_s=15.0, asked=Asked("s", "k", 15.0))
        await server.until(1)
        server.say(server.got[0][1], refusal("key_elsewhere"))
        await server.until(2)
        server.say(server.got[1][1], refusal("key_moving"))
        await server.until(3)
        server.ack(2)
        assert await future == PubAck("s", 2)
        assert [subject for subject, *_ in server.got] == ["s", "s.of.k", "s.of.k"]
        assert len({reply for _, reply, *_ in server.got}) == 1


async def test_a_future_that_is_waited_for_too_long_gives_back_its_slot() -> None:
    async with connected() as (publisher, server):
        future = await sent(publisher, b"x")
        await server.until(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)
        assert publisher._free_slots == limits.PUBLISHES_IN_FLIGHT_MAX
        await publisher.flush(10)


async def test_every_publish_ends_in_time_though_the_server_takes_no_bytes() -> None:
    async with connected() as (publisher, server):
        first = await sent(publisher, b"x")
        await server.until(1)
        server.ack(0)
        await first
        server.go_deaf()

        async def one() -> None:
            future = await sent(publisher, b"x" * 100_000, timeout_s=0.4)
            await asyncio.wait((future,))
            assert isinstance(future.exception(), penstock.TimedOut)

        async def without_ack() -> None:
            with pytest.raises(penstock.TimedOut, match="taken no bytes"):
                await publisher.publish_without_ack("s", b"x" * 100_000, None, timeout_s=0.4)

        async def to_all() -> None:
            with pytest.raises(penstock.TimedOut):
                await publisher.publish_to_all("s", b"x" * 100_000, None, frozenset("s"), timeout_s=0.4)

        ones = [asyncio.create_task(one()) for _ in range(150)]
        await asyncio.gather(*ones, without_ack(), to_all())  # without a bound: until the test's own time-out
        assert publisher._free_slots == limits.PUBLISHES_IN_FLIGHT_MAX
        last = publisher._last_token + 4
        cancelled = [asyncio.create_task(sent(publisher, b"x" * 900_000)) for _ in range(4)]
        await asyncio.sleep(0)  # each is sent, and waits
        assert publisher._last_token == last
        for task in cancelled:
            task.cancel()
        outcomes = await asyncio.gather(*cancelled, return_exceptions=True)
        assert isinstance(outcomes[-1], asyncio.CancelledError)  # nats-py's own wait would go on
        assert publisher._free_slots == limits.PUBLISHES_IN_FLIGHT_MAX - sum(
            isinstance(one, AckFuture) for one in outcomes
        )
        server.hang_up()
