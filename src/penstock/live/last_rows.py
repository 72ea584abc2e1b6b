"""Last rows of subjects: finds the rows that a limit by subject hides, and remembers what the next rows need.

Rules: rows come in the order of the log, each once. Beside a row only the `limit` last live rows of its subject stay.
So each row hides one row at most, and a rollup all of its subject before it. Deleted rows do not count: `is_live` tells
whether a row that is remembered is still there. Memory is bounded: subjects that had no row for long are forgotten, and
the caller finds their rows in the log again (`unknown`, `learn`). Every subject with a row at or behind `known_from` is
remembered.

    limit 2     a0  b1  a2  a3  b4  a5        hidden: 0 (by 3), 2 (by 5)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence


class LastRows:
    """The last live rows of the subjects of one partition."""

    def __init__(self, limit: int, known_from: int) -> None:
        self.known_from = known_from
        self._limit = limit
        self._newer: dict[str, list[int]] = {}
        self._older: dict[str, list[int]] = {}  # subjects that had no row since that many others had
        self._newer_rows = 0
        self._newer_from = self._end = known_from

    def unknown(self, subjects: Iterable[str]) -> list[str]:
        """Return those of the subjects whose earlier rows must be learned before their next one is taken."""
        return [one for one in subjects if one not in self._newer and one not in self._older]

    def learn(self, rows: Mapping[str, Sequence[int]]) -> None:
        """Take the last live rows of subjects, at most `limit` of each in rising order, as they are in the log."""
        for subject, offsets in rows.items():
            self._newer[subject] = list(offsets)
            self._newer_rows += len(offsets)

    def take(self, offsets: Sequence[int], subjects: Sequence[str], is_live: Callable[[int], bool] | None) -> list[int]:
        """Take the next rows, all live; return the offsets of those that are hidden by them.

        `is_live`: None if no row but those returned here was ever hidden.
        """
        limit, newer, older, hidden = self._limit, self._newer, self._older, list[int]()
        for offset, subject in zip(offsets, subjects, strict=True):
            rows = newer.get(subject)
            if rows is None:
                rows = newer[subject] = older.pop(subject, [])
                self._newer_rows += len(rows)
            if len(rows) == limit:
                if is_live is not None:
                    rows[:] = filter(is_live, rows)
                    self._newer_rows -= limit - len(rows)
                if len(rows) == limit:
                    hidden.append(rows.pop(0))
                    self._newer_rows -= 1
            rows.append(offset)
            self._newer_rows += 1
        if offsets:
            self._end = offsets[-1] + 1
        return hidden

    def roll_up(self, subject: str, offset: int) -> list[int]:
        """Forget the rows of a subject before that of its rollup, and return them: all others are hidden already."""
        rows = self._newer[subject]
        place = bisect_left(rows, offset)
        gone = rows[:place]
        del rows[:place]
        self._newer_rows -= place
        return gone

    def forget(self, rows_max: int) -> None:
        """Forget subjects that had no row for long, so that about `rows_max` rows are remembered at most."""
        if 2 * self._newer_rows <= rows_max:
            return
        if self._older:
            self.known_from = self._newer_from
        self._older, self._newer, self._newer_rows, self._newer_from = self._newer, {}, 0, self._end
