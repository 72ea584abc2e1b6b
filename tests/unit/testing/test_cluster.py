"""A simulated cluster as a test sees it: the real clients on it, what strikes by hand, and what is said at the end."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js.errors import NoStreamResponseError

import penstock.aio
from penstock.testing import Cluster, Fault, NotLiveError, ProgramError, ViolationError
from tests.extent import each_change


async def orders(client: penstock.aio.Client, **config: Any) -> None:
    await client.create_stream("orders", "orders.>", **config)


def test_the_asyncio_client_publishes_reads_and_looks_up() -> None:
    async def main() -> None:
        async with penstock.aio.connect() as client:
            await orders(client)
            for number in range(5):
                ack = await client.publish("orders.eu", b"%d" % number, key="k")
                assert ack.offset == number
            assert [one.value async for one in client.messages("orders")] == [b"0", b"1", b"2", b"3", b"4"]
            table = await client.table("orders")
            latest = table.get("k")
            assert latest is not None
            assert latest.value == b"4"
            await table.close()
            producer = client.producer("orders")
            (result,) = await producer.append([{"subject": "orders.us", "value": b"5"}])
            assert result.base_offset == 5

    cluster = Cluster(3)
    cluster.run(main())
    assert cluster.summary().startswith("seed 3: ")
    assert " 6 acks" in cluster.summary()


def test_the_client_of_nats_publishes_subscribes_and_hears_that_nobody_is_there() -> None:
    async def main() -> None:
        async with penstock.aio.connect() as client:
            await orders(client)
        connection = await nats.connect()
        ack = await connection.jetstream().publish("orders.eu", b"1", headers={"Nats-Msg-Id": "a"})
        assert (ack.stream, ack.seq) == ("orders", 1)
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(message: Any) -> None:
            await heard.put(message.data)
            await message.respond(b"pong")

        await connection.subscribe("questions", queue="workers", cb=answer)
        await connection.subscribe("questions", queue="workers", cb=answer)
        assert (await connection.request("questions", b"ping")).data == b"pong"
        assert (await heard.get(), heard.qsize()) == (b"ping", 0)  # one of the queue
        with pytest.raises(NoRespondersError):
            await connection.request("nobody", b"", timeout=5)
        with pytest.raises(NoStreamResponseError):
            await connection.jetstream().publish("nowhere", b"")
        await connection.drain()

    Cluster().run(main())


def test_another_broker_leads_when_the_leader_is_killed_and_nothing_acked_is_gone() -> None:
    cluster = Cluster(1)

    async def main() -> None:
        async with penstock.aio.connect(cluster.servers) as client:
            await orders(client)
            await client.publish("orders.eu", b"before")
            first = cluster.leader("orders")
            assert first is not None
            cluster.kill(first)
            await client.publish("orders.eu", b"after", retries=10, timeout=60)
            assert cluster.leader("orders") != first
            assert cluster.brokers[first] is False
            cluster.restart(first)
            await cluster.settle()
            assert cluster.brokers[first] is True
            values = [one.value async for one in client.messages("orders")]
            assert values[0] == b"before"
            assert set(values[1:]) == {b"after"}

    cluster.run(main())
    assert any("kill b" in line for line in cluster.story)


def test_a_leader_that_nobody_hears_acks_nothing_until_that_is_over() -> None:
    cluster = Cluster(2)

    async def main() -> None:
        async with penstock.aio.connect() as client:
            await orders(client, partitions=1)
            leader = cluster.leader("orders")
            assert leader is not None
            cluster.partition(leader)
            with pytest.raises(penstock.PenstockError):
                await client.publish("orders.eu", b"1", timeout=0.5)
            cluster.heal()
            assert await client.publish("orders.eu", b"2", retries=10, timeout=60)

    cluster.run(main())


def test_power_is_cut_disks_are_slow_and_nats_is_away() -> None:
    cluster = Cluster(4, brokers=1)

    async def main() -> list[bytes | None]:
        async with penstock.aio.connect() as client:
            await orders(client)
            await client.publish("orders.eu", b"1")
            cluster.power_cut(1)
            cluster.restart(1)
            cluster.slow_disk(1)
            await client.publish("orders.eu", b"2", retries=10, timeout=60)
            cluster.heal()
            cluster.stop_nats()
            with pytest.raises(penstock.PenstockError):
                await client.publish("orders.eu", b"never", timeout=1)
            cluster.heal()
            await client.publish("orders.eu", b"3", retries=10, timeout=60)
            cluster.stop(1)
            cluster.restart(1)
            return list(dict.fromkeys([one.value async for one in client.messages("orders", timeout=60)]))

    values = cluster.run(main())
    assert [value for value in values if value != b"never"] == [b"1", b"2", b"3"]


@each_change
def test_a_program_is_killed_without_a_word_and_started_again() -> None:
    cluster = Cluster(5)
    said: list[str] = []

    async def service() -> str:
        said.append("starts")
        try:
            await asyncio.sleep(10)
        finally:
            said.append("ends")
        return "done"

    async def main() -> None:
        program = cluster.start(service)
        await asyncio.sleep(5)
        program.crash()
        assert said == ["starts"]
        assert await program.finished() == "done"
        assert (program.runs, program.result, program.is_running) == (2, "done", False)
        assert said == ["starts", "starts", "ends"]
        program.start()
        await asyncio.sleep(1)
        program.kill()
        await asyncio.sleep(100)
        assert (program.runs, program.is_running) == (3, False)

    cluster.run(main())


def test_what_a_killed_program_left_is_taken_apart_at_the_end_and_on_its_own_loop() -> None:
    cluster = Cluster(6)
    loops: list[asyncio.AbstractEventLoop] = []
    last_words: list[asyncio.Task[None]] = []

    async def service() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            await asyncio.Event().wait()
        finally:
            loops.append(asyncio.get_running_loop())
            last_words.append(asyncio.create_task(asyncio.sleep(1)))

    async def main() -> None:
        program = cluster.start(service)
        await asyncio.sleep(1)
        program.kill()
        await asyncio.sleep(10)
        assert len(loops) == 1

    cluster.run(main())
    assert loops[1] is loops[0]
    assert loops[0].is_closed()
    assert [inspect.getcoroutinestate(one.get_coro()) for one in last_words] == ["CORO_CLOSED"]


@each_change
def test_a_killed_programs_connections_break() -> None:
    cluster = Cluster(6)

    async def member() -> None:
        async with penstock.aio.connect() as client, client.consumer("orders", "g", follow=True) as consumer:
            async for _ in consumer.messages():
                pass

    async def main() -> None:
        async with penstock.aio.connect() as client:
            await orders(client)
            await client.publish("orders.eu", b"1")
            one = cluster.start(member, "one")
            await asyncio.sleep(10)
            one.kill()
            other = cluster.start(member, "other")
            await asyncio.sleep(20)
            await client.publish("orders.eu", b"2")
            await asyncio.sleep(20)
            (offset,) = await client.groups.offsets("g", "orders")
            assert (offset.offset, offset.lag) == (2, 0)
            other.stop()

    cluster.run(main())


def test_a_program_is_stopped_as_by_sigterm() -> None:
    cluster = Cluster(7)
    said: list[str] = []

    async def polite() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        said.append("polite")

    async def plain() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append("plain")

    async def main() -> None:
        programs = [cluster.start(polite), cluster.start(plain)]
        await asyncio.sleep(1)
        for program in programs:
            program.stop()
        await asyncio.sleep(10)
        assert [program.is_running for program in programs] == [False, False]

    cluster.run(main())
    assert sorted(said) == ["plain", "polite"]


@pytest.mark.parametrize("error", [KeyError("total"), AssertionError("wrong")])
def test_a_mistake_in_a_program_ends_the_test_and_an_error_of_the_network_does_not(error: Exception) -> None:
    cluster = Cluster(8)
    runs: list[int] = []

    async def service() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ConnectionResetError
        raise error

    async def main() -> None:
        cluster.start(service)
        await asyncio.sleep(100)

    with pytest.raises(ProgramError, match="the program service ended with") as raised:
        cluster.run(main())
    assert raised.value.__cause__ is error
    assert len(runs) == 2


@pytest.mark.parametrize("is_main", [True, False])
def test_a_program_that_exits_ends_the_test_and_not_the_process(is_main: bool) -> None:
    cluster = Cluster(8)

    async def leave() -> None:
        await asyncio.sleep(1)
        sys.exit(0)

    async def service() -> None:
        await (leave() if is_main else asyncio.wait([asyncio.create_task(leave())]))

    async def main() -> None:
        cluster.start(service)
        await asyncio.sleep(100)
        raise KeyError("not seen")

    with pytest.raises(ProgramError, match="the program service ended with SystemExit: 0"):
        cluster.run(main())


def test_a_program_that_fails_at_once_is_not_started_again_for_ever() -> None:
    cluster = Cluster(8)

    async def service() -> None:
        raise ConnectionError("no such thing")

    async def main() -> None:
        await cluster.start(service).finished()

    with pytest.raises(ProgramError, match="service ended 10 times in a row at once, with ConnectionError: no such"):
        cluster.run(main())
    assert cluster.now_s < 60


def test_who_waits_for_the_end_of_a_program_hears_that_it_was_stopped() -> None:
    cluster = Cluster(8)

    async def plain() -> None:
        await asyncio.Event().wait()

    async def polite() -> str:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        return "bye"

    async def bad() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionResetError("too late")

    async def leaves() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)

    async def main() -> list[Any]:
        found: list[Any] = []
        for service in (plain, polite):
            program = cluster.start(service)
            await asyncio.sleep(1)
            waits = asyncio.create_task(program.finished())
            await asyncio.sleep(1)
            program.stop()
            found += [await program.finished(), await waits, await program.finished()]
        for service, text in ((bad, "ConnectionResetError: too late, as it was stopped"), (leaves, "was cancelled")):
            program = cluster.start(service)
            await asyncio.sleep(1)
            program.stop() if service is bad else None
            for _ in range(2):
                with pytest.raises(ProgramError, match=text):
                    await program.finished()
        return found

    assert cluster.run(main()) == [None, None, None, "bye", "bye", "bye"]


def test_a_program_that_is_stopped_while_it_is_down_stays_down() -> None:
    cluster = Cluster(8)

    async def main() -> None:
        program = cluster.start(lambda: asyncio.sleep(30), "service")
        await asyncio.sleep(1)
        program.crash()
        program.stop()
        assert await program.finished() is None
        await asyncio.sleep(10)
        assert (program.runs, program.is_running) == (1, False)
        program.start()
        program.stop()
        program.kill()
        assert await program.finished() is None
        program.start()
        assert await program.finished() is None
        assert program.runs == 3

    cluster.run(main())


def test_an_acked_message_that_is_another_one_in_the_log_is_a_violation() -> None:
    cluster = Cluster(9)

    async def main() -> None:
        async with penstock.aio.connect() as client:
            await orders(client)
            await client.publish("orders.eu", b"1")
        (history,) = [one for one in cluster._promises.checks.histories.values() if one.config.name == "orders"]
        history.known[0] = b"0:another"

    with pytest.raises(ViolationError, match="offset 0 was acked as b'another', and is b'1' there"):
        cluster.run(main())


def test_what_was_read_is_promised_as_what_was_acked() -> None:
    cluster = Cluster(9)

    async def main() -> None:
        async with penstock.aio.connect() as client:
            await orders(client)
            await client.publish("orders.eu", b"1", ack="none")
            await client.flush()
            await asyncio.sleep(1)
            assert [one.value async for one in client.messages("orders")] == [b"1"]
        (history,) = [one for one in cluster._promises.checks.histories.values() if one.config.name == "orders"]
        assert history.promised_end == 1
        history.known[0] = b"0:another"

    with pytest.raises(ViolationError, match="offset 0 was acked as b'another', and is b'1' there"):
        cluster.run(main())


def test_a_cluster_that_cannot_settle_says_what_is_missing() -> None:
    cluster = Cluster(10)

    async def main() -> None:
        for broker in cluster._brokers.values():
            broker.start = lambda: None  # type: ignore[method-assign]
        cluster.kill(2)
        await cluster.settle(timeout_s=30)

    with pytest.raises(NotLiveError, match="not settled 30 simulated seconds after all was mended: b2 is down"):
        cluster.run(main())


def test_what_makes_no_sense_is_refused_with_what_would() -> None:
    with pytest.raises(ValueError, match="1 to 9"):
        Cluster(brokers=0)
    with pytest.raises(ValueError, match="no fault 'meteor'; there are kill, power"):
        Cluster(faults=["kill", "meteor"])
    with pytest.raises(ValueError, match="give both some time"):
        Cluster(every_s=0)
    with pytest.raises(ValueError, match="give it some time"):
        Cluster(real_limit_s=0)
    cluster = Cluster(faults=Fault.KILL)

    async def main() -> None:
        with pytest.raises(ValueError, match="there are b1, b2, b3, nats, test"):
            cluster.partition("b4")
        with pytest.raises(ValueError, match="another name"):
            cluster.start(main, "nats")
        with pytest.raises(KeyError, match="orders"):
            cluster.leader("orders")

        with pytest.raises(TypeError, match="each run needs a coroutine of its own"):
            cluster.start(asyncio.sleep(1))

    with pytest.raises(TypeError, match="give a coroutine"):
        cluster.run(main)
    cluster.run(main())
    again = main()
    with pytest.raises(RuntimeError, match="make another one"):
        cluster.run(again)
