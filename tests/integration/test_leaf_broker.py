"""Brokers with a leaf connection: what the how-to page says, and how steps of the node are delivered."""

from __future__ import annotations

import asyncio
import random
import re
import shlex
from pathlib import Path

import nats

from penstock.broker.nats.leaf_link import LeafLink
from penstock.broker.security.nats_credentials import NatsAccess, parse_nats_urls
from penstock.node.step import Step
from penstock.vfs.memory import MemoryVfs
from tests.broker_process import eventually, running_broker
from tests.broker_process import running_nats as running_nats_process
from tests.extent import each_change, needs_time
from tests.integration.in_process import broker_in_process
from tests.integration.test_doctor import examine, told
from tests.integration.test_leaf_link import LEAFNODES, frame
from tests.nats_servers import TIMEOUT_S, running_nats
from tests.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs/how-to/deliver-over-leaf.md"


def config_on_the_page(leaf_port: int) -> str:
    """The page's nats-server.conf, for this machine and with passwords."""
    [block] = re.findall(r"```text\n( *accounts \{.*?)```", PAGE.read_text(), re.DOTALL)
    config = re.sub(r"user: (\w+), password: \$\w+", r"user: \1, password: p-\1", block)
    wanted = "host: 0.0.0.0, port: 7423"
    assert wanted in config
    return config.replace(wanted, f"host: 127.0.0.1, port: {leaf_port}")


@needs_time
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    [line] = re.findall(r"penstock serve (.*)", PAGE.read_text())
    options = shlex.split(line)
    (leaf_port,) = free_ports(1)
    (tmp_path / "penstock.txt").write_text("p-penstock\n")
    (tmp_path / "penstock.txt").chmod(0o600)
    with running_nats_process(tmp_path / "nats", config_on_the_page(leaf_port)) as server:
        values = dict(zip(options[::2], options[1::2], strict=True))
        assert values.pop("--nats") == "nats://nats.example:4222"
        assert values.pop("--nats-leaf") == "nats://nats.example:7423"
        values["--nats-password-file"] = str(tmp_path / "penstock.txt")
        arguments = [word for pair in values.items() for word in pair]
        url = {"PENSTOCK_NATS_LEAF": f"nats://leaf:p-leaf@127.0.0.1:{leaf_port}"}
        with running_broker(tmp_path / "data", *arguments, nats=server.url, environment=url) as broker:

            async def connected() -> bool:
                async with await broker.client() as client:
                    return (await client.status()).nats.leaf_state == "connected"

            await eventually(connected, "the leaf connection is up")
            _, findings = await examine(broker.client_address)
            assert told(findings, "deliveries") == [("ok", "1 broker with a leaf connection")]
            async with await broker.client() as client:
                status = (await client.status()).nats
                assert status.leaf_allowed == ("_INBOX.>", "deliver.>")
                assert "p-leaf" not in str(status)
        url = {"PENSTOCK_NATS_LEAF": f"nats://leaf:wrong@127.0.0.1:{leaf_port}"}
        with running_broker(tmp_path / "data", *arguments, nats=server.url, environment=url) as broker:
            broker.logged("no leaf connection to .* refuses the leaf's credentials")
            _, findings = await examine(broker.client_address)
            [(result, found)] = told(findings, "deliveries")
            assert (result, "has no leaf connection" in found) == ("fail", True)


async def test_what_a_step_delivers_goes_out(tmp_path: Path) -> None:
    async with running_nats(tmp_path, LEAFNODES) as server, broker_in_process(MemoryVfs(), server.url) as broker:
        driver = broker.driver
        driver.do(Step(deliver=[frame("_INBOX.nobody")]))  # without a leaf connection nothing is delivered
        driver.leaf = LeafLink(
            driver,
            NatsAccess(parse_nats_urls(f"127.0.0.1:{server.leaf_port}")),
            driver.link,
            name=lambda: "penstock-c-1",
            random=random.Random(1).random,
        )
        task = asyncio.create_task(driver.leaf.run())

        async def up() -> bool:
            return driver.leaf is not None and driver.leaf.is_up

        await eventually(up, "the leaf connection is up")
        connection = await nats.connect(server.url)
        subscription = await connection.subscribe("_INBOX.here")
        await connection.flush()

        async def known() -> bool:
            return driver.leaf is not None and driver.leaf.interest.has_interest(b"_INBOX.here") is not False

        await eventually(known, "the leaf hears of the subscriber")
        driver.do(Step(deliver=[frame("_INBOX.here", 1), frame("_INBOX.here", 2)]))
        subjects = [(await subscription.next_msg(TIMEOUT_S)).subject for _ in range(2)]
        assert subjects == ["orders.eu.1", "orders.eu.2"]
        await connection.close()
        driver.leaf.stop()
        async with asyncio.timeout(TIMEOUT_S):
            await task


@each_change
async def test_the_embedded_server_is_delivered_over_by_itself(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--jetstream-api", "domain") as broker:
        broker.logged("deliveries go over the leaf connection to nats://127.0.0.1:")
        _, findings = await examine(broker.client_address)
        assert told(findings, "deliveries") == [("ok", "1 broker with a leaf connection")]
        assert broker.stop() == 0


@each_change
async def test_brokers_of_one_machine_deliver_over_its_server(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--brokers", "2", "--jetstream-api", "domain") as broker:

        async def all_deliver() -> bool:
            _, findings = await examine(broker.client_address)
            return told(findings, "deliveries") == [("ok", "2 brokers with a leaf connection")]

        await eventually(all_deliver, "both brokers have a leaf connection")
