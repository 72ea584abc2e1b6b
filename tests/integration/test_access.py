"""Real brokers that have everybody log in: who gets in, who does not, and from when on."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import nats
import pyarrow as pa
import pytest

from penstock import Credentials, NotAuthorized, RemoteError, StreamNotFound, Unauthenticated, aio
from penstock.access import Operation, Quotas, Rule
from penstock.access.nkeys import NkeyClient
from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError
from penstock.client.users import nkey_credential, password_credential, rule, token_credential
from penstock.messages import (
    AuthenticateRequest,
    AuthenticateResponse,
    FetchRequest,
    HelloRequest,
    MetadataRequest,
    PeerHelloRequest,
    RaftRequest,
)
from penstock.wire import decode_response
from penstock.wire.bodies import refusal_in
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.integration.clusters import running_cluster
from tests.integration.raw_client import RawClient, raw_client

ADMIN = Rule(Operation.ADMIN)
NKEY_SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else
SECRET = "a secret of the cluster that is long enough"
PASSWORD = "a password"
QUERY = UUID(int=1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "data", "--auth") as broker:
        broker.credentials = Credentials.parsed((tmp_path / "data" / "admin.credentials").read_text())
        yield broker


@asynccontextmanager
async def logged_in(broker: BrokerProcess, credentials: object) -> AsyncIterator[aio.Client]:
    async with aio.connect(broker.client_address, credentials=credentials) as client:  # type: ignore[arg-type]
        yield client


async def test_the_first_start_makes_an_administrator_whose_password_only_its_owner_reads(broker) -> None:
    file = broker.data_dir / "admin.credentials"
    assert file.stat().st_mode & 0o777 == 0o600
    password = file.read_text().strip().partition(":")[2]
    assert password not in broker.said
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>")
        seen = await client.users.all()
        assert (seen.is_guarded, seen.user, [one.name for one in seen.users]) == (True, "admin", ["admin"])
        assert password not in json.dumps((await client.status()).counters)
    broker.restart()
    async with await broker.client() as client:
        assert [one.name for one in await client.streams() if not one.config.is_internal] == ["orders"]


@pytest.mark.parametrize(
    "credentials",
    [
        None,
        Credentials.password("admin", "another one"),
        Credentials.password("nobody", "another one"),
        Credentials.token("pst_admin_00000000_secret"),
        Credentials.nkey(NKEY_SEED),
    ],
)
async def test_who_shows_nothing_or_what_is_wrong_is_not_let_in(broker, credentials, monkeypatch) -> None:
    for name in ("PENSTOCK_CREDENTIALS", "PENSTOCK_TOKEN", "PENSTOCK_USER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unauthenticated):
        async with logged_in(broker, credentials):
            pass


async def test_each_way_to_log_in(broker, tmp_path) -> None:
    token = token_credential("bob")
    public_key = NkeyClient(NKEY_SEED, "").public_key
    async with await broker.client() as admin:
        await admin.users.create("bob", password_credential(PASSWORD), token, nkey_credential(public_key))
    assert token.token is not None
    file = tmp_path / "bob.token"
    file.write_text(token.token + "\n")
    for shown in (
        Credentials.password("bob", PASSWORD),
        Credentials.token(token.token),
        Credentials.nkey(NKEY_SEED),
        file,
        str(file),
    ):
        async with logged_in(broker, shown) as client:
            assert (await client.users.all()).user == "bob"
            assert client.nats_urls


async def test_what_a_user_may_counts_from_when_the_call_returns(broker) -> None:
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        await admin.users.create("bob", password_credential(PASSWORD))
        async with logged_in(broker, Credentials.password("bob", PASSWORD)) as bob:
            with pytest.raises(StreamNotFound):
                await bob.append("orders", [{"subject": "orders.eu", "value": b"1"}])
            await admin.users.change_rules(
                "bob", add=[rule("append", subject="orders.eu"), rule("read", stream="orders")]
            )
            await bob.append("orders", [{"subject": "orders.eu", "value": b"1"}])
            with pytest.raises(NotAuthorized, match=r"orders\.us"):
                await bob.append("orders", [{"subject": "orders.us", "value": b"2"}])
            assert (await bob.get("orders", 0)).value == b"1"
            await admin.users.change_rules("bob", drop=[rule("read", stream="orders")])
            with pytest.raises(NotAuthorized):
                await bob.get("orders", 0)
        assert (await admin.offsets("orders", "latest")).offset == 1


async def test_who_has_lost_his_credential_logs_in_anew_or_not_at_all(broker, tmp_path) -> None:
    file = tmp_path / "bob"
    file.write_text(f"bob:{PASSWORD}\n")
    async with await broker.client() as admin:
        await admin.users.create("bob", password_credential(PASSWORD))
        async with logged_in(broker, file) as bob:
            assert await bob.streams() == []
            await admin.users.alter("bob", add=[password_credential("a new password")])
            with pytest.raises(Unauthenticated):
                await bob.streams()
            file.write_text("bob:a new password\n")
            assert await bob.streams() == []
            await admin.users.delete("bob")
            with pytest.raises(Unauthenticated):
                await bob.streams()


async def test_a_token_that_has_expired(broker) -> None:
    token = token_credential("bob", expires=datetime.now(UTC) - timedelta(seconds=1))
    assert token.token is not None
    async with await broker.client() as admin:
        await admin.users.create("bob", token)
    with pytest.raises(Unauthenticated):
        async with logged_in(broker, Credentials.token(token.token)):
            pass


async def test_publishers_go_through_nats_as_before(broker) -> None:
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
    connection = await nats.connect(broker.nats_url)
    ack = await connection.jetstream().publish("orders.eu", b"42")
    assert (ack.stream, ack.seq) == ("orders", 1)
    await connection.close()


async def test_nothing_is_taken_before_a_login_but_what_belongs_to_it(broker) -> None:
    async with raw_client(broker.client_address) as raw:
        await raw.hello()
        raw.ask(MetadataRequest(), 2)
        frame = await raw.frame()
        assert frame is not None
        error = refusal_in(frame.body)
        assert error is not None
        assert error.code == ErrorCode.UNAUTHENTICATED
        assert await raw.is_closed()
    async with raw_client(broker.client_address) as raw:
        await raw.hello()
        raw.send((limits.HELLO_BYTES_MAX * 2).to_bytes(4, "little") + bytes(100))
        assert (await _refusal(raw)).code == ErrorCode.TOO_LARGE
    async with raw_client(broker.client_address) as raw:
        await raw.hello()
        raw.ask(AuthenticateRequest(mechanism="PLAIN", data=b"\0admin\0x"), 2)
        assert (await _refusal(raw)).code == ErrorCode.UNAUTHENTICATED
        assert await raw.is_closed()


async def _refusal(raw: RawClient) -> RemoteError:
    frame = await raw.frame()
    assert frame is not None
    error = refusal_in(frame.body)
    assert error is not None
    return error


async def test_nobody_is_taken_for_a_broker_who_does_not_know_the_secret(broker) -> None:
    hello = HelloRequest(client_name="penstock broker 2", client_version="0")
    peer_hello = PeerHelloRequest(
        cluster_id="", broker_id=2, data_dir_id="disk", broker_version="0", address="127.0.0.1:1"
    )
    raft = RaftRequest(data_dir_id="disk")
    for request in (peer_hello, raft):
        async with raw_client(broker.client_address) as raw:
            raw.ask_as_broker(hello, 1)
            await raw.frame()
            raw.ask_as_broker(request, 2)
            assert (await _refusal(raw)).code == ErrorCode.UNAUTHENTICATED
            assert await raw.is_closed()


async def test_a_user_is_no_broker(broker) -> None:
    async with await broker.client() as admin:
        connection = await admin._link._connections.at(broker.client_address, asyncio.get_running_loop().time() + 5)
        for request in (
            PeerHelloRequest(cluster_id="", broker_id=2, data_dir_id="d", broker_version="0", address="127.0.0.1:1"),
        ):
            with pytest.raises(PenstockError, match="is no broker"):
                await connection.call(request, b"", asyncio.get_running_loop().time() + 5)


async def test_failed_logins_are_told_without_what_was_shown(broker) -> None:
    with pytest.raises(Unauthenticated):
        async with logged_in(broker, Credentials.password("admin", "sesame-open")):
            pass
    broker.logged("a login as 'admin' from 127.0.0.1:.* failed")
    assert "sesame" not in broker.said
    async with await broker.client() as admin:
        assert (await admin.status()).counters["failed_logins"] == 1


def in_cluster(tmp_path: Path) -> tuple[str, ...]:
    """Arguments that have brokers prove to each other who they are."""
    secret, password = tmp_path / "secret", tmp_path / "password"
    secret.write_text(SECRET + "\n")
    password.write_text(PASSWORD + "\n")
    return ("--cluster-secret-file", str(secret), "--auth", "--admin-password-file", str(password))


async def test_a_cluster_goes_by_a_rule_on_all_brokers_at_once(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(1) as admin:
            await admin.create_stream("orders", "orders.>", partitions=3, partition_by="key")
            await admin.users.create("bob", password_credential(PASSWORD))
            bobs = [
                await aio.connect(broker.client_address, credentials=Credentials.password("bob", PASSWORD))
                for broker in cluster.brokers.values()
            ]
            may = rule("read", stream="orders")
            for _ in range(20):
                await admin.users.change_rules("bob", add=[may])
                for bob in bobs:
                    assert [one.name for one in await bob.streams()] == ["orders"]
                await admin.users.change_rules("bob", drop=[may])
                for bob in bobs:
                    assert await bob.streams() == []
            for bob in bobs:
                await bob.close()


async def test_a_cluster_goes_on_when_a_broker_is_killed(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(1) as admin:
            await admin.create_stream("orders", "orders.>")
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
        cluster.brokers[await cluster.leader_of("orders")].restart()
        await cluster.all_live()
        async with cluster.client(2) as admin:
            await admin.append("orders", [{"subject": "orders.eu", "value": b"2"}])
            values = [message.value async for message in admin.messages("orders", end="latest")]
            assert values == [b"1", b"2"]


async def test_a_broker_with_another_secret_is_not_let_in(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        other = tmp_path / "other"
        other.write_text("another secret, which is long enough, too\n")
        stranger = cluster._broker(4, 0, "--join", cluster.brokers[1].client_address)
        stranger.listen = "127.0.0.1:0"
        stranger.arguments[stranger.arguments.index("--cluster-secret-file") + 1] = str(other)
        try:
            stranger.launch()
            stranger.logged("does not (take us for a broker of its cluster|know the secret)")
            status = await cluster.all_live()
            assert {one.broker_id for one in status.brokers} == {1, 2, 3}
        finally:
            stranger.end()


async def test_a_cluster_in_which_nobody_had_to_gets_its_first_user(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with running_cluster(tmp_path, 3, "--cluster-secret-file", str(secret)) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as anybody:
            await anybody.create_stream("orders", "orders.>")
            with pytest.raises(RemoteError, match="is to be an administrator"):
                await anybody.users.create("bob", password_credential(PASSWORD))
            await anybody.users.create("admin", password_credential(PASSWORD), rules=[ADMIN])
            with pytest.raises(Unauthenticated):
                await anybody.streams()
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(2) as admin:
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
        await cluster.in_sync("orders", {1, 2, 3}, 1)


async def test_nobody_is_made_a_user_where_brokers_could_not_go_on(tmp_path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as anybody:
            with pytest.raises(RemoteError, match="cluster_secret_file") as caught:
                await anybody.users.create("admin", password_credential(PASSWORD), rules=[ADMIN])
            assert caught.value.code == ErrorCode.CHANGE_REFUSED
            assert not (await anybody.users.all()).is_guarded


async def test_brokers_of_one_machine_draw_a_secret_of_their_own(tmp_path) -> None:
    with running_broker(tmp_path / "data", "--brokers", "3", "--auth") as machine:
        file = tmp_path / "data" / "admin.credentials"
        assert (tmp_path / "data" / "cluster.secret").stat().st_mode & 0o777 == 0o600
        async with aio.connect(machine.client_address, credentials=file) as admin:
            await admin.create_stream("orders", "orders.>", replicas=3)
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])


async def test_quotas_are_kept_with_the_user(broker) -> None:
    async with await broker.client() as admin:
        await admin.users.create("bob", password_credential(PASSWORD), quotas=Quotas(1 << 20, None, 3))
        bob = await admin.users.get("bob")
        assert bob is not None
        assert bob.quotas == Quotas(1 << 20, None, 3)


def penstock(broker: BrokerProcess, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The program, as the administrator."""
    command = [sys.executable, "-m", "penstock", "--server", broker.client_address]
    credentials = ("--credentials", str(broker.data_dir / "admin.credentials"))
    return subprocess.run(
        [*command, *credentials, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=broker.environment,
        check=False,
        timeout=60,
    )


def test_users_and_rules_from_the_command_line(broker, tmp_path) -> None:
    token = tmp_path / "billing.token"
    assert penstock(broker, "stream", "create", "orders", "orders.>").returncode == 0
    assert penstock(broker, "user", "add", "billing", "--token", "--out", str(token)).returncode == 0
    assert token.stat().st_mode & 0o777 == 0o600
    assert penstock(broker, "acl", "add", "billing", "read,commit-offsets", "--stream", "orders").returncode == 0
    rules = [json.loads(line) for line in penstock(broker, "acl", "list", "billing", "--json").stdout.splitlines()]
    assert [one["operation"] for one in rules] == ["commit_offsets", "read"]
    tried = penstock(broker, "acl", "test", "billing", "append", "--stream", "orders")
    assert (tried.returncode, tried.stdout) == (1, "denied: no rule allows it\n")
    assert penstock(broker, "acl", "test", "billing", "read", "--stream", "orders").returncode == 0
    users = [json.loads(line)["name"] for line in penstock(broker, "user", "list", "--json").stdout.splitlines()]
    assert users == ["admin", "billing"]
    last = penstock(broker, "user", "delete", "admin", "--yes")
    assert last.returncode == 1
    assert "last administrator" in last.stderr
    rotated = penstock(broker, "user", "rotate", "billing", "--password-file", "-", stdin="a new password\n")
    assert rotated.returncode == 0, rotated.stderr
    assert penstock(broker, "acl", "delete", "billing", "read", "--stream", "orders").returncode == 0
    missing = penstock(broker, "acl", "delete", "billing", "read", "--stream", "orders")
    assert "has no rule" in missing.stderr
    assert penstock(broker, "user", "delete", "billing", "--yes").returncode == 0


async def test_an_authenticated_broker_may_listen_beyond_this_machine(tmp_path) -> None:
    with running_nats(tmp_path / "nats") as server:
        bare = BrokerProcess(tmp_path / "bare", nats=server.url)
        bare.listen = "0.0.0.0:0"
        bare.launch()
        assert bare.wait() == 2
        assert "--auth" in bare.said
        bare.end()
        guarded = BrokerProcess(tmp_path / "guarded", "--auth", nats=server.url)
        guarded.listen = "0.0.0.0:0"
        try:
            guarded.start()

            async def is_refused() -> bool:
                try:
                    await aio.connect(guarded.client_address.replace("0.0.0.0", "127.0.0.1"))
                except Unauthenticated:
                    return True
                return False

            await eventually(is_refused, "nobody is let in without a proof")
        finally:
            guarded.end()


def test_a_cluster_is_told_what_it_lacks(tmp_path) -> None:
    broker = BrokerProcess(
        tmp_path / "data",
        "--auth",
        "--id",
        "1",
        "--cluster",
        "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
        nats="nats://127.0.0.1:4222",
    )
    broker.listen = ""
    broker.launch()
    assert broker.wait() == 2
    assert "cluster_secret_file" in broker.said
    assert "admin_password_file" in broker.said
    broker.end()


async def test_who_is_over_a_rate_waits_and_stores_everything_once(broker) -> None:
    rows = [{"subject": "orders.eu", "value": bytes(50_000)} for _ in range(4)]  # some 200 kB
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        rules = [rule("append", stream="orders"), rule("read", stream="orders")]
        quotas = Quotas(400_000, 400_000, None)
        await admin.users.create("bob", password_credential(PASSWORD), rules=rules, quotas=quotas)
        clock = asyncio.get_running_loop()
        async with logged_in(broker, Credentials.password("bob", PASSWORD)) as bob:
            began_s = clock.time()
            for _ in range(8):
                await bob.append("orders", rows)
            took_s = clock.time() - began_s
            assert took_s > 2.0  # 1.6 MB at 0.4 MB/s, but for what a second gives, and the last ones
            began_s = clock.time()
            count = len([message async for message in bob.messages("orders", end="latest")])
            assert count == 32
            assert clock.time() - began_s > 1.0
            async with asyncio.TaskGroup() as group:
                tries = [group.create_task(_tried(bob, rows)) for _ in range(20)]
            assert any("over a rate" in (one.result() or "") or "over its" in (one.result() or "") for one in tries)
        async with await broker.client() as other:  # administrators wait for nobody
            await other.append("orders", rows, timeout=5)


async def _tried(client: aio.Client, rows: list[dict[str, object]]) -> str | None:
    """Why an append was not taken in a moment; None if it was."""
    try:
        await client.append("orders", rows, timeout=0.3)
    except PenstockError as error:
        return str(error)
    return None


async def test_whichever_broker_is_asked_a_user_makes_no_more_streams_than_it_may(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(1) as admin:
            made = rule("create", subject="bobs.>")
            await admin.users.create("bob", password_credential(PASSWORD), rules=[made], quotas=Quotas(streams_max=4))
            async with AsyncExitStack() as stack:
                bobs = [
                    await stack.enter_async_context(logged_in(broker, Credentials.password("bob", PASSWORD)))
                    for broker in cluster.brokers.values()
                ]
                tries = await asyncio.gather(
                    *(bob.create_stream(f"s{n}", f"bobs.{n}") for n, bob in enumerate(bobs * 4)), return_exceptions=True
                )
            refused = [one for one in tries if isinstance(one, BaseException)]
            assert [getattr(one, "code", one) for one in refused] == [ErrorCode.QUOTA_EXCEEDED] * 8, refused
            owners = [one.owner for one in await admin.streams() if not one.config.is_internal]
            assert owners == ["bob"] * 4
            bob = await admin.users.get("bob")
            assert bob is not None
            assert bob.streams == 4


async def test_a_user_has_no_more_connections_than_it_may(broker) -> None:
    shown = Credentials.password("bob", PASSWORD)
    async with await broker.client() as admin:
        await admin.users.create("bob", password_credential(PASSWORD), quotas=Quotas(None, None, 2))
        async with logged_in(broker, shown), logged_in(broker, shown):
            with pytest.raises(RemoteError, match="has 2 connections"):
                async with logged_in(broker, shown):
                    pass

        async def is_let_in() -> bool:
            try:
                async with logged_in(broker, shown):
                    return True
            except RemoteError:
                return False

        await eventually(is_let_in, "who was there is gone")


async def test_who_has_gone_away_while_he_waited_for_messages_takes_no_place(broker) -> None:
    shown = Credentials.password("bob", PASSWORD)
    async with await broker.client() as admin:
        rules = [rule("read", stream="orders")]
        await admin.users.create("bob", password_credential(PASSWORD), rules=rules, quotas=Quotas(None, None, 2))
        stream_id = (await admin.create_stream("orders", "orders.>")).stream_id
        wait = FetchRequest(stream_id=stream_id, offset=0, wait_ms_max=limits.FETCH_WAIT_MS_MAX)
        async with logged_in(broker, shown) as stays:
            for number in range(3):
                async with raw_client(broker.client_address) as raw:
                    await _log_in(raw, shown)
                    raw.ask(wait, 9)
                    raw.ask(MetadataRequest(), 10)
                    answered = await raw.frame()
                    assert answered is not None
                    assert answered.correlation_id == 10, "so the one before has come, and waits"
                    with pytest.raises(RemoteError, match="has 2 connections"):
                        async with logged_in(broker, shown):
                            pass
                    raw.writer.close()  # in peace: nothing says that the other half is gone, too
                    await raw.writer.wait_closed()
                async with logged_in(broker, shown) as again:
                    assert (await again.users.all()).user == "bob", number
            assert (await stays.users.all()).user == "bob"


async def test_a_broker_that_has_just_started_says_of_nobody_that_he_is_not_there(tmp_path) -> None:
    """It has users in its snapshot or its log, and nobody tells it what became of them."""
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        shown = Credentials.password("admin", PASSWORD)
        cluster.log_in(shown)
        await cluster.all_live()
        async with cluster.client(1) as admin:
            await admin.create_stream("orders", "orders.>")
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
            await admin.users.create("bob", password_credential(PASSWORD), rules=[rule("read", stream="orders")])
        alone = cluster.brokers[3]
        alone.kill()
        async with cluster.client(1) as admin:
            await admin.users.delete("bob")
        for number in (1, 2):
            cluster.brokers[number].kill()
        alone.launch()
        alone.logged("waiting for a majority")
        for name in ("bob", "admin"):
            with pytest.raises(RemoteError) as caught:
                async with aio.connect(
                    alone.client_address, credentials=Credentials.password(name, PASSWORD), timeout=2.0
                ) as client:
                    await client.get("orders", 0, timeout=2.0)
            assert not isinstance(caught.value, Unauthenticated)
            assert caught.value.code in (ErrorCode.NOT_YET, ErrorCode.TIMED_OUT)
        for number in (1, 2):
            cluster.brokers[number].launch()
        await cluster.all_live()
        with pytest.raises(Unauthenticated):
            async with aio.connect(alone.client_address, credentials=Credentials.password("bob", PASSWORD)):
                pass


async def test_programs_go_on_when_the_password_is_rotated_that_their_file_has(broker, tmp_path) -> None:
    async with await broker.client() as admin:
        await _go_on(admin, broker.client_address, tmp_path / "bob", rotations=5)


async def test_so_they_do_with_several_brokers(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(1) as admin:
            servers = ",".join(one.client_address for one in cluster.brokers.values())
            await _go_on(admin, servers, tmp_path / "bob", rotations=3, replicas=3)


async def _go_on(admin: aio.Client, servers: str, file: Path, *, rotations: int, replicas: int = 1) -> None:
    """A reader that waits, a member, a producer, staging, and appends that may not be repeated, over one connection."""
    file.write_text(f"bob:{PASSWORD}\n")
    await admin.create_stream("orders", "orders.>", replicas=replicas)
    rules = [rule(one, stream="orders") for one in ("read", "append", "commit_offsets")]
    await admin.users.create("bob", password_credential(PASSWORD), rules=rules, quotas=Quotas(None, None, 1))
    written: list[bytes] = []
    stop = asyncio.Event()
    async with aio.connect(servers, credentials=file) as bob, asyncio.TaskGroup() as tasks:
        producer = bob.producer("orders")
        writers: dict[str, Callable[[int, list[dict[str, object]]], Awaitable[object]]] = {
            "p": lambda number, rows: producer.append(rows),
            "s": lambda number, rows: _published(bob, number, rows),
            **dict.fromkeys("abcdefgh", lambda number, rows: bob.append("orders", rows)),
        }

        async def writes(name: str) -> None:
            for number in itertools.count():
                if stop.is_set():
                    break
                value = f"{name}{number}".encode()
                await writers[name](number, [{"subject": "orders.eu", "value": value}])
                written.append(value)

        async def collects(batches: AsyncIterator[pa.RecordBatch], into: list[bytes]) -> None:
            async for batch in batches:
                into += batch.column("value").to_pylist()

        async def is_member(into: list[bytes]) -> None:
            async with bob.consumer("orders", "billing", follow=True, checkpoint_interval=0.05) as consumer:
                await collects(consumer, into)

        read: tuple[list[bytes], list[bytes]] = ([], [])
        waiting = (
            tasks.create_task(collects(bob.read("orders", follow=True), read[0])),
            tasks.create_task(is_member(read[1])),
        )
        writing = [tasks.create_task(writes(name)) for name in writers]
        for number in range(rotations + 1):
            if number:  # all are connected: who connects between the two is refused
                file.write_text(f"bob:password {number}\n")
                await admin.users.alter("bob", add=[password_credential(f"password {number}")])
            expected = len(written) + 100

            async def went_on(expected: int = expected) -> bool:
                return len(written) > expected and all(set(one) >= set(written[:expected]) for one in read)

            await eventually(went_on, "all go on with the new password")
        stop.set()
        await asyncio.gather(*writing)
        for one in waiting:
            one.cancel()
    stored = (await admin.to_table("orders")).column("value").to_pylist()
    assert sorted(stored) == sorted(written), "nothing is lost, and nothing is there twice"


async def _published(client: aio.Client, number: int, rows: list[dict[str, object]]) -> None:
    staged = await client.staging.stage("orders", rows)
    await client.staging.publish("orders", [staged], query_id=QUERY, batch_id=number)


async def _log_in(raw: RawClient, credentials: Credentials) -> None:
    proof = credentials.proof(lambda: "n" * 24)
    await raw.hello()
    data = proof.first()
    for number in (2, 3):
        raw.ask(AuthenticateRequest(mechanism=proof.mechanism, data=data), number)
        frame = await raw.frame()
        assert frame is not None
        answer = decode_response(frame, AuthenticateRequest)
        assert isinstance(answer, AuthenticateResponse)
        data = b"" if answer.is_done else proof.prove(answer.data)
    assert data == b""


async def test_what_was_sent_before_a_refusal_was_heard_is_answered(broker) -> None:
    """So that an append that may not be repeated has an outcome."""
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        await admin.users.create("bob", password_credential(PASSWORD), rules=[rule("read", stream="orders")])
        async with raw_client(broker.client_address) as raw:
            await _log_in(raw, Credentials.password("bob", PASSWORD))
            stream_id = (await admin.stream("orders")).stream_id
            raw.ask(FetchRequest(stream_id=stream_id, offset=0, wait_ms_max=30_000), 10)
            raw.ask(MetadataRequest(names=()), 11)
            assert (await raw.frame()).correlation_id == 11, "the fetch waits"  # type: ignore[union-attr]
            await admin.users.alter("bob", add=[password_credential("another")])
            for number in range(12, 112):
                raw.ask(MetadataRequest(names=()), number)
            for number in (12, 10, *range(13, 112)):
                frame = await raw.frame()
                assert frame is not None
                assert frame.correlation_id == number
                error = refusal_in(frame.body)
                assert error is not None
                assert error.code == ErrorCode.UNAUTHENTICATED
            for number in range(200, 200 + limits.IN_FLIGHT_REQUESTS_MAX + 1):
                raw.ask(MetadataRequest(names=()), number)
            assert await raw.is_closed(), "nobody stays who does not log in anew"


SMALL_LOG = (  # the snapshot of the metadata is older than what happens last
    "-c",
    "from penstock.base import limits; limits.METADATA_LOG_BYTES_MAX = 8_000; from penstock.cli import main; main()",
    "serve",
)


async def test_a_rule_that_is_dropped_again_is_gone_everywhere_when_that_is_said(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        leader = await cluster.metadata_leader()
        other = next(number for number in cluster.brokers if number != leader)
        async with cluster.client(leader) as first, cluster.client(leader) as second:
            await first.create_stream("orders", "orders.>", replicas=3)
            may = rule("read", stream="orders")
            await first.users.create("bob", token_credential("bob"), rules=[may])
            cluster.brokers[other].signal(signal.SIGSTOP)
            waiting = asyncio.create_task(first.users.change_rules("bob", drop=[may], timeout=30))

            async def is_dropped() -> bool:
                return all(not one.rules for one in (await second.users.all()).users if one.name == "bob")

            await eventually(is_dropped, "the leader goes by it")
            again = asyncio.create_task(second.users.change_rules("bob", drop=[may], timeout=30))
            done, _ = await asyncio.wait({waiting, again}, return_when=asyncio.FIRST_COMPLETED)
            brokers = (await second.status()).brokers
            assert not next(one for one in brokers if one.broker_id == other).is_live, done  # it would serve bob
            cluster.brokers[other].signal(signal.SIGCONT)
            await asyncio.gather(waiting, again)


@pytest.mark.parametrize("has_users_before", [True, False])
async def test_a_broker_that_starts_serves_nobody_by_what_is_past(tmp_path, has_users_before) -> None:
    arguments = in_cluster(tmp_path)
    with running_cluster(tmp_path, 3, *(arguments if has_users_before else arguments[:2]), started=False) as cluster:
        for broker in cluster.brokers.values():
            broker.program = SMALL_LOG
        if has_users_before:
            cluster.log_in(Credentials.password("admin", PASSWORD))
        cluster.start()
        await cluster.all_live()
        leader = await cluster.metadata_leader()
        other = next(number for number in cluster.brokers if number != leader)
        token = token_credential("bob")
        async with cluster.client(leader) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            stream_id = (await client.stream("orders")).stream_id
            await client.append("orders", [{"subject": "orders.eu", "value": b"1"}])
            await cluster.in_sync("orders", {1, 2, 3}, leader)
            if has_users_before:
                await client.users.create("bob", token, rules=[rule("read", stream="orders")])
            for number in range(60):
                await client.create_stream(f"s{number}", f"s{number}.>")
            if has_users_before:
                cluster.brokers[other].kill()
                await client.users.delete("bob", timeout=20)
            else:
                await client.users.create("admin", password_credential(PASSWORD), rules=[ADMIN], timeout=20)
                cluster.brokers[other].kill()
        for number, broker in cluster.brokers.items():
            if number != other:
                broker.signal(signal.SIGSTOP)
        cluster.brokers[other].launch()
        cluster.brokers[other].logged("waiting for a majority")
        shown = Credentials.token(token.token) if has_users_before else None
        for _ in range(5):
            assert not await _is_served(cluster.brokers[other].client_address, stream_id, shown)


async def _is_served(address: str, stream_id: int, credentials: Credentials | None) -> bool:
    """Whether somebody gets rows from that broker itself."""
    try:
        async with asyncio.timeout(5), aio.connect(address, credentials=credentials) as client:
            until = asyncio.get_running_loop().time() + 3
            connection = await client._link._connections.at(address, until)
            _, raw = await connection.call(FetchRequest(stream_id=stream_id, offset=0), b"", until)
            return bool(raw)
    except (PenstockError, TimeoutError, OSError):
        return False
