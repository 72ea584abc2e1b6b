"""What a leadership knows of one follower: where its log ends, and since when it has not had all.

Rules: a follower has caught up with what was here at some moment once it has reached what was the end then. Under load
nobody ever has all, least of all on the disk, so such a moment is marked (`_mark`), and the next one once that is
reached: what is known of it is older than the truth by one such round, and never newer.

Who keeps up and is not in sync would never meet the committed end where messages come all the time and the leader alone
commits them: each time it asks there is more. So commits wait for it for a moment (`is_awaited`): then it has all that
is committed when it asks next, and can join. That moment is short, and does not come again soon: it may fail meanwhile.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import BrokerId, Incarnation

_AWAITED_US = limits.JOIN_AWAITED_MS * 1_000


class Follower:
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
        """A run of its broker begins (None: it is not live): it has not fetched yet."""
        self.incarnation = incarnation
        self.log_end: int | None = None  # None: it has not fetched in this epoch
        self.flushed_end: int | None = None
        self.joins_at: int | None = None  # it is about to join: once it has so much on its disk
        self.caught_up_us = now_us  # when it last had all there was
        self._kept_up_us: int | None = None  # the same, but None until it has: an empty log begins far behind
        self._mark = (0, now_us)  # the leader's end at some moment since, and when that was
        self.is_impeded = False  # its log takes nothing, as it says
        self.is_awaited = False  # commits wait for it, that it can join

    def reached(self, end: int, leader_end: int, now_us: int) -> None:
        """It has so much of what counts, of so much that is here."""
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
        """Whether it had all that was here a moment ago."""
        return self._kept_up_us is not None and now_us - self._kept_up_us <= _AWAITED_US

    def await_join(self, now_us: int, pause_us: int) -> int | None:
        """Have commits wait for it, unless they did in the last `pause_us`; gives until when, if they begin to."""
        if self.is_awaited or (self._awaited_us is not None and now_us < self._awaited_us + pause_us):
            return None
        self.is_awaited, self._awaited_us = True, now_us
        return now_us + _AWAITED_US

    def end_await(self, now_us: int) -> bool:
        """Whether commits have waited long enough: they do no more."""
        if not self.is_awaited or (self._awaited_us is not None and now_us < self._awaited_us + _AWAITED_US):
            return False
        self.is_awaited = False
        return True


class Observer:
    """What a leadership knows of one observer: nothing that it decides by."""

    __slots__ = ("broker_id", "is_impeded", "log_end")

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.log_end: int | None = None  # None: it has not fetched in this epoch
        self.is_impeded = False

    def fetched(self, broker_id: BrokerId, log_end: int, *, is_impeded: bool) -> None:
        """A broker that is no follower asks for what is behind `log_end`; perhaps it is this one."""
        if broker_id == self.broker_id:
            self.log_end, self.is_impeded = log_end, is_impeded
