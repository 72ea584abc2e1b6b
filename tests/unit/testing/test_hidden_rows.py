"""The real clients on a log with hidden rows: they read across them, and never stall."""

from __future__ import annotations

import asyncio

import pytest

import penstock.aio
from penstock.base.errors import ErrorCode, RemoteError
from penstock.live.row_set import RowSet
from penstock.node.partition.visible_rows import AppliedMarks
from penstock.testing import Cluster


def test_clients_read_across_hidden_rows() -> None:
    hidden = RowSet.of_runs([(0, 10), (12, 13), (30, 75), (95, 100)])
    shown = [number for number in range(100) if number not in hidden]
    cluster = Cluster(3, brokers=1)

    async def main() -> None:
        async with penstock.aio.connect() as client:
            await client.create_stream("orders", "orders.>", segment_bytes=16_384)
            for number in range(100):
                await client.publish("orders.eu", b"%d" % number, key=f"k{number}")
            for node in cluster._nodes():
                for partition in node._partitions.values():
                    if partition.stream.name == "orders":
                        partition.hide(AppliedMarks(hidden))
            assert [one.offset async for one in client.messages("orders")] == shown
            for start in (0, 5, 12, 30, 50, 74, 96):
                found = [one.offset async for one in client.messages("orders", start=start)]
                assert found == [number for number in shown if number >= start], start
            found = [one.offset async for one in client.messages("orders", start=20, end=60)]
            assert found == list(range(20, 30))
            with pytest.raises(RemoteError) as caught:
                await client.get("orders", 40)
            assert caught.value.code == ErrorCode.MESSAGE_NOT_FOUND
            assert (await client.last("orders", subject="orders.eu")).offset == 94

            async def follow() -> list[int]:
                seen = []
                async for one in client.messages("orders", start=90, follow=True):
                    seen.append(one.offset)
                    if one.offset == 100:
                        return seen
                return seen

            following = asyncio.create_task(follow())
            await client.publish("orders.eu", b"100", key="k100")
            assert await following == [90, 91, 92, 93, 94, 100]

    cluster.run(main())
