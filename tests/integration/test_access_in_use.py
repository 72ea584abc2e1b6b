"""What programs notice that are logged in: rates, as many connections as they may, and credentials that change."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from penstock import Credentials, MessageNotFound, RemoteError, Unauthenticated, aio
from penstock.access import Quotas
from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError
from penstock.client.users import password_credential, rule
from penstock.messages import AuthenticateRequest, AuthenticateResponse, FetchRequest, MetadataRequest
from penstock.wire import decode_response
from penstock.wire.bodies import refusal_in
from tests.broker_process import BrokerProcess, eventually
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster
from tests.integration.guarded import PASSWORD, guarded_broker, in_cluster, logged_in
from tests.integration.raw_client import RawClient, raw_client

QUERY = UUID(int=1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with guarded_broker(tmp_path / "data") as broker:
        yield broker


@each_change
async def test_quotas_are_kept_with_the_user(broker) -> None:
    async with await broker.client() as admin:
        await admin.users.create("bob", password_credential(PASSWORD), quotas=Quotas(1 << 20, None, 3))
        bob = await admin.users.get("bob")
        assert bob is not None
        assert bob.quotas == Quotas(1 << 20, None, 3)


@needs_time
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
            for _ in range(2):  # one fetch may bring all of it, for which the next one waits
                count = len([message async for message in bob.messages("orders", end="latest")])
                assert count == 32
            assert clock.time() - began_s > 1.0
            async with asyncio.TaskGroup() as group:
                tries = [group.create_task(_tried(bob, rows)) for _ in range(20)]
            assert any("over a rate" in (one.result() or "") or "over its" in (one.result() or "") for one in tries)
        async with await broker.client() as other:  # administrators wait for nobody
            await other.append("orders", rows, timeout=5)


@needs_time
async def test_what_a_search_looks_through_counts_against_the_rate_though_nothing_is_found(broker) -> None:
    rows = [{"subject": "orders.eu", "value": bytes(50_000)} for _ in range(20)]  # some 1 MB
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        await admin.append("orders", rows)
        rules, quotas = [rule("read", stream="orders")], Quotas(None, 1_024, None)
        await admin.users.create("bob", password_credential(PASSWORD), rules=rules, quotas=quotas)
        async with logged_in(broker, Credentials.password("bob", PASSWORD)) as bob:
            with pytest.raises(MessageNotFound):
                await bob.last("orders", subject="orders.absent")
            with pytest.raises(RemoteError, match="user 'bob' is over its fetch rate of 1024 bytes/s"):
                await bob.last("orders", subject="orders.absent")


async def _tried(client: aio.Client, rows: list[dict[str, object]]) -> str | None:
    """Why an append was not taken in a moment; None if it was."""
    try:
        await client.append("orders", rows, timeout=0.3)
    except PenstockError as error:
        return str(error)
    return None


@each_change
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


@each_change
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


@needs_time
async def test_programs_go_on_when_the_password_is_rotated_that_their_file_has(broker, tmp_path) -> None:
    async with await broker.client() as admin:
        await _go_on(admin, broker.client_address, tmp_path / "bob", rotations=5)


@needs_time
async def test_so_they_do_with_several_brokers(tmp_path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path)) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        await cluster.all_live()
        async with cluster.client(1) as admin:
            servers = ",".join(one.client_address for one in cluster.brokers.values())
            await _go_on(admin, servers, tmp_path / "bob", rotations=3, replicas=3)


@needs_time
async def test_who_connects_between_the_new_file_and_the_new_password_is_let_in_with_the_one_before(
    broker, tmp_path
) -> None:
    """The guide says to write the file first: so for a moment it holds what does not count yet."""
    file = tmp_path / "bob"
    file.write_text(f"bob:{PASSWORD}\n")
    async with await broker.client() as admin:
        await admin.create_stream("orders", "orders.>")
        rules = [rule(one, stream="orders") for one in ("read", "append")]
        await admin.users.create("bob", password_credential(PASSWORD), rules=rules)
        await admin.users.create("eve", password_credential("another"), rules=rules)
    async with aio.connect(broker.client_address, credentials=file) as bob:
        await bob.append("orders", [{"subject": "orders.eu", "value": b"1"}])
        file.write_text("bob:soon\n")
        broker.restart()
        assert len(await bob.to_table("orders")) == 1
        async with await broker.client() as admin:
            await admin.users.alter("bob", add=[password_credential("soon")])
        await bob.append("orders", [{"subject": "orders.eu", "value": b"2"}])
        file.write_text("eve:wrong\n")  # nobody goes on as another user than the file says
        broker.restart()
        with pytest.raises(Unauthenticated, match="'eve'"):
            await bob.to_table("orders")


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
    login = credentials.proof(lambda: "n" * 24)
    await raw.hello()
    data: bytes | None = login.first()
    for number in (2, 3):
        assert data is not None
        raw.ask(AuthenticateRequest(mechanism=login.mechanism, data=data), number)
        frame = await raw.frame()
        assert frame is not None
        answer = decode_response(frame, AuthenticateRequest)
        assert isinstance(answer, AuthenticateResponse)
        data = login.take(answer.data, is_done=answer.is_done)
    assert login.is_done


@each_change
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
