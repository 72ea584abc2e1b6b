"""Places in the log as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from penstock.cli.terminal.places import LastMessages, parse_place
from penstock.client.values import EARLIEST, LATEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("Latest", LATEST),
        ("42", 42),
        ("20130101", 20130101),
        ("-10", LastMessages(10)),
        ("30s", timedelta(seconds=30)),
        ("30s ago", timedelta(seconds=30)),
        ("last 5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("2013-01-31", datetime(2013, 1, 31, tzinfo=UTC)),
        ("2013-01-31T08:00", datetime(2013, 1, 31, 8, tzinfo=UTC)),
        ("2013-01-31 08:00:00.5Z", datetime(2013, 1, 31, 8, 0, 0, 500_000, tzinfo=UTC)),
        ("2013-01-31T08:00+02:00", datetime(2013, 1, 31, 8, tzinfo=timezone(timedelta(hours=2)))),
        ("20130131T080000", datetime(2013, 1, 31, 8, tzinfo=UTC)),
    ],
)
def test_places(text: str, expected: object) -> None:
    assert parse_place(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "1y ago", "-", "--5", "2013-13-01", "99999999999w", "1.5", "-1.5", "4²"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_place(text)


@pytest.mark.parametrize("takes_last", [True, False])
def test_the_last_messages_are_advised_only_where_they_are_taken(takes_last: bool) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse_place("soon", takes_last=takes_last)
    assert ("the last messages" in caught.value.message) == takes_last


def test_a_shown_time_is_a_place() -> None:
    from penstock.cli.terminal.output import exact_time_text, time_text

    moment = datetime(2026, 1, 31, 8, 1, 2, 345_000, tzinfo=UTC)
    timestamp_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_place(time_text(timestamp_us)) == moment
    assert parse_place(exact_time_text(timestamp_us)) == moment
