"""How far a consumer has come, of each partition: what is done, and what is committed. No IO.

Rules: what was handed out last is in the caller's hands, and done when the next is asked for, or the caller says so.
Only what is done is committed. What the caller names himself counts instead of what is in his hands.

    handed out ─▶ in hand ─▶ done ─▶ committed
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.base.ids import LeaderEpoch
from penstock.client.checks import whole_numbers


class Mark(NamedTuple):
    """A place: the offset of the next message, and the epoch of a leader in whose log it was right."""

    offset: int
    leader_epoch: LeaderEpoch | None


class Progress:
    """Of one consumer. Times are in seconds, of any clock that never goes back."""

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._begun_s = now_s  # the time to the next checkpoint counts from then
        self._in_hand: tuple[int, Mark] | None = None
        self._done: dict[int, Mark] = {}
        self._committed: dict[int, Mark] = {}

    @property
    def positions(self) -> dict[int, int]:
        """The offset of the next message, by partition: all before is done."""
        return {number: mark.offset for number, mark in sorted(self._done.items())}

    @property
    def uncommitted(self) -> dict[int, Mark]:
        """What is done and not committed."""
        return {number: mark for number, mark in self._done.items() if self._committed.get(number) != mark}

    @property
    def due_s(self) -> float | None:
        """When the next checkpoint is to be made; None: there is nothing to commit."""
        return self._begun_s + self._interval_s if self.uncommitted else None

    def is_due(self, now_s: float) -> bool:
        """Whether a checkpoint is to be made; asked after each message, mostly in vain."""
        return now_s >= self._begun_s + self._interval_s and bool(self.uncommitted)

    def begin(self, partition: int, mark: Mark, *, is_committed: bool) -> None:
        """Here it goes on in that partition."""
        self._done[partition] = mark
        if is_committed:
            self._committed[partition] = mark

    def handed(self, partition: int, mark: Mark) -> None:
        """The caller has everything before `mark`."""
        self._in_hand = partition, mark

    def finish(self) -> None:
        """What is in his hands is done."""
        if self._in_hand is not None:
            partition, mark = self._in_hand
            self._in_hand = None
            self._done[partition] = mark

    def beyond(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Those of the offsets that are beyond what was handed out: whether the log holds so much is not known here.

        TypeError: they are no offsets by partition. ValueError: one is not read here, or is negative.
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

    def seek(self, partition: int, offset: int) -> None:
        """Done is what comes before `offset`, whatever is in his hands. ValueError: it is not read here."""
        self._check(partition, offset)
        epoch = self._done[partition].leader_epoch
        if self._in_hand is not None and self._in_hand[0] == partition:
            epoch = self._in_hand[1].leader_epoch
            self._in_hand = None
        self._done[partition] = Mark(offset, epoch)

    def forget(self, partition: int) -> None:
        """It is not read here any more, and nothing of it is to be committed."""
        if self._in_hand is not None and self._in_hand[0] == partition:
            self._in_hand = None
        self._done.pop(partition, None)
        self._committed.pop(partition, None)

    def marks(self) -> dict[int, Mark]:
        """What is done, by partition."""
        return dict(self._done)

    def committed(self, marks: dict[int, Mark], now_s: float) -> None:
        """That is committed."""
        self._committed.update({number: mark for number, mark in marks.items() if number in self._done})
        self._begun_s = now_s
