"""`penstock serve --brokers N` with real processes: it serves, keeps its brokers running, and leaves nobody behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock import aio
from penstock.base.errors import PenstockError
from penstock.messages import StatusResponse
from penstock.node.data_dir.clean_stop import CLEAN_STOP_PATH
from penstock_bench.machine.processes import children_of
from tests.broker_process import BrokerProcess, eventually
from tests.extent import needs_time
from tests.integration.clusters import check, load

_ALL = {1, 2, 3}


@contextmanager
def machine(folder: Path, *arguments: str, brokers: int = 3) -> Iterator[BrokerProcess]:
    """A supervisor that was started; ended, with all that it started, when the block is left."""
    supervisor = BrokerProcess(folder, "--brokers", str(brokers), *arguments)
    started: list[int] = []
    try:
        supervisor.start()
        started = children_of(supervisor.pid)
        yield supervisor
    finally:
        if supervisor.is_running:
            started += children_of(supervisor.pid)
        supervisor.end()
        for process_id in filter(is_running, started):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


def is_running(process_id: int) -> bool:
    """Whether the process is there; one that nobody has waited for yet is not."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


def process_of(folder: Path, number: int) -> int:
    """The process id of a broker that runs."""
    return int((folder / f"broker-{number}" / "LOCK").read_text())


async def status_of(supervisor: BrokerProcess) -> StatusResponse | None:
    with suppress(PenstockError, OSError):
        async with await supervisor.client() as client:
            return await client.status(timeout=2.0)
    return None


async def all_live(supervisor: BrokerProcess, expected: set[int]) -> StatusResponse:
    async def look() -> StatusResponse | None:
        state = await status_of(supervisor)
        live = set() if state is None else {one.broker_id for one in state.brokers if one.is_live}
        return state if live == expected else None

    return await eventually(look, f"{expected} are live; {supervisor.said}")


async def in_sync(client: aio.Client, stream: str, expected: set[int]) -> None:
    async def look() -> bool:
        with suppress(PenstockError):
            return set((await client.stream(stream, timeout=2.0)).partitions[0].isr) == expected
        return False

    await eventually(look, f"{expected} are in sync")


@needs_time
async def test_a_broker_that_is_killed_comes_back_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    with machine(tmp_path) as supervisor:
        state = await all_live(supervisor, _ALL)
        assert len({one.rack for one in state.brokers}) == 1
        async with await supervisor.client() as client:
            stream = await client.create_stream("orders", "orders.>", replicas=3)
            leader = stream.partitions[0].leader_id
            assert leader is not None
            killed = process_of(tmp_path, int(leader))
            async with load(supervisor.nats_url, "orders.x") as sent:
                await sent.acks(100)
                assert supervisor.stderr is not None
                before = len(supervisor.stderr)
                os.kill(killed, signal.SIGKILL)
                supervisor.logged(rf"broker-{leader} was killed by SIGKILL; it is started again in 0.5 s", after=before)
                supervisor.logged(rf"^broker-{leader} \| .*broker of a cluster: id={leader} ", after=before)
                await in_sync(client, "orders", _ALL)
                await sent.acks(100)
            assert process_of(tmp_path, int(leader)) != killed
            assert await check(client, "orders", sent) >= len(sent.acked)
        assert supervisor.stop() == 0


@needs_time
async def test_sigterm_stops_all_in_good_order_and_a_second_start_finds_them(tmp_path: Path) -> None:
    with machine(tmp_path) as supervisor:
        processes = children_of(supervisor.pid)
        assert len(processes) == 4  # nats-server, and the brokers
        first = supervisor.client_address
        async with await supervisor.client() as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            await client.publish("orders.x", b"kept")
        assert supervisor.stop() == 0
        assert not any(map(is_running, processes))
        assert all((tmp_path / f"broker-{number}" / CLEAN_STOP_PATH).exists() for number in _ALL)
        assert re.findall(r"^broker-(\d) \| .* stop(?:ping|ped)$", supervisor.said, re.MULTILINE) == list("332211")
        supervisor.start()
        assert supervisor.client_address == first  # the ports are remembered
        async with await supervisor.client() as client:
            assert [message.value async for message in client.messages("orders")] == [b"kept"]
        assert supervisor.stop() == 0


