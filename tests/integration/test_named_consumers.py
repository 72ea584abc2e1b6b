"""A consumer group counts as a consumer of a stream with retention `interest`, also after its leader was killed."""

from __future__ import annotations

from pathlib import Path

from penstock import aio
from tests.broker_process import eventually, running_nats
from tests.cli_process import command
from tests.extent import each_change
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_streams import api_options, connected, serving

OPTIONS = api_options("--jetstream-rights", "manage")


@each_change
async def test_a_group_in_a_cluster_lets_go_of_what_it_has_committed(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        brokers = ClusterProcesses(tmp_path, server, 3, *OPTIONS)
        try:
            brokers.start()
            await brokers.all_live()
            async with connected(server.url) as connection, aio.connect(every(brokers)) as client:
                await serving(connection)
                named = ("group:billing",)
                await client.create_stream("orders", "orders.>", replicas=3, retention="interest", interest_of=named)
                js = connection.jetstream()
                for number in range(10):
                    await js.publish(f"orders.{number % 2}", b"%d" % number)
                address = brokers.brokers[1].client_address
                said, _ = await command(address, "doctor", "--json")
                assert "stream orders keeps all its messages for group:billing (interest_of)" in said
                await take(client, 4)
                await eventually(lambda: shows(client, 4), "what the group has committed is gone")
                said, _ = await command(address, "doctor", "--json")
                assert "interest_of" not in said

                leader = (await client.stream("orders")).partitions[0].leader
                (killed,) = (one for one in brokers.brokers.values() if one.client_address == leader)
                killed.kill()
                await take(client, 3)
                await eventually(lambda: shows(client, 7), "the next leader goes on")
                assert [one.value async for one in client.messages("orders")] == [b"7", b"8", b"9"]
        finally:
            brokers.end()


def every(brokers: ClusterProcesses) -> str:
    return ",".join(one.client_address for one in brokers.brokers.values())


async def take(client: aio.Client, count: int) -> None:
    """Read so many messages as the group, and commit."""
    async with client.consumer("orders", "billing", batch_rows_max=1) as consumer:
        for _ in range(count):
            await anext(consumer)
        await consumer.commit()


async def shows(client: aio.Client, first: int) -> bool:
    """True if the first message that readers see is this one."""
    async for message in client.messages("orders"):
        return message.offset == first
    return False
