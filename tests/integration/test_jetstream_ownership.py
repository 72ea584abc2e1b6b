"""Who serves JetStream's API, and as whom: evidence before it is taken, withdrawal, domains, rights."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError
from typer.testing import CliRunner

from penstock import Credentials
from penstock.access import Operation, Rule
from penstock.client.users import password_credential
from penstock.messages import StatusResponse
from tests.broker_process import eventually, running_broker, running_nats
from tests.cli_app import app
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.integration.guarded import PASSWORD, logged_in
from tests.integration.test_jetstream_streams import MANAGE, api_options, connected, said, serving

TIMEOUT_S = 20
DOMAIN = "$JS.penstock.API."
PUBLIC = "$JS.API."


def jetstream(folder: Path) -> str:
    return f"jetstream {{ store_dir: {json.dumps(str(folder))} }}"


@each_change
async def test_beside_a_jetstream_only_the_domain_is_served(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats", jetstream(tmp_path / "js")) as server,
        running_broker(tmp_path / "data", *api_options(*MANAGE), nats=server.url) as broker,
    ):
        async with connected(server.url) as connection:
            assert broker.said.count("is not served as $JS.API.>: broker 1: nats-server has JetStream itself") == 1
            theirs, ours = connection.jetstream(), connection.jetstream(domain="penstock")
            await theirs.add_stream(name="theirs", subjects=["theirs"])
            await ours.add_stream(name="ours", subjects=["ours"])
            assert [one.config.name for one in await theirs.streams_info()] == ["theirs"]
            assert [one.config.name for one in await ours.streams_info()] == ["ours"]
            assert (await ours.publish("ours", b"x")).seq == 1
            assert (await ours.account_info()).domain == "penstock"


@each_change
async def test_a_broker_leaves_the_api_to_another_that_answers_and_tells_so(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path / "data", *api_options(*MANAGE), nats=server.url) as broker,
    ):
        async with connected(server.url) as connection:
            assert (await said(connection, "STREAM.NAMES"))["streams"] is None

            async def answer(message: Any) -> None:
                await message.respond(b'{"type":"io.nats.jetstream.api.v1.account_info_response"}')

            other = await connection.subscribe("$JS.API.INFO", cb=answer)
            await connection.flush()
            await eventually(
                lambda: _is_in(broker, "is not served as $JS.API.>: broker 1: a JetStream answers there"), "it is told"
            )
            with pytest.raises(NoRespondersError):
                await connection.request("$JS.API.STREAM.NAMES", b"", timeout=TIMEOUT_S)
            answered = await connection.request(f"{DOMAIN}STREAM.NAMES", b"", timeout=TIMEOUT_S)
            assert json.loads(answered.data)["streams"] is None
            await other.unsubscribe()
            await connection.flush()
            async with await broker.client() as client:
                assert [(one.prefix, one.state) for one in (await client.status()).apis] == [
                    ("$JS.API.", "withdrawn"),
                    (DOMAIN, "taken"),
                ]
                await client.take_api("$JS.API.")

                async def is_served() -> bool:
                    return "$JS.API." in (await client.status()).apis_served

                await eventually(is_served, "it is served again")
            assert (await said(connection, "STREAM.NAMES"))["streams"] is None


@needs_time
async def test_a_monitor_on_everything_and_a_lost_connection_are_told(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        async with connected(server.url) as connection:
            monitor = await connection.subscribe(">")
            await connection.flush()
            with running_broker(tmp_path / "data", *api_options(*MANAGE), nats=server.url) as broker:
                async with await broker.client() as client:

                    async def what_keeps_it() -> tuple[str, ...]:
                        return (await client.status()).nats.api_unknown

                    told = await eventually(what_keeps_it, "the monitor is told")
                    assert [DOMAIN in told[0], PUBLIC in told[1]] == [True, True]
                    broker.logged(re.escape("not served yet here: $JS.API.>: nothing answers there"))
                    status = await client.status()
                    assert (status.nats.api_state, status.apis_served) == ("connected", ())
                    await monitor.unsubscribe()
                    await connection.flush()

                    async def served() -> bool:
                        return len((await client.status()).apis_served) == 2

                    await eventually(served, "both are served without the monitor")
                    server.kill()

                    async def lost() -> str:
                        nats = (await client.status()).nats
                        return nats.api_error if nats.api_state == "connecting" else ""

                    assert await eventually(lost, "the lost connection is told")
                    assert (await client.status()).apis_served == ()


async def _is_in(broker: Any, text: str) -> bool:
    return text in broker.said


@needs_time
async def test_a_cluster_leaves_as_one_and_comes_back_only_when_told(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3, *api_options(*MANAGE)) as brokers:
        await brokers.all_live()
        async with connected(brokers.nats.url) as connection:
            await serving(connection)

            async def served() -> set[bool]:
                return {PUBLIC in (await _status(brokers, number)).apis_served for number in (1, 2, 3)}

            await eventually(lambda: _is(served, {True}), "all serve")

            async def answer(message: Any) -> None:
                await message.respond(b'{"type":"io.nats.jetstream.api.v1.account_info_response"}')

            other = await connection.subscribe("$JS.API.INFO", cb=answer)
            await eventually(lambda: _is(served, {False}), "all have left")
            await other.unsubscribe()
            await connection.flush()
            assert brokers.brokers[2].stop() == 0
            brokers.brokers[2].launch()
            await brokers.all_live()
            apis = (await _status(brokers, 2)).apis
            assert [(one.prefix, one.state) for one in apis] == [(PUBLIC, "withdrawn"), (DOMAIN, "taken")]
            assert "a JetStream answers there" in apis[0].why
            at = ("--server", brokers.brokers[1].client_address)
            done = CliRunner().invoke(app, ["cluster", "take-api", "$JS.API.>", "--yes", "--json", *at])
            assert [one["state"] for one in json.loads(done.stdout)["apis"]] == ["waiting", "taken"]
            await eventually(lambda: _is(served, {True}), "all serve again")
            shown = CliRunner().invoke(app, ["cluster", "api", *at]).stdout
            assert shown.count("taken") == 2
            refused = CliRunner().invoke(app, ["cluster", "take-api", "$JS.none.API.", "--yes", *at])
            assert refused.exit_code == 1
            assert "is no prefix of JetStream's API here" in " ".join(refused.output.split())


async def _status(brokers: ClusterProcesses, number: int) -> StatusResponse:
    return await eventually(lambda: brokers.status(number), "it answers")  # type: ignore[return-value, arg-type]


async def _is(look: Callable[[], Awaitable[set[bool]]], wanted: set[bool]) -> bool:
    return await look() == wanted


@each_change
async def test_clients_with_the_permissions_of_the_page_cannot_make_the_cluster_leave(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/beside-jetstream.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"```text\n(authorization .*?)```", page, flags=re.DOTALL)
    config = config.replace("users: [", "users: [ { user: penstock, password: p }").replace("\u2026", "q")
    with running_nats(tmp_path / "nats", config) as server:
        url = server.url.replace("nats://", "nats://{}@")
        with running_broker(tmp_path / "data", *api_options(*MANAGE), nats=url.format("penstock:p")) as broker:
            complaints: list[str] = []

            async def complain(error: Exception) -> None:
                complaints.append(str(error))

            connection = await nats.connect(url.format("app:q"), allow_reconnect=False, error_cb=complain)
            try:
                await connection.jetstream().add_stream(name="orders", subjects=["orders.>"])
                assert (await connection.jetstream().publish("orders.1", b"x")).seq == 1
                for subject in ("$JS.API.INFO", "$JS.API.>", "$JS.penstock.API.INFO", "_INBOX.penstock.>"):
                    await connection.subscribe(subject)
                await connection.publish(f"_INBOX.penstock.{'0' * 16}.1.1", b"{}")

                async def are_refused() -> bool:
                    return len(complaints) == 5

                await eventually(are_refused, "all are refused")
                assert (await connection.jetstream().stream_info("orders")).state.messages == 1
            finally:
                await connection.close()
            assert "is not served" not in broker.said


@needs_time
async def test_a_second_cluster_does_not_take_the_domain_of_the_first(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path / "one", *api_options(*MANAGE), nats=server.url) as one,
        running_broker(tmp_path / "two", *api_options(*MANAGE), nats=server.url) as two,
        running_broker(tmp_path / "three", *api_options("--jetstream-domain", "three"), nats=server.url) as three,
    ):
        async with connected(server.url) as connection:
            for prefix in ("$JS.API.", DOMAIN):
                assert f"is not served as {prefix}>: broker 1: another Penstock cluster answers there" in two.said
            assert f"is not served as {DOMAIN}" not in three.said
            await connection.jetstream().add_stream(name="s", subjects=["s"])
            for _ in range(10):
                assert (await said(connection, "STREAM.NAMES"))["streams"] == ["s"]
            domain = await connection.request("$JS.three.API.STREAM.NAMES", b"", timeout=TIMEOUT_S)
            assert json.loads(domain.data)["streams"] is None
            assert "is not served" not in one.said


@each_change
async def test_on_an_external_nats_the_api_only_reads_until_it_is_told_otherwise(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path / "data", *api_options(), nats=server.url) as broker,
    ):
        async with connected(server.url) as connection, await broker.client() as client:
            await client.create_stream("s", "s")
            assert (await said(connection, "STREAM.INFO.s"))["config"]["name"] == "s"
            for operation in ("CREATE", "UPDATE", "DELETE", "PURGE", "MSG.DELETE"):
                error = (await said(connection, f"STREAM.{operation}.s", '{"name":"s","seq":1}'))["error"]
                assert (error["code"], "--jetstream-rights manage" in error["description"]) == (403, True)
            assert [one.name for one in await client.streams()] == ["s"]


@each_change
async def test_with_authentication_the_rules_of_the_apis_user_hold_stream_by_stream(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with (
        running_nats(tmp_path / "nats") as server,
        running_broker(data_dir, *api_options("--auth", "--jetstream-user", "api"), nats=server.url) as broker,
    ):
        credentials = Credentials.parsed((data_dir / "admin.credentials").read_text())
        async with logged_in(broker, credentials) as admin, connected(server.url) as connection:
            await admin.create_stream("seen", "seen.>")
            await admin.create_stream("hidden", "hidden.>")
            error = (await said(connection, "STREAM.INFO.seen"))["error"]
            assert (error["code"], "--jetstream-user" in error["description"]) == (403, True)
            await admin.users.create("api", password_credential(PASSWORD), rules=[Rule(Operation.READ, "seen")])
            assert (await said(connection, "STREAM.INFO.seen"))["config"]["name"] == "seen"
            assert (await said(connection, "STREAM.INFO.hidden"))["error"]["err_code"] == 10059
            assert (await said(connection, "STREAM.NAMES"))["streams"] == ["seen"]
            assert [one["config"]["name"] for one in (await said(connection, "STREAM.LIST"))["streams"]] == ["seen"]
            for operation in ("CREATE.new", "DELETE.seen", "PURGE.seen", "MSG.DELETE.seen"):
                request = {"CREATE.new": '{"name":"new"}', "MSG.DELETE.seen": '{"seq":1}'}.get(operation, "")
                assert (await said(connection, f"STREAM.{operation}", request))["error"]["code"] == 403
            await admin.users.change_rules("api", add=[Rule(Operation.CREATE, subject="new")])
            assert "error" not in await said(connection, "STREAM.CREATE.new", '{"name":"new"}')
