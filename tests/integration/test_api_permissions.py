"""The permissions for JetStream's API on the page about NATS permissions: they suffice, and each of them is used."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError

from penstock.base.subjects import matches
from tests.broker_process import BrokerProcess, NatsProcess, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.test_doctor import PAGE, examine, told
from tests.ports import free_ports

TIMEOUT_S = 20
DOMAIN_PROBE = "$JS.penstock.API.INFO"
LARGE, LARGE_COUNT = 60_000, 60
"""Bytes and number of messages after which a push consumer waits for an answer to its flow control."""


def config_on_the_page(leaf_port: int) -> str:
    """The block for JetStream's API, for this machine, with passwords and a user who hears everything."""
    section = PAGE.read_text(encoding="utf-8").split("\n## With JetStream's API\n")[1].split("\n## ")[0]
    [block] = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    config = re.sub(r"user: (\w+), password: \$\w+", r"user: \1, password: p-\1", block)
    assert "port: 7423" in config
    config = config.replace("port: 7423", f"port: {leaf_port}")
    return config.replace("users = [", "users = [\n{ user: watch, password: p-watch }", 1)


def allowed(config: str, user: str, kind: str) -> list[str]:
    """The subjects that a user of the config may publish on, or subscribe to."""
    of_user = config.split(f"user: {user},")[1].split("user: ")[0]
    [listed] = re.findall(rf"{kind}: \[(.*?)\]", of_user, re.DOTALL)
    return re.findall(r'"([^"]+)"', listed)


@asynccontextmanager
async def logged_in(server: NatsProcess, user: str) -> AsyncIterator[Any]:
    connection = await nats.connect(
        server.url, user=user, password=f"p-{user}", inbox_prefix=f"_INBOX.{user}".encode(), allow_reconnect=False
    )
    try:
        yield connection
    finally:
        await connection.close()


async def administer(js: Any) -> None:
    await js.add_stream(name="orders", subjects=["orders.>"], allow_direct=True)
    await js.create_key_value(bucket="settings", direct=True)
    assert {one.config.name for one in await js.streams_info()} == {"orders", "KV_settings"}
    with pytest.raises(APIError):
        await js.add_stream(name="more", subjects=["more.>"])  # the brokers may not subscribe there


async def read(js: Any) -> None:
    assert (await js.stream_info("orders")).state.messages == LARGE_COUNT
    assert (await js.get_msg("orders", 1)).subject == "orders.eu"
    assert (await js.get_msg("orders", 2, direct=True)).seq == 2
    assert (await js.get_last_msg("orders", "orders.eu", direct=True)).seq == LARGE_COUNT
    subscription = await js.subscribe("orders.>", stream="orders", ordered_consumer=True)
    for _ in range(LARGE_COUNT):
        await subscription.next_msg(timeout=TIMEOUT_S)
    await subscription.unsubscribe()
    config = ConsumerConfig(name="named", ack_policy=AckPolicy.NONE, filter_subject="orders.eu")
    await js.add_consumer("orders", config)
    assert (await js.consumer_info("orders", "named")).num_pending == LARGE_COUNT
    pulled = await js.pull_subscribe_bind("named", stream="orders")
    assert len(await pulled.fetch(3, timeout=TIMEOUT_S)) == 3
    assert await js.delete_consumer("orders", "named")


async def work(js: Any) -> None:
    config = ConsumerConfig(durable_name="packing", ack_policy=AckPolicy.EXPLICIT)
    await js.add_consumer("orders", config)
    await js.add_consumer("orders", config, name="packing")  # nats-py asks on another subject then
    pulled = await js.pull_subscribe_bind("packing", stream="orders")
    for message in await pulled.fetch(2, timeout=TIMEOUT_S):
        await message.ack_sync(timeout=TIMEOUT_S)
    assert (await js.consumer_info("orders", "packing")).ack_floor.stream_seq == 2


async def use_bucket(js: Any) -> None:
    bucket = await js.key_value("settings")
    for number in range(LARGE_COUNT):
        await bucket.put(f"k{number}", b"x" * LARGE)
    assert (await bucket.get("k1")).value == b"x" * LARGE
    assert (await bucket.get("k1", revision=2)).value == b"x" * LARGE
    assert (await js.get_msg("KV_settings", 2)).subject == "$KV.settings.k1"  # as of a bucket without direct gets
    watcher = await bucket.watchall()
    for _ in range(LARGE_COUNT):
        assert await watcher.updates(timeout=TIMEOUT_S) is not None
    await watcher.stop()
    config = ConsumerConfig(name="named", ack_policy=AckPolicy.NONE, filter_subject="$KV.settings.>")
    await js.add_consumer("KV_settings", config)
    assert (await js.consumer_info("KV_settings", "named")).num_pending == LARGE_COUNT
    assert await js.delete_consumer("KV_settings", "named")


