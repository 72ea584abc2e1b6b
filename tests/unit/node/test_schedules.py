"""Messages that are sent to another subject of their stream at their time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    SetIntakeRequest,
    SetIntakeResponse,
)
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.due_schedules import FindDue
from tests.unit.node.harness import Broker, Row, batch_of

SCHEDULED: dict[str, Any] = {"allow_message_schedules": True, "allow_rollup": True, "dedup_window_ms": None}
TARGET = "Nats-Schedule-Target: orders.sent"


def started(**config: Any) -> Broker:
    broker = Broker().start()
    broker.create("orders", **{**SCHEDULED, **config})
    return broker


def at(broker: Broker, seconds: float) -> str:
    """Return the header of a schedule so many seconds from now."""
    time = datetime.fromtimestamp(broker.clock.wall_us / 1_000_000 + seconds, UTC)
    return f"Nats-Schedule: @at {time.isoformat().replace('+00:00', 'Z')}"


def publish(broker: Broker, subject: str, value: bytes, *lines: str) -> None:
    block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()
    broker.publish(f"orders.{subject}", value, reply="r", headers=block if lines else None)


def delay(broker: Broker, subject: str, seconds: float, value: bytes = b"v", *lines: str) -> None:
    publish(broker, subject, value, at(broker, seconds), *(lines or (TARGET,)))
    broker.settle()


def go_on(broker: Broker, ms: int, step_ms: int = 50) -> None:
    for _ in range(0, ms, step_ms):
        broker.tick(step_ms)
        broker.settle()


def shown(broker: Broker) -> list[tuple[str, bytes | None]]:
    return [(row.subject.removeprefix("orders."), row.value) for row in broker.read("orders")]


def sent(broker: Broker) -> list[Row]:
    return [row for row in broker.read("orders") if b"Nats-Scheduler" in (row.headers or b"")]


def values(broker: Broker) -> list[bytes | None]:
    return [row.value for row in sent(broker)]


def test_a_message_is_sent_at_its_time_and_its_schedule_goes() -> None:
    broker = started()
    delay(broker, "s1", 5, b"one", TARGET, "Other: kept", "Nats-Expected-Stream: orders")
    assert shown(broker) == [("s1", b"one")]
    go_on(broker, 4_900)
    assert shown(broker) == [("s1", b"one")]
    go_on(broker, 400)
    assert shown(broker) == [("sent", b"one")]
    (row,) = sent(broker)
    assert row.headers == b"NATS/1.0\r\nOther: kept\r\nNats-Scheduler: orders.s1\r\nNats-Schedule-Next: purge\r\n\r\n"
    go_on(broker, 20_000, 500)
    assert shown(broker) == [("sent", b"one")]
    assert broker.notices == []
    broker.stop()


def test_a_schedule_is_stored_as_a_rollup_and_replaces_the_one_before() -> None:
    broker = started()
    delay(broker, "s1", 5, b"one")
    delay(broker, "s1", 8, b"two")
    go_on(broker, 100)
    (row,) = broker.read("orders")
    assert row.headers is not None
    assert row.headers.endswith(b"\r\nNats-Rollup: sub\r\n\r\n")
    go_on(broker, 7_000)
    assert shown(broker) == [("s1", b"two")]
    go_on(broker, 2_000)
    assert shown(broker) == [("sent", b"two")]
    broker.stop()


def test_a_time_that_has_passed_is_sent_at_once() -> None:
    broker = started()
    delay(broker, "s1", -3_600, b"one")
    go_on(broker, 400)
    assert values(broker) == [b"one"]
    broker.stop()


def test_what_is_deleted_purged_or_followed_is_not_sent() -> None:
    broker = started()
    for name in ("deleted", "purged", "followed", "kept"):
        delay(broker, name, 2, name.encode())
    stream_id = broker.stream("orders").stream_id
    broker.ask(DeleteMessagesRequest(stream_id=stream_id, partition=0, offsets=(Offset(0),)), DeleteMessagesResponse)
    broker.ask(PurgeSubjectRequest(stream_id=stream_id, partition=0, subject="orders.purged"), PurgeSubjectResponse)
    publish(broker, "followed", b"plain")
    go_on(broker, 5_000)
    assert values(broker) == [b"kept"]
    assert ("followed", b"plain") in shown(broker)
    broker.stop()


def test_ttl_and_rollup_of_what_is_sent() -> None:
    broker = started(allow_message_ttl=True)
    lines = ("Nats-Schedule-TTL: 5s", "Nats-Schedule-Rollup: sub", "Nats-TTL: 1h", "Nats-Msg-Id: x")
    for name in ("s1", "s2"):
        delay(broker, name, 1, name.encode(), TARGET, *lines)
    go_on(broker, 2_000)
    (row,) = sent(broker)
    assert row.value == b"s2", "the second one is a rollup"
    assert row.headers == (
        b"NATS/1.0\r\nNats-Scheduler: orders.s2\r\nNats-Schedule-Next: purge\r\n"
        b"Nats-TTL: 5s\r\nNats-Rollup: sub\r\n\r\n"
    )
    go_on(broker, 6_000)
    assert shown(broker) == []
    broker.stop()


def test_the_source_gives_the_content_if_it_has_a_message() -> None:
    broker = started()
    delay(broker, "s1", 1, b"own", TARGET, "Nats-Schedule-Source: orders.data", "Of: schedule")
    delay(broker, "s2", 1, b"own", TARGET, "Nats-Schedule-Source: orders.none", "Of: schedule")
    publish(broker, "data", b"old")
    publish(broker, "data", b"new", "Of: source")
    go_on(broker, 2_000)
    first, second = sent(broker)
    assert (first.value, b"Of: source" in (first.headers or b"")) == (b"new", True)
    assert (second.value, b"Of: schedule" in (second.headers or b"")) == (b"own", True)
    broker.stop()


@pytest.mark.parametrize("sources", [1, 12])
def test_large_sources_are_sent_in_several_rounds(sources: int) -> None:
    broker = started()
    for number in range(sources):
        publish(broker, f"data{number}", b"%d" % number + bytes(1_000_000))
    for number in range(12):
        delay(broker, f"s{number}", 2, b"own", TARGET, f"Nats-Schedule-Source: orders.data{number % sources}")
    query, executed = searched(broker)
    assert len(query.batch.data) <= limits.SCHEDULED_BYTES_AT_ONCE + limits.MIB
    broker.complete(executed)
    broker.hung = ()
    go_on(broker, 3_000)
    assert [int(one.rstrip(b"\0")) for one in values(broker) if one] == [number % sources for number in range(12)]
    assert broker.notices == []
    broker.stop()


def test_what_is_sent_is_within_the_limits_of_messages() -> None:
    broker = started(max_message_bytes=70_000)
    lines = [f"Line{number}: {'x' * 1_000}" for number in range(64)]
    publish(broker, "wide", b"source", *lines)
    publish(broker, "large", bytes(70_000))
    source = "Nats-Schedule-Source: orders"
    delay(broker, "s1" + "x" * 900, 2, b"own", TARGET, *lines)
    delay(broker, "s2" + "x" * 900, 2, b"own", TARGET, f"{source}.wide")
    delay(broker, "s3", 2, b"own", TARGET, f"{source}.large")
    delay(broker, "s4", 2, b"last")
    go_on(broker, 3_000)
    assert values(broker) == [b"own", b"source", b"last"]
    blocks = [row.headers or b"" for row in sent(broker)]
    assert [limits.HEADER_BLOCK_BYTES_MAX - 1_100 < len(one) <= limits.HEADER_BLOCK_BYTES_MAX for one in blocks[:2]]
    assert all(b"\r\nNats-Schedule-Next: purge\r\n\r\n" in one for one in blocks)
    assert ["s3" in subject for subject, _ in shown(broker) if subject.startswith("s")].count(True) == 1
    assert ["70000 bytes" in one for one in broker.notices] == [True]
    broker.stop()


def test_a_message_may_end_a_schedule_before_its_time() -> None:
    broker = started()
    delay(broker, "s1", 5)
    publish(broker, "canceled", b"", "Nats-Scheduler: orders.s1", "Nats-Schedule-Next: purge")
    go_on(broker, 300)
    assert shown(broker) == [("canceled", b"")]
    go_on(broker, 8_000)
    assert shown(broker) == [("canceled", b"")]
    broker.stop()


def test_a_message_that_names_a_plain_one_ends_nothing() -> None:
    broker = started()
    publish(broker, "plain", b"v", "Nats-Rollup: sub")
    publish(broker, "other", b"", "Nats-Scheduler: orders.plain", "Nats-Schedule-Next: purge")
    go_on(broker, 300)
    assert shown(broker) == [("plain", b"v"), ("other", b"")]
    broker.stop()


@pytest.mark.parametrize("config", [{}, {"max_messages_per_subject": 1}, {"max_messages_per_subject": 3}])
def test_with_a_limit_by_subject(config: dict[str, Any]) -> None:
    broker = started(**config)
    delay(broker, "s1", 1, b"one")
    delay(broker, "s2", 2, b"two")
    go_on(broker, 4_000)
    assert [name for name, _ in shown(broker)] == ["sent"] * (1 if config.get("max_messages_per_subject") == 1 else 2)
    broker.stop()


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z",), 10190),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", "Nats-Schedule-Target: elsewhere"), 10190),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", "Nats-Schedule-Target: orders.s"), 10190),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", "Nats-Schedule-Target: orders.*"), 10190),
        (("Nats-Schedule: @at tomorrow", TARGET), 10189),
        (("Nats-Schedule: @every 1m", TARGET), 10189),
        (("Nats-Schedule: @hourly", TARGET), 10189),
        (("Nats-Schedule: 0 0 * * * *", TARGET), 10189),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Schedule-TTL: x"), 10191),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Schedule-TTL: 5s"), 10166),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Schedule-Rollup: all"), 10192),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Rollup: all"), 10192),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Schedule-Source: orders.sent"), 10203),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Schedule-Time-Zone: UTC"), 10189),
        (("Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET, "Nats-Schedule-Time-Zone: "), 10223),
        (("Nats-Scheduler: orders.s1",), 10212),
        (("Nats-Scheduler: orders.s", "Nats-Schedule-Next: purge"), 10212),
        (("Nats-Scheduler: orders.s1", "Nats-Schedule-Next: later"), 10212),
    ],
)
def test_what_cannot_be_sent_is_refused_and_not_stored(lines: tuple[str, ...], code: int) -> None:
    broker = started()
    publish(broker, "s", b"v", *lines)
    broker.settle()
    assert [ack.err_code for ack in broker.acks] == [code]
    assert shown(broker) == []
    if "@every" in lines[0] or "@hourly" in lines[0]:
        assert "not supported" in broker.acks[0].body["error"]["description"]
    broker.stop()


def test_without_the_option_schedules_are_refused() -> None:
    broker = Broker().start()
    broker.create("orders", allow_rollup=True)
    publish(broker, "s", b"v", "Nats-Schedule: @at 2030-01-01T00:00:00Z", TARGET)
    publish(broker, "s", b"v", "Nats-Schedule: @never", TARGET)
    publish(broker, "s", b"v", "Nats-Scheduler: orders.s1", "Nats-Schedule-Next: purge")
    publish(broker, "s", b"v", "Nats-Scheduler: orders.s1")
    publish(broker, "s", b"v", TARGET)
    broker.settle()
    assert [ack.err_code for ack in broker.acks] == [10188, 10188, 0, 0, 0]
    broker.stop()


def test_an_append_with_a_schedule_is_refused() -> None:
    broker = started()
    block = b"NATS/1.0\r\nNats-Schedule: @at 2020-01-01T00:00:00Z\r\nNats-Schedule-Target: orders.sent\r\n\r\n"
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0))
    caller = broker.request(request, batch_of([("orders.s", None, b"v", block)]))
    broker.settle()
    refusal = broker.replies[caller].response
    assert isinstance(refusal, RemoteError)
    assert (refusal.code, "over NATS" in refusal.message) == (ErrorCode.BAD_REQUEST, True)
    broker.stop()


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (b"Nats-Schedule-Target: \xff\xfe",),
        (b"Nats-Schedule-Target: orders.*",),
        (b"Nats-Schedule-Target: orders.a b",),
        (b"Nats-Schedule-Target: orders.hostile",),
        (b"Nats-Schedule-Target: orders.x", b"Nats-Schedule-TTL: soon"),
        (b"Nats-Schedule-Target: orders.x", b"Nats-Schedule-TTL: 5s"),
        (b"Nats-Schedule-Target: orders.x", b"Nats-Schedule-Rollup: all"),
        (b"Nats-Schedule-Target: orders.x", b"Nats-Schedule-Source: \xff\xfe"),
        (b"Nats-Schedule-Target: orders.x", b"Nats-Schedule-Source: orders.>"),
        (b"Nats-Schedule-Target: orders.x", b"Nats-Schedule-Source: orders.x"),
    ],
)
def test_what_was_stored_before_the_option_is_checked_before_it_is_sent(lines: tuple[bytes, ...]) -> None:
    broker = Broker().start()
    broker.create("orders", allow_rollup=True, dedup_window_ms=None)
    block = b"\r\n".join(
        (b"NATS/1.0", b"Nats-Rollup: sub", b"Nats-Schedule: @at 2020-01-01T00:00:00Z", *lines, b"\r\n")
    )
    request = AppendRequest(stream_id=broker.stream_id("orders"), partition=PartitionId(0))
    broker.request(request, batch_of([("orders.hostile", None, b"hostile", block)]))
    broker.settle()
    broker.ask(AlterStreamRequest(name="orders", changes={"allow_message_schedules": True}), AlterStreamResponse)
    delay(broker, "s1", 1, b"v")
    go_on(broker, 3_000)
    assert shown(broker) == [("hostile", b"hostile"), ("sent", b"v")]
    assert ["offset 0 is not sent" in one for one in broker.notices] == [True]
    broker.stop()


@pytest.mark.parametrize(("spare", "code"), [(0, 0), (1, 10054)])
def test_a_schedule_whose_value_leaves_no_room_for_the_headers_of_what_is_sent_is_refused(
    spare: int, code: int
) -> None:
    """It was stored and acked, and then never sent: only the operator was told."""
    broker = started(max_message_bytes=2_000)
    name = "s" * 300
    own = f"NATS/1.0\r\nNats-Scheduler: orders.{name}\r\nNats-Schedule-Next: purge\r\n\r\n"
    delay(broker, name, 1, b"v" * (2_000 - len(own) + spare))
    assert broker.acks[-1].err_code == code
    go_on(broker, 2_000)
    assert len(sent(broker)) == (code == 0)
    assert broker.notices == []
    broker.stop()


def searched(broker: Broker, *hung: type) -> tuple[Any, Any]:
    """Run a round's search that finds something; the node is not told yet."""
    broker.hung = (FindDue, *hung)
    for _ in range(200):
        broker.tick(50)
        for number, work in enumerate(broker.disk):
            query = getattr(work.run, "__self__", None)
            if isinstance(query, FindDue):
                executed = broker.execute(number)
                if query.due:
                    return query, executed
                broker.complete(executed)
                break
    raise AssertionError("nothing was due")


