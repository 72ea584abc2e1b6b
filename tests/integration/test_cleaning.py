"""The cleaner of a real broker: files on a real disk, while a client reads, and after a kill."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import penstock
from penstock import aio
from tests.broker_process import eventually, running_broker
from tests.extent import needs_time

MESSAGES = 300


async def values_of(client: aio.Client) -> list[bytes | None]:
    return [value async for batch in client.read("orders") for value in batch.column("value").to_pylist()]


@needs_time
async def test_small_batches_are_merged_while_a_client_reads(tmp_path: Path) -> None:
    wanted = [b"%d" % number for number in range(MESSAGES)]
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders", segment_bytes=16_384)
            for value in wanted:
                await client.append("orders", [{"value": value}])
            (folder,) = (tmp_path / "data/streams").glob("*-orders/0")

            async def is_cleaned() -> bool:
                assert await values_of(client) == wanted
                files = penstock.segment_files(folder)
                return len(files) > 3 and all(".1." in file.name for file in files[:-1])

            await eventually(is_cleaned, "all sealed segments are written anew")
        broker.kill()
        broker.start()
        async with await broker.client() as client:
            assert await values_of(client) == wanted
        assert broker.stop() == 0
    files = penstock.segment_files(folder)
    assert sorted(folder.glob("*.arrows")) == sorted(files), "nothing is left over"
    tables = []
    for file in files:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
            tables.append(reader.read_all())
    log = pa.concat_tables(tables)
    assert log["value"].to_pylist() == wanted
    assert log["offset"].to_pylist() == list(range(MESSAGES))
    assert len(tables[0].to_batches()) == 1
