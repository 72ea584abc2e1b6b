"""Rows that readers of one replica are shown: which rows are hidden, up to where they are shown, and since when.

Rules: marks say which rows are hidden (`penstock.live`), and up to where a leader has decided on them. What hides and
what is hidden change in one step (`apply`). The end of what readers are shown never goes back, unless the log is cut:
what was shown before decisions were needed, or by a wider limit, stays so.

| the stream has            | readers are shown rows up to                                                   |
|---------------------------|--------------------------------------------------------------------------------|
| no limit by subject, …    | `committed_end`                                                                |
| one, or rollups           | what is decided on, or what they have seen already; at most to `committed_end` |

The caller names the ends of its log with each question.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.live.row_set import NONE, RowSet


class AppliedMarks(NamedTuple):
    """The fold of the marks that are applied. The sets only grow, but for rows that the log has no longer.

    `secure`: rows that are to be erased at once. `refusal`: why no row may be shown, as not all marks are understood.
    `leader_epoch`: see `Log.hide`. `decided_end`: the rows before it hide what they hide by that `limit` by subject, 0:
    by none. `hides_others`: not only this limit by subject, or a wider one, hides some of them. `log_end`: up to which
    the log has to be committed beside them.
    """

    hidden: RowSet = NONE
    secure: RowSet = NONE
    leader_epoch: int = 0
    refusal: str = ""
    decided_end: int = 0
    limit: int = 0
    hides_others: bool = True
    log_end: int = 0


_NOTHING = AppliedMarks()


class VisibleRows:
    """Rows of one log that are shown."""

    __slots__ = ("_bytes", "_sample", "_seen_end", "_shown_us", "applied", "is_awaited", "known_marks",
                 "needs_decisions", "shown_marks")  # fmt: skip

    def __init__(self) -> None:
        self.applied = _NOTHING
        # ends of the companion log's rows that were applied, and of those that are known: they wait for rows here
        self.shown_marks = self.known_marks = 0
        self.needs_decisions = False  # readers are shown only what a leader has decided on: limit by subject, rollups
        self.is_awaited = False  # a reader or a message has waited for more since the last decision began
        self._seen_end = 0  # readers were shown rows up to there before they were decided on
        self._bytes = 0
        # an end, of which companion log's rows, and the time: what was committed by then is below that end
        self._sample: tuple[int, int, int] | None = None
        self._shown_us: int | None = None

    def end(self, committed_end: int, decided_end: int) -> int:
        """Return the end of what readers are shown where decisions are needed."""
        return min(committed_end, max(self._seen_end, decided_end))

    def bytes_of(self, committed_bytes: int) -> int:
        """Return how many of these bytes readers were shown, about; only grows."""
        return self._bytes if self.needs_decisions else committed_bytes

    def configure(self, end: int, committed_bytes: int, *, needs_decisions: bool) -> None:
        """Begin or end to show only what is decided on; `end`: up to which rows were shown until now."""
        if needs_decisions:
            self._seen_end = max(self._seen_end, end)
            if not self.needs_decisions:
                self._bytes = committed_bytes
        self.needs_decisions = needs_decisions

    def apply(self, marks: AppliedMarks, end: int) -> None:
        """Take a newer fold; `end`: up to which rows were shown until now."""
        self.applied = marks
        if self.needs_decisions:
            self._seen_end = max(self._seen_end, end)  # a stricter limit is decided from the beginning on

    def grown(self, before: int, end: int, committed_end: int, committed_bytes: int) -> None:
        """Count the bytes of what is shown since the end was `before`, as a share of what is committed."""
        if (more := end - before) > 0:
            unseen = committed_bytes - self._bytes
            self._bytes += max(1, unseen * more // max(more, committed_end - before))

    def cut(self, committed_end: int) -> None:
        """Forget what was shown behind an end: the log was cut."""
        self._seen_end = min(self._seen_end, committed_end)

    def as_of(self, as_of_us: int, committed_end: int, end: int) -> int | None:
        """Return the time up to which all that was committed is shown; `as_of_us`: up to which it is in the logs here.

        A decision takes a moment, and the next rows are committed meanwhile: an earlier end is remembered until it is
        shown. None: it is not known yet.
        """
        if not self.needs_decisions and self.shown_marks == self.known_marks:
            return as_of_us
        now = committed_end, self.known_marks, as_of_us
        for wanted, marks, at_us in (self._sample or now, now):
            if wanted <= end and marks <= self.shown_marks:
                self._shown_us, self._sample = at_us, None
        self._sample = self._sample or now
        return self._shown_us
