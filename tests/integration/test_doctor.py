"""`penstock doctor` on live systems: what is well, and what is not, with real nats-servers and their permissions."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import nats
import nats.aio.client
import pytest
from nats.aio.msg import Msg

from penstock import Credentials
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.broker.security.nats_credentials import TlsFiles, parse_nats_urls
from penstock.client.users import password_credential, rule
from penstock.doctor.permissions import Nats, judge_permissions
from tests import warm
from tests.broker_process import BrokerProcess, NatsProcess, broker_environment, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses

PAGE = Path(__file__).parents[2] / "docs/how-to/nats-permissions.md"
PASSWORDS = {"NATS_SECRET": "p1", "SHOP_SECRET": "p2", "CASHIER_SECRET": "p3"}
STREAMS = {"orders": "orders.>", "payments": "payments.*"}


def config_on_the_page(block: int = 0) -> str:
    """One of the page's blocks for nats-server.conf, with passwords in the place of variables."""
    text = re.split("```(?:text)?\n", PAGE.read_text())
    found = [one for one in text if "permissions: {" in one or "subscribe: [" in one][block]
    for name, password in PASSWORDS.items():
        found = found.replace(f"${name}", f'"{password}"')
    return found


def files(folder: Path) -> dict[str, str]:
    """The credentials of the page's users, each in a file."""
    users = {"penstock": "p1", "shop": "p2", "cashier": "p3"}
    for user, password in users.items():
        (folder / f"{user}.txt").write_text(f"{user}:{password}\n")
    return {user: str(folder / f"{user}.txt") for user in users}


def as_on_the_page(folder: Path) -> list[str]:
    who = files(folder)
    return [
        *("--as", f"penstock:{who['penstock']}"),
        *("--as", f"publisher:{who['shop']}:orders.>"),
        *("--as", f"publisher:{who['cashier']}:payments.*"),
    ]


