"""Places in the log as people write them, in the CLI and in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.client.places import EARLIEST, LATEST, LastMessages, parse_place


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


@pytest.mark.parametrize(
    "text", ["", "soon", "1y ago", "-", "--5", "2013-13-01", "99999999999w", "1.5", "-1.5", "4²", "99999999999999999w"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match=r"no place in the log|not a duration|beginning of time|no fixed length"):
        parse_place(text)


@pytest.mark.parametrize("takes_last", [True, False])
def test_the_last_messages_are_advised_only_where_they_are_taken(takes_last: bool) -> None:
    with pytest.raises(ValueError, match="no place") as caught:
        parse_place("soon", takes_last=takes_last)
    assert ("the last messages" in str(caught.value)) == takes_last
