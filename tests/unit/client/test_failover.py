"""A client of a cluster of fake brokers on real sockets: brokers die, hang, lead and know better, and it goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.client.bulk.ranges import LogRange, read_range_async
from penstock.client.link.error_codes import OF_ONE_BROKER
from penstock.client.link.read_from import FOLLOWERS, Which
from penstock.client.values import StreamName
from penstock.messages import (
    AppendRequest,
    CreateStreamRequest,
    FetchRequest,
    HelloRequest,
    MetadataRequest,
    MetadataResponse,
    Request,
)
from tests.extent import each_change
from tests.fake_broker import Answer, Cut, FakeStream, columns
from tests.fake_cluster import FakeCluster, Replica


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(3) as cluster, asyncio.timeout(60):
        yield cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[aio.Client]:
    async with await penstock.aio.connect(cluster.servers) as client:
        yield client


def fill(cluster: FakeCluster, batches: int = 10, rows: int = 10) -> FakeStream:
    stream = cluster.create("a")
    for number in range(batches):
        stream.append(columns(*(b"%d" % (number * rows + row) for row in range(rows))))
    return stream


async def offsets_read(client: aio.Client, stream: StreamName = "a", **options: object) -> list[int]:
    found = client.read(stream, **options)  # type: ignore[arg-type]
    return [offset async for batch in found for offset in batch.column("offset").to_pylist()]


def on(broker: Replica, kind: type[Request], act: Callable[[int], Awaitable[Answer | None]]) -> None:
    """Before the broker answers its n-th request of that kind, `act(n)`, from 1 on."""
    count = 0

    async def intercept(request: Request) -> Answer | None:
        nonlocal count
        if not isinstance(request, kind):
            return None
        count += 1
        return await act(count)

    broker.intercept = intercept


def asked(broker: Replica, kind: type[Request]) -> int:
    return sum(isinstance(request, kind) for request in broker.requests)


# Connecting


async def test_one_server_of_several_is_enough_and_leads_to_the_others(cluster: FakeCluster) -> None:
    fill(cluster)
    await cluster.elect(2)
    await cluster.kill(1)
    async with penstock.aio.connect(",".join(cluster.servers)) as client:
        assert await offsets_read(client) == list(range(100))
    async with penstock.aio.connect(cluster[3].address) as client:
        assert client.server == cluster[3].address
        assert await offsets_read(client) == list(range(100))
    assert asked(cluster[3], FetchRequest) == 0


async def test_servers_are_tried_in_random_order(cluster: FakeCluster) -> None:
    first = set()
    for seed in range(12):
        connecting = penstock.aio.connect(cluster.servers)
        connecting._link._rng.seed(seed)
        async with connecting as client:
            first.add(client.server)
    assert first == set(cluster.servers)


async def test_none_of_the_servers_answers(cluster: FakeCluster) -> None:
    for broker_id in (1, 2, 3):
        await cluster.kill(broker_id)
    with pytest.raises(penstock.Unavailable, match="no broker of the cluster can be reached") as caught:
        await penstock.aio.connect(cluster.servers)
    assert all(server in str(caught.value) for server in cluster.servers)


async def test_servers_are_named_by_the_environment(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.kill(1)
    monkeypatch.setenv("PENSTOCK_SERVER", " , ".join(cluster.servers))
    async with penstock.aio.connect() as client:
        assert client.server in cluster.servers[1:]


@pytest.mark.parametrize("servers", ["a:1,b:x", ["a:1", "b@c"], ",", []])
def test_servers_that_cannot_be_are_told_before_any_is_asked(servers: str | list[str]) -> None:
    with pytest.raises(ValueError, match="server"):
        penstock.aio.connect(servers or ",")


async def test_a_broker_of_another_cluster_is_not_asked(cluster: FakeCluster) -> None:
    """Its stream ids mean other streams."""
    fill(cluster)
    cluster[2].hello["cluster_id"] = "another"
    cluster[3].hello["cluster_id"] = "another"
    async with penstock.aio.connect(cluster[1].address) as client:
        await client.stream("a")
        await cluster.elect(2)
        await cluster.kill(1)
        with pytest.raises((penstock.Unavailable, penstock.TimedOut), match="belongs to another cluster"):
            await client.get("a", 1, timeout=3.0)
    assert asked(cluster[2], HelloRequest) > 0
    assert len(cluster[2].requests) == asked(cluster[2], HelloRequest)


async def test_a_client_that_came_before_the_cluster_reconnects_to_it(cluster: FakeCluster) -> None:
    """A broker without a cluster id says the empty one, which names no cluster."""
    fill(cluster)
    cluster[1].hello["cluster_id"] = ""
    async with penstock.aio.connect(cluster[1].address) as client:
        await client.stream("a")
        cluster[1].hello["cluster_id"] = "c"
        await client.stream("a")
        assert await client.cluster_id() == "c"
        await cluster.elect(2)
        await cluster.kill(1)
        assert (await client.get("a", 1)).value == b"1"


async def test_a_broker_that_has_not_joined_yet_does_not_belong_to_another_cluster(cluster: FakeCluster) -> None:
    fill(cluster)
    cluster[2].hello["cluster_id"] = ""
    async with penstock.aio.connect(cluster[1].address) as client:
        await client.stream("a")
        await cluster.elect(2)
        await cluster.kill(1)
        assert (await client.get("a", 1)).value == b"1"
        assert await client.cluster_id() == "c"


async def test_a_broker_that_joined_another_cluster_meanwhile_is_found_out(cluster: FakeCluster) -> None:
    """A connection on which no cluster was named serves one request; then the client says hello again."""
    fill(cluster)
    for broker in cluster.brokers:
        broker.hello["cluster_id"] = ""
    async with penstock.aio.connect(cluster[1].address) as client:
        await client.stream("a")
        cluster[1].hello["cluster_id"] = "another"
        await client.stream("a")
        named = asked(cluster[1], HelloRequest)
        for _ in range(3):
            await client.stream("a")
        assert asked(cluster[1], HelloRequest) == named  # it named its cluster: the connection is kept
        cluster[2].hello["cluster_id"] = "c"
        await cluster.elect(2)
        with pytest.raises((penstock.Unavailable, penstock.TimedOut), match="belongs to another cluster"):
            await client.get("a", 1, timeout=0.5)


async def test_which_cluster_it_is_is_asked_until_a_broker_knows(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster[1].hello["cluster_id"] = ""
    async with penstock.aio.connect(cluster[1].address) as client:
        monkeypatch.setattr("penstock.client.link.link._CONNECT_AGAIN_S", 20.0)  # no time for a second question
        with pytest.raises(penstock.Unavailable, match="has not joined its cluster yet"):
            await client.cluster_id(timeout=20.0)
        monkeypatch.setattr("penstock.client.link.link._CONNECT_AGAIN_S", 0.01)
        asked = 0

        async def join(count: int) -> None:
            nonlocal asked
            asked += 1
            if asked == 3:
                cluster[1].hello["cluster_id"] = "c"

        on(cluster[1], MetadataRequest, join)
        assert await client.cluster_id(timeout=30.0) == "c"


# Reading


async def test_a_reader_goes_on_at_the_new_leader_when_the_old_one_dies(
    cluster: FakeCluster, client: aio.Client
) -> None:
    stream = fill(cluster, batches=30)
    cluster[1].fetch_bytes = cluster[3].fetch_bytes = len(stream.batches[0])

    async def die(count: int) -> Answer | None:
        if count == 4:
            await cluster.elect(3, heard_by={2, 3})
            asyncio.get_running_loop().call_soon(dying.set)
            raise Cut
        return None

    dying = asyncio.Event()
    on(cluster[1], FetchRequest, die)
    reading = asyncio.create_task(offsets_read(client))
    await dying.wait()
    await cluster.kill(1)
    assert await reading == list(range(300))
    fetches = [request for request in cluster[3].requests if isinstance(request, FetchRequest)]
    assert fetches[0].offset == 30
    assert fetches[0].leader_epoch == 1  # of the row before it: the new leader can tell whether it has the same


async def test_a_reader_that_follows_hears_of_a_new_leader_by_its_old_one(
    cluster: FakeCluster, client: aio.Client
) -> None:
    stream = fill(cluster, batches=1)
    waits = asyncio.Event()

    async def wait(count: int) -> Answer | None:
        if count == 2:
            waits.set()
        return None

    on(cluster[1], FetchRequest, wait)
    reader = client.read("a", follow=True)
    assert (await anext(reader)).num_rows == 10
    waiting = asyncio.create_task(anext(reader))
    await waits.wait()
    await cluster.elect(2)
    await cluster[2].append(stream, columns(b"new"))
    assert (await waiting).column("offset").to_pylist() == [10]
    assert asked(cluster[2], FetchRequest) >= 1
    await reader.aclose()


async def test_metadata_of_the_past_changes_nothing(cluster: FakeCluster) -> None:
    """Brokers 1 and 3 have not heard of the new leader; broker 1 believes that it leads still."""
    stream = fill(cluster)
    await cluster.elect(2, heard_by={2})
    async with penstock.aio.connect(cluster[2].address) as client:
        info = await client.stream("a")
        while asked(cluster[1], MetadataRequest) < 2:
            await client._link._refresh_soon(PartitionKey(StreamId(stream.stream_id), PartitionId(0)))
        assert await offsets_read(client, info) == list(range(100))
    assert asked(cluster[1], FetchRequest) == 0


async def test_rows_are_said_to_be_lost_only_by_who_leads(cluster: FakeCluster, client: aio.Client) -> None:
    """A leader that was cut off from its cluster does not know what was committed since."""
    fill(cluster)

    async def truncated(count: int) -> Answer | None:
        raise RemoteError(ErrorCode.LOG_TRUNCATED, "not here")

    info = await client.stream("a")
    on(cluster[1], FetchRequest, truncated)
    await cluster.elect(2, heard_by={2, 3})
    assert await offsets_read(client, info) == list(range(100))
    assert asked(cluster[1], FetchRequest) == 1
    on(cluster[2], FetchRequest, truncated)
    with pytest.raises(penstock.LogTruncated):
        await offsets_read(client, info)


@each_change
async def test_nobody_leads_for_a_while(cluster: FakeCluster, client: aio.Client) -> None:
    fill(cluster)
    await cluster.elect(None)
    reading = asyncio.create_task(offsets_read(client))
    while sum(asked(broker, MetadataRequest) for broker in cluster.brokers) < 6:
        await asyncio.wait({reading}, timeout=0.01)
        assert not reading.done()
    await cluster.elect(3)
    assert await reading == list(range(100))


async def test_nobody_leads_until_the_time_is_up(cluster: FakeCluster, client: aio.Client) -> None:
    fill(cluster)
    await cluster.elect(None)
    with pytest.raises(penstock.TimedOut, match=r"the partition had no leader|no broker could answer"):
        await client.get("a", 1, timeout=0.3)


async def test_a_leader_that_is_away_is_named_and_who_answers_is_not_counted_as_away(cluster: FakeCluster) -> None:
    fill(cluster)
    async with penstock.aio.connect(cluster[2].address) as client:
        await client.status()
        await cluster.kill(1)
        await cluster.kill(3)
        with pytest.raises(penstock.TimedOut, match="its leader, broker 1, cannot be reached") as caught:
            await client.get("a", 1, timeout=0.5)
    assert f"{cluster[2].address}: knows no other leader" in caught.value.message
    assert "nobody_leads" in caught.value.details


async def test_a_broker_that_hangs_is_left_for_the_new_leader(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host has vanished, or its process was stopped: nothing comes, and no connection breaks."""
    monkeypatch.setattr("penstock.base.limits.CLIENT_SILENCE_S", 0.1)
    monkeypatch.setattr("penstock.client.link.connections._LOOK_S", 0.02)
    fill(cluster)
    async with penstock.aio.connect(cluster[1].address) as client:
        info = await client.stream("a")
        cluster[1].hang.clear()
        await cluster.elect(2, heard_by={2, 3})
        assert await offsets_read(client, info, timeout=30.0) == list(range(100))
        assert (await client.status()).broker_id in (2, 3)