async def examine(server: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run `penstock doctor`: its exit code and what it found."""
    words = ["doctor", "--json", "--server", server, *arguments]
    done = await asyncio.to_thread(warm.run, words, broker_environment({}))
    assert done.stdout, done.stderr
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def told(findings: list[dict[str, Any]], check: str) -> list[tuple[str, str]]:
    return [(one["result"], one["found"]) for one in findings if one["check"] == check]


@contextmanager
def served(folder: Path, config: str) -> Iterator[tuple[NatsProcess, BrokerProcess]]:
    """A nats-server with that config, and a broker that connects as `penstock`."""
    with running_nats(folder / "nats", config) as server:
        credentials = ("--nats-user", "penstock", "--nats-password", "p1")
        with running_broker(folder / "data", *credentials, nats=server.url) as broker:
            yield server, broker


async def make_streams(broker: BrokerProcess) -> None:
    async with await broker.client() as client:
        for name, subject in STREAMS.items():
            await client.create_stream(name, subject)


@asynccontextmanager
async def connected(server: NatsProcess, user: str, password: str) -> AsyncIterator[nats.aio.client.Client]:
    connection = await nats.connect(server.url, user=user, password=password, inbox_prefix=f"_INBOX.{user}".encode())
    try:
        yield connection
    finally:
        await connection.close()


@each_change
async def test_the_configuration_on_the_page_works_and_is_found_well(tmp_path: Path) -> None:
    with served(tmp_path, config_on_the_page()) as (server, broker):
        await make_streams(broker)
        async with connected(server, "shop", "p2") as shop, connected(server, "cashier", "p3") as cashier:
            assert (await shop.jetstream().publish("orders.eu", b"1")).stream == "orders"
            assert (await cashier.jetstream().publish("payments.eu", b"1")).stream == "payments"
        async with await broker.client() as client, client.consumer("orders", group="mail") as consumer:
            async for batch in consumer:
                assert batch.column("value").to_pylist() == [b"1"]
                await consumer.commit()
                break
        code, findings = await examine(broker.client_address, *as_on_the_page(tmp_path))
        assert told(findings, "NATS permissions") == [
            ("ok", "penstock penstock.txt may subscribe to every stream's subject, and answer"),
            ("ok", "publisher shop.txt may subscribe to no stream and publishes on orders.> only"),
            ("ok", "publisher cashier.txt may subscribe to no stream and publishes on payments.* only"),
            ("ok", "NATS refuses clients without credentials"),
        ]
        assert told(findings, "NATS")[0][0] == "ok"
        assert code == 0


@each_change
async def test_a_stream_on_a_subject_that_is_not_allowed_is_not_made(tmp_path: Path) -> None:
    with served(tmp_path, config_on_the_page()) as (_, broker):
        async with await broker.client() as client:
            with pytest.raises(RemoteError) as raised:
                await client.create_stream("invoices", "invoices.>")
            assert raised.value.code == ErrorCode.NATS_REFUSED
            assert await client.streams() == []


@each_change
async def test_with_allow_responses_acks_come_and_are_found_to(tmp_path: Path) -> None:
    whole = config_on_the_page()
    begin = whole.index("permissions: {")
    end = whole.index("user: shop") - 1
    narrow = config_on_the_page(1)
    config = f"{whole[:begin]}{narrow}\n}}\n{{\n{whole[end:]}"
    with served(tmp_path, config) as (server, broker):
        await make_streams(broker)
        async with connected(server, "shop", "p2") as shop:
            for _ in range(3):
                assert (await shop.jetstream().publish("orders.eu", b"1")).stream == "orders"
        _, findings = await examine(broker.client_address, *as_on_the_page(tmp_path))
        first = told(findings, "NATS permissions")[0]
        assert first == ("ok", "penstock penstock.txt may subscribe to every stream's subject, and answer")


WRONG = {
    "a publisher that reads along": (
        ('subscribe: ["_INBOX.shop.>"]', 'subscribe: ["_INBOX.shop.>", "payments.>"]'),
        ("warn", "publisher shop.txt may subscribe to payments.*: it reads all that is published there"),
    ),
    "a publisher that reads a part": (
        ('subscribe: ["_INBOX.shop.>"]', 'subscribe: ["_INBOX.shop.>", "orders.*"]'),
        ("warn", "publisher shop.txt may subscribe to orders.>: it reads all that is published there"),
    ),
    "a publisher that writes into a stream of others": (
        ('publish: ["orders.>"]', 'publish: ["orders.>", "payments.>"]'),
        ("warn", "publisher shop.txt may publish on payments.*: it writes into their streams"),
    ),
    "a publisher that may forge acks": (
        ('publish: ["orders.>"]', 'publish: ["orders.>", "_INBOX.>"]'),
        ("warn", "publisher shop.txt may publish on _INBOX.>: it can forge acks"),
    ),
    "a publisher that hears the acks of others": (
        ('subscribe: ["_INBOX.shop.>"]', 'subscribe: ["_INBOX.>"]'),
        ("warn", "publisher shop.txt may subscribe to _INBOX.>: it reads the acks of others"),
    ),
    "a publisher that cannot do its work": (
        ('publish: ["payments.*"]', 'publish: ["payment.*"]'),
        ("fail", "publisher cashier.txt may not publish on payments.*, which it should"),
    ),
    "brokers that cannot answer": (
        ('publish: ["_INBOX.>"]', 'publish: ["nothing"]'),
        ("unknown", "penstock penstock.txt may publish on _INBOX.> only with `allow_responses`, if it has that"),
    ),
    "brokers that cannot answer, seen": (
        (
            'subscribe: ["orders.>", "payments.*"]\n             publish: ["_INBOX.>"]',
            'subscribe: ["orders.>", "payments.*", "$PENSTOCK.doctor.>"]\n publish: ["$PENSTOCK.doctor.>"]',
        ),
        ("fail", "penstock penstock.txt may not answer publishers: none gets an ack"),
    ),
    "a user for clients without credentials": (
        ("accounts {", "no_auth_user: shop\naccounts {"),
        ("warn", "a client without credentials may publish on orders.>: it writes into their streams"),
    ),
    "a publisher whose password is another one": (
        ('password: "p3"', 'password: "other"'),
        ("fail", "publisher cashier.txt is refused by NATS"),
    ),
}


@needs_time
@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_configuration_is_found(tmp_path: Path, name: str) -> None:
    (right, wrong), expected = WRONG[name]
    config = config_on_the_page()
    assert right in config
    with served(tmp_path, config.replace(right, wrong)) as (server, broker):
        await make_streams(broker)
        _, findings = await examine(broker.client_address, *as_on_the_page(tmp_path), "--nats", server.url)
        found = told(findings, "NATS permissions")
        assert [one for one in found if one[0] == expected[0] and one[1].startswith(expected[1])], found
        who = expected[1].split(" may ")[0]
        assert [text for result, text in found if result == "ok" and text.startswith(who)] == []


async def test_what_is_open_to_other_machines_is_worse(tmp_path: Path) -> None:
    configs = [StreamConfig(name=name, subject=subject) for name, subject in STREAMS.items()]
    with running_nats(tmp_path / "nats") as server:
        results = []
        for is_private in (True, False):
            at = Nats(parse_nats_urls(server.url), TlsFiles(), 10_000, is_private)
            results.append([one.result async for one in judge_permissions(at, [], configs)])
    assert results == [["warn", "unknown"], ["fail", "unknown"]]


@needs_time
async def test_what_is_open_on_this_machine_is_worse_where_users_have_to_log_in(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_broker(tmp_path / "d", "--auth", nats=server.url) as broker:
        broker.logged("everybody logs in to Penstock, but not to NATS at nats://127.0.0.1:")
        code, findings = await examine(broker.client_address, *_as_admin(broker))
        everything = "may subscribe to all streams and publish anywhere: there are no permissions"
        assert ("fail", f"a client without credentials {everything}") in told(findings, "NATS permissions")
        assert code == 1


@needs_time
async def test_where_users_have_to_log_in_so_they_have_at_the_embedded_server(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--auth") as broker:
        code, findings = await examine(broker.client_address, *_as_admin(broker))
        assert told(findings, "NATS permissions") == [
            ("ok", "the brokers' own user may subscribe to every stream's subject, and answer"),
            ("ok", "NATS refuses clients without credentials"),
        ]
        assert told(findings, "JetStream") == [("ok", "not enabled in this account")]
        _, findings = await examine(broker.client_address, *_as_admin(broker), "--nats", broker.nats_url)
        assert ("ok", "the brokers' own user may subscribe to every stream's subject, and answer") not in told(
            findings, "NATS permissions"
        )
        assert told(findings, "credentials") == [("ok", "none expires")]
        assert told(findings, "certificates") == []
        assert code == 0
        assert broker.stderr is not None
        assert "ERROR" not in broker.stderr.text


def _as_admin(broker: BrokerProcess) -> tuple[str, str]:
    return "--credentials", str(broker.data_dir / "admin.credentials")


@needs_time
async def test_an_embedded_server_that_was_started_before_there_were_users_is_open_until_a_restart(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path / "data") as broker:
        admin = rule("admin")
        async with await broker.client() as client:
            await client.users.create("admin", password_credential("a password"), rules=[admin])
        file = tmp_path / "admin"
        file.write_text("admin:a password\n")
        file.chmod(0o600)
        broker.credentials = Credentials.parsed(file.read_text())
        as_admin = ("--credentials", str(file))
        broker.logged(r"WARNING.* not to the nats-server that was started with this broker.*restart")
        _, findings = await examine(broker.client_address, *as_admin)
        (found,) = [one for one in findings if "publish anywhere" in one["found"]]
        assert (found["result"], found["advice"].partition(" (")[0]) == ("fail", "restart the broker")
        broker.restart()
        _, findings = await examine(broker.client_address, *as_admin)
        assert ("ok", "NATS refuses clients without credentials") in told(findings, "NATS permissions")


@each_change
async def test_brokers_that_may_not_hear_a_stream_are_found(tmp_path: Path) -> None:
    with served(tmp_path, config_on_the_page()) as (server, broker):
        await make_streams(broker)
        narrower = config_on_the_page().replace('"orders.>", "payments.*"', '"orders.>"')
        (tmp_path / "nats" / "nats-server.conf").write_text(narrower)
        assert server.process is not None
        subprocess.run(["kill", "-HUP", str(server.pid)], check=True)
        assert server.stderr is not None
        server.stderr.wait_for("Reloaded server configuration")
        code, findings = await examine(broker.client_address, *as_on_the_page(tmp_path))
        text = "penstock penstock.txt may not subscribe to payments.*: nothing of it is stored"
        assert ("fail", text) in told(findings, "NATS permissions")
        assert code == 1


@each_change
async def test_nothing_comes_of_looking(tmp_path: Path) -> None:
    """Who hears all that is published hears nothing of it, JetStream stores nothing, and no stream grows."""
    store = f'jetstream {{ store_dir: "{tmp_path / "js"}" }}'
    with running_nats(tmp_path / "nats", store) as server, running_broker(tmp_path / "d", nats=server.url) as broker:
        await make_streams(broker)
        connection = await nats.connect(server.url)
        heard: list[str] = []

        async def hear(message: Msg) -> None:
            heard.append(message.subject)

        await connection.subscribe(">", cb=hear)
        await connection.jetstream().add_stream(name="ALL", subjects=["orders.>", "payments.*", "$PENSTOCK.doctor.>"])
        await connection.flush()
        heard.clear()
        _, findings = await examine(broker.client_address, "--as", f"publisher:{files(tmp_path)['shop']}")
        await connection.flush()
        assert [subject for subject in heard if not subject.startswith(("$JS.", "_INBOX."))] == []
        assert (await connection.jetstream().stream_info("ALL")).state.messages == 0
        async with await broker.client() as client:
            assert [info.partitions[0].log_end for info in await client.streams()] == [0, 0]
        await connection.close()
        everything = "may subscribe to all streams and publish anywhere: there are no permissions"
        assert ("warn", f"a client without credentials {everything}") in told(findings, "NATS permissions")


@needs_time
async def test_a_jetstream_stream_on_the_same_subjects_is_named(tmp_path: Path) -> None:
    store = f'jetstream {{ store_dir: "{tmp_path / "js"}" }}'
    with running_nats(tmp_path / "nats", store) as server, running_broker(tmp_path / "d", nats=server.url) as broker:
        await make_streams(broker)
        _, findings = await examine(broker.client_address)
        assert told(findings, "JetStream") == [("ok", "none of its 0 streams captures what Penstock stores")]
        connection = await nats.connect(server.url)
        await connection.jetstream().add_stream(name="EUROPE", subjects=["orders.eu", "other"])
        await connection.close()
        _, findings = await examine(broker.client_address)
        captures = "its stream EUROPE (orders.eu) captures what"
        assert told(findings, "JetStream") == [
            ("warn", f"{captures} orders (orders.>) stores: both ack, and the first ack counts"),
        ]
        async with await broker.client() as client:
            await client.pause_stream("orders")
            _, findings = await examine(broker.client_address)
            assert told(findings, "JetStream") == [
                ("warn", f"{captures} orders (orders.>) stores: orders is paused now; once it is resumed both ack"),
            ]
            await client.make_read_only("orders")
        _, findings = await examine(broker.client_address)
        ((_, text),) = told(findings, "JetStream")
        assert text.endswith("stores: orders is read-only and refuses it, and the first answer counts")


@each_change
async def test_one_broker_is_well_and_its_machine_is_looked_at(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
        _, findings = await examine(broker.client_address, "--data-dir", str(broker.data_dir))
        checks = {one["check"]: one["result"] for one in findings}
        assert {"disk", "file system", "limits", "clocks"} <= set(checks)
        well = ("brokers", "metadata", "voters", "versions", "nats-server", "clocks", "NATS", "load", "partitions")
        assert {name: checks[name] for name in (*well, "replicas", "damage", "gaps", "configs")} == dict.fromkeys(
            (*well, "replicas", "damage", "gaps", "configs"), "ok"
        )
        assert f"broker 1, {broker.data_dir}: " in told(findings, "limits")[0][1]


@needs_time
async def test_a_cluster_that_lost_a_broker_is_ill_where_that_shows(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
    code, findings = await examine(cluster.brokers[1].client_address)
    assert told(findings, "brokers")[0][0] == "ok"
    assert told(findings, "voters") == [("ok", "3, of which 1 may fail")]
    assert told(findings, "replicas") == [("ok", "every partition has all its copies in sync")]
    assert code == 0
    cluster.brokers[3].kill()
    await cluster.all_live()
    await cluster.in_sync("orders", {1, 2}, 1)
    code, findings = await examine(cluster.brokers[1].client_address)
    at = cluster.brokers[3].client_address
    assert told(findings, "brokers") == [("fail", f"broker 3 at {at} is away")]
    assert told(findings, "replicas") == [("warn", "orders has 2 of 3 copies in sync")]
    assert code == 1


@needs_time
async def test_brokers_that_restarted_one_after_the_other_left_no_time_in_which_nobody_listened(
    cluster: ClusterProcesses,
) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
    await cluster.in_sync("orders", {1, 2, 3}, 1)
    for number in (1, 2, 3):
        broker = cluster.brokers[number]
        assert broker.stop() == 0
        broker.listen = broker.client_address
        broker.start()
        await cluster.all_live()
        await cluster.in_sync("orders", {1, 2, 3}, number)
    _, findings = await examine(cluster.brokers[1].client_address)
    told_of = [text for _, text in told(findings, "gaps")]
    assert not [text for text in told_of if "the broker was stopped" in text], told_of


async def test_without_a_broker_it_says_so() -> None:
    done = await asyncio.to_thread(warm.run, ["doctor", "--server", "127.0.0.1:1"], broker_environment({}))
    assert done.returncode == 1
    assert "no broker answers at 127.0.0.1:1" in done.stderr
