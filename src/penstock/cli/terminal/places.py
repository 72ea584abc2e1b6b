"""Parses start positions as users write them: `earliest`, `42`, `-10`, `30s`, `2013-01-01T10:00Z`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import typer

from penstock.base.units import parse_duration_us
from penstock.ops.reading.places import LastMessages as LastMessages

if TYPE_CHECKING:
    from penstock.client.values import Start

_OFFSET = re.compile(r"[0-9]{1,19}")
_LAST = re.compile(r"-([0-9]{1,19})")
_AGO = re.compile(r"(?:the )?(?:last )?(.+?)(?: ago)?", re.IGNORECASE)
_DURATION_BEGINS = re.compile(r"[0-9.]+\s*[a-z]", re.IGNORECASE)
_EXPECTED = "give earliest, latest, an offset (42), {last}an age (30s, '5m ago') or a time in UTC (2013-01-01T10:00)"


def parse_place(
    text: str, option: str | None = None, *, now: datetime | None = None, takes_last: bool = True
) -> Start | LastMessages:
    """Return the position that `text` names. Raise typer.BadParameter for `option`, listing the accepted forms.

    `now` defaults to the current time. `takes_last` permits `-N`, the last N messages; if False, the error does not
    offer it, but the caller must reject LastMessages. A time without a zone is UTC, like all times that Penstock shows.
    """
    from penstock.client.values import EARLIEST, LATEST

    hint = None if option is None else f"'{option}'"
    folded = text.strip()
    if folded.lower() in ("earliest", "latest"):
        return EARLIEST if folded.lower() == "earliest" else LATEST
    if _OFFSET.fullmatch(folded):
        return int(folded)
    if last := _LAST.fullmatch(folded):
        return LastMessages(int(last[1]))
    ago = _AGO.fullmatch(folded)
    if ago is not None and _DURATION_BEGINS.match(ago[1]) and not _looks_like_time(folded):
        try:
            age = timedelta(microseconds=parse_duration_us(ago[1]))
            (now or datetime.now(UTC)) - age  # OverflowError if the result is not a valid datetime
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=hint) from None
        except OverflowError:
            raise typer.BadParameter(f"{text!r} is before the beginning of time", param_hint=hint) from None
        return age
    try:
        moment = datetime.fromisoformat(folded)
    except ValueError:
        expected = _EXPECTED.format(last="the last messages (-10), " if takes_last else "")
        raise typer.BadParameter(f"{text!r} is no place in the log; {expected}", param_hint=hint) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _looks_like_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
