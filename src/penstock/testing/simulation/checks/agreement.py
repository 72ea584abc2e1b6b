"""Invariants across brokers: the metadata, the leaders, and the contents of the logs.

| rule                                                                  | checked at                             |
|-----------------------------------------------------------------------|----------------------------------------|
| one leader in each Raft term, even if no broker hears it              | every turn of a broker                 |
| images at the same index are equal                                    | every newly applied index of a broker  |
| logs hold the same messages below `committed_end`                     | every change of a `committed_end`      |
| each ISR member that follows the leader has all that it has committed | each change of its `committed_end`     |
| compaction has removed only what it may (see `compacted`)             | every compaction, and every change of  |
|                                                                       | a `committed_end`                      |

A message is identified by offset, leader epoch and checksum, because one broker may have merged batches that another
has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import CorruptionError, PenstockError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import PartitionHistory
from penstock.testing.simulation.checks.compacted import CompactedRow, Moment, SeenRange

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker


class _Message(NamedTuple):
    leader_epoch: int
    crc: int


class Agreement:
    """Observations of all brokers together."""

    def __init__(self, brokers: Mapping[int, SimBroker]) -> None:
        self.elections = 0  # of metadata leaders
        self._brokers = brokers
        self._leaders: dict[int, int] = {}  # Raft term → broker
        self._images: dict[int, str] = {}  # index → digest
        self._applied: dict[int, tuple[int, int]] = {}  # broker → its run and applied index
        self._messages: dict[int, dict[int, _Message]] = {}  # id() of the history → offset → message
        self._compared: dict[tuple[int, int], int] = {}  # (id() of the history, broker) → end of the compared offsets
        self._committed: dict[tuple[int, int], tuple[int, int, int]] = {}  # leader epoch, ISR version, committed_end

    def started(self, broker: SimBroker) -> None:
        """Compare a broker's logs again from their start, because a run of it begins."""
        self._applied.pop(broker.broker_id, None)
        for key in [key for key in self._compared if key[1] == broker.broker_id]:
            del self._compared[key]

    def forget(self, history: PartitionHistory, broker: SimBroker) -> None:
        """Forget a replica that the broker no longer has, so that a later one is compared anew."""
        self._compared.pop((id(history), broker.broker_id), None)

    def acted(self, broker: SimBroker, standing: inspector.StandingLook) -> None:
        """Check the metadata of a broker after each of its events."""
        if standing.elected_term:
            leader = self._leaders.get(standing.elected_term)
            if leader is None:
                self._leaders[standing.elected_term] = broker.broker_id
                self.elections += 1
            elif leader != broker.broker_id:
                text = f"term {standing.elected_term} has two metadata leaders: {leader} and {broker.broker_id}"
                raise ViolationError(text)
        applied = (broker.run, standing.applied)
        if not broker.has_failed and self._applied.get(broker.broker_id) != applied:
            self._applied[broker.broker_id] = applied
            assert broker.node is not None
            digest = inspector.image_digest(broker.node)
            if self._images.setdefault(standing.applied, digest) != digest:
                raise ViolationError(f"{broker.name} has another image at index {standing.applied}")

    def committed(self, history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Compare a broker's replica whose `committed_end` or ISR has changed."""
        if history.is_damaged:
            return
        key = (id(history), broker.broker_id)
        begin = max(self._compared.get(key, 0), look.log_start)
        is_new = history.compacted is None and begin < look.committed_end  # else `compacted` has compared it
        if is_new and (compared := self._compare(history, broker, look, begin)) is not None:
            self._compared[key] = compared
        if look.is_leader:
            epoch, version, end = self._committed.get(key, (0, 0, 0))
            self._committed[key] = (look.leader_epoch, look.version, look.committed_end)
            # One event may bring several ISRs: an earlier one may have been large enough.
            is_same = (epoch, version) == (look.leader_epoch, look.version)
            if is_same and len(look.isr) < look.min_isr and end < look.committed_end:
                text = f"{history.name()}: {broker.name} has committed {look.committed_end} with {look.isr}"
                raise ViolationError(text)
            self._members_have(history, broker, look)

    def compacted(self, history: PartitionHistory, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Check a broker's replica of a compacted partition after a change."""
        compacted = history.compacted
        if compacted is None or history.is_damaged or history.has_lost_marks:
            return
        assert broker.node is not None
        decided = inspector.decided(broker.node, look)
        if not history.cuts and (mistake := compacted.folded(look.log_start, decided.folded_end, decided.folded)):
            raise ViolationError(f"{history.name()} on {broker.name}: {mistake}: {look}")
        replica = compacted.replica(broker.broker_id, broker.disk.number)
        if replica.run != broker.run:
            replica.begin(broker.run, look.log_end)
        if not decided.is_shown:
            replica.lose_sight()
            replica.is_new = False  # a pass may end before it is seen
            return
        files = (*inspector.written_anew(broker.node, look), decided.hidden)
        begin = max(replica.passed, look.log_start)
        if replica.files != files or look.committed_end < replica.passed:
            begin = look.log_start
        elif begin >= look.committed_end:
            return
        rows: dict[int, CompactedRow] = {}
        end = self._compare(history, broker, look, begin, rows)
        if end is None:
            replica.lose_sight()
            return
        replica.files = files
        at = Moment(broker.clock.now().wall_us, broker.clock.steps, look.leader_epoch if look.is_leader else 0)
        shown = {offset: row for offset, row in rows.items() if offset not in decided.hidden}
        hidden = decided.hidden if decided.by_marks else None
        if mistake := compacted.compare(replica, SeenRange(look.log_start, begin, end, shown, at, hidden)):
            raise ViolationError(f"{history.name()} on {broker.name}: {mistake}: {look}")

    def cut(self, history: PartitionHistory, end: int) -> None:
        """Forget what lay at or above `end`, after a permitted loss: new messages come there."""
        messages = self._messages.get(id(history), {})
        for offset in [offset for offset in messages if offset >= end]:
            del messages[offset]
        for key in [key for key, compared in self._compared.items() if key[0] == id(history) and compared > end]:
            self._compared[key] = end

    def agreed_end(self, history: PartitionHistory, look: inspector.PartitionLook, broker: SimBroker) -> int:
        """Return the first offset where the broker's log differs from what was committed; else its log end offset."""
        known = self._messages.get(id(history), {})
        batches = self._read(history, broker, look, look.log_start, look.log_end)
        if batches is None:
            return look.log_end
        others = (offset for offset, message in _messages(batches) if known.get(offset, message) != message)
        assert broker.node is not None
        decided = inspector.decided(broker.node, look)
        if decided.by_marks and not decided.is_shown:
            return look.log_end  # rows may be blank that it does not know to be hidden
        hidden = decided.hidden
        return min((one for one in others if not (history.may_be_hidden(one) or one in hidden)), default=look.log_end)

    def has_committed(self, history: PartitionHistory, broker_id: int, end: int) -> bool:
        """True if the running broker's log has an intact committed batch at or above `end`."""
        broker = self._brokers[broker_id]
        if broker.node is None:
            return False
        look = inspector.partition(broker.node, history.stream_id, history.partition)
        if look is None or look.is_damaged or look.is_failing:
            return False
        batches = self._read(history, broker, look, max(end, look.log_start), look.log_end)
        if batches is None:
            return False
        known = self._messages.get(id(history), {})
        return any(known.get(offset) == message for offset, message in _messages(batches))

    def can_be_read(self, history: PartitionHistory, broker: SimBroker) -> bool:
        """True if all of the broker's log is readable and the broker accepts batches from the leader."""
        look = None if broker.node is None else inspector.partition(broker.node, history.stream_id, history.partition)
        if look is None or look.is_damaged or look.is_failing:
            return False
        return self._read(history, broker, look, look.log_start, look.log_end) is not None

    @staticmethod
    def _read(
        history: PartitionHistory,
        broker: SimBroker,
        look: inspector.PartitionLook,
        begin: int,
        end: int,
        by_key: dict[int, CompactedRow] | None = None,
    ) -> list[inspector.Batch] | None:
        """Return the batches in that range; None if unreadable now. Corruption that no fault caused is a violation."""
        assert broker.node is not None
        with broker.disk.undisturbed():
            try:
                return list(inspector.batches(broker.node, look, begin, end, by_key))
            except CorruptionError as error:
                if (broker.broker_id, broker.disk.number) not in history.damaged:
                    text = f"{history.name()} on {broker.name}: damage that nobody made, from {begin} to {end}: {error}"
                    raise ViolationError(text) from error
            except (OSError, PenstockError):
                pass
        return None

    def _compare(
        self,
        history: PartitionHistory,
        broker: SimBroker,
        look: inspector.PartitionLook,
        begin: int,
        by_key: dict[int, CompactedRow] | None = None,
    ) -> int | None:
        """Compare a range with other brokers' logs; return its end (may exceed `committed_end`); None: unreadable."""
        messages = self._messages.setdefault(id(history), {})
        assert broker.node is not None
        hidden = inspector.decided(broker.node, look).hidden
        batches = self._read(history, broker, look, begin, look.committed_end, by_key)
        if batches is None:
            return None
        for offset, message in _messages(batches):
            if history.is_lost(offset, message.leader_epoch):
                continue  # the replica shows its old high watermark until it hears from the leader
            if history.may_be_hidden(offset) or offset in hidden:
                continue  # its content goes when the cleaner passes, at another time on each replica
            if by_key is not None and history.compacted is not None:
                history.compacted.know(offset, by_key[offset])
            known = messages.setdefault(offset, message)
            if known != message:
                text = f"{history.name()}: {broker.name} has {message} at {offset}, others have {known}"
                raise ViolationError(text)
        return batches[-1][0].end_offset if batches else begin

    def _members_have(self, history: PartitionHistory, leader: SimBroker, look: inspector.PartitionLook) -> None:
        assert leader.node is not None
        key = PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))
        for broker_id in look.isr:
            member = self._brokers[broker_id]
            if member is leader or member.node is None:
                continue
            theirs = inspector.partition(member.node, look.stream_id, look.partition)
            if theirs is None or theirs.leader_epoch != look.leader_epoch or not theirs.follows:
                continue
            if not theirs.is_in_sync:
                continue
            end = theirs.log_end
            if not (history.retains or history.truncating):  # else the leader epoch cache has lost its old entries
                end = min(end, inspector.common_end(leader.node, member.node, key))
            if end < look.committed_end:
                text = f"{history.name()}: {leader.name} has committed {look.committed_end}, and {member.name},"
                raise ViolationError(f"{text} which is in the ISR, has it up to {end}")


def _messages(batches: Iterable[inspector.Batch]) -> Iterator[tuple[int, _Message]]:
    for header, rows in batches:
        for offset, crc in rows:
            yield offset, _Message(header.leader_epoch, crc)