@pytest.mark.parametrize("is_schedule", [False, True])
def test_what_comes_while_the_log_is_read_takes_the_place_of_the_schedule(is_schedule: bool) -> None:
    broker = started()
    delay(broker, "s1", 1, b"old")
    _, executed = searched(broker)
    if is_schedule:
        publish(broker, "s1", b"new", at(broker, 3), TARGET)
    else:
        publish(broker, "s1", b"new")
    broker.turn()
    broker.complete(executed)
    broker.hung = ()
    go_on(broker, 5_000)
    assert values(broker) == ([b"new"] if is_schedule else [])
    broker.stop()


def test_a_purge_that_is_asked_for_while_the_log_is_read_keeps_the_message_from_being_sent() -> None:
    broker = started()
    delay(broker, "s1", 1)
    _, executed = searched(broker)
    stream_id = broker.stream("orders").stream_id
    request = PurgeSubjectRequest(stream_id=stream_id, partition=0, subject="orders.s1")
    caller = broker.request(request)
    broker.complete(executed)
    broker.hung = ()
    go_on(broker, 5_000)
    assert broker.answer(caller, PurgeSubjectResponse).messages == 1
    assert values(broker) == []
    broker.stop()


def test_a_purge_waits_for_what_is_being_sent() -> None:
    broker = started()
    delay(broker, "s1", 1)
    _, executed = searched(broker, DecideRows)
    broker.complete(executed)
    stream_id = broker.stream("orders").stream_id
    caller = broker.request(PurgeSubjectRequest(stream_id=stream_id, partition=0, subject="orders.s1"))
    broker.hung = ()
    go_on(broker, 2_000)
    assert broker.answer(caller, PurgeSubjectResponse).messages == 0, "it was sent before"
    assert values(broker) == [b"v"]
    broker.stop()


