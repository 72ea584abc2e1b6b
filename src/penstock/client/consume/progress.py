"""Progress of a consumer, by partition: processed and committed offsets. No IO.

Rules: the last message or batch delivered is in hand; it counts as processed when the next is requested or the caller
commits. Only processed messages are committed. Offsets that the caller gives override the message in hand.

    delivered ─▶ in hand ─▶ processed ─▶ committed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.base.ids import LeaderEpoch
from penstock.client.checks import whole_numbers


class ReadMark(NamedTuple):
    """The offset of the next message, and a leader epoch whose log was valid up to there."""

    offset: int
    leader_epoch: LeaderEpoch | None


class Progress:
    """Positions of one consumer. Times are in seconds of a monotonic clock."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._begun_s = now_s  # start of the current checkpoint interval
        self._in_hand: tuple[int, ReadMark] | None = None
        self._done: dict[int, ReadMark] = {}
        self._committed: dict[int, ReadMark] = {}

    @property
    def positions(self) -> dict[int, int]:
        """By partition: the offset of the next message; all before it are processed."""
        return {number: mark.offset for number, mark in sorted(self._done.items())}

    @property
    def uncommitted(self) -> dict[int, ReadMark]:
        """Processed positions that are not committed."""
        return {number: mark for number, mark in self._done.items() if self._committed.get(number) != mark}

    @property
    def due_s(self) -> float | None:
        """When the next checkpoint is due; None if there is nothing to commit."""
        return self._begun_s + self._interval_s if self.uncommitted else None

    def is_due(self, now_s: float) -> bool:
        """True if a checkpoint is due; called after each message, so it is cheap."""
        return now_s >= self._begun_s + self._interval_s and bool(self.uncommitted)

    def begin(self, partition: int, mark: ReadMark, *, is_committed: bool) -> None:
        """Start a partition at `mark`."""
        self._done[partition] = mark
        if is_committed:
            self._committed[partition] = mark

    def handed(self, partition: int, mark: ReadMark) -> None:
        """Record that everything before `mark` was delivered to the caller."""
        self._in_hand = partition, mark

    def finish(self) -> None:
        """Mark the message in hand as processed."""
        if self._in_hand is not None:
            partition, mark = self._in_hand
            self._in_hand = None
            self._done[partition] = mark

    def beyond(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return the given offsets that lie beyond what was delivered; only the broker can tell if they exist.

        TypeError: not a mapping of offsets by partition. ValueError: a partition that is not read here, or a negative
        offset.
        """
        found = {}
        for number, offset in whole_numbers(offsets).items():
            self._check(number, offset)
            end = self._done[number].offset
            if self._in_hand is not None and self._in_hand[0] == number:
                end = max(end, self._in_hand[1].offset)
            if offset > end:
                found[number] = offset
        return found

    def _check(self, partition: int, offset: int) -> None:
        if partition not in self._done:
            raise ValueError(f"partition {partition} is not read by this consumer")
        if offset < 0:
            raise ValueError(f"the offset {offset} is negative; offsets count from 0")

    def seek(self, partition: int, offset: int, leader_epoch: LeaderEpoch | None = None) -> None:
        """Set the processed position to `offset`, whatever is in hand. ValueError: the partition is not read here.

        `leader_epoch`: the epoch of a leader that has `offset`, if it lies beyond what was delivered: in the epoch of
        that, the log may end before it, and its next reader would take the log for truncated.
        """
        self._check(partition, offset)
        epoch = self._done[partition].leader_epoch
        if self._in_hand is not None and self._in_hand[0] == partition:
            epoch = self._in_hand[1].leader_epoch
            self._in_hand = None
        self._done[partition] = ReadMark(offset, epoch if leader_epoch is None else leader_epoch)

    def forget(self, partition: int) -> None:
        """Stop tracking a partition; nothing more of it will be committed."""
        if self._in_hand is not None and self._in_hand[0] == partition:
            self._in_hand = None
        self._done.pop(partition, None)
        self._committed.pop(partition, None)

    def marks(self) -> dict[int, ReadMark]:
        """Return the processed positions by partition."""
        return dict(self._done)

    def committed(self, marks: dict[int, ReadMark], now_s: float) -> None:
        """Record a commit."""
        self._committed.update({number: mark for number, mark in marks.items() if number in self._done})
        self._begun_s = now_s
