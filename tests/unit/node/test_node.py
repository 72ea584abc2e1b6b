"""What stories cannot show well: races, faults in one place, limits, and what a client may ask wrongly."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.messages import (
    APIS,
    CreateStreamResponse,
    FetchRequest,
    FetchResponse,
    GetRequest,
    HelloRequest,
    HelloResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    StatusRequest,
    StatusResponse,
)
from penstock.node.node import TICK_US
from penstock.node.subscriptions.gaps import GAPS_PATH
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import content
from tests.unit.node.harness import START_US, Broker, nats_matches

SEGMENT = "streams/00000004-orders/0/00000000000000000000.arrows"


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def error_of(broker: Broker, caller: Any) -> RemoteError:
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError), response
    return response


def overwrite(memory: MemoryVfs, path: str, position: int, data: bytes) -> None:
    file = memory.open(path)
    file.write_at(position, data)
    file.sync()
    file.close()


# Alone


def test_a_broker_that_is_alone_leads_on_however_long_nothing_happens() -> None:
    broker = with_orders()
    for _ in range(100):
        broker.tick(100)
    broker.publish("orders.a", b"a", reply="r")
    assert [(ack.err_code, ack.body.get("epoch")) for ack in broker.acks] == [(0, 1)]


# Deletion


def test_files_of_a_deleted_stream_go_after_the_sync_that_is_under_way() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"1", reply="r")
    sync = broker.execute()
    broker.delete("orders")
    broker.run_disk()  # the journal's
    assert broker.disk == []
    assert broker.streams() == {}
    broker.complete(sync)
    broker.settle()
    assert not any(path.startswith("streams/") for path in broker.memory.files())
    assert broker.acked() == []
    assert broker.notices == []
    assert broker.node.in_flight_bytes == 0


def test_a_sync_that_fails_after_the_stream_was_deleted_alarms_nobody() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"1", reply="r")
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=".arrows")
    sync = broker.execute()
    broker.delete("orders")
    broker.run_disk()
    broker.complete(sync)
    broker.settle()
    assert broker.notices == []
    assert broker.acks == []


def test_a_query_under_way_hears_that_the_stream_was_deleted() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"1")
    broker.disk_runs_at_once = False
    stream_id = broker.stream_id("orders")
    asked = [
        broker.request(GetRequest(stream_id=stream_id, offset=Offset(0))),
        broker.request(ListOffsetsRequest(stream_id=stream_id, at="earliest")),
    ]
    queries = [broker.disk.pop(0), broker.disk.pop(0)]
    broker.delete("orders")
    broker.settle()
    broker.disk += queries
    broker.settle()
    assert [error_of(broker, caller).code for caller in asked] == [ErrorCode.STREAM_CHANGED] * 2


def test_files_of_a_stream_that_could_not_be_opened_go_when_it_is_deleted() -> None:
    broker = Broker().start()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=".arrows")
    assert error_of(broker, broker.create("orders")).code == ErrorCode.STORAGE_FAILED
    broker.delete("orders")
    assert not any(path.startswith("streams/") for path in broker.memory.files())
    assert "orders" not in broker.streams()


def test_a_deleted_stream_that_could_not_be_removed_is_removed_at_the_next_start() -> None:
    broker = with_orders()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.REMOVE)
    broker.delete("orders")
    assert "the next start tries again" in broker.notices[0]
    after = broker.crash(Keep.ALL).start()
    assert not any(path.startswith("streams/") for path in after.memory.files())


def test_delete_create_restart_loses_nothing() -> None:
    """As Liftbridge did (#367)."""
    broker = with_orders()
    broker.publish("orders.a", b"old", reply="r1")
    broker.delete("orders")
    broker.create("orders")
    broker.publish("orders.a", b"new", reply="r2")
    after = broker.crash().start()
    assert after.values("orders") == [b"new"]
    assert after.stream_id("orders") > 2


def test_messages_for_a_subscription_that_is_gone_are_ignored() -> None:
    broker = with_orders()
    subscriptions = dict(broker.nats.subscriptions)
    broker.delete("orders")
    broker.nats.subscriptions = subscriptions  # they were on their way
    broker.publish("orders.a", b"late", reply="r")
    assert broker.acks == []


# Damage and faults


def damaged() -> Broker:
    """One message, acked and synced, of which one byte has changed; sound ones before and behind it."""
    broker = with_orders()
    positions = []
    for value in (b"first", b"second", b"third"):
        positions.append(broker.memory.open(SEGMENT).size())
        broker.publish("orders.a", value, reply="r")
    broker.stop()
    overwrite(broker.memory, SEGMENT, positions[1] + 750, b"\xff")
    return broker.crash()


def test_a_damaged_log_is_read_only_and_the_rest_of_it_is_served() -> None:
    broker = damaged().start()
    info = broker.stream("orders").partitions[0]
    assert info.state == "read_only"
    assert (info.damage[0].file, info.damage[0].base_offset, info.damage[0].end_offset) == (SEGMENT, 1, 2)
    assert any("read-only" in notice and SEGMENT in notice for notice in broker.notices)
    assert broker.payloads[broker.fetch("orders", 0)]
    assert broker.payloads[broker.fetch("orders", 2)]
    refused = error_of(broker, broker.fetch("orders", 1))
    assert refused.code == ErrorCode.CORRUPT_RANGE
    assert refused.details["file"] == SEGMENT
    broker.publish("orders.a", b"no", reply="r")
    assert [ack.err_code for ack in broker.acks] == [10077]
    assert error_of(broker, broker.append("orders", b"no")).code == ErrorCode.READ_ONLY
    broker.tick(5_000)
    broker.stop()


def test_damage_that_a_reader_finds_is_told() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"only", reply="r")
    overwrite(broker.memory, SEGMENT, 568 + 750, b"\xff")
    request = GetRequest(stream_id=StreamId(4), offset=Offset(0))
    assert broker.refusal(request).code == ErrorCode.CORRUPT_RANGE
    broker.tick(2_000)
    assert any("read-only" in notice for notice in broker.notices)
    assert broker.stream("orders").partitions[0].state == "read_only"
    broker.tick(2_000)
    assert sum("read-only" in notice for notice in broker.notices) == 1


