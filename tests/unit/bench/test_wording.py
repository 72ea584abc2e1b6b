"""Results are said in the same words everywhere."""

from __future__ import annotations

import pytest

from penstock.bench.wording import minutes_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1 second"), (40.4, "40 seconds"), (60.0, "1 minute"), (89.0, "1 minute"), (500.0, "8 minutes")],
)
def test_times_are_as_people_say_them(seconds: float, text: str) -> None:
    assert minutes_text(seconds) == text
