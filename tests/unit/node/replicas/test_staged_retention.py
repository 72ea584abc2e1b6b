"""Staged rows go soon after their batch is published; those that may still be published stay."""

from __future__ import annotations

import errno
from collections.abc import Hashable
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.staged import staged_name
from penstock.batch import codec
from penstock.batch.codec import BatchProducer
from penstock.messages import CreateStreamResponse, PublishStagedResponse, StagedRange, StageRequest, StageResponse
from penstock.node.replicas.staged_retention import FindPublished
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind
from tests.extent import each_change
from tests.unit.node.api.test_staged_publishing import apart, held
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import formed
from tests.unit.node.staging import (
    QUERY,
    place,
    plan,
    published,
    publishing,
    range_of,
    refused,
    staged,
    staged_stream,
    staging,
)

KEEP_MS = limits.STAGED_KEEP_MS
OTHER = b"o" * 16
BATCHES = 12


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **{"segment_bytes": 4096, **config}), CreateStreamResponse)
    staged_stream(broker)
    return broker


def value(number: int) -> bytes:
    return b"%d" % number + b"." * 900


def stage(broker: Broker, batch_id: int, query_id: bytes | None = QUERY) -> StagedRange:
    return staged(broker, value(batch_id), query_id=query_id, batch_id=batch_id)


def staged_start(broker: Broker) -> int:
    return int(staged_stream(broker).partitions[0].log_start or 0)


def segments(broker: Broker) -> int:
    folder = f"-{staged_name(broker.stream_id('orders'))}/0/"
    return sum(folder in path and path.endswith(".arrows") for path in broker.memory.files())


def pass_time(broker: Broker) -> None:
    """As long as published rows stay, and some more."""
    for _ in range(6):
        broker.tick(KEEP_MS / 4)


# What goes


def test_rows_of_published_batches_go() -> None:
    broker = with_orders()
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    before = segments(broker)
    assert before > 2
    broker.tick(1_000)
    broker.tick(KEEP_MS - 2_000)
    assert (staged_start(broker), segments(broker)) == (0, before)
    pass_time(broker)
    assert staged_start(broker) >= BATCHES - 4
    assert segments(broker) == 1
    assert broker.notices == []
    assert broker.values("orders") == [value(number) for number in range(BATCHES)]


def test_what_was_published_is_known_also_when_its_rows_are_gone() -> None:
    broker = with_orders()
    rows = [stage(broker, number) for number in range(BATCHES)]
    for number in range(BATCHES):
        published(broker, number, rows[number])
    pass_time(broker)
    assert staged_start(broker) > 0
    assert place(published(broker, BATCHES - 1, rows[0])) == (BATCHES - 1, BATCHES, True)
    assert place(published(broker, 0, rows[0])) == (None, None, True)
    assert refused(broker, publishing(broker, BATCHES, rows[0])) == ErrorCode.STAGED_LOST
    assert place(published(broker, BATCHES, stage(broker, BATCHES))) == (BATCHES, BATCHES + 1, False)


def test_rows_of_attempts_that_others_have_overtaken_go_too() -> None:
    broker = with_orders()
    for _ in range(BATCHES):
        stage(broker, 0)
    published(broker, 0, stage(broker, 0))
    pass_time(broker)
    assert segments(broker) == 1


def test_a_plan_goes_with_its_batch() -> None:
    broker = with_orders()
    at = plan(broker, query_id=QUERY, batch_id=0)
    rows = [stage(broker, 0) for _ in range(BATCHES)]
    published(broker, 0, rows[0], is_last=False, plan=at)
    pass_time(broker)
    assert staged_start(broker) == 0, "its plan says what comes next"
    published(broker, 0, rows[1], piece=1, plan=at)
    pass_time(broker)
    assert segments(broker) == 1


def test_what_a_leader_finds_when_it_begins_goes() -> None:
    broker = with_orders()
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    after = broker.crash().start()
    after.publish("orders.x", b"begin")
    pass_time(after)
    assert segments(after) == 1