@each_change
async def test_a_slow_answer_is_waited_for(
    cluster: FakeCluster, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answers something else meanwhile: it lives."""
    monkeypatch.setattr("penstock.base.limits.CLIENT_SILENCE_S", 0.05)
    monkeypatch.setattr("penstock.client.link.connections._LOOK_S", 0.02)
    fill(cluster)
    await client.stream("a")
    connections = cluster[1].connections
    release = asyncio.Event()

    async def slowly(count: int) -> Answer | None:
        await release.wait()
        return None

    on(cluster[1], FetchRequest, slowly)
    probes = asked(cluster[1], MetadataRequest)
    reading = asyncio.create_task(offsets_read(client))
    while asked(cluster[1], MetadataRequest) < probes + 3:
        await asyncio.wait({reading}, timeout=0.02)
        assert not reading.done()
    release.set()
    assert await reading == list(range(100))
    assert asked(cluster[1], FetchRequest) == 1
    assert cluster[1].connections <= connections + 1


@each_change
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_brokers_do_each_row_is_read_once_and_in_order(
    cluster: FakeCluster, client: aio.Client, seed: int
) -> None:
    stream = fill(cluster, batches=40, rows=5)
    chance = random.Random(seed)
    down: int | None = None
    refusals = (
        ErrorCode.NOT_YET,
        ErrorCode.STOPPING,
        ErrorCode.UNKNOWN_EPOCH,
        ErrorCode.FENCED_EPOCH,
        ErrorCode.BROKER_UNAVAILABLE,
        ErrorCode.TIMED_OUT,
    )

    async def act(_: int) -> Answer | None:
        nonlocal down
        dice = chance.random()
        if dice < 0.1:
            raise Cut
        if dice < 0.2:
            raise RemoteError(chance.choice(refusals), "for now")
        if dice < 0.3:
            leader = chance.choice([1, 2, 3])
            await cluster.elect(leader, heard_by={leader, chance.choice([1, 2, 3])})
        elif dice < 0.35:
            await cluster.elect(None)
            asyncio.get_running_loop().call_later(0.02, lambda: tasks.append(asyncio.create_task(cluster.elect(1))))
        elif dice < 0.4 and stream.end < 400:
            await cluster[1].append(stream, columns(*[b"x"] * 5))
        return None

    tasks: list[asyncio.Task[None]] = []
    for broker in cluster.brokers:
        broker.fetch_bytes = 3 * len(stream.batches[0])
        on(broker, FetchRequest, act)
    assert await offsets_read(client, end=200, timeout=30.0) == list(range(200))
    await asyncio.gather(*tasks)


# Other calls


async def test_what_any_broker_answers_is_asked_of_the_next_one(cluster: FakeCluster, client: aio.Client) -> None:
    await client.status()
    home = next(broker for broker in cluster.brokers if broker.address == client.server)
    await cluster.kill(home.broker_id)
    info = await client.create_stream("b", "b.>")
    assert (await client.stream("b")).stream_id == info.stream_id
    assert client.server != home.address
    assert (await client.status()).address == client.server


async def test_a_stream_whose_creation_was_cut_off_is_created_once(cluster: FakeCluster, client: aio.Client) -> None:
    await client.status()
    home = next(broker for broker in cluster.brokers if broker.address == client.server)

    async def create_and_die(count: int) -> Answer | None:
        await Replica.handle(home, home.requests[-1])
        raise Cut

    on(home, CreateStreamRequest, create_and_die)
    assert (await client.create_stream("b", "b.>")).name == "b"
    assert sum(asked(broker, CreateStreamRequest) for broker in cluster.brokers) == 2


@each_change
async def test_a_creation_that_is_asked_for_again_does_not_outlive_the_time_of_the_caller(cluster: FakeCluster) -> None:
    times_ms = []

    async def too_few(request: Request) -> None:
        if isinstance(request, CreateStreamRequest):
            times_ms.append(request.timeout_ms)
            raise RemoteError(ErrorCode.BROKER_UNAVAILABLE, "2 of 3 are live now")

    cluster[1].intercept = too_few
    await cluster.kill(2)
    await cluster.kill(3)
    async with penstock.aio.connect(cluster[1].address) as client:
        with pytest.raises(
            penstock.TimedOut, match=r"no broker could answer within the time-out .*2 of 3 are live now"
        ):
            await client.create_stream("b", "b.>", timeout=0.3)
    assert times_ms == sorted(times_ms, reverse=True)
    assert 1 < times_ms[0] <= 300
    assert times_ms[-1] == 1


async def test_an_append_goes_to_the_leader_and_is_not_repeated_where_it_may_be_stored(
    cluster: FakeCluster, client: aio.Client
) -> None:
    stream = fill(cluster, batches=0)
    await cluster.elect(2)
    assert (await client.append("a", [{"value": b"1"}]))[0].base_offset == 0
    await cluster.elect(3)  # the client asks 2, who says so: nothing was stored
    assert (await client.append("a", [{"value": b"2"}]))[0].base_offset == 1
    assert asked(cluster[2], AppendRequest) == 2

    async def lose(_: int) -> Answer | None:
        raise Cut

    on(cluster[3], AppendRequest, lose)
    with pytest.raises(penstock.OutcomeUnknown):
        await client.append("a", [{"value": b"3"}])
    assert stream.end == 2


def test_the_blocking_face_reads_on_through_a_failover() -> None:
    """On a thread of its own; the brokers run here."""

    async def story() -> None:
        async with FakeCluster(3) as cluster, asyncio.timeout(30):
            stream = fill(cluster, batches=20)
            cluster[1].fetch_bytes = len(stream.batches[0])

            async def lead_no_more(count: int) -> Answer | None:
                if count == 3:
                    await cluster.elect(2)
                return None

            on(cluster[1], FetchRequest, lead_no_more)

            def read() -> list[int]:
                with penstock.connect(cluster.servers) as client:
                    return [offset for batch in client.read("a") for offset in batch.column("offset").to_pylist()]

            assert await asyncio.to_thread(read) == list(range(200))
            assert asked(cluster[1], FetchRequest) == 3

    asyncio.run(story())


async def test_messages_are_published_where_any_broker_says_once_its_own_place_is_gone(
    cluster: FakeCluster,
) -> None:
    for broker in cluster.brokers:
        broker.hello["nats_urls"] = (f"nats://n{broker.broker_id}", "nats://shared")
    async with penstock.aio.connect(cluster[2].address) as client:
        assert client.nats_urls == ("nats://n2", "nats://shared")
        await client.streams()
        await client._link.refresh(5.0)
        assert client.nats_urls[:2] == ("nats://n2", "nats://shared")
        assert set(client.nats_urls) == {"nats://n1", "nats://n2", "nats://n3", "nats://shared"}
        cluster[1].hello["nats_urls"] = ("nats://moved",)
        await cluster.kill(2)
        cluster[1].cut_connections()
        cluster[3].cut_connections()
        await client.status()
        client._link._meeting_due_s = 0.0
        await client._link.refresh(5.0)
        assert {"nats://moved", "nats://n3"} <= set(client.nats_urls)
        assert "nats://n1" not in client.nats_urls


# Connections


async def test_there_is_one_connection_to_each_broker_that_is_needed(cluster: FakeCluster) -> None:
    fill(cluster)
    await cluster.elect(2)
    async with penstock.aio.connect(cluster[1].address) as client:
        info = await client.stream("a")
        await asyncio.gather(*(client.get(info, number) for number in range(50)))
        await asyncio.gather(*(client.status() for _ in range(50)))
        assert (cluster[1].connections, cluster[2].connections) == (1, 1)


async def test_a_connection_that_is_not_used_is_given_back_but_never_the_last(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.base.limits.CLIENT_CONNECTION_IDLE_S", 0.05)
    monkeypatch.setattr("penstock.client.link.connections._LOOK_S", 0.01)
    fill(cluster)
    await cluster.elect(2)
    async with penstock.aio.connect(cluster[1].address) as client:
        await client.get(await client.stream("a"), 1)
        entries = client._link._connections._entries
        never = asyncio.get_running_loop().create_future()
        while len(entries) > 1:
            await asyncio.wait({never}, timeout=0.01)
        (last,) = entries
        assert client._link._connections.is_open(last)
        assert (await client.get("a", 2)).offset == 2


async def test_so_many_connections_and_no_more(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.base.limits.CLIENT_CONNECTIONS_MAX", 1)
    fill(cluster)
    await cluster.elect(2)
    async with penstock.aio.connect(cluster[1].address) as client:
        assert await offsets_read(client) == list(range(100))
        assert (await client.status()).broker_id in (1, 2, 3)
        assert len(client._link._connections._entries) == 1


async def test_a_client_that_is_closed_leaves_no_task_and_no_connection(cluster: FakeCluster) -> None:
    fill(cluster)
    before = asyncio.all_tasks()
    client = await penstock.aio.connect(cluster.servers)
    reading = asyncio.create_task(offsets_read(client, follow=True))
    await asyncio.wait({reading}, timeout=0.05)
    await client.close()
    with pytest.raises(penstock.Unavailable, match="closed"):
        await reading
    left = asyncio.all_tasks() - before
    assert not [task for task in left if "penstock/client" in repr(task)]
    assert client._link._connections._entries == {}


async def test_a_broker_that_is_not_ready_is_passed_over(cluster: FakeCluster) -> None:
    cluster.create("a")

    async def not_ready(request: Request) -> None:
        if isinstance(request, MetadataRequest):
            raise RemoteError(ErrorCode.NOT_YET, "not ready: waiting for a majority: 1 of 3 voters reachable")

    cluster[2].intercept = not_ready
    async with penstock.aio.connect(cluster[2].address) as client:
        with pytest.raises(penstock.TimedOut, match="not ready: waiting for a majority: 1 of 3 voters reachable"):
            await client.stream("a", timeout=0.2)
    async with penstock.aio.connect(f"{cluster[2].address},{cluster[1].address}") as client:
        assert (await client.stream("a")).name == "a"
        with pytest.raises(penstock.StreamNotFound):
            await client.stream("b")


def _not_held(cluster: FakeCluster) -> Callable[[Request], Awaitable[Answer | None]]:
    """A broker that knows who leads the streams, and holds nothing of them."""

    async def answer(request: Request) -> Answer | None:
        if not isinstance(request, MetadataRequest):
            return None
        told, raw = await cluster[2].handle(request)
        assert isinstance(told, MetadataResponse)
        empty = {"log_start": None, "committed_end": None, "log_end": None}
        streams = tuple(
            msgspec.structs.replace(one, partitions=(msgspec.structs.replace(one.partitions[0], **empty),))
            for one in told.streams
        )
        return msgspec.structs.replace(told, streams=streams), raw

    return answer


async def test_what_the_broker_that_is_asked_does_not_hold_its_leader_tells(cluster: FakeCluster) -> None:
    fill(cluster)
    cluster[2].intercept = _not_held(cluster)
    async with penstock.aio.connect(cluster[2].address) as client:
        assert (await client.stream("a")).partitions[0].committed_end == 100
        assert [info.partitions[0].committed_end for info in await client.streams()] == [100]
        assert (await client.create_stream("a", "s")).partitions[0].committed_end == 100


async def test_what_no_leader_tells_is_not_known(cluster: FakeCluster) -> None:
    fill(cluster)
    cluster[2].intercept = _not_held(cluster)
    async with penstock.aio.connect(cluster[2].address) as client:
        await cluster.kill(1)
        assert (await client.stream("a")).partitions[0].committed_end is None
        await cluster.elect(None)
        assert [info.partitions[0].committed_end for info in await client.streams()] == [None]


async def test_why_nobody_leads_is_told_when_the_time_is_up(cluster: FakeCluster) -> None:
    cluster.create("a")
    reason = "it has no leader: its last in-sync copy was on broker 1's old disk"

    async def answer(request: Request) -> Answer | None:
        if not isinstance(request, MetadataRequest):
            return None
        told, raw = await cluster[2].handle(request)
        assert isinstance(told, MetadataResponse)
        why = {"state": "no_leader", "state_reason": reason}
        streams = tuple(
            msgspec.structs.replace(one, partitions=(msgspec.structs.replace(one.partitions[0], **why),))
            for one in told.streams
        )
        return msgspec.structs.replace(told, streams=streams), raw

    await cluster.elect(None)
    for broker in cluster.brokers:
        broker.intercept = answer
    async with penstock.aio.connect(cluster[2].address) as client:
        with pytest.raises(penstock.TimedOut, match=reason) as error:
            await offsets_read(client, timeout=0.2)
    assert error.value.details["nobody_leads"] == reason


# Ranges from followers


async def test_a_range_is_read_from_a_follower_and_who_leads_stays_known(
    cluster: FakeCluster, client: aio.Client
) -> None:
    fill(cluster)
    info = await client.stream("a")
    for broker in cluster.brokers:
        broker.leader_id = broker.broker_id  # these brokers serve what they lead: let each think so
    found = read_range_async(client, LogRange(info, 0, 0, 100, 1, read_from=FOLLOWERS), batch_rows_min=1)
    assert [row async for batch in found for row in batch.column("offset").to_pylist()] == list(range(100))
    assert asked(cluster[1], FetchRequest) == 0
    assert asked(cluster[2], FetchRequest) + asked(cluster[3], FetchRequest) > 0
    leader = client._link.view.leader(PartitionKey(info.stream_id, PartitionId(0)))
    assert leader is not None
    assert leader.broker_id == 1


async def test_what_a_follower_does_not_know_yet_comes_from_the_leader(
    cluster: FakeCluster, client: aio.Client
) -> None:
    fill(cluster)
    info = await client.stream("a")

    async def knows_nothing(number: int) -> Answer | None:
        raise RemoteError(ErrorCode.NOT_YET, "this replica has not heard of it")

    for broker_id in (2, 3):
        on(cluster[broker_id], FetchRequest, knows_nothing)
    found = read_range_async(client, LogRange(info, 0, 0, 100, 1, read_from=FOLLOWERS), batch_rows_min=1)
    assert [row async for batch in found for row in batch.column("offset").to_pylist()] == list(range(100))
    assert asked(cluster[1], FetchRequest) > 0
    assert asked(cluster[2], FetchRequest) + asked(cluster[3], FetchRequest) > 0


# Reading from any replica


def _replicas_serve(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        broker.leader_id = broker.broker_id  # these brokers serve what they lead: let each think so


@pytest.mark.parametrize("which", ["any", "followers", "nearest"])
@pytest.mark.parametrize("code", sorted(OF_ONE_BROKER))
async def test_what_one_replica_cannot_serve_another_serves(
    cluster: FakeCluster, client: aio.Client, which: Which, code: ErrorCode
) -> None:
    """Only the last of them can: whichever two are asked first, and the leader too, say that they cannot."""
    fill(cluster)
    await client.stream("a")
    _replicas_serve(cluster)

    async def cannot(number: int) -> Answer | None:
        raise RemoteError(code, "too many open files")

    for able in (1, 2, 3):
        for broker in cluster.brokers:
            on(broker, FetchRequest, cannot)
        cluster[able].intercept = None
        assert await offsets_read(client, read_from=which) == list(range(100))


async def test_a_reader_of_the_leader_hears_what_the_leader_cannot(cluster: FakeCluster, client: aio.Client) -> None:
    fill(cluster)

    async def cannot(number: int) -> Answer | None:
        raise RemoteError(ErrorCode.STORAGE_FAILED, "too many open files")

    on(cluster[1], FetchRequest, cannot)
    with pytest.raises(penstock.StorageFailed, match="too many open files"):
        await offsets_read(client)
    for broker_id in (2, 3):
        on(cluster[broker_id], FetchRequest, cannot)
    with pytest.raises(penstock.StorageFailed, match="too many open files"):
        await offsets_read(client, read_from="any")


async def test_a_leader_that_does_not_answer_leaves_time_for_another_replica(
    cluster: FakeCluster, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READ_REPLICA_S", 0.5)
    fill(cluster)
    await client.stream("a")
    _replicas_serve(cluster)
    never = asyncio.Event()

    async def hang(number: int) -> Answer | None:
        await never.wait()
        return None

    client._link.view.chance = lambda: 0.0  # the first one is chosen: the leader
    on(cluster[1], FetchRequest, hang)
    assert await offsets_read(client, read_from="any", timeout=1.3) == list(range(100))
    assert asked(cluster[1], FetchRequest) == 1
    never.set()


# What any broker can answer


async def test_what_one_broker_cannot_do_is_asked_of_another(cluster: FakeCluster, client: aio.Client) -> None:
    fill(cluster)
    await client.status()
    home = next(broker for broker in cluster.brokers if broker.address == client.server)

    async def cannot(number: int) -> Answer | None:
        raise RemoteError(ErrorCode.OVERLOADED, "too many queries at once")

    on(home, MetadataRequest, cannot)
    assert [info.name for info in await client.streams()] == ["a"]
    for broker in cluster.brokers:
        on(broker, MetadataRequest, cannot)
    before = [asked(broker, MetadataRequest) for broker in cluster.brokers]
    with pytest.raises(penstock.Overloaded, match="too many queries"):
        await client.streams()
    assert [asked(broker, MetadataRequest) - 1 for broker in cluster.brokers] == before