@needs_time
async def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with machine(tmp_path) as supervisor:
        processes = children_of(supervisor.pid)
        supervisor.kill()

        async def look() -> bool:
            return not any(map(is_running, processes))

        await eventually(look, "all that it started have ended")
        # They were not cut off: each has stopped as it should.
        assert all((tmp_path / f"broker-{number}" / CLEAN_STOP_PATH).exists() for number in _ALL)


@needs_time
async def test_more_brokers_join_and_fewer_are_refused(tmp_path: Path) -> None:
    with machine(tmp_path, brokers=1) as supervisor:
        async with await supervisor.client() as client:
            await client.create_stream("orders", "orders.>")
            await client.publish("orders.x", b"kept")
        assert supervisor.stop() == 0
        supervisor.arguments[supervisor.arguments.index("--brokers") + 1] = "3"
        supervisor.start()
        await all_live(supervisor, _ALL)
        async with await supervisor.client() as client:
            assert [message.value async for message in client.messages("orders")] == [b"kept"]
            assert len((await client.create_stream("copied", "copied.>", replicas=3)).partitions[0].replicas) == 3
        assert supervisor.stop() == 0
        supervisor.arguments[supervisor.arguments.index("--brokers") + 1] = "2"
        supervisor.launch()
        assert supervisor.wait() == 2
        assert "holds brokers 1 to 3, and 2 are fewer" in supervisor.said


@needs_time
async def test_a_machine_joins_the_brokers_of_another_one(tmp_path: Path) -> None:
    with machine(tmp_path / "one", "--rack", "one") as first:
        member = first.client_address.partition(",")[0]
        arguments = ("--join", member, "--id", "11", "--rack", "two", "--brokers", "2")
        second = BrokerProcess(tmp_path / "two", *arguments, nats=first.nats_url)
        try:
            second.start()
            await all_live(first, {*_ALL, 11, 12})
            async with await first.client() as client:
                stream = await client.create_stream("orders", "orders.>", replicas=2)
                on = {"two" if one > 10 else "one" for one in stream.partitions[0].replicas}
                assert on == {"one", "two"}
            assert second.stop() == 0
        finally:
            second.end()


@needs_time
async def test_a_broker_that_does_not_start_is_told_once_and_keeps_nobody_from_serving(tmp_path: Path) -> None:
    with machine(tmp_path) as supervisor:
        assert supervisor.stop() == 0
        identity = tmp_path / "broker-2" / "penstock.json"
        identity.write_text("nonsense")
        supervisor.start()  # the two others are a majority
        supervisor.logged(r"broker-2 \| .*penstock\.json is not readable as Penstock's")
        supervisor.logged(r"broker-2 does not start \(exit code 1\); it is started again in 7\.5 s")
        await all_live(supervisor, {1, 3})
        assert identity.read_text() == "nonsense"
        assert supervisor.stop() == 1  # not all is well
        assert supervisor.said.count("not readable") == 1


@pytest.mark.parametrize("arguments", [("--brokers", "0"), ("--brokers", "2", "--ports", "7422")])
def test_bad_settings_are_told_before_anything_is_started(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    supervisor = BrokerProcess(tmp_path / "data", *arguments)
    try:
        supervisor.launch()
        assert supervisor.wait() == 2
        assert "the config cannot work" in supervisor.said
        assert not (tmp_path / "data" / "broker-1").exists()
    finally:
        supervisor.end()


@needs_time
async def test_if_none_starts_the_supervisor_ends(tmp_path: Path) -> None:
    with machine(tmp_path, brokers=1) as supervisor:
        assert supervisor.stop() == 0
        (tmp_path / "broker-1" / "penstock.json").write_text("nonsense")
        supervisor.launch()
        assert await asyncio.to_thread(supervisor.wait) == 1
        assert "none of the 1 brokers starts" in supervisor.said


@needs_time
def test_json_lines_say_whose_they_are(tmp_path: Path) -> None:
    with machine(tmp_path, "--log-format", "json", brokers=1) as supervisor:
        supervisor.logged(r'^\{"time":.*"message":"broker of a cluster.*"broker":1')
        assert supervisor.stop() == 0
