"""Leader's state of one follower: its log end, and since when it has been behind.

Rules: a follower has caught up with the log of some moment once it has reached the log end of that moment. Under load
no follower ever has everything, least of all on its disk, so such a moment is marked (`_mark`), and the next one once
that is reached: the recorded time is older than the truth by at most one such round, and never newer.

A follower outside the ISR that keeps up would never meet the committed end under constant load while the leader alone
commits: at each fetch there is more. So commits wait for it for a moment (`is_awaited`): then it has everything
committed at its next fetch, and can join. That wait is short, and is not repeated soon, because the follower may fail
meanwhile.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import BrokerId, Incarnation

_AWAITED_US = limits.JOIN_AWAITED_MS * 1_000


class FollowerProgress:
    """One follower of one leadership. Times are elapsed microseconds."""

    __slots__ = (
        "_awaited_us", "_kept_up_us", "_mark", "broker_id", "caught_up_us", "flushed_end", "incarnation", "is_awaited",
        "is_impeded", "joins_at", "log_end",
    )  # fmt: skip

    def __init__(self, broker_id: BrokerId, incarnation: Incarnation | None, now_us: int) -> None:
        self.broker_id = broker_id
        self._awaited_us: int | None = None  # when commits began to wait for it
        self.begin(incarnation, now_us)

    def begin(self, incarnation: Incarnation | None, now_us: int) -> None:
        """Reset for a new incarnation of its broker (None: not live): it has not fetched yet."""
        self.incarnation = incarnation
        self.log_end: int | None = None  # None: it has not fetched in this epoch
        self.flushed_end: int | None = None
        # it joins the ISR once this much is on its disk; None: it has not caught up yet
        self.joins_at: int | None = None
        self.caught_up_us = now_us  # when it last had everything
        self._kept_up_us: int | None = None  # as `caught_up_us`, but None until it has: an empty log begins far behind
        self._mark = (0, now_us)  # the leader's end at some later moment, and that time
        self.is_impeded = False  # its log accepts nothing, as it reported
        self.is_awaited = False  # commits wait for it, so that it can join

    def reached(self, end: int, leader_end: int, now_us: int) -> None:
        """Record that the follower reached `end` while the leader's log ends at `leader_end`."""
        if end >= leader_end:
            self.caught_up_us = self._kept_up_us = now_us
        elif end >= self._mark[0]:
            self.caught_up_us = max(self.caught_up_us, self._mark[1])
            if self._mark[0]:
                self._kept_up_us = self.caught_up_us
        else:
            return
        self._mark = leader_end, now_us

    def keeps_up(self, now_us: int) -> bool:
        """True if it had everything up to a moment ago."""
        return self._kept_up_us is not None and now_us - self._kept_up_us <= _AWAITED_US

    def await_join(self, now_us: int, pause_us: int) -> int | None:
        """Have commits wait for it, unless they did in the last `pause_us`; return the end of a new wait."""
        if self.is_awaited or (self._awaited_us is not None and now_us < self._awaited_us + pause_us):
            return None
        self.is_awaited, self._awaited_us = True, now_us
        return now_us + _AWAITED_US

    def end_await(self, now_us: int) -> bool:
        """End the wait of commits if it lasted long enough; return True if it ended now."""
        if not self.is_awaited or (self._awaited_us is not None and now_us < self._awaited_us + _AWAITED_US):
            return False
        self.is_awaited = False
        return True


class ObserverProgress:
    """Leader's state of one observer (read replica); no decision depends on it."""

    __slots__ = ("broker_id", "is_impeded", "log_end")

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.log_end: int | None = None  # None: it has not fetched in this epoch
        self.is_impeded = False

    def fetched(self, broker_id: BrokerId, log_end: int, *, is_impeded: bool) -> None:
        """Record a fetch from `log_end`, if it is this observer's."""
        if broker_id == self.broker_id:
            self.log_end, self.is_impeded = log_end, is_impeded