def test_after_a_kill_at_any_moment_each_is_sent_once() -> None:
    for after_ms in range(0, 400, 20):
        broker = started()
        for number in range(3):
            delay(broker, f"s{number}", 1, b"%d" % number)
        go_on(broker, 900, 50)
        for _ in range(0, after_ms, 10):
            broker.tick(10)
            broker.settle()
        after = broker.crash().start()
        go_on(after, 3_000)
        assert values(after) == [b"0", b"1", b"2"], after_ms
        assert len(shown(after)) == 3
        after.stop()


def undecided(broker: Broker) -> None:
    """Let two seconds pass in which nothing is decided on."""
    broker.hung = (DecideRows,)
    for _ in range(40):
        broker.tick(50)


def test_a_leader_does_not_send_again_what_its_log_has_and_is_not_decided_on() -> None:
    broker = started()
    delay(broker, "s1", 1)
    go_on(broker, 200)
    undecided(broker)
    assert broker.stream("orders").partitions[0].committed_end == 2
    after = broker.crash()
    after.hung = (DecideRows,)
    after.start()
    undecided(after)
    assert after.stream("orders").partitions[0].committed_end == 2, "sent again"
    after.hung = ()
    go_on(after, 2_000)
    assert shown(after) == [("sent", b"v")]
    after.stop()


