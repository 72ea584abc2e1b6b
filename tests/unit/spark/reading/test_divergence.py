"""Of which cluster a checkpoint is: noted only once it is known, and compared only where both are."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock.client.blocking import client as blocking
from penstock.lake.reading.data_loss import DataLossError
from penstock.lake.reading.divergence import checked_cluster
from penstock.messages import MetadataRequest, Request
from tests.fake_broker import FakeBroker


def checked(client: blocking.Client, known: str, timeout_s: float = 30.0) -> str:
    return checked_cluster(client, known, "the note", "start again", timeout_s)


async def test_a_note_of_an_earlier_version_names_no_cluster_and_none_is_noted_empty() -> None:
    async with FakeBroker() as broker:
        broker.hello["cluster_id"] = ""
        client = await asyncio.to_thread(penstock.connect, broker.address)
        with pytest.raises(penstock.Unavailable, match="has not joined its cluster yet"):
            await asyncio.to_thread(checked, client, "", 1.0)

        async def join(request: Request) -> None:
            if isinstance(request, MetadataRequest):
                broker.hello["cluster_id"] = "c"

        broker.intercept = join
        assert await asyncio.to_thread(checked, client, "") == "c"
        assert await asyncio.to_thread(checked, client, "c") == "c"
        with pytest.raises(DataLossError, match="is of another cluster, b; these brokers are c"):
            await asyncio.to_thread(checked, client, "b")
        await asyncio.to_thread(client.close)
