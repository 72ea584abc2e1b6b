"""A consumer with acks against a plain model: deliveries, acks of any kind and age, time, messages that vanish, leaders
that follow each other, and rows compacted at any moment.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import CorruptionError
from penstock.consumers import config as configs
from penstock.consumers.config import AckConfig
from penstock.consumers.fold import stored_consumers
from penstock.consumers.state import ConsumerState, Row
from penstock.hot import pending as hot
from penstock.hot import pending_acks
from penstock.hot.deliveries import Cursor, DecodedRows, Filter, Pull, Texts
from penstock.hot.message_group import MessageGroup
from tests.property.consumer_model import Message, Model

ID = b"\x01consumer"[:8]
NAME = b"orders.worker"
KEYS = "klm"
RESULTS = ("applied", "late", "unknown", "forged")
KINDS = {"ack": hot.ACK, "nak": hot.NAK, "wpi": hot.IN_PROGRESS, "term": hot.TERM}
PAYLOADS = {"ack": b"+ACK", "nak": b"-NAK", "wpi": b"+WPI", "term": b"+TERM"}
BATCHES_KEPT = 6


class Delivery(NamedTuple):
    """A delivery as its client sees it."""

    subject: bytes  # of its acks
    offset: int
    sequence: int
    token: int
    generation: int


def texts(values: list[bytes]) -> Texts:
    return Texts(array("i", accumulate(map(len, values), initial=0)).tobytes(), b"".join(values))


def replies(out: bytes) -> list[bytes]:
    """The reply subjects of frames without headers, whose values are one byte."""
    found = []
    while out:
        line, _, rest = out.partition(b"\r\n")
        assert line.startswith(b"LMSG inbox $JS.ACK."), line
        assert line.endswith(b" 1")
        found.append(line.split(b" ")[2].partition(b"@")[0])
        out = rest[3:]
    return found


class Consumers(RuleBasedStateMachine):
    """See the module."""

    state: ConsumerState
    model: Model
    cursor: Cursor

    def __init__(self) -> None:
        super().__init__()
        self.log: list[list[Row]] = []  # batches
        self.told: list[Model] = []  # what the rows up to each batch tell
        self.stream: dict[int, str] = {}  # subjects by offset
        self.end = 0
        self.gone: set[int] = set()
        self.now_us = 7_000_123
        self.origin_us = self.now_us
        self.deliveries: list[Delivery] = []
        self.sent: dict[tuple[int, int], int] = {}  # committed deliveries by generation and offset
        self.floors = (0, 0)

    @initialize(
        max_deliver=st.sampled_from([0, 1, 2, 3]),
        pending_max=st.sampled_from([1, 3, 1_000]),
        order=st.sampled_from([configs.ORDER_NONE, configs.ORDER_TOKEN_FIRST + 1, configs.ORDER_KEY]),
        acks_all=st.booleans(),
        backoff=st.sampled_from([(), (5_000,), (2_000, 9_500, 30_000)]),
    )
    def begin(self, max_deliver: int, pending_max: int, order: int, acks_all: bool, backoff: tuple[int, ...]) -> None:
        config = AckConfig(
            ack_wait_us=10_000,
            backoff_us=backoff,
            max_deliver=max_deliver,
            max_ack_pending=pending_max,
            acks_all=acks_all and not order,
            order=order,
        )
        self.state = ConsumerState.new(ID, config, b"{}", 0, self.now_us)
        self.model = Model(config, 0)
        self.attach()
        self.commit(self.state.first_rows())

    def attach(self) -> None:
        self.cursor = Cursor(Filter([b"a.>"]), b"", 0)
        self.cursor.attach(self.state.table, b"$JS.ACK.orders.worker.")
        self.cursor.pulls.append(Pull(b"inbox", b"", 2**40, 0))
        self.cursor.room = 2**40

    @property
    def clock(self) -> int:
        """The clock's ms that has begun; what changes counts from the next one."""
        return (self.now_us - self.origin_us) // 1_000

    @property
    def clock_up(self) -> int:
        return -(-(self.now_us - self.origin_us) // 1_000)

    # The stream.

    @rule(subjects=st.lists(st.sampled_from(["a.k", "a.l", "a.m", "a", "b.k"]), max_size=8), skip=st.integers(0, 2))
    def publish(self, subjects: list[str], skip: int) -> None:
        self.end += skip
        for subject in subjects:
            self.stream[self.end] = subject
            self.end += 1

    def rows(self) -> DecodedRows:
        """The whole stream as one batch, with a row at its end that nobody wants."""
        offsets = [*self.stream, self.end]
        subjects = [subject.encode() for subject in self.stream.values()] + [b"z"]
        keys = [subject.rpartition(b".")[2] for subject in subjects]
        times = array("q", [1_700_000_000_000_000] * len(offsets)).tobytes()
        values = texts([b"v"] * len(offsets))
        found = DecodedRows(0, array("q", offsets).tobytes(), times, texts(subjects), values, None, texts(keys))
        found.skip(bytes(offset in self.gone for offset in offsets))
        return found

    def wanted(self) -> list[tuple[int, str | None]]:
        return [
            (offset, subject[2:] if subject.startswith("a.") and offset not in self.gone else None)
            for offset, subject in self.stream.items()
        ]

    @rule(begin=st.integers(0, 40), size=st.integers(1, 6))
    def vanish(self, begin: int, size: int) -> None:
        """Messages go, and the consumer is told."""
        self.gone |= {offset for offset in self.stream if begin <= offset < begin + size}
        assert self.state.remove_range(begin, begin + size) == self.model.remove_range(begin, begin + size)

    @rule(offset=st.integers(0, 40))
    def vanish_untold(self, offset: int) -> None:
        if offset in self.stream:
            self.gone.add(offset)

    # Deliveries.

    def take(self, out: bytearray, expected: list[int]) -> None:
        """Compare frames with what the model says, and let them out once they are committed."""
        model = self.model
        found = [pending_acks.ack_parts(reply) for reply in replies(bytes(out))]
        assert [parts[2] for parts in found if parts] == expected
        sequence = model.delivered - len(found)
        for reply, parts in zip(replies(bytes(out)), found, strict=True):
            assert parts is not None
            sequence += 1
            name, count, offset, told_sequence, token = parts
            one = model.messages[offset]
            assert (name, count, told_sequence) == (NAME, one.count, sequence)
            self.deliveries.append(Delivery(reply, offset, sequence, token, model.generation))
        if not model.config.commits_first:
            return
        self.note()
        for offset in expected:
            place = model.generation, offset
            self.sent[place] = self.sent.get(place, 0) + 1
        in_hand = [one.key for one in model.messages.values() if one.state == "hand" and not one.is_expired]
        assert not model.config.is_ordered or len(in_hand) == len(set(in_hand))

    @rule(limit=st.integers(0, 5))
    def deliver(self, limit: int) -> None:
        out = bytearray()
        self.cursor.messages_left = limit
        self.cursor.fill(self.rows(), out, 2**30, self.now_us)
        self.take(out, self.model.fill(self.wanted(), limit, self.end + 1, self.clock_up))
        self.end = max(self.end, self.state.table.next_offset)  # the row at its end was passed

    @rule(limit=st.integers(0, 5))
    def deliver_again(self, limit: int) -> None:
        out = bytearray()
        self.cursor.messages_left = limit
        self.cursor.fill_again(self.rows(), out, 2**30, self.now_us)
        self.take(out, self.model.fill_again(self.gone, limit, self.end + 1, self.clock_up))

    # Acks.

    @precondition(lambda self: self.deliveries)
    @rule(picks=st.lists(st.tuples(st.integers(0, 400), st.sampled_from(list(KINDS))), min_size=1, max_size=6))
    def acks(self, picks: list[tuple[int, str]]) -> None:
        """A read of plain acks, of any delivery that ever was."""
        chosen = [(self.deliveries[-1 - pick % len(self.deliveries)], kind) for pick, kind in picks]
        group = MessageGroup.of([one.subject for one, _ in chosen], [PAYLOADS[kind] for _, kind in chosen])
        table = self.state.table
        before = table.acked, table.late, table.unknown, table.forged
        others: list[int] = []
        tables = {NAME: table}
        touched = pending_acks.apply_acks(group, 0, len(group), tables, self.now_us, others)
        found = [self.apply(one, kind, 0) for one, kind in chosen]
        after = table.acked, table.late, table.unknown, table.forged
        assert [found.count(name) for name in RESULTS] == [b - a for a, b in zip(before, after, strict=True)]
        assert others == []
        assert touched == ([table] if "applied" in found else [])

    def apply(self, one: Delivery, kind: str, delay_ms: int | None) -> str:
        is_named = one.token == self.state.table.token(one.offset + 1, one.sequence)  # by chance, too: one in 1,000
        assert is_named or one.generation != self.model.generation
        found = self.model.judge(kind, one.offset, one.sequence, self.model.generation if is_named else -1)
        if found == "applied":
            self.model.settle(kind, one.offset, delay_ms, self.clock_up)
        return found

    @precondition(lambda self: self.deliveries)
    @rule(
        pick=st.integers(0, 400), kind=st.sampled_from(list(KINDS)), delay=st.sampled_from([None, 0, 1, 2_500, 40_000])
    )
    def ack(self, pick: int, kind: str, delay: int | None) -> None:
        one = self.deliveries[-1 - pick % len(self.deliveries)]
        table = self.state.table
        checked = table.check(KINDS[kind], one.offset, one.sequence, one.token)
        delay_us = hot.BY_BACKOFF if delay is None else delay
        found = table.settle(KINDS[kind], one.offset, one.sequence, one.token, delay_us, self.now_us)
        delay_ms = None if delay is None else -(-delay // 1_000)
        assert RESULTS[found] == RESULTS[checked] == self.apply(one, kind, delay_ms)

    @precondition(lambda self: self.deliveries)
    @rule(pick=st.integers(0, 400), step=st.integers(1, 999), kind=st.sampled_from(list(KINDS)))
    def forged_ack(self, pick: int, step: int, kind: str) -> None:
        one = self.deliveries[-1 - pick % len(self.deliveries)]
        token = (one.token + step) % 1_000
        if one.generation != self.model.generation and token == self.state.table.token(one.offset + 1, one.sequence):
            return
        found = self.state.table.settle(KINDS[kind], one.offset, one.sequence, token, 0, self.now_us)
        assert RESULTS[found] == "forged"

    # Time.

    @rule(us=st.sampled_from([1, 999, 1_000, 4_321, 12_000, 60_000_000]))
    def pass_time(self, us: int) -> None:
        self.now_us += us

    @rule()
    def expire(self) -> None:
        due_us = self.state.table.next_due_us()
        ended = self.state.expire(self.now_us)
        assert sorted(ended) == self.model.expire(self.clock)
        assert due_us <= self.now_us or not ended

    @rule(number=st.integers(0, 50))
    def give_up(self, number: int) -> None:
        ended = self.state.exhausted(100)
        assert ended == [offset for offset in sorted(self.model.messages) if self.model.state(offset) == "ended"]
        if ended:
            assert self.state.give_up(ended[number % len(ended)])
            self.model.leave(ended[number % len(ended)])
        assert not self.state.give_up(self.model.next_offset)

    @rule(seed=st.integers(0, 2**32))
    def work(self, seed: int) -> None:
        """A while of what a consumer mostly does."""
        chance = Random(seed)

        def below(end: int) -> int:
            return int(chance.random() * end)

        for _ in range(40):
            step = chance.choice("ppdddaaasssssttteegvn")
            if step == "p":
                subjects = [chance.choice(("a.k", "a.l", "a.k", "a.m", "b.k")) for _ in range(1 + below(5))]
                self.publish(subjects, below(2))
            elif step == "d":
                self.deliver(1 + below(4))
            elif step == "a":
                self.deliver_again(1 + below(4))
            elif step == "s" and self.deliveries:
                kinds = "ack", "ack", "nak", "nak", "wpi", "term"
                self.acks([(below(8), chance.choice(kinds)) for _ in range(1 + below(3))])
                self.ack(below(8), chance.choice(kinds), chance.choice((None, 0, 2_500)))
            elif step == "t":
                self.pass_time(chance.choice((999, 4_321, 12_000, 31_000)))
                self.expire()
            elif step == "e":
                self.expire()
            elif step == "g":
                self.give_up(below(9))
            elif step == "v":
                self.vanish(below(self.end + 1), 1 + below(2))
            elif step == "n":
                self.note()
            self.agrees()
            self.is_never_told_too_often()

    @rule(seed=st.integers(0, 2**32))
    def work_on(self, seed: int) -> None:
        """More of it: most steps are work."""
        self.work(seed)

    @rule(seed=st.integers(0, 2**32))
    def work_and_follow(self, seed: int) -> None:
        self.work(seed)
        self.follow(seed)

    # What its client or operator asks for.

    @rule(offset=st.integers(0, 40))
    def reset(self, offset: int) -> None:
        self.state.reset(min(offset, self.end))
        self.model.reset(min(offset, self.end))
        self.attach()
        self.floors = (0, 0)

    @rule(max_deliver=st.sampled_from([0, 1, 2, 3]), pending_max=st.sampled_from([1, 3, 1_000]))
    def update(self, max_deliver: int, pending_max: int) -> None:
        old = self.model.config
        max_deliver = (max_deliver or 1) if old.max_deliver else 0  # deliveries without a limit would count
        config = AckConfig(
            ack_wait_us=old.ack_wait_us,
            backoff_us=old.backoff_us,
            max_deliver=max_deliver,
            max_ack_pending=pending_max,
            acks_all=old.acks_all,
            order=old.order,
        )
        self.model.configure(config)
        self.commit(self.state.update(config, b'{"again":1}'))

    # Rows.

    def commit(self, batch: list[Row]) -> None:
        self.log.append(batch)
        if any(key.endswith(b"/s") for key, _ in batch):
            self.model.keep_expired()
        self.told.append(self.model.copy())

    @rule()
    def note(self) -> None:
        """Take what changed, and append it."""
        if not self.state.has_changes(self.now_us):
            assert self.state.take_rows(self.now_us) == []
            return
        if self.state.table.next_due_us() != hot.NEVER and self.clock >= self.model.clock + 60_000:
            self.model.tick(self.clock_up)
        self.commit(self.state.take_rows(self.now_us))

    @rule()
    def lose(self) -> None:
        """Rows are refused, and the leadership goes on."""
        if self.state.take_rows(self.now_us):
            self.model.clock = self.state.table.clock_ms
            self.state.rows_lost()
            self.note()

    @rule(seed=st.integers(0, 2**32))
    def follow(self, seed: int) -> None:
        """Another leader reads the rows, of which compaction has left some, and goes on."""
        self.note()
        self.check(len(self.log), seed)
        self.lead(self.read(len(self.log), seed), self.told[-1])

    @rule(back=st.integers(1, BATCHES_KEPT), seed=st.integers(0, 2**32))
    def check_earlier(self, back: int, seed: int) -> None:
        """What was appended by an earlier moment is what was told by then."""
        self.check(max(1, len(self.log) - back), seed)

    @rule(end=st.integers(0, 40), seed=st.integers(0, 2**32))
    def follow_unclean(self, end: int, seed: int) -> None:
        """The new leader has fewer messages; rows that were not appended are lost with the old one."""
        if self.model.config.commits_first:
            self.note()
        end = min(end, self.end)
        model = self.told[-1].copy()
        model.cut(end)
        is_cut = model.next_offset < self.told[-1].next_offset
        stored = stored_consumers(self.kept(len(self.log), seed))[ID]
        self.now_us += 5_555
        self.lead(stored.take_over(self.now_us, end), model)
        self.stream = {offset: subject for offset, subject in self.stream.items() if offset < end}
        self.gone = {offset for offset in self.gone if offset < end}
        self.end = end
        # What was delivered by the old leader, and is written anew, may have the same sequences.
        self.deliveries = [] if is_cut else self.deliveries
        self.sent = {}

    def lead(self, state: ConsumerState, model: Model) -> None:
        self.state, self.model = state, model.copy()
        self.origin_us = self.now_us - 1_000 * model.clock
        self.attach()
        self.floors = (0, 0)
        # Deliveries behind the rows are made again, with the same sequences.
        place = model.generation, model.delivered
        self.deliveries = [one for one in self.deliveries if (one.generation, one.sequence) <= place]

    def kept(self, batches: int, seed: int) -> dict[bytes, bytes]:
        """The last row of each key, and what it is without those that compaction has removed."""
        chance = Random(seed)
        rows = [row for batch in self.log[:batches] for row in batch]
        last = {key: number for number, (key, _) in enumerate(rows)}
        left = [row for number, row in enumerate(rows) if last[row[0]] == number or chance.random() < 0.5]
        return {key: value for key, value in left if value is not None}

    def read(self, batches: int, seed: int) -> ConsumerState:
        return stored_consumers(self.kept(batches, seed))[ID].take_over(self.now_us, 2**50)

    def check(self, batches: int, seed: int) -> None:
        self.compare(self.read(batches, seed), self.told[batches - 1], self.now_us)

    def compare(self, state: ConsumerState, model: Model, now_us: int) -> None:
        """Compare a state whose clock goes on at `now_us`."""
        table = state.table
        assert (table.next_offset, table.delivered, table.generation) == (
            model.next_offset,
            model.delivered,
            model.generation,
        )
        assert table.clock_ms == model.clock
        self.compare_messages(table, model)
        assert table.origin_us == now_us - 1_000 * model.clock

    def compare_messages(self, table: Any, model: Model) -> None:
        found = {offset: tuple(rest) for offset, *rest in table.entries(0, 10**6)}
        assert found == {
            offset: shown(model, one, offset, table.origin_us) for offset, one in sorted(model.messages.items())
        }

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "state"):
            return
        table, model = self.state.table, self.model
        self.compare_messages(table, model)
        assert table.next_offset == model.next_offset
        assert table.count == len(model.messages)
        assert (table.ack_pending, table.parked) == (model.ack_pending, model.parked)
        assert table.redelivered == sum(one.count > 1 for one in model.messages.values())
        ready = model.ready()
        assert (table.ready, table.ready_offsets(0, 1_000)) == (len(ready), ready)
        assert table.has_no_room() == model.is_full()
        floors = table.floor_offset(), table.floor_sequence()
        assert floors == model.floors()
        assert floors >= self.floors
        assert floors[1] >= self.floors[1]
        self.floors = floors
        dues = [one.due for one in model.messages.values() if one.due != hot.NEVER and not one.is_expired]
        assert not dues or table.next_due_us() <= table.origin_us + 1_000 * min(dues)

    @invariant()
    def is_never_told_too_often(self) -> None:
        if not hasattr(self, "state") or not self.model.config.max_deliver:
            return
        counts = [one.count for one in self.model.messages.values()]
        limits = [count for count in counts if count > max(3, self.model.config.max_deliver)]
        assert not limits
        assert all(count <= 3 for count in self.sent.values())


def shown(model: Model, one: Message, offset: int, origin_us: int) -> tuple[str, int, int, int, int]:
    state = model.state(offset)
    due_us = origin_us + 1_000 * one.due if state in ("hand", "waits") else hot.NEVER
    return state, one.count, one.last, one.first, due_us


TestConsumers = Consumers.TestCase


def test_missing_change_is_told() -> None:
    state = ConsumerState.new(ID, AckConfig(), b"", 0, 0)
    rows = dict(state.first_rows())
    for offset in range(3):
        state.table.deliver(offset, 0, 1_000 * offset)
        rows.update(state.take_rows(1_000 * offset))
    del rows[b"v1/" + ID + b"/01"]
    with pytest.raises(CorruptionError, match="changes from 0 on"):
        stored_consumers({key: value for key, value in rows.items() if value is not None})