def test_an_index_that_cannot_be_read_concerns_one_fetch() -> None:
    broker = with_orders(segment_bytes=4096)
    for _ in range(8):
        broker.publish("orders.a", bytes(900))
    broker.vfs.plan = lambda one: (
        FileFault(errno.EIO) if one.path.endswith(".index") and one.kind is FileOperationKind.OPEN else None
    )
    assert error_of(broker, broker.fetch("orders", 0)).code == ErrorCode.STORAGE_FAILED
    broker.answer(broker.fetch("orders", 7), FetchResponse)


def test_segments_that_cannot_be_removed_are_tried_again() -> None:
    broker = with_orders(segment_bytes=4096, max_messages=1)
    for _ in range(12):
        broker.publish("orders.a", bytes(900))
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.REMOVE)
    broker.tick(1_000)
    assert any("cannot remove old segments" in notice for notice in broker.notices)
    assert SEGMENT in broker.memory.files()
    broker.tick(1_000)
    broker.tick(1_000)
    assert SEGMENT not in broker.memory.files()


def test_a_lost_journal_does_not_orphan_the_streams() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"kept", reply="r")
    broker.stop()
    before = sorted(broker.memory.files())
    overwrite(broker.memory, "raft/log", 0, b"")
    file = broker.memory.open("raft/log")
    file.truncate(0)
    file.sync()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=r"raft/log: at byte 0: expected 8 bytes"):
            broker.crash().start()
    assert sorted(broker.memory.files()) == before


def test_a_journal_that_is_gone_with_its_mark_does_not_orphan_the_streams() -> None:
    broker = with_orders()
    broker.stop()
    for path in ("raft/log", "raft/synced", "runs"):
        broker.memory.remove(path)
    with pytest.raises(CorruptionError, match=r"streams/00000004-orders"):
        broker.crash(Keep.ALL).start()


def raft_files(broker: Broker) -> dict[str, bytes]:
    """The log of the metadata and its mark, as they are."""
    return {path: content(broker.memory, path) for path in ("raft/log", "raft/synced")}


def put_back(broker: Broker, older: dict[str, bytes]) -> None:
    """The same files as they were once."""
    for path, data in older.items():
        broker.memory.open(path).truncate(0)
        broker.memory.open(path).write_at(0, data)


def test_a_folder_above_the_last_command_shows_that_commands_are_lost() -> None:
    broker = with_orders()
    older = raft_files(broker)
    broker.create("later")
    broker.stop()
    put_back(broker, older)
    before = sorted(broker.memory.files())
    with pytest.raises(CorruptionError, match=r"streams/00000005-later"):
        broker.crash(Keep.ALL).start()
    assert sorted(broker.memory.files()) == before