# What stays


@pytest.mark.parametrize("query_id", [OTHER, None])
def test_rows_that_may_still_be_published_stay(query_id: bytes | None) -> None:
    broker = with_orders()
    first = stage(broker, 7, query_id)
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    for _ in range(4):
        pass_time(broker)
    assert staged_start(broker) == 0
    assert place(published(broker, 7, first, query_id=OTHER)) == (BATCHES, BATCHES + 1, False)
    pass_time(broker)
    assert (staged_start(broker) == 0) == (query_id is None)


def test_a_segment_stays_for_the_last_batch_in_it() -> None:
    broker = with_orders()
    rows = [staged(broker, b"%d" % number, query_id=QUERY, batch_id=number) for number in range(2 * BATCHES)]
    assert segments(broker) < BATCHES
    for number in range(0, 2 * BATCHES, 2):
        published(broker, number, rows[number])
        pass_time(broker)
        assert staged_start(broker) <= rows[number + 1].base_offset
        published(broker, number + 1, rows[number + 1])


def test_a_run_counts_once_it_is_committed() -> None:
    broker = with_orders(durability="fsync")
    rows = [stage(broker, 0) for _ in range(BATCHES)]
    broker.syncs_hang = True
    caller = publishing(broker, 0, rows[0])
    pass_time(broker)
    assert staged_start(broker) == 0
    broker.syncs_hang = False
    broker.settle()
    assert place(broker.answer(caller, PublishStagedResponse)) == (0, 1, False)
    pass_time(broker)
    assert segments(broker) == 1


def test_rows_behind_those_that_are_needed_wait_for_them() -> None:
    broker = with_orders()
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    first = stage(broker, 0, OTHER)
    for number in range(BATCHES, 2 * BATCHES):
        published(broker, number, stage(broker, number))
    pass_time(broker)
    assert BATCHES - 4 <= staged_start(broker) <= first.base_offset
    published(broker, 0, first, query_id=OTHER)
    pass_time(broker)
    assert segments(broker) == 1


def test_the_age_limit_takes_what_is_never_published() -> None:
    broker = with_orders()
    stage(broker, 0, OTHER)
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    pass_time(broker)
    assert staged_start(broker) == 0
    broker.tick(limits.STAGED_AGE_MS)
    for number in range(BATCHES, 2 * BATCHES):
        published(broker, number, stage(broker, number))
    pass_time(broker)
    assert staged_start(broker) >= 2 * BATCHES - 4


def test_a_few_rows_cost_nothing() -> None:
    broker = with_orders()
    published(broker, 0, stage(broker, 0))
    looks = broker.node._replicas.staged_retention
    assert looks.next_deadline_us is None
    pass_time(broker)
    assert staged_start(broker) == 0


def test_a_log_that_cannot_be_read_keeps_its_rows_until_it_can() -> None:
    broker = with_orders()
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    broker = broker.crash().start()

    def no_descriptors(call: FileOperation) -> FileFault | None:
        return (
            FileFault(errno.EMFILE) if call.kind is FileOperationKind.OPEN and call.path.endswith(".arrows") else None
        )

    broker.vfs.plan = no_descriptors
    pass_time(broker)
    assert staged_start(broker) == 0
    broker.vfs.plan = lambda call: None
    pass_time(broker)
    assert segments(broker) == 1


def test_a_checkpoint_that_cannot_be_written_is_tried_again() -> None:
    broker = with_orders()
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    broker.tick(1_000)
    broker.vfs.plan = lambda call: (
        FileFault(errno.ENOSPC) if call.kind is FileOperationKind.WRITE and "checkpoint" in call.path else None
    )
    pass_time(broker)
    assert staged_start(broker) == 0
    broker.vfs.plan = lambda call: None
    pass_time(broker)
    assert segments(broker) == 1


