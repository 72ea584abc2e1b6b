"""Positions in the log, as programs and people write them.

Rules: the CLI and the client take the same texts. A text is parsed when a call gets it, never later: an age counts from
then. A time without a zone is UTC, like all times that Penstock shows.

| text                                    | position                                                             |
|-----------------------------------------|----------------------------------------------------------------------|
| `earliest`, `latest`                    | an end of the log                                                    |
| `42`                                    | an offset, however many digits: a date has dashes                    |
| `-10`                                   | before the last 10 offsets of a partition                            |
| `30s`, `5m ago`, `last 2h`              | an age                                                               |
| `2013-01-31`, `2013-01-31T08:00+02:00`  | a time: the first message at or after it                             |
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from penstock.base.units import parse_duration_us


class Place(Enum):
    """The ends of the log, by name."""

    EARLIEST = "earliest"  # the first message that is kept
    LATEST = "latest"  # after the last committed message


EARLIEST = Place.EARLIEST
LATEST = Place.LATEST


class LastMessages(NamedTuple):
    """The place before the last `message_count` messages of a partition, counted by offsets."""

    message_count: int


Start = Place | str | int | date | timedelta | LastMessages
"""A position in the log: an end (`EARLIEST` or "earliest"); an offset; -10 (before the last ten offsets of a
partition); an aware datetime, or a date in UTC (the first message at or after it); a timedelta ("the last 30 seconds",
by this machine's clock); or any of these as text, as the CLI takes it: "-10", "5m ago", "2026-11-28T10:00".
"""

_OFFSET = re.compile(r"[0-9]{1,19}")
_LAST = re.compile(r"-([0-9]{1,19})")
_AGO = re.compile(r"(?:the )?(?:last )?(.+?)(?: ago)?", re.IGNORECASE)
_DURATION_BEGINS = re.compile(r"[0-9.]+\s*[a-z]", re.IGNORECASE)
_EXPECTED = "give earliest, latest, an offset (42), {last}an age (30s, '5m ago') or a time in UTC (2013-01-01T10:00)"


def parse_place(
    text: str, *, now: datetime | None = None, takes_last: bool = True
) -> Place | int | datetime | timedelta | LastMessages:
    """Return the position that `text` names. ValueError, listing the accepted forms.

    `now` defaults to the current time. `takes_last` permits `-N`, the last N messages; if False, the error does not
    offer it, but the caller must reject LastMessages.
    """
    folded = text.strip()
    if folded.lower() in ("earliest", "latest"):
        return Place(folded.lower())
    if _OFFSET.fullmatch(folded):
        return int(folded)
    if last := _LAST.fullmatch(folded):
        return LastMessages(int(last[1]))
    ago = _AGO.fullmatch(folded)
    if ago is not None and _DURATION_BEGINS.match(ago[1]) and not _looks_like_time(folded):
        age_us = parse_duration_us(ago[1])
        try:
            age = timedelta(microseconds=age_us)
            (now or datetime.now(UTC)) - age  # OverflowError if the result is not a valid datetime
        except OverflowError:
            raise ValueError(f"{text!r} is before the beginning of time") from None
        return age
    try:
        moment = datetime.fromisoformat(folded)
    except ValueError:
        expected = _EXPECTED.format(last="the last messages (-10), " if takes_last else "")
        raise ValueError(f"{text!r} is no place in the log; {expected}") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _looks_like_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
