"""What a message leads to in later turns of the event loop is done within milliseconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock import aio
from penstock.base import limits
from penstock.base.ids import Offset
from penstock.messages import FetchRequest
from penstock.vfs.real import RealVfs
from tests.broker_process import running_nats
from tests.integration.in_process import broker_in_process
from tests.integration.publishers import connected_to
from tests.integration.raw_client import raw_client

_ROUNDS = 8
_SOON_S = 0.04  # of one of the quickest rounds; a turn takes a millisecond or two


async def test_readers_that_wait_for_their_turn_get_a_message_soon(tmp_path: Path) -> None:
    """More readers wait than one turn answers (FETCHES_WOKEN_MAX)."""
    readers = 2 * limits.FETCHES_WOKEN_MAX
    took_s = []
    loop = asyncio.get_running_loop()
    with running_nats(tmp_path / "nats") as nats:
        async with (
            broker_in_process(RealVfs(tmp_path / "data"), nats.url) as broker,
            await aio.connect(broker.address) as client,
            connected_to(nats.url) as publisher,
            raw_client(broker.address) as reader,
        ):
            info = await client.create_stream("a", "a", durability="os")
            await reader.hello()
            for number in range(_ROUNDS):
                for at in range(readers):
                    wanted = FetchRequest(stream_id=info.stream_id, offset=Offset(number), wait_ms_max=30_000)
                    reader.ask(wanted, 2 + at)
                await asyncio.sleep(0.1)
                begun_s = loop.time()
                await publisher.publish("a", b"x")
                await publisher.flush()
                for _ in range(readers):
                    assert await reader.frame() is not None
                took_s.append(loop.time() - begun_s)
    assert sorted(took_s)[2] < _SOON_S, took_s
