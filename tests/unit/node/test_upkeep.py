"""The end of a log: what is written is synced and answered for what it is."""

from __future__ import annotations

import errno

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, StreamId
from penstock.commitlog import Log, LogConfig
from penstock.messages import AppendResponse
from penstock.metadata.image import StreamState
from penstock.node.partition import Budget, Partition
from penstock.node.step import Outbox, Step
from penstock.node.upkeep import Upkeep
from penstock.vfs.faulty import Fault, FaultyVfs, Kind
from penstock.vfs.memory import MemoryVfs
from tests.unit.node.harness import START_US, batch_of


def closed_with_an_append_on_its_way(vfs: FaultyVfs) -> tuple[Step, Partition]:
    """What the one hears who appended just before the end."""
    state = StreamState(StreamId(2), StreamConfig(name="orders", subject="orders.>"), START_US, LeaderEpoch(1))
    log = Log.open(vfs, "orders/0", 2, 0, LogConfig.of(state.config), now_us=START_US)
    partition = Partition(state, log, vfs, Budget(1_000_000))
    outbox = Outbox()
    upkeep = Upkeep(outbox, committed=lambda _: None)
    log.start_epoch(1)
    partition.leads = True
    partition.append("c", batch_of([("orders.a", None, b"1", None)]), START_US, outbox.step)
    assert not outbox.step.replies
    upkeep.close(partition)
    return outbox.take(), partition


def test_a_written_append_is_answered_as_stored_once_it_is_synced() -> None:
    step, _ = closed_with_an_append_on_its_way(FaultyVfs(MemoryVfs()))
    (reply,) = step.replies
    assert isinstance(reply.response, AppendResponse)
    assert (reply.response.base_offset, reply.response.fsynced) == (0, True)


def test_a_written_append_whose_sync_fails_is_of_unknown_outcome() -> None:
    vfs = FaultyVfs(MemoryVfs())
    state = {"syncs": 0}
    vfs.plan = lambda one: Fault(errno.EIO) if _is_last_sync(one.kind, one.path, state) else None
    step, _ = closed_with_an_append_on_its_way(vfs)
    (reply,) = step.replies
    assert isinstance(reply.response, RemoteError)
    assert reply.response.code == ErrorCode.STORAGE_FAILED
    assert "may or may not be stored" in reply.response.message


def _is_last_sync(kind: Kind, path: str, state: dict[str, int]) -> bool:
    if kind is Kind.SYNC and path.endswith(".arrows"):
        state["syncs"] += 1
    return state["syncs"] > 1
