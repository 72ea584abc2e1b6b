"""A stream of JetStream's API, as its clients know it: what was sent, acked, deleted, and read.

Rules: every value is sent once, so a value names its message. A message is *live* as long as nothing can have removed
it: no deletion was asked for, and in a stream that keeps one message for each subject, none was sent later. Permitted
losses make another stream of it: what is checked begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.testing.errors import ViolationError
from penstock.testing.simulation.checks.checks import PartitionHistory, SentMessage
from penstock.testing.simulation.nats import matches

_OPEN_US = 20_000_000  # what was not answered may be carried out later, but not so late
_SETTLED_US = 10_000_000  # what is told may be on the way for so long; replaced messages may be shown for a moment


class ApiStream:
    """One stream, in one partition."""

    def __init__(self, history: PartitionHistory, *, is_keyed: bool) -> None:
        """`is_keyed`: it keeps the last message of each subject."""
        self.history = history
        self.is_keyed = is_keyed
        self.is_made = False
        self.stream_id = 0
        self.changes = 0  # messages sent, deletions asked for, and their answers
        self.changed_us = 0
        self.deleting: dict[int, int] = {}  # offset → when its deletion was asked for
        self.deleted: dict[int, int] = {}  # offset → when its deletion was answered
        self.sent: dict[bytes, bytes] = {}  # name → subject, in order
        self.sent_us: dict[bytes, int] = {}
        self.of_subject: dict[bytes, list[bytes]] = {}  # subject → names
        self.refused: set[bytes] = set()
        self.unacked: set[bytes] = set()
        self.winners: dict[tuple[bytes, int], bytes] = {}  # subject and expected sequence → name
        self.read: dict[int, bytes] = {}  # offset → name, of all that was looked up or delivered

    @property
    def name(self) -> str:
        return self.history.config.name

    @property
    def losses(self) -> int:
        """Number of permitted losses so far."""
        return len(self.history.cuts)

    @property
    def is_excused(self) -> bool:
        history = self.history
        is_lost = history.is_damaged or history.is_given_up or history.may_lose or history.has_lost_marks
        return bool(is_lost or history.is_deleted or history.damaged)

    @staticmethod
    def matches(subject: bytes, wanted: bytes) -> bool:
        return not wanted or matches(tuple(wanted.split(b".")), tuple(subject.split(b".")))

    # What clients do

    def _changes(self, now_us: int) -> None:
        self.changes += 1
        self.changed_us = now_us

    def sends(self, message: SentMessage, now_us: int) -> None:
        self._changes(now_us)
        self.sent[message.name] = message.subject
        self.sent_us[message.name] = now_us
        self.of_subject.setdefault(message.subject, []).append(message.name)
        self.unacked.add(message.name)

    def acked(self, name: bytes, now_us: int) -> None:
        self._changes(now_us)
        self.unacked.discard(name)

    def refuses(self, name: bytes, now_us: int) -> None:
        self._changes(now_us)
        self.unacked.discard(name)
        self.refused.add(name)

    def deletes(self, offset: int, now_us: int) -> None:
        self._changes(now_us)
        self.deleting[offset] = now_us
        self.history.deleting.add(offset)

    def has_deleted(self, offset: int, now_us: int) -> None:
        self._changes(now_us)
        self.deleted[offset] = now_us

    # What is there

    def is_quiet(self, now_us: int) -> bool:
        """True if the outcome of all that was asked for is known, or must have come."""
        if now_us < self.changed_us + _SETTLED_US:
            return False
        asked = [self.sent_us[name] for name in self.unacked]
        asked += [asked_us for offset, asked_us in self.deleting.items() if offset not in self.deleted]
        return all(now_us > asked_us + _OPEN_US for asked_us in asked)

    def is_live(self, offset: int) -> bool:
        """True if a known message is there, surely."""
        name = self.history.known.get(offset)
        if name is None or offset in self.deleting or offset < self.history.truncating:
            return False
        return not self.is_keyed or not any(self._may_replace(one, offset) for one in self._beside(name))

    def _beside(self, name: bytes) -> Iterable[bytes]:
        return (one for one in self.of_subject[self.sent[name]] if one not in self.refused)

    def _may_replace(self, name: bytes, offset: int) -> bool:
        """True if a message of the same subject may be stored behind an offset."""
        place = self.history.places.get(name)
        return place is None or place > offset

    def is_followed(self, offset: int, by_us: int) -> bool:
        """True if a known message, and one of its subject that may be stored behind it, were sent by a time."""
        name = self.history.known[offset]
        beside = (one for one in self._beside(name) if one != name and self.sent_us[one] <= by_us)
        return self.sent_us[name] <= by_us and any(self._may_replace(one, offset) for one in beside)

    def subject(self, name: bytes) -> bytes:
        return self.sent[name]

    def live_of(self, wanted: bytes, begin: int = 0) -> list[int]:
        """Return the offsets of live messages that match."""
        known = self.history.known
        found = (one for one in known if one >= begin and self.is_live(one))
        return sorted(one for one in found if self.matches(self.subject(known[one]), wanted))

    def sent_count(self, wanted: bytes, offset: int, deleted: Iterable[int]) -> int:
        """Return how many messages may lie behind an offset: all that were sent, but for those known elsewhere."""
        gone = {*deleted}
        count = 0
        for name, subject in self.sent.items():
            place = self.history.places.get(name)
            is_elsewhere = place is not None and (place <= offset or place in gone)
            if name not in self.refused and not is_elsewhere and self.matches(subject, wanted):
                count += 1
        return count

    def reads(self, offset: int, subject: bytes, value: bytes, who: str) -> None:
        """Check a message that was looked up or delivered."""
        if self.history.is_damaged or self.history.is_given_up:
            return
        told = self.sent.get(value)
        if told != subject:
            raise ViolationError(f"{who}: {value[:40]!r} was sent on {told!r}, and is read on {subject!r}")
        if value in self.refused:
            raise ViolationError(f"{who}: {value[:40]!r} was refused, and is read at offset {offset}")
        known = self.history.known.get(offset, self.read.get(offset))
        if known is not None and known != value and not self.losses:
            raise ViolationError(f"{who}: offset {offset} has {known[:40]!r}, and {value[:40]!r} is read there")
        self.read[offset] = value

    def check(self) -> None:
        """After the audit: all that was read is there, or was deleted."""
        if self.is_excused or self.losses:
            return
        known: Mapping[int, bytes] = self.history.known
        for offset, name in self.read.items():
            if known.get(offset, name) != name or offset >= self.history.committed_end:
                raise ViolationError(
                    f"{self.name}: {name[:40]!r} was read at {offset}, which has {known.get(offset)!r}"
                )
