"""Retention of real brokers waits for archives, also of the leader that comes after."""

from __future__ import annotations

from functools import partial

from tests.broker_process import eventually
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses


@needs_time
async def test_the_next_leader_knows_what_is_archived(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        info = await client.create_stream(
            "orders", "orders", replicas=3, max_messages=10, retain="until-archived", segment_bytes=4_096
        )
        await client.append("orders", [{"value": b"x" * 100}] * 100)
        assert await client.report_archived("orders", 0, 30, archive="lake") == 30

        async def starts_at(offset: int) -> bool:
            return (await client.stream("orders")).partitions[0].log_start == offset

        await eventually(partial(starts_at, 30), "what is archived goes")
        leader = (await client.stream("orders")).partitions[0].leader_id
        assert leader is not None
        cluster.brokers[leader].kill()

        async def another_leads() -> bool:
            return (await client.stream("orders")).partitions[0].leader_id not in (None, leader)

        await eventually(another_leads, "another broker leads")
        await client.append("orders", [{"value": b"x" * 100}] * 100)
        await eventually(partial(starts_at, 30), "the next leader lets it go, too, if it had not heard of that")
        part = (await client.stream("orders")).partitions[0]
        assert (part.log_start, part.archived_end, part.archives) == (30, 30, {"lake": 30})
        assert await client.report_archived(info, 0, 195, archive="lake") == 195
        await eventually(partial(starts_at, 190), "the limit counts again")
