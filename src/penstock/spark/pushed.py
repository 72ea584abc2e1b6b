"""What Spark's filters mean for what is fetched: bounds of offsets and times, partitions, streams and subjects.

Rules: all filters hold at once. What is not understood narrows nothing. Bounds are as wide as they must be, for Spark
looks at each row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as spark_api

from penstock.base.subjects import matches, subject_mistake
from penstock.spark.places import Key


class Pushed:
    """The bounds so far. Offsets and times are half-open; None: without a bound."""

    def __init__(self) -> None:
        self.start = 0
        self.end: int | None = None
        self.since: datetime | None = None
        self.until: datetime | None = None
        self.partitions: frozenset[int] | None = None
        self.streams: frozenset[str] | None = None
        self._subjects: tuple[str, ...] = ()

    def take(self, one: spark_api.Filter) -> bool:
        """Narrow the bounds by one filter; whether that was possible."""
        attribute = getattr(one, "attribute", None)
        if attribute is None or len(attribute) != 1:
            return False
        taken = {
            "offset": self._offset,
            "timestamp": self._timestamp,
            "partition": self._partition,
            "topic": self._topic,
            "subject": self._subject,
        }.get(attribute[0])
        return taken is not None and taken(one)

    def wants(self, key: Key) -> bool:
        """Whether rows of a partition may pass."""
        return (self.partitions is None or key.partition in self.partitions) and (
            self.streams is None or key.stream in self.streams
        )

    def subjects_of(self, patterns: Sequence[str]) -> tuple[str, ...] | None:
        """Which subjects are wanted of those that match the patterns; without any, of all. None: no message's."""
        if not self._subjects or not patterns:
            return self._subjects or tuple(patterns)
        return tuple(one for one in self._subjects if any(matches(pattern, one) for pattern in patterns)) or None

    def _offset(self, one: spark_api.Filter) -> bool:
        low, high = _bounds(one, 1)
        if low is not None:
            self.start = max(self.start, low)
        if high is not None:
            self.end = high if self.end is None else min(self.end, high)
        return low is not None or high is not None

    def _timestamp(self, one: spark_api.Filter) -> bool:
        low, high = _bounds(one, timedelta(microseconds=1))
        if low is not None:
            since = _utc(low)
            self.since = since if self.since is None else max(self.since, since)
        if high is not None:
            until = _utc(high)
            self.until = until if self.until is None else min(self.until, until)
        return low is not None or high is not None

    def _partition(self, one: spark_api.Filter) -> bool:
        if (values := _values(one)) is None:
            return False
        self.partitions = values if self.partitions is None else self.partitions & values
        return True

    def _topic(self, one: spark_api.Filter) -> bool:
        if (values := _values(one)) is None:
            return False
        self.streams = values if self.streams is None else self.streams & values
        return True

    def _subject(self, one: spark_api.Filter) -> bool:
        values = _values(one)
        if values is None or self._subjects:
            return False
        plain = sorted(str(value) for value in values if value is not None)
        if not plain or any(subject_mistake(value, wildcards=False) is not None for value in plain):
            return False  # no message can be on it: Spark finds that out row by row
        self._subjects = tuple(plain)
        return True


def _values(one: spark_api.Filter) -> frozenset[Any] | None:
    if isinstance(one, spark_api.EqualTo | spark_api.EqualNullSafe):
        return frozenset({one.value})
    if isinstance(one, spark_api.In):
        return frozenset(one.value)
    return None


def _bounds(one: spark_api.Filter, step: Any) -> tuple[Any, Any]:
    """(lowest, one beyond the highest) that passes; None: without that bound."""
    try:
        return _steps(one, step)
    except OverflowError:  # beyond the calendar
        return None, None


def _steps(one: spark_api.Filter, step: Any) -> tuple[Any, Any]:
    if isinstance(one, spark_api.EqualTo | spark_api.EqualNullSafe):
        return (None, None) if one.value is None else (one.value, one.value + step)
    if isinstance(one, spark_api.GreaterThan):
        return one.value + step, None
    if isinstance(one, spark_api.GreaterThanOrEqual):
        return one.value, None
    if isinstance(one, spark_api.LessThan):
        return None, one.value
    if isinstance(one, spark_api.LessThanOrEqual):
        return None, one.value + step
    return None, None


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
