"""One broker whose messages expire and leave markers, against all that was ever published: what is over goes within a
second, nothing else does, and a subject gets one marker when its last message has gone.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.batch import codec
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.expiry import FindExpired
from tests.extent import examples
from tests.unit.node.harness import Broker, Row

S = 1_000_000
MARKER_S = 3
LATE_US = S  # so long after its end a message may still be there
STEP_MS = 50
TTLS = {None: None, "1": 1, "2s": 2, "7": 7, "1h": 3_600, "never": -1}
SUBJECTS = ("a", "b", "c")


class Published(NamedTuple):
    """One message of a publisher."""

    subject: str
    value: bytes
    ttl_s: int | None
    is_marker: bool


class Stored(NamedTuple):
    """One message of the log."""

    row: Row
    timestamp_us: int


class MarkedStream(RuleBasedStateMachine):
    """`sent`: what was published, by value. `log`: what the log had, by offset."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = Broker().start()
        self.sent: dict[bytes, Published] = {}
        self.log: dict[int, Stored] = {}

    @initialize(keep=st.sampled_from([None, 1, 2]), age_s=st.sampled_from([None, None, 4]))
    def start(self, keep: int | None, age_s: int | None) -> None:
        self.keep, self.age_s = keep, age_s
        self.broker.create(
            "orders",
            allow_message_ttl=True,
            allow_rollup=True,
            subject_delete_marker_ttl_ms=MARKER_S * 1_000,
            dedup_window_ms=None,
            segment_bytes=4_096,
            **({} if keep is None else {"max_messages_per_subject": keep}),
            **({} if age_s is None else {"max_age_ms": age_s * 1_000}),
        )
        self.broker.settle()

    def teardown(self) -> None:
        if hasattr(self, "keep"):
            self.wait(2)
            self.broker.stop()

    @rule(
        subject=st.sampled_from(SUBJECTS),
        ttl=st.sampled_from(list(TTLS)),
        is_purge=st.sampled_from([False, False, False, True]),
        copies=st.integers(1, 3),
    )
    def publish(self, subject: str, ttl: str | None, is_purge: bool, copies: int) -> None:
        for _ in range(copies):
            self._publish(subject, ttl, is_purge=is_purge)
        self.broker.settle()
        self.look()

    def _publish(self, subject: str, ttl: str | None, *, is_purge: bool = False) -> None:
        lines = [] if ttl is None else [f"Nats-TTL: {ttl}"]
        if is_purge:
            lines.append("KV-Operation: PURGE")
        block = ("NATS/1.0\r\n" + "".join(f"{one}\r\n" for one in lines) + "\r\n").encode() if lines else None
        value = b"%d" % len(self.sent)
        self.sent[value] = Published(subject, value, TTLS[ttl], is_purge)
        self.broker.publish(f"orders.{subject}", value, reply="r", headers=block)

    @rule(step_s=st.sampled_from([1, 2, 4, 9]))
    def wait(self, step_s: int) -> None:
        for _ in range(0, step_s * 1_000, STEP_MS):
            self.broker.tick(STEP_MS)
            self.broker.settle()
            self.look()
        self.check()

    @rule(subject=st.sampled_from(SUBJECTS), ttl=st.sampled_from(list(TTLS)), is_decided=st.booleans())
    def publish_once_something_is_found(self, subject: str, ttl: str | None, is_decided: bool) -> None:
        """A message that comes between the reading of the log and the marker."""
        broker = self.broker
        broker.hung = (FindExpired, *(() if is_decided else (DecideRows,)))
        for _ in range(200):
            broker.tick(STEP_MS)
            for number, work in enumerate(broker.disk):
                query = getattr(work.run, "__self__", None)
                if isinstance(query, FindExpired):
                    executed = broker.execute(number)
                    if query.found:
                        self._publish(subject, ttl)
                        broker.turn()
                    broker.complete(executed)
                    break
            else:
                continue
            if query.found:
                break
        broker.hung = ()
        broker.settle()
        self.look()

    @rule()
    def crash(self) -> None:
        self.broker = self.broker.crash().start()
        self.broker.settle()

    # What must be there

    def lifetime_us(self, one: Published) -> int | None:
        """The time that it lives, None for ever."""
        if one.ttl_s == -1:
            return None
        lives_s = one.ttl_s
        if lives_s is not None and self.keep != 1:
            lives_s = max(lives_s, MARKER_S)
        if self.age_s is not None:
            lives_s = self.age_s if lives_s is None else min(lives_s, self.age_s)
        return None if lives_s is None else lives_s * S

    def is_own(self, row: Row) -> bool:
        """True if the broker has written it: a marker."""
        return row.value not in self.sent

    def over_us(self, stored: Stored) -> int | None:
        if not self.is_own(stored.row):
            lives_us = self.lifetime_us(self.sent[stored.row.value or b""])
        else:
            lives_us = min(MARKER_S, self.age_s or MARKER_S) * S
        return None if lives_us is None else stored.timestamp_us + lives_us

    def check(self) -> None:
        self.look()
        shown = {row.offset for row in self.broker.read("orders")}
        for subject in SUBJECTS:
            rows = [one for one in self.log.values() if one.row.subject == f"orders.{subject}"]
            self.check_rows(rows, shown)
            self.check_markers(rows, shown)

    def check_rows(self, rows: list[Stored], shown: set[int]) -> None:
        """What is over has gone, and what lives on, and is not replaced, is there."""
        now_us = self.broker.clock.wall_us
        for number, one in enumerate(rows):
            over_us, later = self.over_us(one), rows[number + 1 :]
            is_replaced = any(self.is_own(other.row) for other in later)  # by a marker: see `check_markers`
            is_replaced = is_replaced or (self.keep is not None and len(later) >= self.keep)
            if over_us is not None and over_us + LATE_US <= now_us:
                assert one.row.offset not in shown, "it is over"
            elif (over_us is None or over_us > now_us) and not is_replaced:
                assert one.row.offset in shown, "it lives on"

    def check_markers(self, rows: list[Stored], shown: set[int]) -> None:
        """A marker comes once all messages of its subject are over; if the last one is no marker, it comes for sure."""
        since: list[Stored] = []  # the messages that nothing has replaced
        for one in rows:
            if not self.is_own(one.row):
                since = [*since, one] if self.keep is None else [*since, one][-self.keep :]
                continue
            assert since, "a marker of nothing"
            ends_us = [self.over_us(other) for other in since]
            assert all(over_us is not None and over_us <= one.timestamp_us for over_us in ends_us)
            assert not all(self.sent[other.row.value or b""].is_marker for other in since)
            since = []
        if since and not any(one.row.offset in shown for one in rows):
            assert any(self.sent[other.row.value or b""].is_marker for other in since), "a marker is missing"

    def look(self) -> None:
        """Take the rows that were added to the log, before the cleaner erases them."""
        (partition,) = [one for one in self.broker.node._partitions.values() if one.stream.name == "orders"]
        view = partition.log.view()
        start = max(view.log_start, max(self.log, default=-1) + 1)
        for _, data in view.batches(start, view.log_end):
            rows = codec.check_rows(data)
            names = ("offset", "subject", "key", "value", "headers")
            columns = (*(rows.column(name).to_pylist() for name in names), codec.timestamps(data))
            for *fields, timestamp_us in zip(*columns, strict=True):
                self.log.setdefault(fields[0], Stored(Row(*fields), timestamp_us))


TestMarkedStream = MarkedStream.TestCase
TestMarkedStream.settings = settings(max_examples=examples(20), stateful_step_count=25)
