"""Staleness of a replica: the time up to which it shows everything that was committed.

Rules: the reported bound holds whatever is slow, partitioned or deposed; it is None if nothing is known. Only a
leader's answers move it, never time alone, and it never goes back.

    complete    an answer carried all news, and this partition shows all that it was told: so it showed everything that
                its leader had committed when the answer was made. The leader says how long it had held the request, so
                the bound is too old only by the network delay, not by the long poll.
    confirmed   the leader may have been deposed without knowing. It reports when the metadata leader was last asked
                about it; it knows all decisions up to then, so no other leader had committed anything at that moment.
    settled     a new leader's `committed_end` may be lower than its predecessor reported. It says so until it is not.
    empty       for an empty log on an empty leader log no news come; it is enough that it was named.
    listened    a leader that answers for a partition, and has NATS, subscribes for it. What its broker says before
                that, or in another session, does not count: it may have restarted, and not lead this partition.

The bound is the older one of the first two, and only moves while the third holds. Under load a replica never shows all
that it was told last: the end told at one moment is marked, and counts from that moment once it is shown (as in
`leader.FollowerProgress`).
"""

from __future__ import annotations

_NEVER_US = _NEVER = -1


class LeaderNews:
    """Statements of one leader's broker about all partitions that it leads. Times are elapsed microseconds here."""

    __slots__ = ("confirmed_us", "is_open", "listened_us", "number", "session", "told_us")

    def __init__(self) -> None:
        self.session = 0
        self.is_open = False
        self.number = _NEVER  # of this session's last request with a complete answer
        self.told_us = _NEVER_US  # when this session's last complete answer was made, at the earliest
        self.confirmed_us = _NEVER_US  # when the metadata leader was last asked about this leader
        self.listened_us = _NEVER_US  # when this session's last answer by a broker with NATS was made

    def begin(self, session: int) -> None:
        """Begin another session: earlier statements must be repeated."""
        self.session, self.is_open, self.number = session, True, _NEVER
        self.told_us = self.listened_us = _NEVER_US

    def answered(
        self, number: int, made_us: int, confirmed_us: int | None, *, is_all: bool, has_nats: bool = False
    ) -> None:
        """Record the answer, made at `made_us`, to the request of that number."""
        if has_nats:
            self.listened_us = max(self.listened_us, made_us)
        if is_all:
            self.number = max(self.number, number)
            self.told_us = max(self.told_us, made_us)
        if confirmed_us is not None:
            self.confirmed_us = max(self.confirmed_us, made_us - confirmed_us)


class Freshness:
    """The freshness of one partition. None: nothing is known."""

    __slots__ = ("_as_of_us", "_heard", "_is_settled", "_listened_us", "_mark_end", "_mark_us", "_named",
                 "_session", "_since_us", "_told_end", "_told_us", "has_rivals")  # fmt: skip

    def __init__(self, as_of_us: int | None = None) -> None:
        self._as_of_us = _NEVER_US if as_of_us is None else as_of_us
        self._heard = LeaderNews()
        self._session = _NEVER  # in which the leader last reported on it
        self._named = _NEVER  # number of this session's request that named it as an empty log
        self.has_rivals = True  # other brokers may lead it, by the image
        self._is_settled = False
        self._told_end, self._told_us = 0, _NEVER_US  # the leader's `committed_end`, and when it had that
        self._since_us = self._listened_us = _NEVER_US  # first answer that counts; `listened_us` of earlier leaders
        self._mark_end = self._mark_us = _NEVER  # once this end is shown, everything of that moment is shown

    def follow(self, heard: LeaderNews) -> None:
        """Follow another leadership, reported by `heard`."""
        self.lose()
        self._heard = heard

    def lose(self) -> None:
        """Ignore the leader's statements until it reports on this partition again."""
        self._keep()
        self._session = self._named = self._mark_end = _NEVER
        self._is_settled = False

    def named(self, number: int, log_end: int) -> None:
        """The leader is asked for data from `log_end` on, by the request of that number in its present session."""
        if not log_end and self._session != self._heard.session:
            self._named, self._session = number, self._heard.session
            self._since_us = self._heard.listened_us + 1

    def leader_end_reported(self, leader_end: int, shown_end: int, made_us: int, *, is_settled: bool) -> None:
        """The leader had committed `leader_end` at `made_us`; `shown_end` is shown here so far."""
        self._keep()  # before marking anything
        if self._session != self._heard.session:
            self._since_us = made_us
        if self._session != self._heard.session or not self._is_settled:  # then earlier marks are void
            self._session, self._mark_end = self._heard.session, _NEVER
        self._named = _NEVER
        self._is_settled, self._told_end, self._told_us = is_settled, leader_end, made_us
        if leader_end <= shown_end:
            self._mark_end = _NEVER
        elif self._mark_end == _NEVER:
            self._mark_end, self._mark_us = leader_end, made_us

    def shown(self, shown_end: int) -> None:
        """Readers are shown data up to `shown_end` now."""
        if self._mark_end == _NEVER or shown_end < self._mark_end:
            return
        if self._is_settled:
            self._as_of_us = max(self._as_of_us, self._bounded(self._mark_us))
        self._mark_end = _NEVER
        if shown_end < self._told_end:
            self._mark_end, self._mark_us = self._told_end, self._told_us

    @property
    def as_of_us(self) -> int | None:
        """Everything committed up to this time is shown; None if unknown."""
        heard, as_of_us = self._heard, self._as_of_us
        is_complete = self.is_empty or (self._mark_end == _NEVER and self._is_settled)
        if is_complete and self._session == heard.session and heard.is_open:
            as_of_us = max(as_of_us, self._bounded(heard.told_us))
        return None if as_of_us == _NEVER_US else as_of_us

    @property
    def is_empty(self) -> bool:
        """True if this log and the leader's are empty: it was named, and there were no news of it."""
        return self._named != _NEVER and self._heard.number >= self._named

    @property
    def is_settled(self) -> bool:
        """True if no earlier leader had committed more than this one has reported."""
        return self._is_settled

    @property
    def listened_us(self) -> int | None:
        """The time up to which a leader of this partition had NATS; None if unknown."""
        listened_us = self._listened_us
        if self.is_told and self._heard.listened_us >= self._since_us:
            listened_us = max(listened_us, self._heard.listened_us)
        return None if listened_us == _NEVER_US else listened_us

    @property
    def is_told(self) -> bool:
        """True if the present session is with a broker that leads this partition, by its own statements."""
        heard = self._heard
        is_named = self._named == _NEVER or heard.number >= self._named
        return is_named and heard.is_open and self._session == heard.session

    def _bounded(self, complete_us: int) -> int:
        return min(complete_us, self._heard.confirmed_us) if self.has_rivals else complete_us

    def _keep(self) -> None:
        as_of_us, listened_us = self.as_of_us, self.listened_us
        self._as_of_us = _NEVER_US if as_of_us is None else as_of_us
        self._listened_us = _NEVER_US if listened_us is None else listened_us
