"""Invariants that must hold at every moment, whatever goes wrong.

Rules: A promise is anything that was acked, answered or shown to a consumer. One `PartitionHistory` is kept for each
partition of each stream that ever existed. A stream that is recreated under the same name has another subject, so it
gets another history.

| promise                                                       | checked at                                 |
|---------------------------------------------------------------|--------------------------------------------|
| an acked message is at its offset, once, and stays            | an ack, a read, every start, every audit   |
| it is in the partition of its key, in order (see `split`)     | an ack, a read                             |
| no offset ever shows two different messages                   | an ack, a read                             |
| a reader sees what was sent, without holes                    | a read                                     |
| a reader skips only what compaction may remove (`compacted`)  | a read, every event of the broker          |
| … or what a request has asked to delete                       | a read                                     |
| a duplicate is where its ack says                             | an ack of the broker                       |
| a refused message is not in the log                           | an ack, a read, a refusal                  |
| no leader shows messages whose truncation was acknowledged    | every event of the broker                  |
| only retention or a truncation request removes messages       | a read, every event of the broker          |
| while deletion is suspended only a request removes messages   | every event of the leader                  |
| a leader that has counted shows at most `max_messages`        | every event of the leader                  |
| log_start ≤ committed_end ≤ log_end                           | every event of the broker                  |
| committed_end covers all acked messages and never goes back   | every event of the broker                  |
| each leader epoch has one leader: one run of one broker       | every event of the broker                  |
| what was acked as synced survives every power loss            | every start                                |
| a log keeps what was on its disk                              | every start                                |
| no log is shorter after a clean stop, whatever was corrupted  | every opened log                           |
| a stream whose creation was acknowledged exists               | every start                                |
| each ISR member, by the newest image, has all acked messages  | every event of the broker                  |

If a partition has replicas, its leader is held to the promises: the latest leader has all committed messages. Unsynced
messages may be lost only if all ISR members lose power before one of them is in sync again. Even then only messages
that no replica that counted in the election has on its disk may be lost: the longest log leads. A start that takes
corruption for a torn tail, because the checkpoint is older than these bytes, is as one after a power loss, and may have
lost synced messages too. A broker that stopped cleanly must not start so.

Duplicates, refusals, permissions, the audit stream, and rows that keep their offsets are checked more closely under the
load of `tests/sim`.

With durability `os` a power loss may remove what was not flushed, acked or not. Such a history is then cut to the log
that was recovered. Corrupted bytes on the only replica are lost, but never silently. If other replicas are in sync,
corruption excuses no loss of theirs; a leader whose own log is corrupt may fail to show some messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.config import Durability, StreamConfig
from penstock.base.errors import CorruptionError, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.commitlog import LogCutError
from penstock.metadata.companions import is_companion, is_consumers, is_marks, target_id
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.compacted import Compacted, CompactedRow
from penstock.testing.simulation.checks.split import SplitModel
from penstock.testing.simulation.rows import ReadRows

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker

_KEYLESS = CompactedRow(None, is_tombstone=False)


class SentMessage(NamedTuple):
    """One message. `name`: its unique identification; `value` None: a tombstone; `headers`: its NATS headers."""

    subject: bytes
    name: bytes
    value: bytes | None
    headers: bytes = b""
    key: bytes | None = None
    by: bytes = b""  # decides the partition: see `split`
    number: int = 0  # sequence of the messages with the same `by`; 0: the publisher did not wait

    @property
    def row(self) -> CompactedRow:
        """Key and tombstone flag, for compaction."""
        return CompactedRow(self.key, self.value is None)


@dataclass(slots=True)
class Ends:
    """The positions of one broker's replica at its last check."""

    committed_end: int = 0
    flushed_end: int = 0
    log_end: int = 0
    isr: tuple[int, ...] = ()


