"""Read replicas on real brokers: they serve what is committed, say how old it may be, and decide nothing."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack, suppress

import pytest

from penstock import ReadFrom, aio
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import Offset
from penstock.messages import FetchRequest, FetchResponse, PartitionInfo
from tests.broker_process import eventually
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, check, load


async def observed(client: aio.Client, name: str, observers: int, rows: int = 0) -> PartitionInfo:
    """A stream of one replica with so many observers, once all of them have its rows."""
    await client.create_stream(name, name, replicas=1, observers=observers)
    if rows:
        await client.append(name, [{"value": b"%d" % one} for one in range(rows)])
    return await all_have(client, name, rows)


async def all_have(client: aio.Client, name: str, end: int) -> PartitionInfo:
    async def look() -> PartitionInfo | None:
        part = (await client.stream(name)).partitions[0]
        told = {one.broker_id: one.lag for one in part.followers}
        is_whole = told.keys() == set(part.observers) and all(lag == 0 for lag in told.values())
        return part if is_whole and part.committed_end == end else None

    return await eventually(look, f"all observers of {name} have {end} rows")


async def fetched(
    client: aio.Client, address: str, name: str, offset: int, max_staleness_ms: int | None = None, wait_ms: int = 0
) -> FetchResponse:
    """What that very broker answers."""
    request = FetchRequest(
        stream_id=(await client.stream(name)).stream_id,
        offset=Offset(offset),
        max_staleness_ms=max_staleness_ms,
        wait_ms_max=wait_ms,
    )
    return (await client._link.call_at(address, request, FetchResponse, timeout_s=30))[0]


async def offsets(client: aio.Client, name: str, which: str) -> list[int]:
    found: list[int] = []
    async for batch in client.read(name, read_from=which, timeout=30):  # type: ignore[arg-type]
        found += batch.column("offset").to_pylist()
    return found


@needs_time
async def test_observers_have_what_is_committed_and_serve_it(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        part = await observed(client, "hot", 2, rows=10_000)
        assert len(part.replicas) == 1
        assert part.isr == part.replicas
        assert sorted((*part.replicas, *part.observers)) == [1, 2, 3]
        for observer in part.observers:
            address = cluster.brokers[observer].client_address

            async def serves(address: str = address) -> FetchResponse | None:
                answer = await fetched(client, address, "hot", 9_000)
                return answer if answer.end_offset == 10_000 else None

            answer = await eventually(serves, f"observer {observer} knows what is committed")
            assert answer is not None
            assert answer.behind_us is not None
        for which in ("leader", "any", "nearest", "followers"):
            assert await offsets(client, "hot", which) == list(range(10_000))


@needs_time
async def test_observers_come_and_go_by_alter(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        part = await observed(client, "late", 0, rows=1_000)
        assert part.observers == ()
        with pytest.raises(PenstockError, match=r"3 brokers beyond the 1 of `replicas`.*the cluster has 3"):
            await client.alter_stream("late", observers=3)
        await client.alter_stream("late", observers=2)
        part = await all_have(client, "late", 1_000)
        assert len(part.observers) == 2
        kept, dropped = part.observers
        await client.alter_stream("late", observers=1)

        async def is_heard() -> bool:  # by the leader, who is asked
            return (await all_have(client, "late", 1_000)).observers == (kept,)

        await eventually(is_heard, "one observer is left")
        folder = cluster.brokers[dropped].data_dir / "streams"

        async def is_gone() -> bool:
            return not list(folder.glob("*-late/0/*"))

        await eventually(is_gone, "the files of who observes no more are gone")
        await client.alter_stream("late", observers=2)  # and all over again
        assert (await all_have(client, "late", 1_000)).observers == (kept, dropped)
        assert await offsets(client, "late", "followers") == list(range(1_000))


@needs_time
async def test_who_is_cut_off_from_its_leader_says_how_stale_it_may_be(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        part = await observed(client, "cut", 2, rows=100)
        leader, observer = int(part.leader_id or 0), part.observers[0]
        address = cluster.brokers[observer].client_address
        async with cluster.client(observer) as other:
            info = await other.stream("cut")

            async def has_all() -> bool:
                return (await fetched(other, address, "cut", 0, max_staleness_ms=5_000)).end_offset == 100

            await eventually(has_all, "the observer knows what is committed")
            cluster.brokers[leader].signal(signal.SIGSTOP)
            try:

                async def is_stale() -> bool:
                    request = FetchRequest(stream_id=info.stream_id, offset=Offset(0), max_staleness_ms=2_000)
                    with suppress(PenstockError):
                        await other._link.call_at(address, request, FetchResponse, timeout_s=30)
                        return False
                    with pytest.raises(RemoteError) as refused:
                        await other._link.call_at(address, request, FetchResponse, timeout_s=30)
                    assert refused.value.code == ErrorCode.TOO_STALE
                    return bool(refused.value.details["behind_us"] > 2_000_000)

                await eventually(is_stale, "the observer says that it may lack something")
                request = FetchRequest(stream_id=info.stream_id, offset=Offset(0))  # whoever does not mind is served
                answer, _ = await other._link.call_at(address, request, FetchResponse, timeout_s=30)
                assert answer.end_offset == 100
                assert answer.behind_us is not None
                assert answer.behind_us > 2_000_000
            finally:
                cluster.brokers[leader].signal(signal.SIGCONT)

            async def is_fresh() -> bool:
                with suppress(RemoteError):  # too stale
                    return await has_all()
                return False

            await eventually(is_fresh, "the observer has heard from its leader again")


@needs_time
async def test_consumers_of_observers_go_on_when_the_leader_is_killed(cluster: ClusterProcesses) -> None:
    """Two replicas, one observer: the other replica leads, and nobody reads anything twice, or backwards."""
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders", replicas=2, observers=1, min_isr=1)
        part = await all_have_joined(client, "orders")
        leader, observer = int(part.leader_id or 0), part.observers[0]
        async with cluster.client(observer) as reader:
            seen: list[list[tuple[int, bytes]]] = [[] for _ in range(6)]
            policies = ("followers", "any", ReadFrom("nearest", 30.0)) * 2

            async def read(number: int) -> None:
                source = reader.read("orders", follow=True, read_from=policies[number], timeout=60)  # type: ignore[arg-type]
                async for batch in source:
                    rows = (batch.column(name).to_pylist() for name in ("offset", "value"))
                    seen[number] += zip(*rows, strict=True)

            tasks = [asyncio.create_task(read(number)) for number in range(len(policies))]
            async with load(cluster.nats.url, "orders") as sent:
                await sent.acks(500)
                cluster.brokers[leader].kill()
                await sent.acks(500)
                cluster.brokers[leader].launch()
                await sent.acks(500)
            end = await check(reader, "orders", sent)

            async def all_read() -> bool:
                for task in tasks:
                    if task.done():
                        task.result()
                return all(len(one) >= end for one in seen)

            await eventually(all_read, f"all consumers have all {end} rows")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for rows in seen:
            assert [offset for offset, _ in rows] == list(range(end))
            assert rows == seen[0]


async def all_have_joined(client: aio.Client, name: str) -> PartitionInfo:
    async def look() -> PartitionInfo | None:
        part = (await client.stream(name)).partitions[0]
        return part if len(part.isr) == len(part.replicas) and len(part.followers) == 2 else None

    return await eventually(look, f"all replicas of {name} are in sync")


@needs_time
async def test_a_thousand_consumers_follow_one_partition_over_three_brokers(cluster: ClusterProcesses) -> None:
    rounds, rows_each, readers, clients = 5, 20, 50, 20
    end = rounds * rows_each
    async with cluster.client(1) as writer, AsyncExitStack() as stack:
        part = await observed(writer, "crowd", 2)
        servers = [one.client_address for one in cluster.brokers.values()]
        connected = [await stack.enter_async_context(aio.connect(servers)) for _ in range(clients)]
        seen: list[list[int]] = [[] for _ in range(readers * clients)]

        async def follow(client: aio.Client, rows: list[int]) -> None:
            async for batch in client.read("crowd", follow=True, end=end, read_from="any", timeout=60):
                rows += batch.column("offset").to_pylist()

        async with asyncio.TaskGroup() as group:
            for number, rows in enumerate(seen):
                group.create_task(follow(connected[number % clients], rows))
            for _ in range(rounds):
                await writer.append("crowd", [{"value": b"x"}] * rows_each)

                async def all_have_it(
                    end: int = (await writer.stream("crowd")).partitions[0].committed_end or 0,
                ) -> bool:
                    return all(len(rows) >= end for rows in seen)

                await eventually(all_have_it, "all consumers have this round")
        assert all(rows == list(range(end)) for rows in seen)
        fetched_bytes = {}
        for number, broker in cluster.brokers.items():
            async with await aio.connect(broker.client_address) as client:
                fetched_bytes[number] = int((await client.status()).counters.get("fetched_bytes", 0))
        assert sorted((*part.replicas, *part.observers)) == sorted(fetched_bytes)
        shares = [one / sum(fetched_bytes.values()) for one in fetched_bytes.values()]
        assert all(0.2 < share < 0.5 for share in shares), fetched_bytes
