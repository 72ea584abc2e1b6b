"""Everything over IPv6: nats-server, brokers, clients and commands, on ::1."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock import aio
from penstock.base.errors import PenstockError
from penstock.client.blocking import client as blocking
from tests.broker_process import BrokerProcess, eventually, running_nats
from tests.cli_process import command
from tests.extent import each_change, needs_time
from tests.metrics_page import get, url_of

HOST = "::1"


def has_ipv6() -> bool:
    """Whether this machine has ::1."""
    with suppress(OSError), socket.create_server((HOST, 0), family=socket.AF_INET6):
        return True
    return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


def free_ports(count: int) -> list[int]:
    """Ports of ::1 that nobody uses now."""
    with ExitStack() as held:
        made = [held.enter_context(socket.create_server((HOST, 0), family=socket.AF_INET6)) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in made]


def a_broker(folder: Path, nats: str, port: int, *arguments: str) -> BrokerProcess:
    broker = BrokerProcess(folder, *arguments, nats=nats)
    broker.listen = broker.client_address = f"[{HOST}]:{port}"
    return broker


@needs_time
async def test_a_broker_its_clients_and_its_commands(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", host=HOST) as server:
        assert server.url.startswith("nats://[::1]:")
        broker = a_broker(tmp_path / "data", server.url, 0, "--http", f"[{HOST}]:0")
        try:
            broker.start()
            at = broker.client_address
            assert re.fullmatch(r"\[::1\]:\d+", at)
            assert broker.nats_url == server.url
            async with await broker.client() as client:
                await client.create_stream("six", "six.>")
                assert (await client.publish("six.a", b"1")).offset == 0
                assert [one.value async for one in client.messages("six")] == [b"1"]
                assert client.server == at
            url = url_of(broker)
            assert url.startswith("http://[::1]:")
            for page in ("healthz", "readyz", "metrics"):
                assert (await get(f"{url}/{page}")).status == 200
            nowhere = "127.0.0.1:1"
            said, _ = await command(nowhere, "--server", at, "status")
            assert at in said
            assert server.url in said
            said, _ = await command(nowhere, "doctor", "--server", at)
            assert "nats" in said.lower()
            await command(nowhere, "health", "--http", url.removeprefix("http://"))
            said, _ = await command(nowhere, "read", "six", "--server", f"127.0.0.1:1,{at}")
            assert "six.a" in said
            await command(at, "publish", "six.b", "2")
            await command(at, "publish", "six.c", "3")
            said, _ = await command(at, "relay", "six", "--to", "elsewhere", "--nats", server.url)
            assert "relayed 3 messages" in said

            def read() -> int:
                with blocking.connect(at) as connected:
                    return connected.to_table("six").num_rows

            assert await asyncio.to_thread(read) == 3
        finally:
            broker.end()


@each_change
async def test_an_embedded_nats_server_beside_a_broker_on_ipv6(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.listen = f"[{HOST}]:0"
    try:
        broker.start()
        async with await broker.client() as client:
            await client.create_stream("six", "six.>")
            assert (await client.publish("six.a", b"1")).offset == 0
    finally:
        broker.end()


@needs_time
async def test_three_brokers_reach_each_other(tmp_path: Path) -> None:
    ports = free_ports(3)
    voters = ",".join(f"{number}@[{HOST}]:{port}" for number, port in enumerate(ports, 1))
    with running_nats(tmp_path / "nats", host=HOST) as server, ExitStack() as stack:
        brokers = []
        for number, port in enumerate(ports, 1):
            arguments = ("--id", str(number), "--cluster", voters)
            brokers.append(a_broker(tmp_path / f"{number}", server.url, port, *arguments))
            stack.callback(brokers[-1].end)
            brokers[-1].launch()
        addresses = ",".join(one.client_address for one in brokers)

        async def made() -> bool:
            with suppress(PenstockError, OSError):
                async with await aio.connect(addresses) as client:
                    await client.create_stream("six", "six.>", replicas=3)
                    return True
            return False

        await eventually(made, "a stream with three replicas")
        async with await aio.connect(addresses) as client:
            ack = await client.publish("six.a", b"1")
            assert (ack.offset, ack.replicas) == (0, 3)
            leader = client.server
            told = await client.status()
            assert {one.address for one in told.brokers} == set(addresses.split(","))
        await command(addresses, "doctor", code=0)
        first = next(one for one in brokers if one.client_address == leader)
        first.kill()
        async with await aio.connect(addresses) as client:

            async def published() -> bool:
                with suppress(PenstockError, OSError):
                    return (await client.publish("six.b", b"2", timeout=2)).offset > 0
                return False

            await eventually(published, "an ack of the others")


@each_change
def test_brokers_of_one_machine(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats", host=HOST) as server:
        port = free_ports(1)[0]
        more = ",".join(str(one) for one in free_ports(2))
        machine = a_broker(tmp_path / "data", server.url, port, "--brokers", "2", "--ports", more)
        try:
            machine.start()
            assert machine.client_address == ",".join(f"[{HOST}]:{one}" for one in more.split(","))
        finally:
            machine.end()
