"""A stream whose files have vanished is not begun anew; one whose files were never made is."""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import AppendResponse, CreateStreamResponse
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, nth
from penstock.vfs.memory import Keep
from tests.extent import each_change
from tests.unit.node.harness import Broker

FOLDER = "streams/00000004-orders"
MISSING = "a log was created here earlier"


def with_orders(**config: object) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


@pytest.mark.parametrize("gone", ["streams", FOLDER, f"{FOLDER}/0"])
def test_a_stream_whose_files_vanished_is_reported_and_not_begun_anew(gone: str) -> None:
    broker = with_orders()
    broker.publish("orders.a", b"1", reply="r1")
    broker.create("other")
    broker.stop()
    memory = broker.memory.crash_clone(Keep.ALL)
    memory.remove(gone)
    after = Broker(memory, clock=broker.clock).start()
    assert any("'orders'" in notice and MISSING in notice and "mounted" in notice for notice in after.notices)
    after.publish("orders.a", b"2", reply="r2")
    assert after.acked() == [], "nobody takes it: its offset was given to another message"
    refused = after.replies[after.append("orders", b"3")].response
    assert isinstance(refused, RemoteError)
    assert after.stream("orders").partitions[0].state != "online"
    assert not any(path.startswith(FOLDER) for path in memory.files())


def test_a_stream_whose_files_come_back_goes_on() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"1", reply="r1")
    broker.stop()
    memory = broker.memory.crash_clone(Keep.ALL)
    memory.rename(FOLDER, "elsewhere")
    after = Broker(memory, clock=broker.clock).start()
    memory.rename("elsewhere", FOLDER)
    after.answer(after.create("orders"), CreateStreamResponse)
    after.publish("orders.a", b"2", reply="r2")
    assert after.values("orders") == [b"1", b"2"]


def test_a_stream_whose_files_vanished_can_be_deleted_and_made_again() -> None:
    broker = with_orders()
    broker.stop()
    memory = broker.memory.crash_clone(Keep.ALL)
    memory.remove(FOLDER)
    after = Broker(memory, clock=broker.clock).start()
    after.delete("orders")
    after.answer(after.create("orders"), CreateStreamResponse)
    after.publish("orders.a", b"1", reply="r")
    assert after.acked() == ["r"]
    assert [path for path in memory.files() if path.startswith("made/00000002")] == []


@each_change
def test_every_create_that_was_answered_is_known_to_have_been_made() -> None:
    """The power fails at every boundary of a create; what is left starts, and an answered one has its mark."""
    checked = 0
    random = Random(3)
    broker = Broker().start()

    def cut_the_power(_operation: FileOperation) -> None:
        nonlocal checked
        answered = "c1" in broker.replies
        for keep in (Keep.SYNCED, Keep.ALL, Keep.SUBSET, Keep.SUBSET):
            checked += 1
            left = broker.memory.crash_clone(keep, random if keep is Keep.SUBSET else None)
            after = broker.crash(memory=left).start()
            assert not any(MISSING in notice for notice in after.notices)
            assert not any("missing" in notice or "damage" in notice for notice in after.notices), after.notices
            if "orders" in after.streams():
                after.answer(after.append("orders", b"2"), AppendResponse)
            if answered:
                left.remove("streams")
                lost = broker.crash(memory=left).start()
                assert any(MISSING in notice for notice in lost.notices)

    broker.vfs.watcher = cut_the_power
    broker.answer(broker.create("orders"), CreateStreamResponse)
    broker.publish("orders.a", b"1", reply="r")
    assert checked > 20


def test_a_create_whose_mark_cannot_be_written_is_refused_and_can_be_tried_again() -> None:
    broker = Broker().start()
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.SYNC_DIR, path_end="made")
    refused = broker.replies[broker.create("orders")].response
    assert isinstance(refused, RemoteError)
    assert refused.code == ErrorCode.STORAGE_FAILED
    broker.answer(broker.create("orders"), CreateStreamResponse)


def test_a_stream_in_memory_is_empty_after_a_restart() -> None:
    broker = with_orders(storage="memory")
    broker.publish("orders.a", b"1")
    after = broker.crash(Keep.ALL).start()
    assert not any(MISSING in notice for notice in after.notices)
    assert after.values("orders") == []
    assert not any(path.startswith("made/") for path in after.memory.files())


def test_one_partition_whose_files_vanished_leaves_the_others() -> None:
    broker = Broker().start()
    broker.answer(broker.create("orders", "orders", partitions=3), CreateStreamResponse)
    broker.stop()
    memory = broker.memory.crash_clone(Keep.ALL)
    memory.remove(f"{FOLDER}/1")
    after = Broker(memory, clock=broker.clock).start()
    assert any("partition 1 of stream 'orders'" in notice and MISSING in notice for notice in after.notices)
    assert [one.state for one in after.stream("orders").partitions] == ["online", "failed", "online"]
    after.publish("orders.2", b"1", reply="r")
    assert after.acked() == ["r"]
    after.delete("orders")
    assert [path for path in memory.files() if path.startswith(("made/", "streams/"))] == []


def test_a_removal_that_a_crash_cut_short_is_finished_by_the_next_start() -> None:
    broker = Broker().start()
    broker.create("orders", "orders", partitions=2)
    broker.disk_runs_at_once = False
    broker.delete("orders")
    broker.run_disk()  # the command; its files are still there
    after = broker.crash().start()
    assert [path for path in after.memory.files() if path.startswith(("made/", "streams/"))] == []
    assert after.notices[1:] == []
