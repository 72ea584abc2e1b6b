"""Batches with offsets and times of their own: taken by a stream that is paused, in their order, and by no other."""

from __future__ import annotations

import errno
import weakref
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from penstock.messages import (
    AppendAtRequest,
    AppendAtResponse,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    FindMessagesRequest,
    FindMessagesResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep
from tests.unit.node.harness import START_US, Broker
from tests.unit.node.members import formed

DAY_US = 86_400_000_000
OLD_US = START_US - 30 * DAY_US

Given = tuple[int, int, bytes]
"""Offset, timestamp after OLD_US, value."""


def message(base: int, end: int, *rows: Given, subject: str = "s", headers: Sequence[bytes | None] = ()) -> bytearray:
    count = len(rows)
    columns = [
        pa.array([row[0] for row in rows], pa.int64()),
        pa.array([OLD_US + row[1] for row in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([subject] * count, pa.string()),
        pa.nulls(count, pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
        pa.array(list(headers) or [None] * count, pa.binary()),
    ]
    return codec.encode_arrow_at(pa.RecordBatch.from_arrays(columns, schema=arrow_schema()), base, end)


def paused(**config: Any) -> Broker:
    broker = Broker().start()
    wanted = StreamConfig(name="s", subject="s", **config)
    broker.ask(CreateStreamRequest(config=wanted, is_paused=True), CreateStreamResponse)
    return broker


def at(broker: Broker) -> AppendAtRequest:
    return AppendAtRequest(stream_id=broker.stream_id("s"), partition=PartitionId(0))


def resume(broker: Broker) -> None:
    broker.ask(SetIntakeRequest(name="s", intake=Intake.OPEN), SetIntakeResponse)


def put(broker: Broker, *arguments: Any, **options: Any) -> AppendAtResponse:
    return broker.ask(at(broker), AppendAtResponse, message(*arguments, **options))


def refused(broker: Broker, data: bytearray) -> RemoteError:
    return broker.refusal(at(broker), data)


def rows(broker: Broker) -> list[tuple[int, int, bytes | None]]:
    return [(row.offset, time_of(broker, row.offset) - OLD_US, row.value) for row in broker.read("s")]


def time_of(broker: Broker, offset: int) -> int:
    caller = broker.request(GetRequest(stream_id=broker.stream_id("s"), offset=Offset(offset)))
    broker.answer(caller, GetResponse)
    data = broker.payloads[caller]
    return codec.timestamps(data)[0]


def test_nobody_listens_for_a_stream_that_is_made_paused() -> None:
    broker = paused()
    assert broker.stream("s").intake == Intake.PAUSED
    assert broker.nats.sids("s") == []
    broker.publish("s", b"lost", reply="r")
    assert not broker.acks
    resume(broker)
    broker.publish("s", b"heard", reply="r")
    assert broker.values("s") == [b"heard"]
    again = CreateStreamRequest(config=StreamConfig(name="s", subject="s"), is_paused=True)
    assert not broker.ask(again, CreateStreamResponse).created
    assert broker.stream("s").intake == Intake.OPEN, "one that is there stays as it is"


def test_rows_keep_their_offsets_and_times_and_gaps_are_kept() -> None:
    broker = paused()
    first = put(broker, 0, 8, (3, 10, b"d"), (4, 10, b"e"), (7, 30, b"h"))
    assert (first.base_offset, first.end_offset, first.timestamp_us) == (0, 8, OLD_US + 30)
    put(broker, 8, 20, (11, 40, b"l"))
    given = [(3, 10, b"d"), (4, 10, b"e"), (7, 30, b"h"), (11, 40, b"l")]
    assert rows(broker) == given
    partition = broker.stream("s").partitions[0]
    assert (partition.log_start, partition.committed_end) == (0, 20)
    stream_id = broker.stream_id("s")
    assert broker.refusal(GetRequest(stream_id=stream_id, offset=Offset(5))).code == ErrorCode.MESSAGE_NOT_FOUND
    assert broker.ask(GetRequest(stream_id=stream_id, offset=Offset(7)), GetResponse).offset == 7
    found = broker.ask(ListOffsetsRequest(stream_id=stream_id, at=OLD_US + 11), ListOffsetsResponse)
    assert (found.offset, found.timestamp_us) == (7, OLD_US + 30)
    gone = broker.ask(TruncateRequest(stream_id=stream_id, before=Offset(3)), TruncateResponse)
    assert gone.log_start == 3
    resume(broker)
    assert broker.answer(broker.append("s", b"new", subject="s"), AppendResponse).base_offset == 20
    assert rows(broker)[:-1] == given
    offset, moment, value = rows(broker)[-1]
    assert (offset, value, moment >= START_US - OLD_US) == (20, b"new", True)


def test_a_search_within_a_gap_of_a_batch_ends() -> None:
    broker = paused()
    put(broker, 0, 15, (5, 10, b"f"), (10, 20, b"k"))
    put(broker, 15, 23, (17, 30, b"r"))
    for offset in range(23):
        request = FindMessagesRequest(
            stream_id=broker.stream_id("s"), subjects=(">",), begin=Offset(offset), end=Offset(offset + 1)
        )
        caller = broker.request(request)
        found = broker.answer(caller, FindMessagesResponse)
        assert (found.next_offset, bool(broker.payloads.get(caller))) == (offset + 1, offset in (5, 10, 17))


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
def test_what_was_answered_is_there_after_a_crash(keep: Keep) -> None:
    broker = paused(segment_bytes=4_096)
    for number in range(20):
        put(broker, 10 * number, 10 * number + 10, (10 * number + 4, number, b"%d" % number + b"." * 900))
    after = broker.crash(keep).start()
    assert [(offset, moment) for offset, moment, _ in rows(after)] == [(10 * n + 4, n) for n in range(20)]
    assert put(after, 200, 201, (200, 20, b"on")).base_offset == 200


def test_what_does_not_come_next_is_refused_and_nothing_of_it_is_stored() -> None:
    broker = paused()
    put(broker, 0, 5, (2, 10, b"x"))
    for base in (0, 4, 6):
        error = refused(broker, message(base, base + 3, (base, 20, b"y")))
        assert (error.code, error.details["log_end"]) == (ErrorCode.OUT_OF_SEQUENCE, 5)
    error = refused(broker, message(5, 6, (5, 9, b"y")))
    assert (error.code, error.details["last_timestamp_us"]) == (ErrorCode.BAD_REQUEST, OLD_US + 10)
    ahead_us = 30 * DAY_US + limits.APPEND_AT_AHEAD_MS * 1_000
    error = refused(broker, message(5, 6, (5, ahead_us + 60_000_000, b"y")))
    assert "which is in the future; set may_be_ahead to allow that" in error.message
    late = message(5, 6, (5, limits.APPEND_AT_TIME_US_MAX + 1 - OLD_US, b"y"))
    request = AppendAtRequest(stream_id=broker.stream_id("s"), partition=PartitionId(0), may_be_ahead=True)
    assert "times go up to" in broker.refusal(request, late).message
    error = refused(broker, message(5, limits.APPEND_AT_END_MAX + 1, (5, 10, b"y")))
    assert "offsets go up to" in error.message
    assert rows(broker) == [(2, 10, b"x")]
    assert put(broker, 5, limits.APPEND_AT_END_MAX, (5, 10, b"y")).end_offset == limits.APPEND_AT_END_MAX


@pytest.mark.parametrize(
    "given",
    [
        ((5, 10, b""), (5, 10, b"")),  # twice
        ((6, 10, b""), (5, 10, b"")),
        ((4, 10, b""), (5, 10, b"")),  # before its base
        ((8, 10, b""),),  # not below its end
        ((5, 20, b""), (6, 10, b"")),
    ],
)
def test_numbers_that_are_not_what_the_header_says_are_refused(given: tuple[Given, ...]) -> None:
    broker = paused()
    put(broker, 0, 5, (2, 10, b"x"))
    error = refused(broker, message(5, 8, *given))
    assert error.code == ErrorCode.CORRUPT_BATCH
    assert rows(broker) == [(2, 10, b"x")]


def test_only_a_paused_stream_takes_them_and_it_takes_nothing_else() -> None:
    broker = paused()
    error = broker.replies[broker.append("s", b"plain", subject="s")].response
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.READ_ONLY
    for intake in (Intake.OPEN, Intake.READ_ONLY, Intake.SEALED):
        broker.ask(SetIntakeRequest(name="s", intake=intake), SetIntakeResponse)
        error = refused(broker, message(0, 5, (2, 10, b"x")))
        assert error.code == ErrorCode.BAD_REQUEST
        assert f"is {intake}, not paused" in error.message
    assert rows(broker) == []


def test_the_rules_of_the_stream_hold_for_them() -> None:
    broker = paused(max_message_bytes=30)
    assert refused(broker, message(0, 5, (2, 10, b"x" * 31))).code == ErrorCode.TOO_LARGE
    assert "is not one of this stream's" in refused(broker, message(0, 5, (2, 10, b"x"), subject="t")).message
    assert rows(broker) == []


ASKING = [
    b"NATS/1.0\r\nNats-TTL: 5\r\n\r\n",
    b"NATS/1.0\r\nNats-TTL: soon\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n",
    b"NATS/1.0\r\nNats-Rollup: some\r\n\r\n",
]


@pytest.mark.parametrize("config", [{}, {"allow_message_ttl": True}, {"allow_rollup": True}])
def test_what_a_stream_does_not_allow_is_kept_and_has_no_effect(config: dict[str, bool]) -> None:
    broker = paused(**config)
    blocks = [block for block in ASKING if not _works(block, config)]
    given = [(number, 1, b"x") for number in range(len(blocks))]
    put(broker, 0, len(blocks), *given, headers=blocks)
    resume(broker)
    broker.settle()
    broker.tick(60_000)
    broker.settle()
    assert rows(broker) == given


def _works(block: bytes, config: dict[str, bool]) -> bool:
    if "allow_message_ttl" in config:
        return b"Nats-TTL: 5" in block
    return "allow_rollup" in config and (b": sub" in block or b": all" in block)


def test_ids_and_last_sequences_are_where_the_rows_are() -> None:
    broker = paused()
    now_us = 30 * DAY_US
    blocks = [b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % name for name in (b"a", b"b")]
    put(broker, 0, 50, (7, now_us, b"x"), (31, now_us, b"y"), headers=blocks)
    resume(broker)
    broker.publish("s", b"again", reply="r1", headers=blocks[1])
    broker.publish("s", b"expects", reply="r2", headers=b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 32\r\n\r\n")
    broker.ask(SetIntakeRequest(name="s", intake=Intake.PAUSED), SetIntakeResponse)
    put(broker, 51, 70, (60, now_us, b"z"), headers=[b"NATS/1.0\r\nNats-Msg-Id: c\r\n\r\n"])  # both are known by now
    resume(broker)
    broker.publish("s", b"again", reply="r3", headers=b"NATS/1.0\r\nNats-Msg-Id: c\r\n\r\n")
    broker.publish("s", b"expects", reply="r4", headers=b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 61\r\n\r\n")
    told = {ack.reply: (ack.body.get("seq"), ack.body.get("duplicate", False)) for ack in broker.acks}
    assert told == {"r1": (32, True), "r2": (51, False), "r3": (61, True), "r4": (71, False)}


def test_a_rollup_takes_what_is_before_its_own_place() -> None:
    broker = paused(allow_rollup=True)
    block = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
    put(broker, 0, 40, (7, 1, b"x"), (20, 2, b"all"), (31, 3, b"y"), headers=[None, block, None])
    broker.settle()
    broker.tick(2_000)
    broker.settle()
    assert rows(broker) == [(20, 2, b"all"), (31, 3, b"y")]


def test_what_the_disk_refuses_is_not_there_and_can_come_again() -> None:
    broker = paused()
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
    assert refused(broker, message(0, 5, (2, 10, b"x"))).code == ErrorCode.STORAGE_FAILED
    broker.vfs.plan = no_faults
    assert put(broker, 0, 5, (2, 10, b"x")).end_offset == 5
    assert rows(broker) == [(2, 10, b"x")]


def test_followers_have_the_same_and_the_next_leader_goes_on() -> None:
    brokers = formed()
    config = StreamConfig(name="s", subject="s", replicas=3)
    made = brokers.leader.request(CreateStreamRequest(config=config, is_paused=True))
    brokers.run(500)
    brokers.leader.answer(made, CreateStreamResponse)
    old = brokers.led("s")
    caller = old.request(at(old), message(0, 9, (3, 10, b"d"), (7, 30, b"h")))
    brokers.run(500)
    assert old.answer(caller, AppendAtResponse).end_offset == 9
    brokers.kill(int(old.broker_id))
    brokers.run(8_000)
    new = brokers.led("s")
    assert new is not old
    caller = new.request(at(new), message(9, 12, (10, 31, b"k")))
    brokers.run(500)
    assert new.answer(caller, AppendAtResponse).end_offset == 12
    assert rows(new) == [(3, 10, b"d"), (7, 30, b"h"), (10, 31, b"k")]


def test_what_the_client_has_sent_is_not_kept_until_it_is_committed() -> None:
    """The broker stores a copy, and counts that against its memory; the frame would come on top."""
    broker = paused(durability="fsync")
    broker.syncs_hang = True
    sent = memoryview(bytes(message(0, 6, (5, 10, b"x"))))
    is_kept = weakref.ref(sent)
    broker.open_requests.add("c")
    broker.node.request("c", at(broker), sent, broker.clock.now, None)
    del sent
    broker.turn()
    assert "c" in broker.open_requests, broker.replies["c"]
    assert is_kept() is None
