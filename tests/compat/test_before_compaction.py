"""`__offsets` of a data directory from before there was compaction is compacted from the first start on.

golden/before-compaction is what such a broker left when it was killed, without the logs that hold nothing: group
`billing` had committed 1 and 2, …, 5 and 10 of the two partitions of `orders`.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.groups.rows import OFFSETS_STREAM
from penstock.vfs.faulty import CHANGES, FileOperation
from penstock.vfs.memory import Keep
from tests.compat.golden_directories import left_by
from tests.extent import needs_time
from tests.unit.node.api.test_offsets import committed, told
from tests.unit.node.harness import Broker

KEPT = [Keep.SUBSET, *(pytest.param(one, marks=needs_time) for one in Keep if one is not Keep.SUBSET)]


def index_of(broker: Broker) -> int:
    """How many commands the metadata has seen."""
    return int(broker.node._cluster.image.index)


def test_it_is_altered_once_and_offsets_stay() -> None:
    broker = Broker(left_by("before-compaction")).start()
    info = broker.stream(OFFSETS_STREAM)
    assert info.config.compact
    assert {one.state for one in info.partitions} == {"online"}
    logs = [one.log for one in broker.node._partitions.values() if one.stream.name == OFFSETS_STREAM]
    assert {log.config.compact for log in logs} == {True}
    assert told(broker) == {0: 5, 1: 10}
    broker.fill_partitions("orders", 12)  # nobody commits beyond the end
    committed(broker, 6, 12)
    index = index_of(broker)
    broker.tick(60_000)
    assert index_of(broker) == index
    again = broker.crash().start()
    assert again.stream(OFFSETS_STREAM).config.compact
    assert told(again) == {0: 6, 1: 12}
    third = again.crash().start()
    assert index_of(third) - index_of(again) == index_of(again) - index  # what every start comes to


@needs_time
@pytest.mark.parametrize("keep", KEPT)
def test_a_power_loss_at_any_operation_of_the_first_start(keep: Keep) -> None:
    random = Random(1)
    memory = left_by("before-compaction")
    broker = Broker(memory)
    crashes = 0

    def cut_the_power(operation: FileOperation) -> None:
        nonlocal crashes
        if operation.kind in CHANGES:
            crashes += 1
            after = Broker(memory.crash_clone(keep, random if keep is Keep.SUBSET else None)).start()
            assert after.stream(OFFSETS_STREAM).config.compact
            assert told(after) == {0: 5, 1: 10}

    broker.vfs.watcher = cut_the_power
    broker.start()
    assert crashes > 15
