"""The option `where`: conditions that limit which messages a batch read fetches.

Rules: all conditions must hold. Ranges are half-open. Only conditions that the broker or the planner can apply are
accepted; other filters belong to the DataFrame, and do not change which messages are fetched. A condition selects from
the messages in the log: unlike with `startingOffsets`, it is no error if retention deleted the start of a range.

| column      | condition                                          | effect                                            |
|-------------|----------------------------------------------------|---------------------------------------------------|
| `offset`    | `[FROM, TO]`: half-open, null: no bound            | offsets outside are not fetched                   |
| `partition` | a number, or a list of them                        | other partitions are not read                     |
| `subject`   | a subject, or a list of them; `*` and `>` allowed  | brokers leave out messages on other subjects      |
| `timestamp` | `[FROM, TO]`: half-open, null: no bound            | brokers find the offsets; others are not fetched  |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, TypeVar

from penstock.base import limits

T = TypeVar("T", int, datetime)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HINTS = {
    "topic": "the option stream names the streams",
    "key": "a log is not sorted by key: filter the DataFrame, or keep a table with `penstock pipeline table`",
}


class Where(TypedDict, total=False):
    """Conditions of `penstock.spark.read` on the messages to fetch; all must hold.

    A range is (FROM, TO), and excludes TO; None: no bound. A timestamp is a datetime with a time zone, milliseconds
    since 1970 UTC, or text such as `2026-11-20T10:00:00Z`.
    """

    offset: tuple[int | None, int | None]
    partition: int | Sequence[int]
    subject: str | Sequence[str]
    timestamp: tuple[datetime | int | str | None, datetime | int | str | None]


@dataclass(frozen=True)
class Bounds:
    """The parsed conditions. None: no bound; empty `subjects`: all. Times are datetimes with a time zone."""

    start: int = 0
    end: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    partitions: frozenset[int] | None = None
    subjects: tuple[str, ...] = ()


EVERYWHERE = Bounds()
"""Bounds without a condition: all messages."""


def where_text(where: Where) -> str:
    """Convert conditions to the text of the option `where`. Raise ValueError if one is invalid."""
    return json.dumps({name: _plain(_known(name), one) for name, one in where.items()})


def _known(name: str) -> str:
    if name.lower() not in _BY_COLUMN:
        hint = _HINTS.get(name.lower(), "filter the DataFrame")
        raise ValueError(f"{name}: messages can be left out by {', '.join(_BY_COLUMN)} alone; {hint}")
    return name


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name}: {value} has no time zone; give it one, as datetime.now(UTC) has")
        return value.isoformat()
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes):
        return [_plain(name, one) for one in value]
    raise ValueError(f"{name}: {value!r} is no condition")


def bounds_of(text: str) -> Bounds:
    """Parse the JSON of the option `where`. Raise ValueError if it is invalid."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f'{text!r} is no JSON object, as {{"partition": 0, "offset": [100, 200]}}')
    bounds = Bounds()
    for name, value in found.items():
        bounds = _BY_COLUMN[_known(name).lower()](bounds, value)
    return bounds


def moment_of(value: Any) -> datetime:
    """Parse a time: milliseconds since 1970 UTC, or text such as `2026-11-20T10:00:00Z` (default zone: UTC).

    Raise ValueError if it is neither, or beyond the calendar.
    """
    try:
        if type(value) is int or (isinstance(value, str) and value.lstrip("-").isdigit()):
            return _EPOCH + timedelta(milliseconds=int(value))
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is neither milliseconds since 1970 nor a time as 2026-11-20T10:00:00Z") from None
    except OverflowError:
        raise ValueError(f"{value} milliseconds since 1970 are beyond the calendar") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# Each column


def _offset(bounds: Bounds, value: Any) -> Bounds:
    def parse(one: Any) -> int:
        if type(one) is not int or not 0 <= one <= limits.OFFSET_MAX:
            raise ValueError(f"offset: {one!r} is no offset; give whole numbers from 0 on")
        return one

    low, high = _range("offset", value, parse)
    return replace(bounds, start=low or 0, end=high)


def _partition(bounds: Bounds, value: Any) -> Bounds:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(type(one) is not int or one < 0 for one in numbers):
        raise ValueError(f"partition: {value!r} is no partition; give a number from 0 on, or a list of them")
    return replace(bounds, partitions=frozenset(numbers))


def _subject(bounds: Bounds, value: Any) -> Bounds:
    subjects = value if isinstance(value, list) else [value]
    if not subjects or not all(isinstance(one, str) for one in subjects):
        raise ValueError(f"subject: {value!r} is no subject; give one, or a list of them")
    return replace(bounds, subjects=tuple(subjects))


def _timestamp(bounds: Bounds, value: Any) -> Bounds:
    low, high = _range("timestamp", value, moment_of)
    return replace(bounds, since=low, until=high)


_BY_COLUMN: dict[str, Callable[[Bounds, Any], Bounds]] = {
    "offset": _offset,
    "partition": _partition,
    "subject": _subject,
    "timestamp": _timestamp,
}


def _range(name: str, value: Any, parse: Callable[[Any], T]) -> tuple[T | None, T | None]:
    if not (isinstance(value, list) and len(value) == 2):
        raise ValueError(f"{name}: {value!r} is no range; give FROM and TO, where None is no bound")
    low, high = (None if one is None else parse(one) for one in value)
    if low is not None and high is not None and high < low:
        raise ValueError(f"{name}: {value!r} ends before it begins")
    return low, high
