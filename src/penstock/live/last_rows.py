"""Last rows of subjects: finds the rows that a limit by subject hides, and remembers what the next rows need.

Rules: rows come in the order of the log, each once. Beside a row only the `limit` last live rows of its subject stay.
So each row hides one row at most. Deleted rows do not count: `is_live` tells whether a row that is remembered is still
there. Memory is bounded: subjects that had no row for long are forgotten, and the caller finds their rows in the log
again (`unknown`, `learn`); in a table that has seen the log from its beginning, and forgot nothing, none are unknown.

    limit 2     a0  b1  a2  a3  b4  a5        hidden: 0 (by 3), 2 (by 5)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence


class LastRows:
    """The last live rows of the subjects of one partition, up to `end`."""

    def __init__(self, limit: int, end: int, *, is_whole: bool) -> None:
        """`is_whole`: no row is before `end`."""
        self.limit = limit
        self.end = end  # all rows before it were taken
        self._is_whole = is_whole
        self._recent: dict[str, list[int]] = {}
        self._older: dict[str, list[int]] = {}  # subjects that had no row since the last time that many were there
        self._recent_rows = 0

    def unknown(self, subjects: Iterable[str]) -> list[str]:
        """Return those of the subjects whose earlier rows must be learned before their next one is taken."""
        if self._is_whole:
            return []
        return [one for one in subjects if one not in self._recent and one not in self._older]

    def learn(self, rows: Mapping[str, Sequence[int]]) -> None:
        """Take the last live rows of subjects, at most `limit` of each in rising order, as they are in the log."""
        for subject, offsets in rows.items():
            self._recent[subject] = list(offsets)
            self._recent_rows += len(offsets)

    def take(self, offsets: Sequence[int], subjects: Sequence[str], is_live: Callable[[int], bool] | None) -> list[int]:
        """Take the next rows, all live; return the offsets of those that are hidden by them.

        `is_live`: None if no row but those returned here was ever hidden.
        """
        limit, recent, older, hidden = self.limit, self._recent, self._older, list[int]()
        for offset, subject in zip(offsets, subjects, strict=True):
            rows = recent.get(subject)
            if rows is None:
                rows = older.pop(subject, None)
                if rows is None:
                    rows = []
                recent[subject] = rows
                self._recent_rows += len(rows)
            if len(rows) == limit:
                if is_live is not None:
                    rows[:] = filter(is_live, rows)
                    self._recent_rows -= limit - len(rows)
                if len(rows) == limit:
                    hidden.append(rows.pop(0))
                    self._recent_rows -= 1
            rows.append(offset)
            self._recent_rows += 1
        return hidden

    def forget(self, rows_max: int) -> None:
        """Forget subjects that had no row for long, so that about `rows_max` rows are remembered at most."""
        if 2 * self._recent_rows > rows_max:
            self._is_whole = self._is_whole and not self._older
            self._older, self._recent, self._recent_rows = self._recent, {}, 0