@dataclass(slots=True)
class PartitionHistory:
    """All promises about one partition."""

    config: StreamConfig
    partition: int
    stream_id: int = 0  # 0 until a broker has the partition
    known: dict[int, bytes] = field(default_factory=dict)  # offset → value of every message that was acked or read
    places: dict[bytes, int] = field(default_factory=dict)  # value → offset
    promised_end: int = 0  # end of `known`
    committed_end: int = 0  # highest high watermark that any leader had, whether or not a client knew it
    synced_end: int = 0  # end of the messages that were acked as synced
    truncating: int = 0  # highest offset of any truncation request
    truncated: int = 0  # highest offset of any acknowledged truncation request
    deleting: set[int] = field(default_factory=set)  # offsets of messages that a request has asked to delete
    lowest_limit: int | None = None  # by subject, that a request has asked for; all rows are on one subject
    acks: int = 0
    suspended: dict[tuple[int, int], int] = field(default_factory=dict)  # (broker, epoch) → log start since then
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)  # leader epoch → broker and its run
    led_us: dict[int, int] = field(default_factory=dict)  # leader epoch → time at which it was first observed
    ends: dict[int, Ends] = field(default_factory=dict)  # by broker
    left: dict[int, int] = field(default_factory=dict)  # broker → log end offset of its last run that had the log open
    cuts: list[tuple[int, int]] = field(default_factory=list)  # (last epoch, end) of each permitted loss: see `is_lost`
    lost_power: set[int] = field(default_factory=set)  # brokers that have not recovered this log since their power loss
    unclean: set[int] = field(default_factory=set)  # brokers that may lack messages until they are in sync again
    isr: tuple[int, ...] = ()  # from the newest image that any broker has applied
    isr_index: int = -1
    may_lose: bool = False  # all ISR members lost power together
    counting: tuple[int, ...] = ()  # replicas with every acked message when the partition last had no leader
    counting_version: int = -1  # version of the ISR at that time
    damaged: set[tuple[int, int]] = field(default_factory=set)  # (broker, disk number) with corrupted bytes
    mended: set[tuple[int, int]] = field(default_factory=set)  # subset of `damaged` that is readable again
    was_damaged: set[tuple[int, int]] = field(default_factory=set)  # damaged at any time: older copies still are
    harmed: dict[tuple[int, int], set[str]] = field(default_factory=dict)  # the same → paths of these segments
    is_damaged: bool = False  # corrupt, and no other replica surely had the bytes: promises are void
    is_given_up: bool = False  # treated as damaged: an operator allowed an unclean leader election
    is_deleted: bool = False  # deleted, or about to be
    compacted: Compacted | None = None  # None: the stream is not compacted
    companion: PartitionHistory | None = None  # of its marks, once a broker has that log
    consumers: PartitionHistory | None = None  # of its consumers, once they were asked for
    split: SplitModel | None = None  # of the stream; None: publishers choose the partition
    began: Callable[[SimBroker, inspector.PartitionLook], None] | None = (
        None  # for staged rows: receives the log start offset of a broker
    )

    @property
    def has_lost_marks(self) -> bool:
        """True if its companion log may have lost marks: what they have hidden may come back."""
        companion = self.companion
        return companion is not None and bool(companion.is_damaged or companion.is_given_up or companion.cuts)

    def is_cut_at(self, offset: int) -> bool:
        """True if a permitted loss reached `offset` or below, so a broker or reader may go back to it."""
        return any(end <= offset for _, end in self.cuts)

    def was_damaged_on(self, broker_id: int) -> bool:
        """True if bytes were changed on a disk of that broker (0: of any broker)."""
        return any(broker_id in (0, one) for one, _ in self.damaged)

    def is_lost(self, offset: int, leader_epoch: int) -> bool:
        """True if a permitted loss has removed the message since the event that reports it."""
        return any(leader_epoch <= last_epoch and offset >= end for last_epoch, end in self.cuts)

    def may_be_hidden(self, offset: int) -> bool:
        """True if a deletion was asked for, acks remove messages, or a limit by subject hides it for later ones."""
        if offset in self.deleting or self.config.is_consumed:
            return True
        return self.lowest_limit is not None and self.committed_end - offset > self.lowest_limit

    @property
    def is_os(self) -> bool:
        """True if a power loss may remove acked messages."""
        return self.config.durability is Durability.OS

    @property
    def retains(self) -> bool:
        """True if retention may remove old messages."""
        return self.config.max_messages is not None or self.began is not None or self.config.is_consumed

    def may_begin_at(self, log_start: int) -> bool:
        """True if all messages before `log_start` may have been removed."""
        return self.retains or log_start <= self.truncating

    def name(self) -> str:
        """Return a label for error texts."""
        return f"{self.config.name} ({self.config.subject}) partition {self.partition}"