def test_a_paused_stream_sends_later() -> None:
    broker = started()
    delay(broker, "s1", 1)
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.PAUSED), SetIntakeResponse)
    go_on(broker, 5_000)
    assert values(broker) == []
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.OPEN), SetIntakeResponse)
    go_on(broker, 3_000)
    assert values(broker) == [b"v"]
    broker.stop()


def test_a_clock_that_steps_on_sends_all_round_by_round_and_one_that_steps_back_sends_later() -> None:
    broker = started()
    for number in range(10):
        delay(broker, f"s{number}", 600 * number + 300, b"%d" % number)
    go_on(broker, 1_000)
    broker.clock.wall_us += 3_600_000_000
    go_on(broker, 7_000)
    assert values(broker) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    broker.clock.set_back_ms(3_600_000)
    go_on(broker, 3_600_000 + 100_000, 10_000)
    assert values(broker) == [b"0", b"1", b"2", b"3", b"4", b"5"], "none is sent again, and the next not early"
    go_on(broker, 7_000_000, 10_000)
    assert values(broker) == [b"%d" % number for number in range(10)]
    broker.stop()


def test_a_target_that_the_stream_has_no_more_is_told_and_sent_once_it_is_back() -> None:
    broker = started(more_subjects=("extra.>",))
    delay(broker, "s1", 2, b"v", "Nats-Schedule-Target: extra.a")
    broker.ask(AlterStreamRequest(name="orders", changes={}, remove_subjects=("extra.>",)), AlterStreamResponse)
    go_on(broker, 5_000)
    assert values(broker) == []
    assert any("no subject of the stream any more" in one for one in broker.notices)
    caller = broker.request(AlterStreamRequest(name="orders", changes={}, add_subjects=("extra.>",)))
    go_on(broker, 3_000)
    assert not isinstance(broker.replies[caller].response, Exception)
    assert values(broker) == [b"v"]
    broker.stop()


def test_the_option_is_not_taken_back_while_what_was_sent_is_not_decided_on() -> None:
    broker = started()
    delay(broker, "s1", 1)
    go_on(broker, 200)
    broker.hung = (DecideRows,)
    publish(broker, "other", b"", "Nats-Rollup: sub")
    broker.turn()
    undecided(broker)
    callers = []
    for allows in (False, True):
        alter = AlterStreamRequest(name="orders", changes={"allow_message_schedules": allows})
        callers.append(broker.request(alter))
        broker.hung = ()
        go_on(broker, 2_000)
    assert shown(broker) == [("other", b""), ("sent", b"v")]
    refusal = broker.replies[callers[0]].response
    assert isinstance(refusal, RemoteError)
    assert "allow_message_schedules: cannot be taken back" in refusal.message
    broker.stop()