@each_change
async def test_the_permissions_on_the_page_suffice_and_each_is_used(tmp_path: Path) -> None:
    (leaf_port,) = free_ports(1)
    config = config_on_the_page(leaf_port)
    login = ("--nats-user", "penstock", "--nats-password", "p-penstock")
    api = ("--jetstream-api", "auto", "--jetstream-rights", "manage")
    environment = {"PENSTOCK_NATS_LEAF": f"nats://leaf:p-leaf@127.0.0.1:{leaf_port}"}
    published: dict[str, None] = {}

    async def hear(message: Msg) -> None:
        published[message.subject] = None
        if message.reply:
            published[message.reply] = None

    async def hear_trial(message: Msg) -> None:
        published["_INBOX.penstock-leaf.trial"] = None  # it comes with another subject than that of its inbox

    with running_nats(tmp_path / "nats", config) as server:
        async with logged_in(server, "watch") as watch:
            await watch.subscribe("_INBOX.penstock-leaf.>", cb=hear_trial)
            await watch.flush()
            with running_broker(tmp_path / "data", *login, *api, nats=server.url, environment=environment) as broker:

                async def delivers() -> bool:
                    async with await broker.client() as client:
                        return (await client.status()).nats.leaf_state == "connected"

                await eventually(delivers, "the leaf connection is up")
                await watch.subscribe(">", cb=hear)  # while it hears all, no request is without a responder
                await watch.flush()
                async with logged_in(server, "admin") as admin:
                    await administer(admin.jetstream(timeout=TIMEOUT_S))
                for _ in range(LARGE_COUNT):
                    await watch.jetstream().publish("orders.eu", b"x" * LARGE)
                async with logged_in(server, "reader") as reader:
                    await read(reader.jetstream(timeout=TIMEOUT_S))
                async with logged_in(server, "packer") as packer:
                    await work(packer.jetstream(timeout=TIMEOUT_S))
                async with logged_in(server, "settings") as settings:
                    await use_bucket(settings.jetstream(timeout=TIMEOUT_S))

                async def is_probed() -> bool:
                    return DOMAIN_PROBE in published

                await eventually(is_probed, "the brokers ask again who serves the API")
                await watch.flush()
                async with await broker.client() as client:
                    status = await client.status()
                    assert status.nats.undelivered == 0
                    assert status.nats.complaints == 0, status.nats.last_complaint
            assert server.stderr is not None
            refused = re.findall(r"(?:Publish|Subscription) Violation.*", server.stderr.text)
            assert ["more.>" in one for one in refused] == [True], refused
    for user in ("penstock", "leaf", "reader", "packer", "settings", "admin"):
        unused = [one for one in allowed(config, user, "publish") if not any(matches(one, sent) for sent in published)]
        assert unused == [], user
    heard = allowed(config, "penstock", "subscribe")
    assert [one for one in heard if not any(matches(one, sent) for sent in published)] == []


async def findings_of(tmp_path: Path, broker: BrokerProcess) -> list[tuple[str, str]]:
    """What the doctor says of the page's users."""
    users = {"penstock": "penstock:{}", "reader": "reader:{}:orders", "settings": "publisher:{}:$KV.settings.>"}
    arguments = []
    for user, text in users.items():
        file = tmp_path / f"{user}.txt"
        file.write_text(f"{user}:p-{user}\n")
        arguments += ["--as", text.format(file)]
    _, findings = await examine(broker.client_address, *arguments)
    return told(findings, "NATS permissions")


WRONG = {
    "nothing": ("", "", ("ok", "")),
    "no requests": (
        '"$JS.API.>", "$JS.penstock', '"$JS.penstock',
        ("fail", "penstock penstock.txt may not subscribe to $JS.API.>:"),
    ),
    "no answers of flow control": (
        ', "$JS.FC.*.*.*"', "",
        ("fail", "penstock penstock.txt may not subscribe to $JS.FC."),
    ),
    "no evidence": (', "$JS.API.INFO"', "", ("fail", "penstock penstock.txt may not publish on $JS.API.INFO:")),
    "a reader who reads others": (
        '"$JS.API.STREAM.INFO.orders"', '"$JS.API.CONSUMER.CREATE.>"',
        ("warn", "reader reader.txt may read KV_settings through JetStream's API"),
    ),
    "a reader who deletes": (
        '"$JS.API.STREAM.INFO.orders"', '"$JS.API.STREAM.DELETE.*"',
        ("warn", "reader reader.txt may change and delete KV_settings, orders through JetStream's API"),
    ),
    "a reader who cannot": (
        ".orders", ".others",
        ("fail", "reader reader.txt may not read orders through JetStream's API, which it should"),
    ),
}  # fmt: skip


@needs_time
@pytest.mark.parametrize("name", WRONG)
async def test_the_doctor_says_whether_permissions_are_those_of_the_page(tmp_path: Path, name: str) -> None:
    right, wrong, expected = WRONG[name]
    (leaf_port,) = free_ports(1)
    config = config_on_the_page(leaf_port)
    assert right in config
    login = ("--nats-user", "penstock", "--nats-password", "p-penstock")
    api = ("--jetstream-api", "auto", "--jetstream-rights", "manage")
    with (
        running_nats(tmp_path / "nats", config.replace(right, wrong) if right else config) as server,
        running_broker(tmp_path / "data", *login, *api, nats=server.url) as broker,
    ):
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
            await client.create_stream("KV_settings", "$KV.settings.>")
        found = await findings_of(tmp_path, broker)
        if name == "nothing":
            assert found == [
                ("ok", "penstock penstock.txt may subscribe to every stream's subject, and answer"),
                ("ok", "reader reader.txt may read orders only, and publishes into none"),
                ("ok", "publisher settings.txt may subscribe to no stream and publishes on $KV.settings.> only"),
                ("ok", "NATS refuses clients without credentials"),
            ]
        else:
            assert [one for one in found if one[0] == expected[0] and one[1].startswith(expected[1])], found


@each_change
async def test_the_doctor_does_not_take_this_clusters_api_for_a_jetstream(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--jetstream-api", "auto") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
        _, findings = await examine(broker.client_address)
        assert told(findings, "JetStream") == [("ok", "this cluster answers its API, and no other")]
        assert told(findings, "API settings") == [
            ("ok", "callers of JetStream's API may read and change, without a user")
        ]
