"""An import from JetStream and its cut-over, run as a program would."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest

import penstock
from penstock import ops
from penstock.base.errors import OperationalError
from tests.broker_process import running_broker, running_nats
from tests.extent import needs_time


async def _store(url: str, *values: bytes) -> None:
    connection = await nats.connect(url)
    js = connection.jetstream()
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for value in values:
        await js.publish("orders.eu", value)
    await connection.close()


@needs_time
def test_messages_are_imported_and_the_subject_is_taken_over(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "nats", f"jetstream {{ store_dir: {tmp_path / 'js'} }}") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
        penstock.connect(broker.client_address) as client,
    ):
        asyncio.run(_store(server.url, b"0", b"1"))
        with ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")) as job:
            done = job.run()
            assert done == ops.Imported("orders", "orders.>", 2, 2, 0, 0, (), False)
            assert [one.value for one in client.messages("orders")] == [b"0", b"1"]
            asyncio.run(_store(server.url, b"2"))
            assert job.run().messages == 1
            asyncio.run(_store(server.url, b"3"))
            assert job.check_cut_over().intake == "paused"
            done = job.run(cut_over=True)
            assert (done.messages, done.last_sequence, done.is_cut_over) == (1, 4, True)
        assert (job.stream, job.end, job.is_aside) == ("orders", 4, False)
        assert client.publish("orders.eu", b"4").offset == 4
        with pytest.raises(OperationalError, match="nothing is left to import"):
            ops.JetStreamImport(client, "ORDERS", ops.ImportOptions("orders")).__enter__()
        with pytest.raises(OperationalError, match="no such stream"), ops.JetStreamImport(client, "BILLS"):
            pass
