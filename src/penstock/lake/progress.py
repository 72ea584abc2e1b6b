"""Progress reports of jobs, and the pace of a job that runs continuously."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class BatchDone(NamedTuple):
    """Progress report of a job: one batch is durable."""

    number: int  # in this run, from 1
    rows: int
    size_bytes: int  # of the written files; 0 if the job writes none
    seconds: float
    lag: int  # messages in the log that the job has not processed; -1: not known
    rejected: int | None = None  # rows whose value could not be decoded; None: the job decodes none


Report = Callable[[BatchDone], None]


def no_report(done: BatchDone) -> None:
    """Ignore the progress of a job."""


class Pace:
    """Paces the batches of a continuous job: at most one every `trigger_s` seconds, each with enough rows.

    A batch has enough rows if it has `rows_min`, or if its rows have waited for `delay_s` seconds.
    """

    def __init__(self, trigger_s: float, rows_min: int, delay_s: float, clock: Callable[[], float] = time.monotonic):
        self._trigger_s = trigger_s
        self._rows_min = rows_min
        self._delay_s = delay_s
        self._clock = clock
        self._last_s = -trigger_s - delay_s + clock()  # the first batch is due at once
        self._waiting_since_s: float | None = None

    def is_due(self, rows: int) -> bool:
        """True if a batch is due while `rows` rows wait."""
        now_s = self._clock()
        if not rows:
            self._waiting_since_s = None
            return False
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        is_enough = rows >= self._rows_min or now_s - self._waiting_since_s >= self._delay_s
        return is_enough and now_s - self._last_s >= self._trigger_s

    def begin(self) -> None:
        """Record that a batch begins."""
        self._last_s = self._clock()
        self._waiting_since_s = None
