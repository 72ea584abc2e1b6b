"""A real disk without a free block is emptied through the broker, however often it was killed meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError

from penstock.raft.tasks import RESERVE_PATH
from penstock.vfs.reserve import RESERVE_BYTES
from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import needs_time
from tests.integration.publishers import connected_to
from tests.integration.small_disk import small_disk

VALUE_BYTES = 200_000  # far beyond the room that is left in a block


@needs_time
async def test_a_full_disk_is_emptied_through_the_broker(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server, small_disk(tmp_path / "disk") as disk:
        if not disk.is_mounted:
            pytest.skip("needs the right to mount a tmpfs")
        data_dir = disk.folder / "data"
        with running_broker(data_dir, nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("kept", "kept", segment_bytes=100_000)
                await client.create_stream("gone", "gone")
                for name in ("kept", "gone"):
                    for _ in range(3):
                        await client.append(name, [{"value": bytes(VALUE_BYTES)}])
                disk.fill_up(disk.folder / "rest")
                for number in range(300):  # more than the last block of the journal can take
                    await client.alter_stream("kept", max_messages=1_000 + number)
            for _ in range(3):
                broker.kill()
                broker.start()
            assert (data_dir / RESERVE_PATH).stat().st_size < RESERVE_BYTES
            async with await broker.client() as client, connected_to(nats_server.url) as connection:
                js = connection.jetstream()
                info = await client.stream("kept")
                assert info.config.max_messages == 1_299
                assert len([message async for message in client.messages("kept")]) == 3
                with pytest.raises(APIError) as error:
                    await js.publish("kept", bytes(VALUE_BYTES))
                assert error.value.err_code == 10077
                await client.delete_stream("gone")
                await eventually_stored(js, "kept")

                async def is_whole() -> bool:
                    return (data_dir / RESERVE_PATH).stat().st_size == RESERVE_BYTES

                await eventually(is_whole, "the room of the journal is taken back")
                disk.fill_up(disk.folder / "rest-again")
                with pytest.raises(APIError):
                    await js.publish("kept", bytes(VALUE_BYTES))
                await client.alter_stream("kept", max_messages=1)
                await eventually_stored(js, "kept")


async def eventually_stored(js: JetStreamContext, subject: str) -> None:
    """There is room again: at once, or when retention has come by."""

    async def is_stored() -> bool:
        try:
            await js.publish(subject, bytes(VALUE_BYTES))
        except APIError:
            return False
        return True

    await eventually(is_stored, "a message is stored")
