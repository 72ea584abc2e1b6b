"""A log's file is removed between two looks at its name, and no further message comes: the next visit tells it."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.node.step import DiskWork
from penstock.vfs.faulty import FaultyFile
from tests.unit.node.harness import Broker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(FaultyFile, "sync_fileno", lambda _file: 7)  # as a real file's: the kernel can sync it
    broker = Broker().start()
    broker.create("a", durability="fsync")
    broker.publish("a.b", b"its sync makes names durable, too")
    broker.tick(1_000)
    broker.tick(1_000)
    broker.clock.advance_ms(10 * limits.NAME_CHECK_INTERVAL_MS)
    broker.disk_runs_at_once = False
    return broker


def synced(broker: Broker, value: bytes) -> DiskWork:
    """Publish a message whose sync is a plain one, and have the kernel do that; return it."""
    acks = len(broker.acks)
    broker.publish("a.b", value, reply="r")
    (work,) = broker.disk
    assert work.sync is not None
    broker.disk.clear()
    if work.sync.check is not None:
        work.sync.check()
    broker.node.complete(work, None, broker.clock.now)
    broker.turn()
    assert len(broker.acks) == acks + 1
    return work


def test_a_file_removed_behind_the_last_look_is_told(broker: Broker) -> None:
    synced(broker, b"looks")
    (path,) = [f"streams/{folder}0/{name}" for folder in broker.memory.list("streams")
               for name in broker.memory.list(f"streams/{folder}0") if name.endswith(".arrows")]  # fmt: skip
    broker.memory.remove(path)
    work = synced(broker, b"does not look")
    assert work.sync is not None
    assert work.sync.check is None
    for _ in range(3):
        broker.tick(1_000)
        while broker.disk:
            broker.run_disk()
    assert any("was removed or moved" in notice for notice in broker.notices), broker.notices


def test_a_file_that_has_its_name_is_written_on(broker: Broker) -> None:
    synced(broker, b"looks")
    synced(broker, b"does not look")
    broker.tick(1_000)
    while broker.disk:
        broker.run_disk()
    broker.clock.advance_ms(2 * limits.NAME_CHECK_INTERVAL_MS)
    work = synced(broker, b"looks again")
    assert work.sync is not None
    assert work.sync.check is not None