def test_a_journal_that_lost_a_start_does_not_lead_under_an_old_epoch() -> None:
    """As Liftbridge did: a restarted leader that keeps its epoch reuses offsets."""
    broker = with_orders()
    older = raft_files(broker)
    broker.publish("orders.a", b"1")
    broker.stop()
    again = broker.crash().start()
    again.publish("orders.a", b"2")
    again.stop()
    put_back(again, older)
    after = again.crash(Keep.ALL).start()
    assert "leader epoch" in after.stream("orders").partitions[0].state_reason
    assert any("leader epoch" in notice for notice in after.notices)
    after.publish("orders.a", b"3", reply="r")
    assert after.acks == []


def test_a_full_disk_does_not_keep_the_broker_from_stopping() -> None:
    broker = with_orders(durability="os")
    broker.publish("orders.a", b"1", reply="r")
    waiting = broker.fetch("orders", 1, wait_ms_max=60_000)
    broker.vfs.plan = lambda one: (
        FileFault(errno.ENOSPC) if one.kind in (FileOperationKind.WRITE, FileOperationKind.OPEN) else None
    )
    broker.stop()
    assert error_of(broker, waiting).code == ErrorCode.STOPPING
    assert any("cannot save the list of gaps" in notice for notice in broker.notices)


def test_on_a_full_disk_a_restarted_stream_is_read_and_stores_when_there_is_room() -> None:
    broker = with_orders()
    broker.publish("orders.a", b"before", reply="r")
    broker.stop()
    after = broker.crash()
    after.vfs.plan = lambda one: (
        FileFault(errno.ENOSPC) if one.path.endswith("lineage") and one.kind is FileOperationKind.WRITE else None
    )
    after.start()
    assert after.values("orders") == [b"before"]
    after.publish("orders.a", b"during", reply="r")
    assert [ack.err_code for ack in after.acks] == [10077]
    assert error_of(after, after.append("orders", b"during")).code == ErrorCode.STORAGE_FAILED
    assert after.stream("orders").partitions[0].state == "impeded"
    assert after.ask(StatusRequest(), StatusResponse).partitions_by_state == {"impeded": 1}
    after.tick(1_000)
    assert sum("stores nothing yet" in notice for notice in after.notices) == 1
    after.vfs.plan = no_faults
    after.tick(1_000)
    after.publish("orders.a", b"after", reply="r")
    assert [(ack.err_code, ack.body.get("epoch")) for ack in after.acks[1:]] == [(0, 2)]
    assert after.stream("orders").partitions[0].state == "online"
    assert after.values("orders") == [b"before", b"after"]


def test_a_failed_journal_sync_refuses_what_follows() -> None:
    broker = with_orders()
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end="raft/log")
    assert error_of(broker, broker.create("b")).code == ErrorCode.STORAGE_FAILED
    assert error_of(broker, broker.create("c")).code == ErrorCode.STORAGE_FAILED
    broker.publish("orders.a", b"still stored", reply="r")
    assert broker.acked() == ["r"]


# Limits


def test_a_large_group_becomes_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_BYTES_MAX", 1_000)
    broker = with_orders()
    values = [bytes([65 + n]) * 400 for n in range(7)] + [b"x" * 3_000]
    broker.publish("orders.a", *values, reply="r")
    assert broker.values("orders") == values
    ends = [broker.answer(broker.fetch("orders", n, bytes_max=1), FetchResponse).end_offset for n in range(8)]
    assert ends == [2, 2, 4, 4, 6, 6, 7, 8]
    assert broker.acked() == [f"r.{n}" for n in range(8)]
    assert [ack.body["offset"] for ack in broker.acks] == list(range(8))


def test_a_group_of_many_rows_becomes_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 10)
    broker = with_orders()
    broker.publish("orders.a", b"v", count=25, reply="r", headers=b"NATS/1.0\r\nPenstock-Ack: leader\r\n\r\n")
    assert [row.offset for row in broker.read("orders")] == list(range(25))
    assert broker.acked() == [f"r.{n}" for n in range(25)]


