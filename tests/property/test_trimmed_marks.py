"""Long histories of marks with snapshots, of which leaders remove the beginning: what is left says the same.

The model is the fold of all marks that were ever committed. Against it stands a replica that begins anew, at any
moment, with the marks that the companion log still has: at each end it either says nothing, or what the model says.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.live import live_rows
from penstock.live.live_rows import LiveRows
from penstock.live.marks import Decided, HideReason, HideRows, MadeUnder, Mark, Snapshot, TimeToLive, decode, encode
from penstock.live.row_set import SPLIT_BYTES_MIN, RowSet
from tests.extent import examples

MARKS_MAX = 12


def state_of(live: LiveRows) -> tuple[object, ...]:
    limit = live.limit, live.decided_end
    return live.hidden, live.secure, limit, live.expired, live.leader_epoch, live.log_end, bool(live.refusal)


class History:
    """The companion log of one partition, and its leaders."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.marks: list[Mark] = []  # all of them, those that were removed included
        self.committed = 0
        self.start = 0
        self.states = [state_of(LiveRows())]  # of the model, by end
        self.model = LiveRows()
        self.leader = LiveRows()  # of the present leader
        self.applied = 0
        self.epoch, self.epoch_start = 1, 0
        self.epoch_ends: dict[int, int] = {}  # of the rows of the data log
        self.data_end = 10
        self.parts: Iterator[Snapshot] | None = None
        self.removals = 0
        self.part = -1  # offset of the last part of a snapshot
        self.decision = -1  # offset of the last one

    def under(self, limit: int = 0) -> MadeUnder:
        earlier_end = limits.OFFSET_MAX
        if self.leader.leader_epoch not in (0, self.epoch):
            earlier_end = self.epoch_ends[self.leader.leader_epoch]
        decided_end = 0
        if limit:  # by a stricter one all is decided anew
            goes_on = 0 < self.leader.limit <= limit
            decided_end = self.random.randint(
                min(self.leader.decided_end, self.data_end) if goes_on else 0, self.data_end
            )
        return MadeUnder(
            leader_epoch=self.epoch,
            log_end=self.data_end,
            decided_end=decided_end,
            earlier_end=earlier_end,
            limit=limit,
        )

    @property
    def knows_hidden(self) -> bool:
        return self.applied >= self.epoch_start

    def mark(self) -> None:
        if not self.knows_hidden:
            return
        self.data_end += self.random.randint(0, 1_000)
        rows = RowSet.of(self.random.randrange(self.data_end) for _ in range(self.random.randint(1, 8)))
        is_decided = self.applied > self.decision  # one decision at a time
        kind = self.random.randrange(0 if is_decided else 2, 8)
        if kind < 2:
            self.decision = len(self.marks)
            under = self.under(self.random.randint(1, 3))
            self.marks.append(HideRows(under, HideReason.LIMIT, rows) if kind else Decided(under))
        elif kind == 2:
            self.marks.append(TimeToLive(self.under(), self.random.randint(0, 50), self.random.randint(0, 50)))
        else:
            is_secure = kind == 3
            reason = HideReason.DELETE if is_secure else self.random.choice(list(HideReason)[:2])
            self.marks.append(HideRows(self.under(), reason, rows, is_secure))

    def commit(self) -> None:
        self.committed += self.random.randint(0, len(self.marks) - self.committed)
        for mark in self.marks[len(self.states) - 1 : self.committed]:
            self.model.take(decode(mark.kind, encode(mark)))
            self.states.append(state_of(self.model))

    def apply(self) -> None:
        end = self.applied + self.random.randint(0, self.committed - self.applied)
        for mark in self.marks[self.applied : end]:
            self.leader.take(mark, 100)
        self.applied = end

    def snapshot(self) -> None:
        """Begin one, or write the next part of the one under way, once the one before is applied."""
        if self.applied <= self.part:
            return
        if self.parts is None and self.knows_hidden and self.leader.is_snapshot_due(MARKS_MAX):
            self.parts = self.leader.snapshot(self.under(), self.applied)
        if self.parts is not None:
            part = next(self.parts, None)
            if part is None:
                self.parts = None
            else:
                self.part = len(self.marks)
                self.marks.append(part)

    def trim(self) -> None:
        if self.leader.removable_end > self.start:
            self.start = self.leader.removable_end
            self.removals += 1

    def lead_anew(self) -> None:
        """Another leader: it has what is committed, and may have more; uncommitted rows of the data log are lost."""
        del self.marks[self.random.randint(self.committed, len(self.marks)) :]
        self.epoch_ends[self.epoch] = self.data_end = self.data_end - self.random.randint(0, self.data_end // 50)
        self.epoch += 1
        for epoch in range(1, self.epoch):
            self.epoch_ends[epoch] = min(self.epoch_ends[epoch], self.data_end)
        self.epoch_start, self.parts = len(self.marks), None
        self.restart()

    def restart(self) -> None:
        """The leader begins with what the log has: applied are some of the committed marks."""
        self.leader, self.applied = LiveRows(self.start), self.start
        self.parts, self.decision, self.part = None, -1, -1
        self.epoch_start = len(self.marks)
        self.apply()

    def check(self) -> None:
        """A replica that begins now says what the model says, at each end at which it says something."""
        replica = LiveRows(self.start)
        for end, mark in enumerate(self.marks[self.start : self.committed], self.start + 1):
            replica.take(decode(mark.kind, encode(mark)))
            if replica.is_whole:
                assert state_of(replica) == self.states[end], end
        assert replica.is_whole, "two snapshots are behind each removal"


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_left_of_the_marks_says_what_all_of_them_said(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live_rows, "_SNAPSHOT_ROOM", SPLIT_BYTES_MIN)
        history = History(Random(seed))
        acts = [history.mark] * 8 + [history.commit, history.apply] * 3 + [history.snapshot] * 3
        acts += [history.trim, history.check]
        for _ in range(400):
            history.random.choice(acts)()
            if history.random.random() < 0.02:
                history.random.choice([history.lead_anew, history.restart])()
        history.committed = len(history.marks)
        history.commit()
        history.check()


def test_long_histories_are_trimmed_and_stay_short() -> None:
    """What is left is bounded, however long the history is."""
    history = History(Random(1))
    longest = 0
    for _ in range(1_000):
        for act in (history.mark, history.commit, history.apply, history.snapshot, history.trim):
            act()
        longest = max(longest, len(history.marks) - history.start)
    history.check()
    assert len(history.marks) > 1_000
    assert history.removals > 20
    assert longest < 2 * (MARKS_MAX + 2) + 40, "some marks are written beside each snapshot"


def test_a_snapshot_that_lacks_marks_which_were_removed_counts_for_nothing() -> None:
    under = MadeUnder(leader_epoch=1, log_end=100)
    earlier = Snapshot(under, 0, 1, rows=RowSet.of([1]), marks_end=4)
    live = LiveRows(7)
    live.take(earlier)
    assert not live.is_whole
    live.take(HideRows(under, HideReason.DELETE, RowSet.of([9])))
    assert not live.is_whole
    assert not live.is_snapshot_due(0), "it would leave out what is lacking"
    live.take(Snapshot(under, 0, 1, rows=RowSet.of([1, 2]), marks_end=7))
    assert live.is_whole
    assert live.hidden == RowSet.of([1, 2, 9])
