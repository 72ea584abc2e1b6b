"""Places in the log as people write them; `tests/unit/client/test_places.py` has the forms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from penstock.cli.terminal.places import parse_place


def test_what_is_no_place_is_a_mistake_of_its_option() -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parse_place("soon", "--from")
    assert (caught.value.param_hint, caught.value.message[:21]) == ("'--from'", "'soon' is no place in")


def test_a_shown_time_is_a_place() -> None:
    from penstock.cli.terminal.output import exact_time_text, time_text

    moment = datetime(2026, 1, 31, 8, 1, 2, 345_000, tzinfo=UTC)
    timestamp_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_place(time_text(timestamp_us)) == moment
    assert parse_place(exact_time_text(timestamp_us)) == moment