def test_when_one_batch_of_a_group_is_refused_so_is_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 2)
    broker = with_orders()
    broker.vfs.plan = nth(1, FileFault(errno.ENOSPC, 50), FileOperationKind.WRITE, path_end=".arrows")
    broker.publish("orders.a", b"v", count=6, reply="r")
    assert [(ack.reply, ack.err_code) for ack in broker.acks] == [
        *((f"r.{n}", 10077) for n in (2, 3)),
        *((f"r.{n}", 10077) for n in (4, 5)),
        *((f"r.{n}", 0) for n in (0, 1)),
    ]
    assert len(broker.values("orders")) == 2
    assert broker.stream("orders").partitions[0].dropped == {"store_failed": 4}


def test_in_flight_bytes_are_given_back_whatever_happens() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"acked", reply="r")
    broker.append("orders", b"checked")
    assert broker.node.in_flight_bytes > 1_000
    broker.settle()
    assert broker.node.in_flight_bytes == 0
    broker.publish("orders.a", b"failed", reply="r")
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC)
    broker.settle()
    assert broker.node.in_flight_bytes == 0
    broker.create("other")
    broker.settle()
    broker.publish("other.a", b"abandoned", reply="r")
    broker.append("other", b"abandoned")
    broker.delete("other")
    broker.settle()
    assert broker.node.in_flight_bytes == 0


def test_who_waits_for_an_ack_counts_as_in_flight() -> None:
    """The names of reply subjects came on top of the budget: 4 KiB for a message of one byte."""
    broker = with_orders()
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"x", reply="r" * 3_000)
    assert broker.node.in_flight_bytes > 3_000


def test_appends_over_the_budget_are_refused_not_queued() -> None:
    broker = Broker(partition_in_flight_bytes_max=2_000).start()
    broker.create("orders")
    broker.disk_runs_at_once = False
    first = broker.append("orders", bytes(5_000))
    second = broker.append("orders", b"small")
    assert first not in broker.replies
    assert error_of(broker, second).code == ErrorCode.OVERLOADED


def test_the_next_wake_is_never_later_than_the_tick() -> None:
    broker = with_orders()
    broker.fetch("orders", 0, wait_ms_max=60_000)
    broker.tick(1)
    assert broker.node.next_wake_us <= broker.clock.elapsed_us + TICK_US
    broker.fetch("orders", 0, wait_ms_max=10)
    assert broker.node.next_wake_us == broker.clock.elapsed_us + 10_000


def test_fetch_waits_no_longer_than_the_limit() -> None:
    broker = with_orders()
    caller = broker.fetch("orders", 0, wait_ms_max=10**9)
    broker.tick(limits.FETCH_WAIT_MS_MAX)
    assert broker.answer(caller, FetchResponse).end_offset == 0


# Races with retention


@pytest.mark.parametrize("at", ["earliest", START_US])
def test_list_offsets_while_retention_removes_the_beginning(at: Any) -> None:
    broker = with_orders(segment_bytes=4096, max_messages=1)
    for _ in range(12):
        broker.publish("orders.a", bytes(900))
    broker.disk_runs_at_once = False
    caller = broker.request(ListOffsetsRequest(stream_id=StreamId(4), at=at))
    query = broker.disk.pop()
    broker.tick(1_000)
    broker.settle()
    broker.disk.append(query)
    broker.settle()
    answer = broker.answer(caller, ListOffsetsResponse)
    assert (answer.offset, answer.log_start) == (11, 11)


# Requests


def test_ids_and_partitions_that_are_not_there() -> None:
    broker = with_orders()
    broker.create("gone")
    broker.delete("gone")

    def code(stream_id: int, partition: int = 0) -> str:
        return broker.refusal(
            FetchRequest(stream_id=StreamId(stream_id), partition=PartitionId(partition), offset=Offset(0))
        ).code

    assert code(5) == ErrorCode.STREAM_CHANGED
    assert code(99) == ErrorCode.STREAM_NOT_FOUND
    assert code(4, partition=1) == ErrorCode.BAD_REQUEST


def test_metadata_comes_in_pages() -> None:
    broker = Broker().start()
    for name in ("d", "b", "a", "c", "e"):
        broker.create(name)
    seen: list[str] = []
    after = None
    while True:
        page = broker.ask(MetadataRequest(after=after, streams_max=2), MetadataResponse)
        seen += [info.name for info in page.streams]
        after = page.next_after
        if after is None:
            break
    assert seen == ["a", "b", "c", "d", "e"]
    some = broker.ask(MetadataRequest(names=("e", "nobody", "a")), MetadataResponse)
    assert [info.name for info in some.streams] == ["e", "a"]


