"""Real brokers that have everybody log in: who gets in, who does not, and from when on."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client as NatsClient

from penstock import Credentials, NotAuthorized, RemoteError, StreamNotFound, Unauthenticated, Unavailable, aio
from penstock.access.nkeys import NkeyClient
from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError
from penstock.client.users import nkey_credential, password_credential, rule, token_credential
from penstock.messages import AuthenticateRequest, HelloRequest, MetadataRequest, PeerHelloRequest, RaftRequest
from penstock.wire.bodies import refusal_in
from tests import warm
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_process import command
from tests.extent import each_change, needs_time
from tests.integration.guarded import PASSWORD, guarded_broker, logged_in
from tests.integration.raw_client import RawClient, raw_client

NKEY_SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with guarded_broker(tmp_path / "data") as broker:
        yield broker


@needs_time
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


@needs_time
async def test_a_refused_login_names_the_broker_and_who_was_tried_and_never_the_secret(broker, monkeypatch) -> None:
    for name in ("PENSTOCK_CREDENTIALS", "PENSTOCK_TOKEN", "PENSTOCK_USER"):
        monkeypatch.delenv(name, raising=False)
    for credentials, who in (
        (Credentials.password("admin", "another one"), "user 'admin'"),
        (Credentials.password("nobody", "another one"), "user 'nobody'"),
        (Credentials.token("pst_admin_00000000_0123abcd"), "user 'admin' with the token '00000000'"),
        (Credentials.nkey(NKEY_SEED), f"the nkey {NkeyClient(NKEY_SEED, '').public_key}"),
    ):
        with pytest.raises(Unauthenticated) as caught:
            async with logged_in(broker, credentials):
                pass
        refused = f"the broker at {broker.client_address} refuses the login of {who}: the name or the secret is wrong"
        assert caught.value.message == refused
        assert credentials.secret not in str(caught.value)
    with pytest.raises(Unauthenticated) as caught:
        async with logged_in(broker, None):
            pass
    assert caught.value.message.startswith(f"the broker at {broker.client_address} asks for a login: give credentials")
    assert "admin.credentials in its data directory" in caught.value.message


@needs_time
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


@needs_time
async def test_who_may_read_some_subjects_gets_their_last_messages(broker) -> None:
    async with await broker.client() as admin:
        await admin.create_stream("au", "au.>")
        await admin.append("au", [{"subject": f"au.{number % 4}", "value": b"%d" % number} for number in range(9)])
        await admin.users.create("carl", password_credential(PASSWORD), rules=[rule("read", subject="au.3")])
    async with logged_in(broker, Credentials.password("carl", PASSWORD)) as carl:
        assert (await carl.last("au", subject="au.3")).value == b"7"
        assert [one.value for one in await carl.last_by_subjects("au", "au.3")] == [b"7"]
        for refused in (
            carl.last_by_subjects("au", "au.*"),
            carl.last_by_subjects("au", ["au.3", "au.2"]),
            carl.get("au", 7),
            carl.get("au", 6),
        ):
            with pytest.raises(NotAuthorized):
                await refused


@each_change
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


@needs_time
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


@needs_time
@pytest.mark.parametrize("found", ["", "bob", "bob:sec", None])
async def test_a_file_of_credentials_that_is_being_written_is_read_again(broker, tmp_path, found) -> None:
    file = tmp_path / "bob"
    file.write_text(f"bob:{PASSWORD}\n")
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
        rules = [rule("read", stream="orders"), rule("append", stream="orders")]
        await admin.users.create("bob", password_credential(PASSWORD), rules=rules)
        async with logged_in(broker, file) as bob:
            await bob.get("orders", 0)
            await admin.users.alter("bob", add=[password_credential("second password")])
            if found is None:
                file.unlink()
            else:
                file.write_text(found)
            asyncio.get_running_loop().call_later(0.1, file.write_text, "bob:second password\n")
            await bob.append("orders", [{"subject": "orders.eu", "value": b"2"}])  # which may not be repeated
            assert (await bob.get("orders", 1)).value == b"2"
            await admin.users.alter("bob", add=[password_credential("third password")])
            file.write_text("bob:not that one\n")
            with pytest.raises(Unauthenticated):
                await bob.get("orders", 0)
            file.write_text("")
            with pytest.raises(Unavailable, match=f"{file} holds no credentials"):
                await bob.get("orders", 0, timeout=1.0)


@each_change
async def test_a_token_that_has_expired(broker) -> None:
    token = token_credential("bob", expires=datetime.now(UTC) - timedelta(seconds=1))
    assert token.token is not None
    async with await broker.client() as admin:
        await admin.users.create("bob", token)
    with pytest.raises(Unauthenticated, match=r"login of user 'bob' with .*: this token of 'bob' expired at "):
        async with logged_in(broker, Credentials.token(token.token)):
            pass
    with pytest.raises(Unauthenticated, match="the name or the secret is wrong"):
        async with logged_in(broker, Credentials.token(token.token[:-4] + "AAAA")):
            pass


@needs_time
async def test_who_has_the_login_publishes_through_the_embedded_server_and_nobody_else(broker) -> None:
    file = broker.data_dir / "nats.credentials"
    user, _, password = file.read_text().strip().partition(":")
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        await admin.users.create("bob", password_credential(PASSWORD), rules=[rule("append", stream="orders")])
        assert (await admin.publish("orders.eu", b"1")).offset == 0
    connection = await nats.connect(broker.nats_url, user=user, password=password)
    ack = await connection.jetstream().publish("orders.eu", b"42")
    assert (ack.stream, ack.seq) == ("orders", 2)
    await connection.close()
    for wrong in ({}, {"user": user, "password": "penstock"}):
        await _nats_refuses(broker.nats_url, **wrong)
    async with logged_in(broker, Credentials.password("bob", PASSWORD)) as bob:
        assert password not in str(bob.nats_urls)
        with pytest.raises(Unavailable, match=r"(?i)authorization"):
            await bob.publish("orders.eu", b"2", timeout=20)
        await bob.append("orders", [{"subject": "orders.eu", "value": b"2"}])
    as_admin = ("--credentials", str(broker.data_dir / "admin.credentials"))
    for more in ((), ("--nats", broker.nats_url, "--nats-creds", str(file))):
        await command(broker.client_address, *as_admin, "publish", "orders.eu", "3", *more)
    said, errors = await command(broker.client_address, "dump", str(broker.data_dir))
    assert "not a file of Penstock's" not in errors
    assert password not in said
    assert {one.stat().st_mode & 0o777 for one in (file, broker.data_dir / "nats-server.conf")} == {0o600}
    assert broker.stderr is not None
    assert password not in broker.stderr.text
    told = [line for line in broker.stderr.text.splitlines() if "authentication error" in line]
    assert 1 <= len(told) <= 4, "whoever is refused cannot flood the log"
    assert "WARNING" in told[0]
    assert "ERROR" not in broker.stderr.text


async def _nats_refuses(url: str, **login: str) -> None:
    connection = NatsClient()
    try:
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            await connection.connect(url, allow_reconnect=False, connect_timeout=60, **login)
    finally:
        await connection.close()


@needs_time
async def test_publishers_keep_their_login_when_the_broker_is_started_again_with_or_without_auth(tmp_path) -> None:
    with guarded_broker(tmp_path / "data") as broker:
        file = broker.data_dir / "nats.credentials"
        drawn = file.read_text()
        async with await broker.client() as admin:
            await admin.create_stream("orders", "orders.>")
        for arguments in (["--auth"], []):
            broker.stop()
            broker.arguments = [one for one in broker.arguments if one != "--auth"] + arguments
            broker.start()
            assert file.read_text() == drawn
            async with await broker.client() as admin:
                await admin.publish("orders.eu", b"1")
            await _nats_refuses(broker.nats_url)


@needs_time
async def test_brokers_of_one_machine_share_a_nats_server_with_a_login(tmp_path) -> None:
    with running_broker(tmp_path / "data", "--brokers", "2", "--auth") as machine:
        await _nats_refuses(machine.nats_url)
        async with aio.connect(machine.client_address, credentials=tmp_path / "data" / "admin.credentials") as admin:
            await admin.create_stream("orders", "orders.>", replicas=2)
            assert (await admin.publish("orders.eu", b"1")).offset == 0
        assert machine.stderr is not None
        assert (tmp_path / "data" / "nats.credentials").read_text().strip().partition(":")[2] not in machine.stderr.text


@each_change
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


@each_change
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


@each_change
async def test_a_user_is_no_broker(broker) -> None:
    async with await broker.client() as admin:
        connection = await admin._link._connections.at(broker.client_address, asyncio.get_running_loop().time() + 5)
        for request in (
            PeerHelloRequest(cluster_id="", broker_id=2, data_dir_id="d", broker_version="0", address="127.0.0.1:1"),
        ):
            with pytest.raises(PenstockError, match="is no broker"):
                await connection.call(request, b"", asyncio.get_running_loop().time() + 5)


@each_change
async def test_failed_logins_are_told_without_what_was_shown(broker) -> None:
    with pytest.raises(Unauthenticated):
        async with logged_in(broker, Credentials.password("admin", "sesame-open")):
            pass
    broker.logged("a login as 'admin' from 127.0.0.1:.* failed")
    assert "sesame" not in broker.said
    async with await broker.client() as admin:
        assert (await admin.status()).counters["failed_logins"] == 1


@each_change
async def test_logins_that_are_begun_and_left_are_counted_and_told(broker) -> None:
    for _ in range(3):
        async with raw_client(broker.client_address) as raw:
            await raw.hello()
            raw.ask(AuthenticateRequest(mechanism="SCRAM-SHA-256", data=b"n,,n=mallory,r=" + b"a" * 20), 2)
            assert await raw.frame() is not None
    async with await broker.client() as admin:

        async def are_counted() -> bool:
            return (await admin.status()).counters.get("unfinished_logins") == 3

        await eventually(are_counted, "three logins are unfinished")
        assert "failed_logins" not in (await admin.status()).counters
    broker.logged("a login as 'mallory' from 127.0.0.1:.* was begun and not finished")
    assert broker.said.count("was begun and not finished") == 1


def penstock(broker: BrokerProcess, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The program, as the administrator."""
    options = ("--server", broker.client_address, "--credentials", str(broker.data_dir / "admin.credentials"))
    return warm.run([*options, *arguments], broker.environment, stdin=stdin)


@needs_time
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


@needs_time
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
            guarded.logged(r"WARNING.* 0\.0\.0\.0:\d+ speaks no TLS: .* take over .* set tls_cert")
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


@needs_time
def test_the_password_of_the_first_administrator_is_long_enough_and_a_later_start_says_that_it_is_ignored(
    tmp_path,
) -> None:
    file = tmp_path / "password"
    file.write_text("x\n")
    file.chmod(0o600)
    broker = BrokerProcess(tmp_path / "data", "--auth", "--admin-password-file", str(file))
    broker.launch()
    try:
        assert broker.wait() == 2
        assert "--admin-password-file: the password has 1 characters; take 8 at least" in broker.said
    finally:
        broker.end()
    file.write_text(f"{PASSWORD}\n")
    with running_broker(tmp_path / "data", "--auth", "--admin-password-file", str(file)) as broker:
        assert "is ignored" not in broker.said
        broker.restart()
        broker.logged("--admin-password-file is ignored: there are users already")
