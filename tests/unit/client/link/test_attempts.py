"""What a request that is given up tells."""

from __future__ import annotations

import pytest

from penstock.client.errors import TimedOut, Unavailable
from penstock.client.link.attempts import Ask, Attempts, GiveUp, Pause
from penstock.client.link.cluster import ClusterView

END_S = 101.0
NO_CREDENTIALS = Unavailable("the file bob holds no credentials")


@pytest.mark.parametrize(
    ("late_s", "said"),
    [(END_S, str(NO_CREDENTIALS)), (100.5, "the broker at a did not answer in time")],
)
def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_why_those_before_failed(
    late_s: float, said: str
) -> None:
    attempts = Attempts(
        ClusterView(("a",), lambda: 0.5), None, what="get", repeatable=True, deadline_s=END_S, chance=lambda: 0.5
    )
    assert attempts.next(100.0) == Ask("a")
    attempts.unreachable("a", NO_CREDENTIALS, 100.0)
    assert isinstance(attempts.next(100.0), Pause)
    assert attempts.next(100.1) == Ask("a")
    attempts.unreachable("a", TimedOut("the broker at a did not answer in time"), late_s)
    given_up = attempts.next(END_S)
    assert isinstance(given_up, GiveUp)
    assert said in str(given_up.error)
