"""A data directory that a broker left before there was Raft is taken over, however often that is cut short.

golden/before-raft was written by such a broker, which was killed after its second start: `orders` (3 messages),
`split` (two partitions, altered), and `gone`, deleted, whose files were still there.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.base.errors import CorruptionError, OperationalError
from penstock.metadata.persistence.journal import JOURNAL_PATH
from penstock.node.data_dir.bootstrap import IMPORTED_PATH
from penstock.vfs.faulty import CHANGES, FileOperation
from penstock.vfs.memory import Keep, MemoryVfs
from tests.compat.golden_directories import left_by
from tests.extent import needs_time
from tests.old_journal import content
from tests.unit.node.harness import Broker

KEPT = [*Keep]


def left() -> MemoryVfs:
    """A disk with what that broker has left."""
    return left_by("before-raft")


def check(broker: Broker) -> None:
    """All is there, in its place."""
    streams = broker.streams()
    assert {name: int(info.stream_id) for name, info in streams.items()} == {"orders": 2, "split": 4}
    assert streams["orders"].config.segment_bytes == 4096
    assert streams["split"].config.max_messages == 1_000
    assert broker.values("orders") == [b"1", b"2", b"3"]
    assert [broker.values("split", number) for number in (0, 1)] == [[b"zero"], [b"one"]]
    assert broker.node.image.feature_level == (0, 3)  # it is no new cluster, although it gets its id only now
    for info in streams.values():
        assert all((one.state, one.leader_epoch > 2) == ("online", True) for one in info.partitions)


def test_streams_logs_and_epochs_are_taken_over() -> None:
    memory = left()
    journal = content(memory)
    broker = Broker(memory).start()
    check(broker)
    assert any(f"took 2 streams over from {JOURNAL_PATH}" in notice for notice in broker.notices)
    assert content(memory, IMPORTED_PATH) == journal
    names = {path.partition("/")[0] for path in memory.files()}
    assert names == {"gaps.jsonl", "made", IMPORTED_PATH, "raft", "runs", "streams"}
    assert not any("gone" in path for path in memory.files())  # as it was to be deleted
    broker.publish("orders.x", b"4", reply="r")
    assert broker.acks[-1].body["seq"] == 4
    broker.create("gone")
    assert broker.stream_id("gone") > 7  # the commands of before: no id comes again
    epochs = broker.stream("orders").partitions[0].leader_epoch
    again = broker.crash().start()
    assert again.values("orders") == [b"1", b"2", b"3", b"4"]
    assert again.stream("orders").partitions[0].leader_epoch == epochs + 1


@needs_time
@pytest.mark.parametrize("keep", KEPT)
def test_a_power_loss_at_any_operation_of_it_loses_nothing(keep: Keep) -> None:
    random = Random(1)
    memory = left()
    broker = Broker(memory)
    crashes = 0

    def cut_the_power(operation: FileOperation) -> None:
        nonlocal crashes
        if operation.kind in CHANGES:
            crashes += 1
            clone = memory.crash_clone(keep, random if keep is Keep.SUBSET else None)
            # The next start may have another address: what is begun goes on all the same.
            after = Broker(clone, rack=f"rack-{crashes}").start()
            check(after)
            assert IMPORTED_PATH in after.memory.files()

    broker.vfs.watcher = cut_the_power
    broker.start()
    assert crashes > 15


def test_a_damaged_journal_is_not_taken_over() -> None:
    memory = left()
    journal = memory.open(JOURNAL_PATH)
    journal.truncate(journal.size() - 1)
    before = sorted(memory.files())
    with pytest.raises(CorruptionError, match="all was synced"):
        Broker(memory).start()
    assert sorted(memory.files()) == before


@pytest.mark.parametrize("settings", [{"voters": {1: "a:1", 2: "b:1", 3: "c:1"}}, {"join": ("a:1",)}])
def test_it_begins_no_cluster_of_several(settings: dict[str, object]) -> None:
    memory = left()
    before = sorted(memory.files())
    with pytest.raises(OperationalError, match="start it alone"):
        Broker(memory, **settings).start()
    assert sorted(memory.files()) == before
