"""Power losses between any two steps while atomic batches are stored: each is there as a whole, or not at all."""

from __future__ import annotations

from random import Random

import pytest

from penstock.messages import CreateStreamResponse
from penstock.vfs.faulty import CHANGES, FileOperation
from penstock.vfs.memory import Keep
from tests.extent import HAS_TIME
from tests.unit.node.harness import Broker
from tests.unit.node.test_atomic_batches import values_of, whole

SIZES = {"a": 3, "b": 1, "c": 40, "d": 2}


def parts(broker: Broker) -> list[str]:
    """The batches that are there, each of which is whole; what else is there is of none."""
    values = [value or b"" for value in broker.values("s")]
    found = []
    while values:
        name = values[0].partition(b".")[0].decode()
        size = SIZES.get(name, 1)
        assert values[:size] == (values_of(name, size) if name in SIZES else [b"plain"]), values
        found.append(name)
        del values[:size]
    return [name for name in found if name in SIZES]


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.SUBSET, Keep.ALL])
def test_power_loss_at_every_write_boundary(keep: Keep) -> None:
    random = Random(7)
    broker = Broker().start()
    broker.answer(broker.create("s", allow_atomic=True, segment_bytes=4_096), CreateStreamResponse)
    acked: list[str] = []
    crashes, found = 0, set[int]()

    def cut_the_power(operation: FileOperation) -> None:
        nonlocal crashes
        if operation.kind not in CHANGES:
            return
        crashes += 1
        if not HAS_TIME and crashes % 3:
            return
        after = broker.crash(keep, random if keep is Keep.SUBSET else None).start()
        there = parts(after)
        assert there[: len(acked)] == acked
        found.add(len(there))
        after.deliver(whole("d", SIZES["d"]))
        assert parts(after)[-1] == "d"
        assert parts(after.crash().start()) == parts(after)

    broker.vfs.watcher = cut_the_power
    for name in ("a", "b", "c"):
        broker.deliver([(b"s.b", None, None, b"plain"), *whole(name, SIZES[name])])
        broker.tick(1_000)
        acked.append(name)
    broker.vfs.watcher = None
    assert parts(broker) == acked
    assert crashes > 5
    assert len(found) > 1
