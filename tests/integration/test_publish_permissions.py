"""`penstock publish` as a user of NATS that may do only what docs/how-to/nats-permissions.md gives a publisher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, NatsProcess, eventually, running_broker, running_nats
from tests.cli_process import command
from tests.extent import each_change, needs_time
from tests.integration.publishers import connected_to

TIMEOUT_S = 60

CONFIG = """
accounts { APP { users = [
  { user: penstock, password: p, permissions: { subscribe: ["orders.>"], publish: ["_INBOX.>"] } }
  { user: shop, password: s, permissions: { subscribe: ["_INBOX.shop.>"], publish: ["orders.eu"] } }
] } }
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsProcess]:
    with running_nats(tmp_path_factory.mktemp("nats"), CONFIG) as server:
        yield server


@pytest.fixture(scope="module")
def broker(server: NatsProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    (folder / "password").write_text("p")
    user = ("--nats-user", "penstock", "--nats-password-file", str(folder / "password"))
    with running_broker(folder / "data", *user, nats=server.url) as broker:
        yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[aio.Client]:
    async with aio.connect(broker.client_address) as client:
        await client.create_stream("orders", "orders.>")
        yield client


def url_of(server: NatsProcess, who: str) -> str:
    return server.url.replace("nats://", f"nats://{who}@")


async def publish(
    broker: BrokerProcess, server: NatsProcess, *more: str, who: str = "shop:s", code: int = 0
) -> tuple[str, str]:
    arguments = ("publish", "orders.eu", "42", "--timeout", "3s", "--nats", url_of(server, who), *more)
    return await command(broker.client_address, *arguments, code=code)


@needs_time
async def test_acks_come_to_the_inbox_that_is_named(
    broker: BrokerProcess, server: NatsProcess, client: aio.Client
) -> None:
    out, _ = await publish(broker, server, "--inbox-prefix", "_INBOX.shop")
    assert out.startswith("stored in orders at offset ")
    _, wrong = await publish(broker, server, "--inbox-prefix", "_INBOX.>", code=2)
    assert "--inbox-prefix" in wrong


@each_change
async def test_a_refused_inbox_is_told_before_anything_is_published(
    broker: BrokerProcess, server: NatsProcess, client: aio.Client
) -> None:
    before = (await client.offsets("orders", "latest")).offset
    _, said = await publish(broker, server, code=1)
    assert "permissions violation for subscription" in said.lower()
    assert "nothing was published" in said
    assert "--inbox-prefix" in said
    assert (await client.offsets("orders", "latest")).offset == before
    async with aio.connect(broker.client_address, nats=url_of(server, "shop:s")) as publisher:
        with pytest.raises(penstock.Unavailable, match="inbox_prefix"):
            await publisher.publish("orders.eu", b"x")
        await publisher.publish("orders.eu", b"x", ack="none")


@needs_time
async def test_who_is_not_let_in_is_told_so(broker: BrokerProcess, server: NatsProcess, client: aio.Client) -> None:
    _, said = await publish(broker, server, who="shop:wrong", code=1)
    assert "no NATS server answers" not in said
    assert "asks for a login that it did not get" in said
    assert "wrong" not in said


@needs_time
async def test_a_password_comes_from_a_file_and_is_in_no_list_of_processes(
    broker: BrokerProcess, server: NatsProcess, client: aio.Client, tmp_path: Path
) -> None:
    file = tmp_path / "shop"
    file.write_text("shop:s\n")
    arguments = ("publish", "orders.eu", "42", "--inbox-prefix", "_INBOX.shop", "--nats-creds", str(file))
    out, _ = await command(broker.client_address, *arguments)
    assert out.startswith("stored in orders at offset ")
    file.write_text("shop:wrong\n")
    _, errors = await command(broker.client_address, *arguments, "--timeout", "3s", code=1)
    assert "asks for a login that it did not get" in errors
    file.write_text("shop\nwrong\n")
    for name, *more in (("publish", *arguments[1:]), ("relay", "orders", "--to", "x", "--nats-creds", str(file))):
        _, errors = await command(broker.client_address, name, *more, code=2)
        assert f"{file} holds no NATS credentials" in errors
        assert "wrong" not in errors


async def test_a_subject_on_which_one_may_not_publish_is_told_at_once(
    broker: BrokerProcess, server: NatsProcess, client: aio.Client
) -> None:
    arguments = ("publish", "orders.US", "42", "--timeout", "60s", "--nats", url_of(server, "shop:s"))
    _, said = await command(broker.client_address, *arguments, "--inbox-prefix", "_INBOX.shop", code=1)
    assert "NATS does not let this user publish on 'orders.US', so the message was not stored" in said
    options = {"inbox_prefix": "_INBOX.shop"}
    async with (
        asyncio.timeout(30),
        aio.connect(broker.client_address, nats=url_of(server, "shop:s"), nats_options=options) as publisher,
    ):
        with pytest.raises(penstock.Unavailable, match=r"publish on 'orders\.us'"):
            await publisher.publish("orders.us", b"x", timeout=60.0)
        assert (await publisher.publish("orders.eu", b"x")).stream == "orders"
        await publisher.publish("orders.us", b"x", ack="none")
        with pytest.raises(penstock.Unavailable, match=r"publish on 'orders\.us'"):
            await publisher.flush()
        await publisher.flush()


ACCOUNTS = """
accounts {
  APP {
    users: [ { user: penstock, password: p, permissions: { subscribe: ["orders.>", "feed.>"], %s } } ]
    exports: [ {service: "orders.>"} ]
    imports: [ {stream: {account: SHOP, subject: "feed.>"}} ]
  }
  SHOP {
    users: [ { user: shop, password: s } ]
    exports: [ {stream: "feed.>"} ]
    imports: [ {service: {account: APP, subject: "orders.>"}} ]
  }
}
"""


@needs_time
@pytest.mark.parametrize(
    ("allowed", "is_acked"),
    [
        ('publish: ["_INBOX.>"]', False),
        ('publish: ["_INBOX.>", "_R_.>"]', True),
        ('publish: ["$PENSTOCK.doctor.>"], allow_responses: { max: 1, expires: "2m" }', True),
    ],
    ids=["inboxes", "replies of imports", "responses"],
)
async def test_publishers_of_another_account_are_acked_as_the_page_says(
    tmp_path: Path, allowed: str, is_acked: bool
) -> None:
    """What they publish is stored in any case, where the brokers' account imports it, or exports it as a service."""
    user = ("--nats-user", "penstock", "--nats-password", "p")
    with (
        running_nats(tmp_path / "nats", ACCOUNTS % allowed) as server,
        running_broker(tmp_path / "data", *user, nats=server.url) as broker,
    ):
        async with await broker.client() as client, connected_to(url_of(server, "shop:s")) as shop:
            for name in ("orders", "feed"):
                await client.create_stream(name, f"{name}.>")
            publishing = shop.jetstream().publish("orders.eu", b"1", timeout=TIMEOUT_S if is_acked else 0.5)
            if is_acked:
                assert (await publishing).stream == "orders"
            else:
                with pytest.raises(nats.errors.TimeoutError):
                    await publishing
            await shop.publish("feed.eu", b"2")

            async def are_stored() -> bool:
                ends = [(await client.offsets(name, "latest")).offset for name in ("orders", "feed")]
                return ends == [1, 1]

            await eventually(are_stored, "what another account publishes")
            assert [one.subject async for one in client.messages("feed")] == ["feed.eu"]
