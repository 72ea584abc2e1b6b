"""A copy of a stream, made as a program would."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import ops
from tests.broker_process import running_broker
from tests.extent import needs_time


@needs_time
def test_a_copy_has_the_same_rows_and_is_continued(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": f"orders.{n % 2}", "value": str(n)} for n in range(20)])
        assert ops.copy_stream(client, "orders", "copy") == ops.Copied("orders", "copy", 20, False)
        client.append("orders", [{"subject": "orders.1", "value": "new"}])
        assert ops.copy_stream(client, "orders", "copy", timeout=20.0).rows == 1
        assert client.to_table("copy") == client.to_table("orders")
        done = ops.copy_stream(client, "orders", "some", ops.CopyOptions(start=10, subject="orders.1", like="copy"))
        assert [message.offset for message in client.messages("some")] == [11, 13, 15, 17, 19, 20]
        assert (done.rows, client.stream("some").intake) == (6, "paused")
        with pytest.raises(ops.ArgumentError, match="the copy needs another name"):
            ops.copy_stream(client, "orders", "orders")
        with pytest.raises(penstock.StreamNotFound):
            ops.copy_stream(client, "bills", "copy")
