"""A cluster that began with one broker loses nothing of its own when that broker goes, once others have joined."""

from __future__ import annotations

from pathlib import Path

from penstock import Credentials, aio
from penstock.access import Operation, Rule
from penstock.client.users import password_credential
from tests.broker_process import eventually
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.integration.guarded import SECRET

ADMIN = Credentials.password("ann", "a password")


async def copies(cluster: ClusterProcesses, asked: int, name: str) -> tuple[set[int], set[int]]:
    """How many hold each partition, and how many of those are in sync."""
    async with cluster.client(asked) as client:
        parts = (await client.stream(name)).partitions
    return {len(one.replicas) for one in parts}, {len(one.isr) for one in parts}


async def consumed(client: aio.Client) -> list[bytes | None]:
    async with client.consumer("orders", "billing") as consumer:
        return [message.value async for message in consumer.messages()]


@needs_time
async def test_groups_and_acts_outlive_the_broker_with_which_the_cluster_began(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with running_cluster(tmp_path, 1, "--cluster-secret-file", str(secret)) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.users.create("ann", password_credential("a password"), rules=[Rule(Operation.ADMIN)])
        cluster.log_in(ADMIN)
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders")
            await client.append("orders", [{"value": b"1"}, {"value": b"2"}])
            assert await consumed(client) == [b"1", b"2"]
        for number in (2, 3):
            cluster.launch_joining(number, member=1)
            await cluster.all_live()
        for name in ("__offsets", "__audit"):
            await eventually(lambda name=name: _has(cluster, name, ({3}, {3})), f"{name} is held by all")  # type: ignore[misc]
        async with cluster.client(2) as client:
            await client.create_stream("kept", "kept", replicas=3)
        cluster.brokers[1].kill()
        async with cluster.client(2) as client:
            found = [(one.group, one.stream) for one in await client.groups.all(timeout=30.0)]
            assert found == [("billing", "orders")], "orders itself has the one copy with which it was made"
            acts = [message.value or b"" async for message in client.messages("__audit", timeout=30.0)]
            assert [
                one for one in (b"create_user", b'"orders"', b'"kept"') if not any(one in act for act in acts)
            ] == []


async def _has(cluster: ClusterProcesses, name: str, wanted: tuple[set[int], set[int]]) -> bool:
    return await copies(cluster, 2, name) == wanted