class Checks:
    """All histories. A broken promise raises ViolationError."""

    def __init__(
        self,
        brokers: int,
        cut: Callable[[PartitionHistory, int], None],
        now_us: Callable[[], int] = lambda: 0,
        has_committed: Callable[[PartitionHistory, int, int], bool] = lambda _history, _broker_id, _end: False,
        agreed_end: Callable[
            [PartitionHistory, inspector.PartitionLook, SimBroker], int
        ] = lambda _history, look, _broker: look.log_end,
        compacted: Callable[
            [PartitionHistory, SimBroker, inspector.PartitionLook], None
        ] = lambda _history, _broker, _look: None,
        key: Callable[[inspector.PartitionLook], str] = lambda look: look.subject,
    ) -> None:
        """Create the checks. `has_committed`, `agreed_end` and `compacted` are methods of `Agreement`.

        Args:
            brokers: Number of brokers in the cluster.
            cut: Called after a permitted loss in a history.
            now_us: Returns the true time.
            key: Returns the subject that identifies a partition's history.
        """
        self._key = key
        self._now_us = now_us
        self._has_committed = has_committed
        self._agreed_end = agreed_end
        self._compacted = compacted
        self._is_alone = brokers == 1
        self._was_cut = cut
        self.histories: dict[tuple[str, int], PartitionHistory] = {}  # by subject and partition
        self.sent: dict[bytes, str] = {}  # value → subject of the stream to which it is published
        self.told_subjects: dict[bytes, bytes] = {}  # value → subject of the message
        self.keyed: dict[bytes, CompactedRow] = {}  # value, or subject of a tombstone → key and tombstone flag
        self.message_ids: dict[bytes, bytes] = {}  # reply subject → Nats-Msg-Id of the message
        self.duplicates = 0  # acks of duplicates that were verified in the log
        self._refused: dict[bytes, str] = {}  # value → error that its publisher received
        self.recovered = 0  # recovered logs
        self.isr_changes = 0
        self.truncations = 0
        self.shortened = 0  # logs of which a start has cut off corruption
        self.created: dict[int, PartitionHistory] = {}  # streams whose creation was acknowledged, by id
        self.subjects: dict[int, str] = {}  # stream id → subject, as brokers report them
        self._seen: dict[int, inspector.Seen] = {}  # broker → its state at the last check in this run
        self._clean: set[int] = set()  # brokers whose last stop counts as clean
        self._standings: dict[int, inspector.StandingLook] = {}  # broker → at its last check

    def begin(self, config: StreamConfig) -> None:
        """Register a stream, or its added partitions, before a client requests it."""
        before = self.histories.get((config.subject, 0))
        split = SplitModel.of(config) if before is None else before.split
        if split is not None:
            split.grows(config)
        for partition in range(config.partitions):
            history = self.histories.setdefault((config.subject, partition), PartitionHistory(config, partition))
            history.split = split
            history.stream_id = history.stream_id or (0 if before is None else before.stream_id)
            if config.compact:
                history.compacted = Compacted(config.tombstone_retention_ms * 1_000)

    def of(self, subject: str, partition: int) -> PartitionHistory:
        return self.histories[subject, partition]

    def _history_of(self, broker: SimBroker, look: inspector.PartitionLook) -> PartitionHistory:
        """Return a replica's history; that of a companion log begins when a broker has the log."""
        key = self._key(look), look.partition
        if key not in self.histories and is_companion(look.stream_id):
            assert broker.node is not None
            stream_id = target_id(look.stream_id)
            ids = (one for one in self.histories.values() if (one.stream_id, one.partition) == (stream_id, key[1]))
            # A stream with a limit by subject has them from its beginning: they may be opened first.
            whose = next(ids, None) or self.of(inspector.subject_of(broker.node, stream_id), key[1])
            config = inspector.companion_config(broker.node, look)
            made = self.histories[key] = PartitionHistory(config, look.partition)
            if is_marks(look.stream_id):
                whose.companion = made
            else:
                whose.consumers = made
        return self.histories[key]

    def all_of(self, history: PartitionHistory) -> list[PartitionHistory]:
        """Return the histories of all partitions of its stream."""
        return [one for (subject, _), one in self.histories.items() if subject == history.config.subject]

    # Clients

    def promised(
        self, history: PartitionHistory, offset: int, leader_epoch: int, value: bytes, *, fsynced: bool
    ) -> None:
        """Record and check an ack that a publisher received."""
        history.acks += 1
        if fsynced and offset >= history.synced_end:
            history.synced_end = offset + 1
        is_auto = history.config.durability is Durability.AUTO
        if not (fsynced or history.is_os or (is_auto and not self._is_alone)):
            raise ViolationError(f"{history.name()}: offset {offset} was acked before it was synced")
        if not history.is_lost(offset, leader_epoch):
            self._know(history, offset, value, "acked")
        elif fsynced and not history.is_damaged:
            raise ViolationError(f"{history.name()}: offset {offset} was acked as synced, and is lost")

    def promised_elsewhere(self, history: PartitionHistory, offset: int, value: bytes) -> None:
        """Record a duplicate's ack, received by its publisher, that names another partition as the message's place."""
        history.acks += 1
        if not history.is_lost(offset, 0):
            self._know(history, offset, value, "acked")

    def sends(self, config: StreamConfig, message: SentMessage) -> None:
        """Register a message before its publisher sends it."""
        self.sent[message.name] = config.subject
        self.told_subjects[message.name] = message.subject
        if message.key is not None:
            self.keyed[message.name] = message.row
        if (split := self.of(config.subject, 0).split) is not None:
            split.sends(message.name, message.by, message.number)

    def refused(self, history: PartitionHistory, value: bytes, why: str) -> None:
        """Record an error by which a publisher learned that its message is not stored."""
        self._refused[value] = why
        if value in history.places:
            raise ViolationError(f"{history.name()}: {value!r} is there, and was refused: {why}")

    def truncated(self, history: PartitionHistory, before: int) -> None:
        """Record that a client received the acknowledgement of a truncation request."""
        history.truncated = max(history.truncated, before)
        self._check_again(history)

    def read(
        self, history: PartitionHistory, offset: int, end_offset: int, raw: bytes, broker_id: int = 0
    ) -> ReadRows | None:
        """Check the batches that a consumer at `offset` received, which cover everything up to `end_offset`.

        Return their rows, or None if they are corrupt. `broker_id` is the broker that served the read; 0: the leader.
        """
        try:
            rows = ReadRows(raw)
        except CorruptionError as error:
            if not history.was_damaged_on(broker_id):
                raise ViolationError(f"{history.name()}: read from {offset}: {error}") from error
            return None
        begin = next((n for n, one in enumerate(rows.offsets) if one >= offset), len(rows.offsets))
        found = rows.offsets[begin:]
        expected: Iterable[int] = range(offset, end_offset)
        if history.compacted is not None:
            passed_over = set(expected).difference(found)
            self.passed_over(history, sorted(passed_over))
            expected = sorted(set(expected) - passed_over)
        if history.deleting or history.lowest_limit is not None:
            there = set(found)
            expected = [one for one in expected if one in there or not history.may_be_hidden(one)]
        if found != list(expected):
            raise ViolationError(f"{history.name()}: read from {offset} to {end_offset}, got offsets {found}")
        for place, value, key, leader_epoch in zip(
            found, rows.values[begin:], rows.keys[begin:], rows.epochs[begin:], strict=True
        ):
            if not (history.cuts and history.is_lost(place, leader_epoch)):
                self._know(history, place, value, "read", key)
        return rows

    @staticmethod
    def passed_over(history: PartitionHistory, offsets: Iterable[int]) -> None:
        """Check offsets that a consumer found empty.

        Not checked after a permitted loss: lost rows that reappear are not known to be committed.
        """
        if history.compacted is None or history.is_damaged or history.cuts or history.has_lost_marks:
            return
        if mistake := history.compacted.passed_over(offsets):
            raise ViolationError(f"{history.name()}: {mistake}")

    def _know(self, history: PartitionHistory, offset: int, value: bytes, how: str, key: bytes | None = None) -> None:
        """Record that a value is at `offset`. `key` is the key that was read."""
        if history.is_given_up:
            return
        sent = self.keyed.get(value, _KEYLESS)
        if how == "read" and key != sent.key:
            raise ViolationError(
                f"{history.name()}: {value!r} was sent with key {sent.key!r}, and is read with {key!r}"
            )
        known = history.known.get(offset)
        if known is not None:
            if known != value:
                text = f"{history.name()}: offset {offset} was {known!r}, and now {value!r} is {how} there"
                raise ViolationError(text)
            return
        if self.sent.get(value) != history.config.subject:
            raise ViolationError(f"{history.name()}: {value!r} at offset {offset} was never sent there")
        if (why := self._refused.get(value)) is not None:
            raise ViolationError(f"{history.name()}: {value!r} is {how} at offset {offset}, and was refused: {why}")
        place = history.places.get(value)
        if place is not None and min(place, offset) >= history.truncating:  # else it may have been sent again
            raise ViolationError(f"{history.name()}: {value!r} is at offset {place}, and is {how} at {offset} too")
        if history.split is not None and (mistake := history.split.mistake(history.partition, offset, value)):
            raise ViolationError(f"{history.name()}: {value!r} is {how} at offset {offset}: {mistake}")
        history.known[offset] = value
        history.places[value] = offset if place is None else max(place, offset)
        if history.compacted is not None:
            history.compacted.know(offset, sent)
        if offset >= history.promised_end:
            history.promised_end = offset + 1
            history.committed_end = max(history.committed_end, offset + 1)
            self._check_again(history)

    def _check_again(self, history: PartitionHistory) -> None:
        """Check every broker again at its next event, because the promises changed."""
        key = PartitionKey(StreamId(history.stream_id), PartitionId(history.partition))
        for seen in self._seen.values():
            seen.pop(key, None)

    # Brokers

    def acted(
        self, broker: SimBroker, standing: inspector.StandingLook
    ) -> list[tuple[PartitionHistory, inspector.PartitionLook]]:
        """Check a broker after each turn; return the partitions whose `committed_end` or ISR has changed.

        Only partitions whose state or promises have changed since the last check are checked (see `_check_again`).
        """
        assert broker.node is not None
        moved = []
        seen = self._seen.setdefault(broker.broker_id, {})
        if self._standings.get(broker.broker_id) != standing:
            self._standings[broker.broker_id] = standing
            seen.clear()
        for look in inspector.changed(broker.node, seen):
            history = self._history_of(broker, look)
            history.stream_id = look.stream_id
            if not look.log_start <= look.committed_end <= look.log_end:
                raise ViolationError(f"{history.name()} on {broker.name}: {look}")
            if is_marks(look.stream_id):
                self._check_trimmed(history, broker, look)
            elif not history.may_begin_at(look.log_start):
                text = f"nobody has asked to give up more than what comes before {history.truncating}"
                raise ViolationError(f"{history.name()} on {broker.name}: {text}: {look}")
            _check_suspended(history, broker, look)
            _check_limit(history, broker, look)
            if history.began is not None:
                history.began(broker, look)
            ends = history.ends.get(broker.broker_id)
            if ends is None:
                ends = history.ends[broker.broker_id] = Ends()
                self.subjects[look.stream_id] = look.subject
                self._opened(history, broker, look)
            self._in_sync(history, broker, look, standing)
            if look.is_leader and (look.leads or not self._is_alone):
                self._led(history, broker, look)
            if broker.broker_id in history.isr and look.log_end < history.promised_end:
                self._lacks(history, broker, look)
            if history.compacted is not None:
                self._compacted(history, broker, look)
            # A batch may hold lost rows merged with kept ones: a replica that is not in sync fetches it again.
            kept = ends.committed_end if look.follows and not look.is_in_sync else look.committed_end
            may_go_back = history.is_cut_at(kept) or history.is_damaged
            if look.committed_end < ends.committed_end and not may_go_back:
                text = f"{history.name()} on {broker.name}: committed_end went from {ends.committed_end} back to"
                raise ViolationError(f"{text} {look.committed_end}")
            if look.is_leader and not history.is_lost(look.committed_end, look.leader_epoch):
                history.committed_end = max(history.committed_end, look.committed_end)
            if look.committed_end != ends.committed_end or (look.is_leader and look.isr != ends.isr):
                ends.committed_end, ends.isr = look.committed_end, look.isr
                moved.append((history, look))
            self.truncations += look.log_end < ends.log_end
            ends.flushed_end, ends.log_end = look.flushed_end, look.log_end
        return moved

    def _in_sync(
        self,
        history: PartitionHistory,
        broker: SimBroker,
        look: inspector.PartitionLook,
        standing: inspector.StandingLook,
    ) -> None:
        if standing.applied > history.isr_index:
            history.isr_index = standing.applied
            assert broker.node is not None
            if (counting := inspector.counting(broker.node, look)) is not None:
                history.counting, history.counting_version = counting, look.version
            if history.isr != look.isr:
                self.isr_changes += bool(history.isr)
                history.isr = look.isr
                self._check_again(history)
                self._look_for_loss(history)
        if history.unclean and standing.incarnation and look.is_in_sync and (look.follows or look.is_leader):
            history.unclean.discard(broker.broker_id)

    @staticmethod
    def _check_trimmed(history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Check that the marks which a leader has removed from a companion log are in a snapshot behind them."""
        assert broker.node is not None
        if look.log_start <= history.truncating or not look.is_leader or look.is_damaged:
            return
        with broker.disk.undisturbed(), contextlib.suppress(OSError, RemoteError, LogCutError, CorruptionError):
            if not inspector.has_all_marks(broker.node, look):
                text = f"it begins at {look.log_start}, and no committed snapshot holds the marks before"
                raise ViolationError(f"{history.name()} on {broker.name}: {text}: {look}")
            history.truncating = look.log_start

    def _opened(self, history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Take in what a run has found of a log: corruption that looks like a torn tail is cut off (see `recovery`).

        Only a start as after a crash may do so: a broker that stopped cleanly leads at once.
        """
        left_end = history.left.pop(broker.broker_id, 0)
        assert broker.node is not None
        harmed = history.harmed.get((broker.broker_id, broker.disk.number), ())
        cuts = inspector.cut_tails(broker.node, look)
        if look.log_end >= left_end or not any(cut.startswith(f"{path}:") for path in harmed for cut in cuts):
            return
        if broker.broker_id in self._clean:
            text = f"{history.name()} on {broker.name}: it ended at {left_end} when the broker stopped cleanly"
            raise ViolationError(f"{text}, has lost more than a torn tail, and counts as whole: {look}")
        self.shortened += 1
        history.unclean.add(broker.broker_id)
        if history.unclean.issuperset(history.isr):
            history.synced_end = min(history.synced_end, look.log_end)  # no other member of the ISR surely has more
        self._look_for_loss(history)

    @staticmethod
    def _lacks(history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Raise if an ISR member lacks an acked message without excuse: it could become leader at any moment."""
        may_lack = broker.broker_id in history.unclean or history.may_lose
        if not (may_lack or history.is_deleted or history.is_damaged):
            text = f"{history.name()}: {history.promised_end - 1} is acked, and {broker.name}, which is in the ISR"
            raise ViolationError(f"{text} {history.isr}, ends at {look.log_end}: {look}")

    def _look_for_loss(self, history: PartitionHistory) -> None:
        if history.isr and history.unclean.issuperset(history.isr):
            history.may_lose = True
            self._check_again(history)

    def _led(self, history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
        who = (broker.broker_id, broker.run)
        leader = history.leaders.setdefault(look.leader_epoch, who)
        history.led_us.setdefault(look.leader_epoch, self._now_us())
        if leader != who:
            text = f"{history.name()}: epoch {look.leader_epoch} is led by {who} and was led by {leader}"
            raise ViolationError(text)
        if look.leader_epoch < max(history.leaders) or history.is_deleted:
            return
        end = look.committed_end if self._is_alone else look.log_end
        if history.may_lose:  # it may have other messages in place of the lost ones
            end = min(end, self._agreed_end(history, look, broker))
        if history.is_damaged:
            if history.may_lose and end < history.committed_end:  # the loss is permitted; else the promises stay
                self._cut(history, end, look.leader_epoch - 1)
            return
        if end < history.committed_end:
            if history.may_lose and end >= history.synced_end:
                self._nobody_had_more(history, broker, look, end)
                self._cut(history, end, look.leader_epoch - 1)
                return
            what = "acked" if end < history.promised_end else "committed"
            text = f"{history.name()} on {broker.name}, who leads: {history.committed_end - 1} is {what}, and not there"
            raise ViolationError(f"{text}: {look}")
        if history.may_lose and look.committed_end >= history.promised_end:
            history.may_lose = False
        if look.log_start < history.truncated:
            text = f"{history.name()} on {broker.name}, who leads: what comes before {history.truncated} was given up"
            raise ViolationError(f"{text}, and is back: {look}")

    def _nobody_had_more(
        self, history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook, end: int
    ) -> None:
        """Raise if a replica that counted in the election has messages on its disk that the new leader lacks."""
        if look.version != history.counting_version + 1:
            return  # the state from which it was elected was not observed
        if is_consumers(look.stream_id):
            return  # another one may have had more messages, which count first
        for broker_id in history.counting:
            if broker_id != broker.broker_id and self._has_committed(history, broker_id, end):
                text = f"{history.name()} on {broker.name}, who leads: it lacks what was committed, b{broker_id} has it"
                raise ViolationError(f"{text}, and {history.counting} counted: {look}")

    def ended(self, broker: SimBroker, *, by_power_loss: bool) -> None:
        """Record the end of a broker's run; after a power loss its replicas may lack messages."""
        if by_power_loss:
            for history in self.histories.values():
                history.lost_power.add(broker.broker_id)
                history.unclean.add(broker.broker_id)
                self._look_for_loss(history)

    def started(self, broker: SimBroker) -> None:
        """Check the logs that a broker has recovered, possibly not all of them."""
        assert broker.node is not None
        self._seen[broker.broker_id] = {}
        self._clean.discard(broker.broker_id)
        if inspector.stopped_cleanly(broker.node):
            self._clean.add(broker.broker_id)
        there = inspector.stream_ids(broker.node)
        for stream_id, history in self.created.items():
            if self._is_alone and stream_id not in there and not history.is_deleted:
                raise ViolationError(f"{history.name()}: {broker.name} does not know it, and its creation was answered")
        for partition in inspector.partitions(broker.node):
            history = self._history_of(broker, partition)
            self.subjects[partition.stream_id] = partition.subject
            ends = history.ends.get(broker.broker_id, Ends())
            after_power_loss = broker.broker_id in history.lost_power
            history.lost_power.discard(broker.broker_id)
            self.recovered += 1
            disk = (broker.broker_id, broker.disk.number)
            if partition.is_damaged and broker.disk.is_older and disk in history.was_damaged:
                history.damaged.add(disk)  # the copy is older than the repair or truncation
                history.mended.discard(disk)
            if partition.is_damaged and disk not in history.damaged:
                raise ViolationError(f"{history.name()} on {broker.name}: damage that nobody made")
            if history.is_damaged:
                if partition.log_end < history.promised_end:
                    history.synced_end = min(history.synced_end, partition.log_end)
                    self._cut(history, partition.log_end)
                continue
            if not self._is_alone:
                continue  # the leader is held to the promises instead
            if partition.log_end < ends.flushed_end:
                text = f"{history.name()} on {broker.name}: {ends.flushed_end} was flushed, {partition.log_end} is left"
                raise ViolationError(text)
            if partition.log_end < history.synced_end:
                text = f"{history.name()} on {broker.name}: {history.synced_end - 1} was acked as synced"
                raise ViolationError(f"{text}, and the log ends at {partition.log_end}")
            if history.is_os and after_power_loss:
                self._cut(history, partition.log_end)  # even if no client knew of the lost messages
            elif partition.log_end < history.promised_end:
                text = f"{history.name()} on {broker.name}: {history.promised_end - 1} was acked"
                raise ViolationError(f"{text}, and the log ends at {partition.log_end}")
        for history in self.histories.values():
            if (left := history.ends.pop(broker.broker_id, None)) is not None:
                history.left[broker.broker_id] = left.log_end

    def _cut(self, history: PartitionHistory, end: int, last_epoch: int | None = None) -> None:
        """Forget what is at or above `end`, of leader epochs up to `last_epoch` (None: all so far)."""
        for offset in [offset for offset in history.known if offset >= end]:
            value = history.known.pop(offset)
            if history.places.get(value) == offset:
                del history.places[value]
        history.promised_end = min(end, history.promised_end)
        history.committed_end = min(end, history.committed_end)
        history.truncated = min(end, history.truncated)
        if history.compacted is not None:
            history.compacted.cut(end)
        if history.split is not None:
            history.split.cut(history.partition, end)
        self._check_again(history)
        history.cuts.append((max(history.leaders, default=0) if last_epoch is None else last_epoch, end))
        self._was_cut(history, end)

    def audited(self, history: PartitionHistory, log_start: int, end: int) -> None:
        """Check that an auditor that read everything from `log_start` to `end` missed no promised message."""
        if end < history.promised_end and not history.is_damaged:
            raise ViolationError(f"{history.name()}: {history.promised_end - 1} is promised, the log ends at {end}")
        if not history.may_begin_at(log_start):
            raise ViolationError(f"{history.name()}: it begins at {log_start}, and nothing may go")


def _check_limit(history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
    if look.messages_max is None:
        return
    if look.shown > look.messages_max:
        raise ViolationError(f"{history.name()}: {broker.name} shows {look.shown} messages, the limit is {look}")
    if look.counted != look.shown:
        raise ViolationError(f"{history.name()}: {broker.name} counts {look.counted} messages, and shows {look}")


def _check_suspended(history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
    """Check that a leader's retention deletes nothing from when it knows that deletion is suspended."""
    key = (broker.broker_id, look.leader_epoch)
    if not (look.is_leader and look.is_deletion_suspended):
        history.suspended.pop(key, None)
        return
    since = history.suspended.setdefault(key, look.log_start)
    if look.log_start > max(since, history.truncating):
        text = f"deletion is suspended, and it began at {since} then"
        raise ViolationError(f"{history.name()} on {broker.name}: {text}: {look}")
