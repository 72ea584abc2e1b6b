"""Brokers that come back elsewhere: with an empty disk, or with their own at another address."""

from __future__ import annotations

from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, check, load
from tests.ports import free_ports


@needs_time
async def test_a_broker_that_is_gone_for_good_comes_back_elsewhere_by_joining(cluster: ClusterProcesses) -> None:
    await cluster.all_vote()  # before, nobody but the broker itself may know which disk it had
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
    async with load(cluster.nats.url, "orders.a") as publishers:
        await publishers.acks(100)
        first = await cluster.metadata_leader()
        for gone, member in ((first, first % 3 + 1), (first % 3 + 1, first)):
            before = cluster.brokers[gone].client_address
            cluster.brokers[gone].kill()
            cluster.move(gone, join=member)
            assert cluster.brokers[gone].client_address != before
            await cluster.all_live()
            await cluster.in_sync("orders", {1, 2, 3}, gone)
            await cluster.all_vote()
            await publishers.acks(100)
    for number in (1, 2, 3):
        async with cluster.client(number) as client:
            await check(client, "orders", publishers)


@needs_time
async def test_a_broker_that_was_away_while_all_others_moved_is_back(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3)
    away = await cluster.metadata_leader() % 3 + 1
    cluster.brokers[away].kill()
    for number in {1, 2, 3} - {away}:
        cluster.brokers[number].kill()
        cluster.move(number)
        moved = cluster.brokers[number].stdout
        assert moved is not None
        moved.wait_for("^ready client=")  # registered where it is now: else nobody would know where the other one is
    cluster.brokers[away].launch()  # all that it knows of the others is where they were
    await cluster.all_live()
    await cluster.in_sync("orders", {1, 2, 3}, away)


@needs_time
async def test_a_broker_moves_with_all_its_flags_and_another_listen(cluster: ClusterProcesses) -> None:
    await cluster.all_live()
    broker, (port,) = cluster.brokers[1], free_ports(1)
    broker.kill()
    broker.listen = f"127.0.0.1:{port}"  # `--cluster` says still where it was
    broker.start()
    assert broker.client_address == broker.listen
    state = await cluster.all_live()
    assert [one.address for one in state.brokers if one.broker_id == 1] == [broker.listen]
    broker.restart()
    await cluster.all_live()
