"""A copy of a stream, made as a program would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import ops
from penstock.base.config import StreamConfig, stream_config_mistakes
from penstock.ops import placed_rows
from tests.broker_process import running_broker
from tests.extent import needs_time

_KILLED_COPY = """
import os, sys, penstock
from penstock import ops
from penstock.ops import copy

copy._Job.copy = lambda *_: os._exit(9)
with penstock.connect(sys.argv[1]) as client:
    ops.copy_stream(client, "orders", "copy")
"""


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


@needs_time
def test_a_further_run_deletes_no_row_of_the_copy(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:

        def copied(start: int) -> list[int]:
            client.append("orders", [{"subject": "orders.eu", "value": "1"}] * 2)
            assert ops.copy_stream(client, "orders", "copy", ops.CopyOptions(start=start)).rows > 0
            return [message.offset for message in client.messages("copy")]

        client.create_stream("orders", "orders.>")
        client.append("orders", [{"subject": "orders.eu", "value": "1"}] * 3)
        assert copied(1) == [1, 2, 3, 4]
        assert client.stream("copy").partitions[0].log_start == 1
        client.truncate_stream("orders", 3)
        assert copied(3) == [1, 2, 3, 4, 5, 6]
        assert copied(8) == [1, 2, 3, 4, 5, 6, 8]
        assert client.stream("copy").partitions[0].log_start == 1


def test_suspended_limits_are_found_again() -> None:
    limited = StreamConfig(name="a", subject="a", max_age_ms=1, max_messages=2, max_bytes=3, compact=True)
    for config in (limited, StreamConfig(name="a", subject="a", compaction_lag_ms=7)):
        suspended = placed_rows.suspended(config)
        assert stream_config_mistakes(suspended) == []
        assert placed_rows.suspended(suspended) == suspended
        assert placed_rows.resumed(suspended) == config
        assert placed_rows.resumed(config) == config
    suspended = placed_rows.suspended(limited)
    assert not suspended.compact
    assert min(suspended.max_age_ms or 0, suspended.max_messages or 0, suspended.max_bytes or 0) > 2**51
    assert placed_rows.limit_changes(suspended, limited) == {
        "max_age_ms": 1,
        "max_messages": 2,
        "max_bytes": 3,
        "compact": True,
        "compaction_lag_ms": 0,
    }


@needs_time
def test_a_copy_keeps_its_own_limits_also_if_a_run_is_killed(tmp_path: Path) -> None:
    day_ms = 86_400_000
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:

        def limits() -> tuple[object, ...]:
            config = client.stream("copy").config
            return config.max_age_ms, config.max_messages, config.max_bytes, config.compact, config.compaction_lag_ms

        def publish() -> None:
            client.append("orders", [{"subject": "orders.eu", "value": "1", "key": "k"}])

        def killed_copy() -> None:
            found = subprocess.run([sys.executable, "-c", _KILLED_COPY, broker.client_address], check=False)
            assert found.returncode == 9

        client.create_stream("orders", "orders.>", max_messages=10**6)
        publish()
        killed_copy()  # the run that creates it
        assert limits() != (None, 10**6, None, False, 0)
        ops.copy_stream(client, "orders", "copy")
        assert limits() == (None, 10**6, None, False, 0)
        client.alter_stream("copy", max_age_ms=day_ms, max_messages=None, max_bytes=1 << 30, compact=True)
        own = (day_ms, None, 1 << 30, True, 0)
        publish()
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert limits() == own
        publish()
        killed_copy()
        assert limits() != own
        assert ops.copy_stream(client, "orders", "copy").rows == 1
        assert limits() == own
        ops.copy_stream(client, "orders", "copy", ops.CopyOptions(like="orders"))
        assert limits() == (None, 10**6, None, False, 0)
