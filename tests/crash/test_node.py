"""Power losses under a random load: what was answered or acked is there afterwards, in its place, once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.vfs.faulty import CHANGES, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import each_change, extent, needs_time
from tests.unit.node.harness import Broker
from tests.unit.node.workload import NAMES, Workload


def do_something(workload: Workload, random: Random) -> None:
    """One act of a client, of NATS, of the disk, or of time."""
    name = random.choice(NAMES)
    acts: list[tuple[int, Callable[[], None]]] = [
        (3, lambda: workload.create(name, segment_bytes=4096)),
        (1, lambda: workload.delete(name)),
        (1, lambda: workload.alter(name, segment_bytes=random.choice((4096, 8192)))),
        (1, lambda: workload.truncate(name, random.randrange(60))),
        (8, lambda: workload.publish(name, random.randint(1, 3), random.choice((0, 0, 700)))),
        (3, lambda: workload.publish_again(random.randrange(100))),
        (3, lambda: workload.append(name, random.randint(1, 3))),
        (3, lambda: workload.append_once(name, random.randrange(100))),
        (12, lambda: workload.run_disk(random.randrange(100))),
        (12, lambda: workload.complete(random.randrange(100))),
        (1, lambda: workload.broker.tick(1_500)),
    ]
    random.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()


def left_by(memory: MemoryVfs, random: Random) -> MemoryVfs:
    """One of the things that a power loss now could leave."""
    keep = random.choice((Keep.SYNCED, Keep.SUBSET, Keep.SUBSET, Keep.ALL))
    return memory.crash_clone(keep, random if keep is Keep.SUBSET else None)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=needs_time if seed else each_change) for seed in range(extent(4, 12))]
)
def test_power_loss_at_every_write_boundary(seed: int) -> None:
    random = Random(seed)
    broker = Broker().start()
    workload = Workload(broker)
    crashes = 0

    def cut_the_power(operation: FileOperation) -> None:
        nonlocal crashes
        if operation.kind in CHANGES:
            crashes += 1
            workload.check(broker.crash(memory=left_by(broker.memory, random)).start())

    broker.vfs.watcher = cut_the_power
    for _ in range(400):
        do_something(workload, random)
    assert crashes > 100
    workload.settle()
    assert sum(map(len, workload.stored.values())) > 10
    broker.vfs.watcher = None
    broker.stop()
    workload.listen()
    workload.check(broker.crash().start())


@pytest.mark.parametrize("seed", range(12))
def test_lives_of_one_data_directory(seed: int) -> None:
    random = Random(1_000 + seed)
    workload = Workload(Broker().start())
    for _ in range(12):
        for _ in range(random.randint(1, 60)):
            do_something(workload, random)
        after = workload.broker.crash(memory=left_by(workload.broker.memory, random)).start()
        workload.check(after)
        workload.go_on_with(after)


FAULTS = {
    "full disk": (FileFault(errno.ENOSPC, 100), FileOperationKind.WRITE),
    "no file": (FileFault(errno.EMFILE), FileOperationKind.OPEN),
    "bad sync": (FileFault(errno.EIO), FileOperationKind.SYNC),
    "bad write": (FileFault(errno.EIO), FileOperationKind.WRITE),
    "bad folder": (FileFault(errno.EIO), FileOperationKind.SYNC_DIR),
    "bad removal": (FileFault(errno.EIO), FileOperationKind.REMOVE),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(4))
def test_one_operation_fails_somewhere(fault: str, seed: int) -> None:
    random = Random(f"{fault} {seed}")
    workload = Workload(Broker().start())
    broker = workload.broker
    broker.vfs.plan = nth(random.randrange(12), *FAULTS[fault])
    for _ in range(150):
        do_something(workload, random)
    broker.vfs.plan = no_faults
    workload.settle()
    broker.stop()
    workload.listen()
    workload.check(broker.crash(memory=left_by(broker.memory, random)).start())


@each_change
def test_a_producer_sends_again_through_all_of_it() -> None:
    random = Random(5)
    workload = Workload(Broker().start())
    workload.create(NAMES[0], segment_bytes=4096)
    workload.settle()
    for _ in range(extent(20, 60)):
        for _ in range(random.randint(1, 20)):
            workload.append_once(NAMES[0], random.randrange(100))
            workload.run_disk(random.randrange(100))
            workload.complete(random.randrange(100))
        after = workload.broker.crash(memory=left_by(workload.broker.memory, random)).start()
        workload.check(after)
        workload.go_on_with(after)
    assert workload.repeated > 10
