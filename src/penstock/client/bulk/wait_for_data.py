"""Wait for new messages in several partitions: one long poll for all of them.

Rules: this is only a wake-up hint: the caller fetches afterwards and sees any error there. An error ends the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.base import limits
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.client.blocking import client as blocking
from penstock.client.link.link import Link
from penstock.messages import FetchRequest, FetchResponse

Ends = Mapping[tuple[int, int], int]
"""(stream id, partition) → the offset of the next new message."""


def wait_for_more(client: blocking.Client, ends: Ends, timeout: float) -> None:
    """Return once a message is committed at one of these offsets, or after `timeout` seconds."""
    inner = client._client  # noqa: SLF001 (the same client's asyncio API)
    client._thread.run(_wait(inner._link, ends, timeout))  # noqa: SLF001


async def _wait(link: Link, ends: Ends, timeout_s: float) -> None:
    if not 0 < len(ends) <= limits.DATA_WAIT_PARTITIONS_MAX:
        await asyncio.sleep(min(timeout_s, limits.DATA_WAIT_POLL_S))
        return
    waits = [asyncio.create_task(_wait_one(link, *key, offset, timeout_s)) for key, offset in ends.items()]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _wait_one(link: Link, stream_id: int, partition: int, offset: int, timeout_s: float) -> None:
    request = FetchRequest(
        stream_id=StreamId(stream_id),
        partition=PartitionId(partition),
        offset=Offset(offset),
        bytes_max=1,
        wait_ms_max=int(timeout_s * 1_000),
        columns=("offset",),
    )
    await link.call(request, FetchResponse, timeout_s=timeout_s + limits.DATA_WAIT_GRACE_S)