def test_too_many_names_are_refused_rather_than_left_out() -> None:
    names = tuple(f"s{n}" for n in range(limits.METADATA_STREAMS_MAX + 1))
    assert Broker().start().refusal(MetadataRequest(names=names)).code == ErrorCode.TOO_LARGE


def test_hello_and_status() -> None:
    broker = with_orders()
    hello = broker.ask(HelloRequest(client_name="t", client_version="1"), HelloResponse)
    assert len(hello.api_versions) == len(APIS)
    broker.publish("orders.a", b"1", b"2", reply="r", headers=b"NATS/1.0\r\nPenstock-Ack: leader\r\n\r\n")
    broker.publish("orders.a", b"3", reply="r")
    broker.tick(1_500)
    status = broker.ask(StatusRequest(), StatusResponse)
    assert (status.streams, status.partitions, status.partitions_by_state) == (1, 1, {"online": 1})
    assert (status.counters["messages_in"], status.counters["acks_made"], status.uptime_ms) == (3, 3, 1_500)


# Memory streams, gaps


@pytest.mark.parametrize("durability", list(Durability))
def test_a_memory_stream_acks_without_a_sync(durability: Durability) -> None:
    broker = with_orders(storage="memory", durability=durability)
    broker.disk_runs_at_once = False
    broker.publish("orders.a", b"1", reply="r")
    assert [ack.body["seq"] for ack in broker.acks] == [1]


def test_no_ack_of_a_memory_stream_says_that_it_is_on_a_disk() -> None:
    """That of a duplicate did, after the sync in the background: the same message, first without, then with it."""
    broker = with_orders(storage="memory")
    for _ in range(2):
        broker.publish("orders.a", b"1", reply="r", headers=b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n")
        broker.tick(1_000)
    assert [(ack.body.get("duplicate", False), ack.body["fsynced"]) for ack in broker.acks] == [
        (False, False),
        (True, False),
    ]


def test_a_memory_stream_leaves_nothing_on_the_disk() -> None:
    broker = with_orders(storage="memory")
    broker.publish("orders.a", b"1", reply="r")
    assert broker.values("orders") == [b"1"]
    assert not any(path.startswith("streams/") for path in broker.memory.files())
    after = broker.crash().start()
    assert after.values("orders") == []
    after.publish("orders.a", b"2", reply="r")
    assert after.values("orders") == [b"2"]
    after.delete("orders")
    assert after.streams() == {}


def test_gaps_are_saved_one_at_a_time_and_the_last_one_counts() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    for n in range(3):
        broker.tick(10)
        broker.nats_down(f"loss {n}")
        broker.tick(10)
        broker.nats_back()
    saves = [work for work in broker.disk if "GapsSave" in repr(work.run)]
    assert len(saves) == 1
    broker.settle()
    file = broker.memory.crash_clone().open(GAPS_PATH)
    gaps = [json.loads(line) for line in file.read_at(0, file.size()).splitlines()]
    assert [gap["reason"] for gap in gaps] == ["loss 0", "loss 1", "loss 2"]
    assert all(gap["end_us"] > gap["start_us"] for gap in gaps)


def test_a_gap_that_cannot_be_read_stays_in_the_file() -> None:
    memory = MemoryVfs()
    strange = b'{"newer":"format"}\n\xff\xfe\n'
    memory.open(GAPS_PATH, create=True).write_at(0, strange)
    broker = Broker(memory).start()
    broker.nats_down()
    broker.nats_back()
    file = memory.open(GAPS_PATH)
    assert file.read_at(0, file.size()).startswith(strange)


def test_nats_patterns_of_the_harness() -> None:
    assert nats_matches(">", "_INBOX.x")
    assert nats_matches("a.*.c", "a.b.c")
    assert not nats_matches("a.>", "a")
    assert not nats_matches("a.*", "a.b.c")


# Keys


def test_a_broker_that_is_alone_and_has_no_keys_makes_nothing_that_is_encrypted() -> None:
    broker = Broker().start()
    refused = error_of(broker, broker.create("orders", encryption="aes-256-gcm"))
    assert refused.code == ErrorCode.NO_ENCRYPTION_KEY
    assert "broker 1 has no encryption keys; set encryption_keys_file" in refused.message
    assert broker.streams() == {}