def test_a_stream_that_is_deleted_meanwhile_takes_no_harm() -> None:
    broker = with_orders()
    for number in range(BATCHES):
        published(broker, number, stage(broker, number))
    broker.hung = (FindPublished,)
    broker.tick(1_000)
    broker.delete("orders")
    broker.hung = ()
    broker.settle()
    pass_time(broker)
    assert broker.streams() == {}
    assert broker.notices == []


def test_a_target_is_read_once_for_what_is_still_needed() -> None:
    """Each look at a blocker reads of the target only what came since the last one."""
    broker = with_orders()
    stage(broker, 0, OTHER)
    for number in range(40):
        published(broker, number, stage(broker, number))
        if number % 20 == 19:
            pass_time(broker)
    for _ in range(8):
        pass_time(broker)  # the cleaner indexes the sealed segments
    reads: list[str] = []

    def note(call: FileOperation) -> None:
        if call.kind is FileOperationKind.READ and call.path.endswith(".arrows"):
            reads.append(call.path)

    broker.vfs.plan = note
    pass_time(broker)
    assert reads == []


# For which batch rows are staged


def test_a_staged_batch_says_for_which_batch_it_is() -> None:
    broker = with_orders()
    staged(broker, b"a", query_id=QUERY, batch_id=7)
    staged(broker, b"b")
    data = memoryview(broker.payloads[broker.fetch(staged_stream(broker).name)])
    first = codec.verify(data[: codec.read_header(data).size_bytes])
    second = codec.verify(data[first.size_bytes :])
    assert (codec.producer_of(first), first.flags) == (BatchProducer(0, 0, 7, QUERY), 0)
    assert codec.producer_of(second) == BatchProducer()


def test_rows_are_published_as_the_batch_for_which_they_are_staged() -> None:
    broker = with_orders()
    rows, free = stage(broker, 7), stage(broker, 0, None)
    assert refused(broker, publishing(broker, 8, rows)) == ErrorCode.BAD_REQUEST
    assert refused(broker, publishing(broker, 7, [free, rows], query_id=OTHER)) == ErrorCode.BAD_REQUEST
    assert broker.values("orders") == []
    assert place(published(broker, 7, [free, rows])) == (0, 2, False)


def test_a_query_id_of_zeros_is_refused() -> None:
    broker = with_orders()
    request = StageRequest(stream_id=staged_stream(broker).stream_id, partition=0, query_id=bytes(16))
    assert broker.refusal(request, batch_of([("orders.x", None, b"a", None)])).code == ErrorCode.BAD_REQUEST


# Several brokers


@each_change
def test_who_leads_what_is_staged_reads_its_own_replica_of_the_target() -> None:
    brokers = formed(staged_keep_ms=4_000)
    brokers.leader.create("s", subject="s", replicas=3, segment_bytes=4096)
    brokers.run(500)
    apart(brokers)
    leader, holder = brokers.led("s"), brokers.led(held(brokers))
    assert leader is not holder

    def answered(broker: Any, caller: Hashable, kind: Any) -> Any:
        brokers.run(300)
        return broker.answer(caller, kind)

    def run(number: int, query_id: bytes = QUERY) -> StagedRange:
        caller = staging(holder, value(number), name="s", query_id=query_id, batch_id=number)
        return range_of(answered(holder, caller, StageResponse))

    def publish(number: int, rows: StagedRange, query_id: bytes = QUERY) -> None:
        caller = publishing(leader, number, rows, name="s", query_id=query_id)
        answered(leader, caller, PublishStagedResponse)

    def pass_time() -> list[int]:
        brokers.run(12_000)
        key = holder.image.by_name(held(brokers)).partition_keys()[0]
        return [broker.node._replicas.partitions[key].log.log_start for broker in brokers.members.values()]

    first = run(0, OTHER)
    for number in range(BATCHES):
        publish(number, run(number))
    assert pass_time() == [0, 0, 0]
    publish(0, first, OTHER)
    starts = pass_time()
    assert min(starts) == max(starts) >= BATCHES - 4
