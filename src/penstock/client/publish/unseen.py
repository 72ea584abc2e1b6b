"""Failed publishes of which the caller has not heard: they are told by one warning when the client is closed.

Rules: a failure is heard of once its future was asked for its outcome, or `flush` raised a failure. Futures that fail
because the client is closed are not counted. At most `UNSEEN_FAILURES_MAX` futures are kept; of more there is no count.
"""

from __future__ import annotations

from penstock.client.errors import warn_caller
from penstock.client.publish.ack_waiters import Outcome

UNSEEN_FAILURES_MAX = 4096


class PublishWarning(UserWarning):
    """Messages of `publish_nowait` that failed though no future of theirs was looked at, and `flush` told nothing.

    `failed` is their number (4,096 if there are more), `first` the error of the first.
    """

    def __init__(self, failed: int, first: BaseException, *, or_more: bool = False) -> None:
        count = f"{failed:,} or more messages" if or_more else "1 message" if failed == 1 else f"{failed:,} messages"
        super().__init__(f"{count} of publish_nowait failed, and no caller looked; the first: {first}")
        self.failed = failed
        self.first = first


class UnseenFailures:
    """Keeps the failed futures of one client until it is closed."""

    def __init__(self) -> None:
        self._failed: list[Outcome] = []
        self._left_out = 0

    def note(self, outcome: Outcome) -> None:
        """Keep a future that has just failed."""
        if len(self._failed) < UNSEEN_FAILURES_MAX:
            self._failed.append(outcome)
            return
        outcome.exception()  # asyncio need not log it
        self._left_out += 1
        if self._left_out % UNSEEN_FAILURES_MAX == 0:  # a pass over all costs more than a failure
            self._failed = [one for one in self._failed if one.is_unseen]

    def heard(self) -> None:
        """The caller is told of the failures so far."""
        failed, self._failed = self._failed, []
        self._left_out = 0
        for one in failed:
            one.exception()  # asyncio need not log it

    def tell(self) -> None:
        """Warn the caller outside this package, unless all were seen. Each failure is told once."""
        unseen, is_full = [one for one in self._failed if one.is_unseen], self._left_out > 0
        self.heard()
        if not unseen or (first := unseen[0].exception()) is None:
            return
        warn_caller(PublishWarning(len(unseen), first, or_more=is_full))
