"""A producer and a cluster of fake brokers: each row is stored once and in order, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import codec
from penstock.client.append.producing import Producer
from penstock.messages import AppendOnceRequest, Request
from tests.extent import HAS_TIME, extent
from tests.fake_broker import Answer, Cut, FakeStream, known_producers
from tests.fake_cluster import FakeCluster, Replica
from tests.unit.client.test_failover import on


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(3) as cluster, asyncio.timeout(60):
        cluster.create("a")
        yield cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[aio.Client]:
    async with await penstock.aio.connect(cluster.servers) as client:
        yield client


def rows(*numbers: int) -> list[dict[str, bytes]]:
    return [{"value": b"%d" % number} for number in numbers]


def stream_of(cluster: FakeCluster) -> FakeStream:
    return cluster[1].streams["a"]


def stored(cluster: FakeCluster) -> list[int]:
    batches = [codec.check_rows(batch) for batch in stream_of(cluster).batches]
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def lose_answers(broker: Replica, *, every: int) -> None:
    """It stores what comes, and cuts the connection in place of every n-th answer."""

    async def act(count: int) -> Answer | None:
        if count % every:
            return None
        await broker.handle(broker.requests[-1], broker.raws[-1])
        raise Cut

    on(broker, AppendOnceRequest, act)


async def append_all(producer: Producer, count: int) -> None:
    """Each in a call of its own, all at once."""
    results = await asyncio.gather(*(producer.append(rows(number)) for number in range(count)))
    assert [one.base_offset for (one,) in results] == list(range(count))


async def test_rows_are_stored_once_although_answers_are_lost(cluster: FakeCluster, client: aio.Client) -> None:
    lose_answers(cluster[1], every=3)
    producer = client.producer("a")
    for number in range(10):
        (result,) = await producer.append(rows(2 * number, 2 * number + 1))
        assert (result.base_offset, result.end_offset) == (2 * number, 2 * number + 2)
    assert stored(cluster) == list(range(20))
    assert (producer.epoch, producer.sequence) == (0, 20)


async def test_calls_that_overlap_keep_their_order(cluster: FakeCluster, client: aio.Client) -> None:
    lose_answers(cluster[1], every=7)
    await append_all(client.producer("a"), 30)
    assert stored(cluster) == list(range(30))
    in_flight = [request for request in cluster[1].requests if isinstance(request, AppendOnceRequest)]
    assert {request.sequence for request in in_flight[:5]} == set(range(5))  # sent without waiting for answers


async def test_a_batch_is_overtaken_by_no_more_than_leaders_know(cluster: FakeCluster, client: aio.Client) -> None:
    """The first batch is stored, and its answer is late, while those behind it are answered at once."""
    refused, is_stored = 0, asyncio.Event()

    async def refuse_the_first(_: int) -> Answer | None:
        nonlocal refused
        sent = [request.sequence for request in cluster[1].requests if isinstance(request, AppendOnceRequest)]
        if sent[-1] != 0 or refused == 4 or max(sent) >= limits.PRODUCER_BATCHES_KEPT:
            return None
        refused += 1
        await cluster[1].handle(cluster[1].requests[-1], cluster[1].raws[-1])
        is_stored.set()
        raise RemoteError(ErrorCode.OVERLOADED, "not now")

    on(cluster[1], AppendOnceRequest, refuse_the_first)
    producer = client.producer("a")
    first = asyncio.create_task(producer.append(rows(0)))
    await is_stored.wait()
    for number in range(1, 10):
        await producer.append(rows(number))
    assert (await first)[0].base_offset == 0
    assert refused == 4
    assert stored(cluster) == list(range(10))


async def test_a_producer_goes_on_with_the_next_leader(cluster: FakeCluster, client: aio.Client) -> None:
    async def die(count: int) -> Answer | None:
        if count == 4:
            await cluster[1].handle(cluster[1].requests[-1], cluster[1].raws[-1])
            await cluster.elect(2)
            raise Cut
        return None

    on(cluster[1], AppendOnceRequest, die)
    await append_all(client.producer("a"), 12)
    assert stored(cluster) == list(range(12))


async def test_what_passes_is_waited_for(cluster: FakeCluster, client: aio.Client) -> None:
    codes = [ErrorCode.OVERLOADED, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.FENCED_EPOCH, ErrorCode.NOT_YET]

    async def refuse(count: int) -> Answer | None:
        if count % 2:
            raise RemoteError(codes[count // 2 % len(codes)], "not now")
        return None

    on(cluster[1], AppendOnceRequest, refuse)
    await append_all(client.producer("a"), 8)
    assert stored(cluster) == list(range(8))


async def test_who_was_forgotten_begins_a_new_epoch(cluster: FakeCluster, client: aio.Client) -> None:
    producer = client.producer("a")
    await producer.append(rows(0, 1))
    stream_of(cluster).producers = known_producers()
    results = await asyncio.gather(*(producer.append(rows(number)) for number in range(2, 6)))
    assert [one.base_offset for (one,) in results] == [2, 3, 4, 5]
    assert stored(cluster) == list(range(6))
    assert (producer.epoch, producer.sequence) == (1, 4)


async def test_who_was_forgotten_while_an_answer_was_lost_does_not_know(
    cluster: FakeCluster, client: aio.Client
) -> None:
    producer = client.producer("a")
    await producer.append(rows(0))

    async def lose_and_forget(count: int) -> Answer | None:
        if count == 1:
            await cluster[1].handle(cluster[1].requests[-1], cluster[1].raws[-1])
            stream_of(cluster).producers = known_producers()
            raise Cut
        return None

    on(cluster[1], AppendOnceRequest, lose_and_forget)
    found = await asyncio.gather(*(producer.append(rows(number)) for number in (1, 2)), return_exceptions=True)
    assert [type(one) for one in found] == [penstock.OutcomeUnknown] * 2
    assert f"producer {producer.producer_id}, epoch 0, sequence 1" in str(found[0])
    assert (await producer.append(rows(3)))[0].base_offset == 2
    assert stored(cluster) == [0, 1, 3]


async def test_a_refusal_fails_what_is_behind_it_and_the_producer_goes_on(
    cluster: FakeCluster, client: aio.Client
) -> None:
    refused = asyncio.Event()

    async def refuse(count: int) -> Answer | None:
        if count == 1:
            await refused.wait()
            raise RemoteError(ErrorCode.READ_ONLY, "nothing was stored: it is sealed")
        if count == 3:
            refused.set()
        return None

    on(cluster[1], AppendOnceRequest, refuse)
    producer = client.producer("a")
    found = await asyncio.gather(*(producer.append(rows(number)) for number in range(3)), return_exceptions=True)
    assert isinstance(found[0], penstock.ReadOnly)
    for one in found[1:]:
        assert isinstance(one, RemoteError)
        assert one.code == ErrorCode.OUT_OF_SEQUENCE
        assert "an append before it has failed" in str(one)
    await producer.append(rows(3))
    assert stored(cluster) == [3]
    assert producer.epoch == 1


async def test_a_zombie_is_refused_for_good(cluster: FakeCluster, client: aio.Client) -> None:
    zombie = client.producer("a", producer_id=7)
    await zombie.append(rows(0))
    await client.producer("a", producer_id=7, epoch=1).append(rows(1))
    for _ in range(2):
        with pytest.raises(RemoteError) as fenced:
            await zombie.append(rows(2))
        assert fenced.value.code == ErrorCode.PRODUCER_FENCED
    assert stored(cluster) == [0, 1]


async def test_the_same_rows_again_by_who_goes_on(cluster: FakeCluster, client: aio.Client) -> None:
    first = client.producer("a", producer_id=7)
    for number in range(7):
        await first.append(rows(number))
    again = client.producer("a", producer_id=7)
    with pytest.raises(RemoteError) as there:
        await again.append(rows(0))
    assert (there.value.code, there.value.details["next_sequence"]) == (ErrorCode.ALREADY_APPENDED, 7)
    assert again.epoch == 0
    again = client.producer("a", producer_id=7, sequence=5)
    assert [(await again.append(rows(number)))[0].base_offset for number in range(5, 9)] == [5, 6, 7, 8]
    assert stored(cluster) == list(range(9))


async def test_a_log_that_lost_what_it_acked_is_not_appended_to(cluster: FakeCluster, client: aio.Client) -> None:
    producer = client.producer("a", producer_id=7)
    await producer.append(rows(0))
    stream = stream_of(cluster)
    before = stream.batches.copy()
    await producer.append(rows(1))
    stream.batches, stream.end, stream.producers = before, 1, known_producers()
    await client.producer("a", producer_id=7).append(rows(0))
    with pytest.raises(RemoteError) as lost:
        await producer.append(rows(2))
    assert (lost.value.code, lost.value.details["next_sequence"]) == (ErrorCode.OUT_OF_SEQUENCE, 1)


async def test_what_is_not_answered_in_time_is_of_unknown_outcome(cluster: FakeCluster, client: aio.Client) -> None:
    producer = client.producer("a")
    await producer.append(rows(0))
    cluster[1].hang.clear()
    with pytest.raises(penstock.OutcomeUnknown):
        await producer.append(rows(1), timeout=0.2)
    cluster[1].hang.set()
    await producer.append(rows(2))
    assert producer.epoch == 1
    assert stored(cluster) in ([0, 2], [0, 1, 2])


async def test_what_was_never_sent_was_not_stored(cluster: FakeCluster, client: aio.Client) -> None:
    producer = client.producer("a")
    await producer.append(rows(0))
    for number in (1, 2, 3):
        await cluster.kill(number)
    with pytest.raises((penstock.Unavailable, penstock.TimedOut)):
        await producer.append(rows(1), timeout=0.2)


async def test_a_call_that_is_cancelled_leaves_the_producer_usable(cluster: FakeCluster, client: aio.Client) -> None:
    producer = client.producer("a")
    came = asyncio.Event()

    async def hold(count: int) -> Answer | None:
        if count == 1:
            came.set()
            await asyncio.Event().wait()
        return None

    on(cluster[1], AppendOnceRequest, hold)
    first = asyncio.create_task(producer.append(rows(0)))
    second = asyncio.create_task(producer.append(rows(1)))
    await came.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(penstock.OutcomeUnknown, match="an append before it has failed"):
        await second
    await producer.append(rows(2))
    assert stored(cluster) == [2]


async def test_what_a_producer_does_not_take(client: aio.Client) -> None:
    for wrong in ({"producer_id": 0}, {"producer_id": 2**63}, {"epoch": -1}, {"epoch": 2**32}, {"sequence": -1}):
        with pytest.raises(ValueError, match=r"producer id|epoch"):
            client.producer("a", **wrong)
    with pytest.raises(TypeError, match="the producer id is a str; give an int"):
        client.producer("a", producer_id="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the sequence is a float; give an int"):
        client.producer("a", sequence=1.5)  # type: ignore[arg-type]
    for timeout in (0, 301):
        with pytest.raises(ValueError, match="time-out"):
            await client.producer("a").append(rows(0), timeout=timeout)
    with pytest.raises(ValueError, match="no partition 3"):
        await client.producer("a", partition=3).append(rows(0))
    assert await client.producer("a").append([]) == []


async def test_a_broker_of_before_is_not_asked_to_append_once() -> None:
    async with FakeCluster(1) as cluster, asyncio.timeout(30):
        spoken = tuple(one for one in penstock.messages.api_versions() if one.api != 14)
        cluster[1].hello["api_versions"] = spoken
        cluster.create("a")
        async with await penstock.aio.connect(cluster.servers) as client:
            with pytest.raises(RemoteError) as old:
                await client.producer("a").append(rows(0))
            assert old.value.code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("seed", range(extent(8 if HAS_TIME else 4, 60)))
async def test_whatever_is_lost_or_refused(cluster: FakeCluster, client: aio.Client, seed: int) -> None:
    chance = random.Random(seed)
    passing = [ErrorCode.OVERLOADED, ErrorCode.FENCED_EPOCH, ErrorCode.NOT_LEADER, ErrorCode.STOPPING]

    def trouble(broker: Replica) -> None:
        async def act(request: Request) -> Answer | None:
            if not isinstance(request, AppendOnceRequest):
                return None
            raw = broker.raws[-1]
            match chance.randrange(12):
                case 0:
                    raise Cut
                case 1:
                    await broker.handle(request, raw)
                    raise Cut
                case 2:
                    lasting = [ErrorCode.READ_ONLY] if chance.random() < 0.1 else []
                    raise RemoteError(chance.choice(passing + lasting), "not now")
                case 3:
                    await asyncio.sleep(0)
                case 4 if chance.random() < 0.3:
                    await cluster.elect(chance.randint(1, 3))
                case 5 if chance.random() < 0.1:
                    stream_of(cluster).producers = known_producers()
            return None

        broker.intercept = act

    for broker in cluster.brokers:
        trouble(broker)
    producer = client.producer("a")
    calls = [[10 * call + row for row in range(chance.randint(1, 3))] for call in range(40)]
    found = await asyncio.gather(*(producer.append(rows(*call), timeout=20) for call in calls), return_exceptions=True)
    there = stored(cluster)
    assert there == sorted(set(there))  # in the order of the calls, and none twice
    for call, result in zip(calls, found, strict=True):
        if isinstance(result, list):
            (place,) = result
            assert there[place.base_offset : place.end_offset] == call
        elif isinstance(result, RemoteError) and result.code == ErrorCode.ALREADY_APPENDED:
            assert set(call) <= set(there)  # by a try whose answer was lost, longer ago than its leader knows
        elif not isinstance(result, penstock.OutcomeUnknown):
            assert not set(call) & set(there), result
    assert sum(isinstance(one, list) for one in found) > 5
