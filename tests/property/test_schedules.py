"""One broker that sends scheduled messages, against a plain model: each is sent once, none before its time, and none
that was replaced, followed or purged before it was due.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.messages import PurgeSubjectRequest, PurgeSubjectResponse
from penstock.node.partition.decisions import DecideRows
from tests.extent import examples
from tests.unit.node.harness import Broker

S = 1_000_000
STEP_MS = 50
LATE_US = S  # so long after its time a message may not be sent yet
SUBJECTS = ("a", "b", "c")


class Pending(NamedTuple):
    """The last schedule of a subject."""

    value: bytes
    due_us: int


class ScheduledStream(RuleBasedStateMachine):
    """`pending` by subject; `void`: values that are not to be sent; `ended`: their times had come, so they may be."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker().start()
        self.pending: dict[str, Pending] = {}
        self.dues_us: dict[bytes, int] = {}
        self.void: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.seen: dict[bytes, int] = {}
        self.count = 0

    @initialize(keep=st.sampled_from([None, None, 1, 2]))
    def start(self, keep: int | None) -> None:
        limited = {} if keep is None else {"max_messages_per_subject": keep}
        self.broker.create(
            "orders", allow_rollup=True, allow_message_schedules=True, dedup_window_ms=None, segment_bytes=4_096,
            **limited,
        )  # fmt: skip
        self.broker.settle()

    def teardown(self) -> None:
        self.wait(2)
        self.broker.stop()

    def end(self, subject: str) -> None:
        """Something takes the place of the schedule of a subject."""
        one = self.pending.pop(subject, None)
        if one is not None and one.value not in self.seen:
            (self.ended if one.due_us <= self.broker.clock.wall_us else self.void).add(one.value)

    @rule(
        subject=st.sampled_from(SUBJECTS),
        delay_s=st.sampled_from([-5, 0, 1, 2, 5, 30]),
        ttl=st.sampled_from([None, None, None, "sub"]),
    )
    def delay(self, subject: str, delay_s: int, ttl: str | None) -> None:
        self.count += 1
        value, due_us = b"%d" % self.count, self.broker.clock.wall_us + delay_s * S
        at = datetime.fromtimestamp(due_us / S, UTC).isoformat()
        lines = [f"Nats-Schedule: @at {at}", f"Nats-Schedule-Target: orders.sent{self.count}"]
        lines += [] if ttl is None else [f"Nats-Schedule-Rollup: {ttl}"]
        self.end(subject)
        self.publish(subject, value, *lines)
        self.pending[subject] = Pending(value, due_us)
        self.dues_us[value] = due_us
        self.look()

    def publish(self, subject: str, value: bytes, *lines: str) -> None:
        block = ("NATS/1.0\r\n" + "".join(f"{one}\r\n" for one in lines) + "\r\n").encode() if lines else None
        acks = len(self.broker.acks)
        self.broker.publish(f"orders.{subject}", value, reply="r", headers=block)
        self.broker.settle()
        assert [ack.err_code for ack in self.broker.acks[acks:]] == [0]

    @rule(subject=st.sampled_from(SUBJECTS))
    def follow(self, subject: str) -> None:
        self.look()
        self.end(subject)
        self.publish(subject, b"plain")
        self.look()

    @rule(subject=st.sampled_from(SUBJECTS))
    def cancel(self, subject: str) -> None:
        self.look()
        self.end(subject)
        self.publish("canceled", b"", f"Nats-Scheduler: orders.{subject}", "Nats-Schedule-Next: purge")
        self.look()

    @rule(subject=st.sampled_from(SUBJECTS))
    def purge(self, subject: str) -> None:
        stream_id = self.broker.stream("orders").stream_id
        request = PurgeSubjectRequest(stream_id=stream_id, partition=0, subject=f"orders.{subject}")
        caller = self.broker.request(request)
        for _ in range(100):
            if caller not in self.broker.open_requests:
                break
            self.broker.tick(STEP_MS)
            self.broker.settle()
        self.broker.answer(caller, PurgeSubjectResponse)
        self.look()
        self.end(subject)

    @rule(step_s=st.sampled_from([1, 2, 4, 40]))
    def wait(self, step_s: int) -> None:
        for _ in range(0, step_s * 1_000, STEP_MS):
            self.broker.tick(STEP_MS)
            self.broker.settle()
        self.look()
        now_us = self.broker.clock.wall_us
        late = [one for one in self.pending.values() if one.due_us <= now_us - LATE_US and one.value not in self.seen]
        assert not late, f"not sent: {late}"

    @rule(hours=st.sampled_from([-1, 1]))
    def step_the_clock(self, hours: int) -> None:
        self.look()
        self.broker.clock.wall_us += hours * 3_600 * S
        self.wait(7)  # the clock is asked within 5 s

    @rule()
    def crash(self) -> None:
        self.broker = self.broker.crash().start()
        self.broker.settle()
        self.look()

    @rule(step_s=st.sampled_from([1, 3]))
    def crash_while_nothing_is_decided_on(self, step_s: int) -> None:
        """What was sent is in the log of the next leader, and its schedule is not hidden yet."""
        self.look()
        self.undecided(step_s)
        self.broker = self.broker.crash()
        self.undecided(0)
        self.broker.start()
        self.undecided(step_s)
        self.broker.hung = ()
        self.broker.settle()
        self.look()

    def undecided(self, step_s: int) -> None:
        self.broker.hung = (DecideRows,)
        for _ in range(0, step_s * 1_000, STEP_MS):
            self.broker.tick(STEP_MS)

    def look(self) -> None:
        for _ in range(2):  # until it is decided on what was published
            self.broker.tick(STEP_MS)
            self.broker.settle()
        sent = [row for row in self.broker.read("orders") if b"Nats-Schedule-Next" in (row.headers or b"")]
        sent = [row for row in sent if row.subject != "orders.canceled"]
        values = [row.value or b"" for row in sent]
        assert len(set(values)) == len(values), "sent twice"
        for row, value in zip(sent, values, strict=True):
            assert self.seen.setdefault(value, row.offset) == row.offset, "sent again"
            assert value not in self.void, f"{value!r} was replaced before its time"
        for subject in [one for one, pending in self.pending.items() if pending.value in self.seen]:
            del self.pending[subject]
        live = {row.value for row in self.broker.read("orders") if b"\r\nNats-Schedule:" in (row.headers or b"")}
        assert not live & set(values), "a schedule is shown beside what it has sent"


TestScheduledStream = ScheduledStream.TestCase
TestScheduledStream.settings = settings(max_examples=examples(30), stateful_step_count=20, deadline=None)
