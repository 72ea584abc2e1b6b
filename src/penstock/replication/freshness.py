"""How old what a replica shows may be: since when something may be committed that it does not show.

Rules: what is told is a bound that holds whatever is slow, cut off or deposed; where nothing is known it is None. Only
answers of a leader move it, never the time alone, and it never goes back.

    complete    an answer told all that was news, and this partition shows all that was told: so it showed all that its
                leader had committed when the answer was made. The leader says how long it had held the question, so
                that the time on the way is all that the bound is too long by, not that of the long poll.
    confirmed   its leader may have been deposed without knowing. It says when the metadata leader was last asked about
                it, of what was decided by then it knows all; so nobody else had committed anything at that moment.
    settled     a new leader may have less of `committed_end` than the one before has told. It says so until it has not.
    empty       of a log in which there is nothing at both ends nothing is told; that it was named is enough then.
    listened    a leader that tells of a partition, and has NATS, listens for it. What its broker says before that, or
                in another session, is said of others: it may have been started anew, and not lead this one.

The bound is the older one of the first two, and only moves while the third holds. Under load a replica never shows all
that was told last: what was told at one moment is marked, and counts from that moment once it is shown (as in
`standing`, of followers).
"""

from __future__ import annotations

_NEVER_US = _NEVER = -1


class Heard:
    """What the answers of one leader's broker say of all that it leads. Times are elapsed microseconds here."""

    __slots__ = ("confirmed_us", "is_open", "listened_us", "number", "session", "told_us")

    def __init__(self) -> None:
        self.session = 0
        self.is_open = False
        self.number = _NEVER  # of the last request of this session that has a complete answer
        self.told_us = _NEVER_US  # when the last complete answer of this session was made, at the earliest
        self.confirmed_us = _NEVER_US  # when the metadata leader was asked last about this leader
        self.listened_us = _NEVER_US  # when an answer of this session was made last by a broker that had NATS

    def begin(self, session: int) -> None:
        """Another session: whatever was told before is to be told again."""
        self.session, self.is_open, self.number = session, True, _NEVER
        self.told_us = self.listened_us = _NEVER_US

    def answered(
        self, number: int, made_us: int, confirmed_us: int | None, *, is_all: bool, has_nats: bool = False
    ) -> None:
        """The request of that number was answered at `made_us`, and the answer says what it does."""
        if has_nats:
            self.listened_us = max(self.listened_us, made_us)
        if is_all:
            self.number = max(self.number, number)
            self.told_us = max(self.told_us, made_us)
        if confirmed_us is not None:
            self.confirmed_us = max(self.confirmed_us, made_us - confirmed_us)


class Freshness:
    """The same of one partition. None: nothing is known."""

    __slots__ = ("_as_of_us", "_has_rivals", "_heard", "_is_settled", "_listened_us", "_mark_end", "_mark_us", "_named",
                 "_session", "_since_us", "_told_end", "_told_us")  # fmt: skip

    def __init__(self, as_of_us: int | None = None) -> None:
        self._as_of_us = _NEVER_US if as_of_us is None else as_of_us
        self._heard = Heard()
        self._session = _NEVER  # in which the leader has told of it last
        self._named = _NEVER  # by which request of that session, as a log that has nothing
        self._has_rivals = True
        self._is_settled = False
        self._told_end, self._told_us = 0, _NEVER_US  # the leader's `committed_end`, and when it was that
        self._since_us = self._listened_us = _NEVER_US  # from which answer on it is told of; by an earlier leader
        self._mark_end = self._mark_us = _NEVER  # once so much is shown, all of that moment is

    def follow(self, heard: Heard, *, has_rivals: bool) -> None:
        """Another leadership, whose broker tells this. `has_rivals`: others may lead it, too."""
        self.lose()
        self._heard, self._has_rivals = heard, has_rivals

    def lose(self) -> None:
        """Nothing that the leader says counts from now on, until it tells of this partition again."""
        self._keep()
        self._session = self._named = self._mark_end = _NEVER
        self._is_settled = False

    def named(self, number: int, log_end: int) -> None:
        """The leader is asked for what is behind `log_end`, by the request of that number in its present session."""
        if not log_end and self._session != self._heard.session:
            self._named, self._session = number, self._heard.session
            self._since_us = self._heard.listened_us + 1

    def told(self, leader_end: int, shown_end: int, made_us: int, *, is_settled: bool) -> None:
        """The leader had committed `leader_end` at `made_us`; so far `shown_end` is shown."""
        self._keep()  # before anything is marked
        if self._session != self._heard.session:
            self._since_us = made_us
        if self._session != self._heard.session or not self._is_settled:  # then nothing that was marked counts
            self._session, self._mark_end = self._heard.session, _NEVER
        self._named = _NEVER
        self._is_settled, self._told_end, self._told_us = is_settled, leader_end, made_us
        if leader_end <= shown_end:
            self._mark_end = _NEVER
        elif self._mark_end == _NEVER:
            self._mark_end, self._mark_us = leader_end, made_us

    def shown(self, shown_end: int) -> None:
        """So much is shown now."""
        if self._mark_end == _NEVER or shown_end < self._mark_end:
            return
        if self._is_settled:
            self._as_of_us = max(self._as_of_us, self._bounded(self._mark_us))
        self._mark_end = _NEVER
        if shown_end < self._told_end:
            self._mark_end, self._mark_us = self._told_end, self._told_us

    @property
    def as_of_us(self) -> int | None:
        """All that was committed up to then is shown."""
        heard, as_of_us = self._heard, self._as_of_us
        is_empty = self._named != _NEVER and heard.number >= self._named
        is_complete = is_empty or (self._mark_end == _NEVER and self._is_settled)
        if is_complete and self._session == heard.session and heard.is_open:
            as_of_us = max(as_of_us, self._bounded(heard.told_us))
        return None if as_of_us == _NEVER_US else as_of_us

    @property
    def listened_us(self) -> int | None:
        """Until then a leader of this partition had NATS."""
        listened_us = self._listened_us
        if self.is_told and self._heard.listened_us >= self._since_us:
            listened_us = max(listened_us, self._heard.listened_us)
        return None if listened_us == _NEVER_US else listened_us

    @property
    def is_told(self) -> bool:
        """Whether the present session is with a broker that leads this partition, as far as it has said."""
        heard = self._heard
        is_named = self._named == _NEVER or heard.number >= self._named
        return is_named and heard.is_open and self._session == heard.session

    def _bounded(self, complete_us: int) -> int:
        return min(complete_us, self._heard.confirmed_us) if self._has_rivals else complete_us

    def _keep(self) -> None:
        as_of_us, listened_us = self.as_of_us, self.listened_us
        self._as_of_us = _NEVER_US if as_of_us is None else as_of_us
        self._listened_us = _NEVER_US if listened_us is None else listened_us
