"""Several real brokers that have everybody log in: rules hold on all of them, and brokers prove who they are."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

from penstock import Credentials, RemoteError, Unauthenticated, aio
from penstock.access import Quotas
from penstock.base.errors import ErrorCode, PenstockError
from penstock.client.users import password_credential, rule, token_credential
from penstock.messages import FetchRequest
from tests.broker_process import eventually, running_broker
from tests.extent import needs_time
from tests.integration.clusters import running_cluster
from tests.integration.guarded import ADMIN, PASSWORD, SECRET, in_cluster, logged_in


@needs_time
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


@needs_time
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


@needs_time
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
            stranger.logged("joining: .*it does not accept this broker's proof; is the cluster_secret_file the same")
            status = await cluster.all_live()
            assert {one.broker_id for one in status.brokers} == {1, 2, 3}
        finally:
            stranger.end()


@needs_time
async def test_a_cluster_in_which_nobody_had_to_gets_its_first_user(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with running_cluster(tmp_path, 3, "--cluster-secret-file", str(secret)) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as anybody:
            await anybody.create_stream("orders", "orders.>")
            with pytest.raises(RemoteError, match="must be an administrator"):
                await anybody.users.create("bob", password_credential(PASSWORD))
            await anybody.users.create("admin", password_credential(PASSWORD), rules=[ADMIN])
            with pytest.raises(Unauthenticated):
                await anybody.streams()
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(2) as admin:
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
        await cluster.in_sync("orders", {1, 2, 3}, 1)


@needs_time
async def test_nobody_is_made_a_user_where_brokers_could_not_go_on(tmp_path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as anybody:
            with pytest.raises(RemoteError, match="cluster_secret_file") as caught:
                await anybody.users.create("admin", password_credential(PASSWORD), rules=[ADMIN])
            assert caught.value.code == ErrorCode.CHANGE_REFUSED
            assert not (await anybody.users.all()).is_guarded


@needs_time
async def test_brokers_of_one_machine_draw_a_secret_of_their_own(tmp_path) -> None:
    with running_broker(tmp_path / "data", "--brokers", "3", "--auth") as machine:
        file = tmp_path / "data" / "admin.credentials"
        assert (tmp_path / "data" / "cluster.secret").stat().st_mode & 0o777 == 0o600
        async with aio.connect(machine.client_address, credentials=file) as admin:
            await admin.create_stream("orders", "orders.>", replicas=3)
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
        assert machine.stop() == 0
        assert machine.stderr is not None
        assert "ERROR" not in machine.stderr.text
        machine.arguments.remove("--auth")  # what was drawn is used at every start
        machine.start()
        async with aio.connect(machine.client_address, credentials=file) as admin:
            await admin.append("orders", [{"subject": "orders.eu", "value": b"2"}])


@needs_time
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


@needs_time
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


SMALL_LOG = (  # the snapshot of the metadata is older than what happens last
    "-c",
    "from penstock.base import limits; limits.METADATA_LOG_BYTES_MAX = 8_000; from penstock.cli import main; main()",
    "serve",
)


@needs_time
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


@needs_time
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
