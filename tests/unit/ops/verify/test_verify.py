"""Verification of streams and of files, called as a program would."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import ops
from tests.broker_process import running_broker
from tests.extent import needs_time


@needs_time
def test_a_stream_is_verified_by_its_broker_and_its_files_without_one(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_broker(data_dir) as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>", partitions=2, partition_by="key")
        for number in range(20):
            client.publish("orders.eu", b"", key=str(number))
        found = ops.verify_streams(client, ["orders"])
        assert (found.is_sound, found.differences) == (True, [])
        assert [(one.stream, one.partition, one.replica) for one in found.replicas] == [
            ("orders", 0, "broker 1"),
            ("orders", 1, "broker 1"),
        ]
        assert sum(one.rows for one in found.replicas) == 20
        assert [one.partition for one in ops.verify_streams(client, ["orders/1"]).replicas] == [1]
        with pytest.raises(ValueError, match="stream orders has 2 partitions, counted from 0; there is no partition 7"):
            ops.verify_streams(client, ["orders/7"])
    found = ops.verify_files([data_dir], "orders")
    assert (found.is_sound, sum(one.rows for one in found.replicas)) == (True, 20)
    (segment,) = data_dir.glob("streams/*-orders/1/*.arrows")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    found = ops.verify_files([str(data_dir)], "orders")
    assert [one.verdict for one in found.replicas] == ["sound", "damaged"]
    (place,) = found.replicas[1].damage[:1]
    assert (place.file, place.expected != place.found) == (str(segment), True)


def test_a_path_without_a_log_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no log"):
        ops.verify_files([tmp_path])
