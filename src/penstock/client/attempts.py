"""One request on its way through a cluster: whom to ask next, what a failure means, when to give up. No IO.

Rules: between two pauses each broker is asked at most once; pauses grow up to a limit and are spread at random, so that
many clients do not return at the same moment. A request that does nothing twice is repeated until its time is up. Any
other is repeated only where it is known that the broker did nothing; else its outcome is unknown. The error at the end
says who was asked and what each said last.

| what happens, or the broker says            | a repeatable request       | an append                |
|---------------------------------------------|----------------------------|--------------------------|
| no connection, or a login that is none      | refresh, next broker       | the same                 |
| the connection breaks                       | the same; alone: at once   | if sent `OutcomeUnknown` |
| `not_leader`, and who is                    | that one, at once          | the same                 |
| what a broker `REPEATS`                     | refresh, again             | the same                 |
| what it `REPEATS_IF_HARMLESS`               | refresh, again             | the caller's             |
| what it `ASKS_LEADER` for                   | refresh; if another leads, | the same                 |
|                                             | again; else the caller's   |                          |
| what it `ASKS_OTHERS` for                   | if any broker can answer,  | the caller's             |
|                                             | up to two others           |                          |
| `unauthenticated` in the login              | a second broker; if it     | the same                 |
|                                             | says so, the caller's      |                          |
| `unauthenticated`, after a new login, too   | the caller's               | the same                 |
| anything else                               | the caller's               | the same                 |

The codes of each kind are in `error_codes`.
"Refresh" is to ask any broker who leads; a client that knows only one leaves it out.
An append that a broker refuses as `not_leader` was not written: a leader that loses its leadership with a written
append in its hands may not say so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.client.cluster import ClusterView
from penstock.client.error_codes import AGAIN, DID_NOTHING, IF_LEADER, IN_DOUBT, OF_ONE_BROKER
from penstock.client.errors import OutcomeUnknown, TimedOut, Unavailable

_BACKOFF_S_MIN = 0.05
_BACKOFF_S_MAX = 2.0
_EARLY_S = 0.002  # so much earlier than its deadline a request may be told that its time is up
_HINTS_MAX = 3  # followed at once; beyond it brokers send us in circles

_OTHERS_MAX = 2  # asked where one broker says that it cannot: what it says may be the metadata leader's answer to all


class Ask(NamedTuple):
    """Send the request to the broker at `address`; then one of `unreachable`, `lost` and `refused`, or it is done."""

    address: str


class Refresh(NamedTuple):
    """Ask who leads, rather not those in `avoid`, and tell the view."""

    avoid: frozenset[str]


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class GiveUp(NamedTuple):
    """Tell the caller."""

    error: Exception


Action = Ask | Refresh | Pause | GiveUp


class Doubt:
    """Whether a broker may have done what was asked, and has not said so: it is set, and never taken back."""

    __slots__ = ("exists",)

    def __init__(self) -> None:
        self.exists = False


class Attempts:
    """See the module. `key` is the partition whose leader is asked; None: any broker can answer."""

    def __init__(
        self,
        view: ClusterView,
        key: PartitionKey | None,
        *,
        what: str,
        repeatable: bool,
        deadline_s: float,
        chance: Callable[[], float],
        doubt: Doubt | None = None,
    ) -> None:
        self._view = view
        self._key = key
        self._what = what
        self._repeatable = repeatable
        self._deadline_s = deadline_s
        self._chance = chance
        self._doubt = Doubt() if doubt is None else doubt
        self._said: dict[str, str] = {}  # by each broker that was asked, last
        self._asked: set[str] = set()  # since the last pause, in vain
        self._pauses = self._hints = 0
        self._broke_once = False
        self._unreachable: set[str] = set()  # those that could not even be connected to, the last time
        self._told: dict[str, None] = {}  # those that said who leads, as far as they know
        self._last: Exception | None = None
        self._final: Exception | None = None
        self._doubted: tuple[str, RemoteError] | None = None
        self._cannot: list[RemoteError] = []  # what brokers said of themselves, where another one perhaps can
        self._refresh = self._needs_leader()

    def next(self, now_s: float, home: str | None = None) -> Action:
        """What to do now; `home` is the broker that is asked where any would do."""
        if self._final is not None:
            return GiveUp(self._final)
        if self._refresh:
            self._refresh = False
            return Refresh(frozenset(self._asked if self._doubted is None else {self._doubted[0]}))
        if self._doubted is not None:
            (address, error), self._doubted = self._doubted, None
            if self._target(now_s, home) == address:
                return GiveUp(error)
            self._asked.add(address)  # whoever is asked next, it is not this one
            self._say(address, error)
            self._last = error
        if now_s >= self._deadline_s:
            return GiveUp(self._exhausted())
        target = self._target(now_s, home)
        if target is not None and target not in self._asked:
            return Ask(target)
        if self._cannot:
            return GiveUp(self._cannot[0])
        pause_s = min(_BACKOFF_S_MAX, _BACKOFF_S_MIN * 2 ** min(self._pauses, 10)) * (0.5 + self._chance() / 2)
        if now_s + pause_s >= self._deadline_s:
            return GiveUp(self._exhausted())
        self._asked.clear()
        self._pauses += 1
        self._hints = 0
        self._refresh = self._can_refresh()
        return Pause(pause_s)

    def unreachable(self, address: str, error: Exception, now_s: float) -> None:
        """There is no connection to that broker: Unavailable, TimedOut, or what it said instead of hello."""
        self._view.failed(address, now_s)
        is_foreign = isinstance(error, RemoteError) and error.code not in AGAIN
        if isinstance(error, RemoteError) and error.code == ErrorCode.UNAUTHENTICATED:
            if self._view.is_cluster and not self._cannot:
                self._cannot.append(error)  # it may be no broker at all: a second one is asked before it is believed
            else:
                self._final = error
        elif is_foreign and not self._view.is_cluster:
            self._final = error
        self._note(address, error)
        self._unreachable.add(address)

    def lost(self, address: str, error: Unavailable, now_s: float, *, sent: bool) -> None:
        """The connection broke before the answer came."""
        self._unreachable.discard(address)
        self._view.failed(address, now_s)
        self._doubt.exists |= sent
        if sent and not self._repeatable:
            self._final = OutcomeUnknown(f"the outcome of the {self._what} is unknown: {error}")
        if self._broke_once or self._view.is_cluster:
            self._note(address, error)
        else:  # most connections break for a reason that has passed
            self._broke_once = True
            self._say(address, error)
            self._last = error

    def refused(self, address: str, error: RemoteError, now_s: float) -> None:
        """The broker answered with an error."""
        self._unreachable.discard(address)
        self._doubt.exists |= error.code in IN_DOUBT or error.details.get("reason") == ErrorCode.OUTCOME_UNKNOWN
        if now_s + _EARLY_S < self._deadline_s and self._goes_on(address, error, now_s):
            return
        self._final = self._exhausted() if self._is_ours(error) else error

    def told(self, address: str) -> None:
        """A refresh was answered: that broker is there, whatever it knows."""
        self._told[address] = None
        if address in self._unreachable:
            self._unreachable.discard(address)
            self._said.pop(address, None)

    def not_told(self, address: str, error: Exception) -> None:
        """A refresh failed: that broker does not say who leads."""
        self._told.pop(address, None)
        self._say(address, error)
        if not isinstance(error, RemoteError):
            self._unreachable.add(address)

    def _is_ours(self, error: RemoteError) -> bool:
        """Whether it only says that the time is up, where an earlier one says more."""
        return error.code == ErrorCode.TIMED_OUT and self._repeatable and self._last is not None

    def _goes_on(self, address: str, error: RemoteError, now_s: float) -> bool:
        if error.code in IF_LEADER and self._can_refresh():
            self._doubted = (address, error)
            self._refresh = True
            return True
        if error.code in OF_ONE_BROKER and self._key is None and self._repeatable and self._view.is_cluster:
            self._cannot.append(error)
            self._view.avoid(address, now_s)
            self._note(address, error)
            return len(self._cannot) <= _OTHERS_MAX
        if error.code not in (AGAIN if self._repeatable else DID_NOTHING):
            return False
        is_hint = error.code == ErrorCode.NOT_LEADER and self._key is not None
        if is_hint and self._view.learn_hint(self._key, address, error.details, now_s):  # type: ignore[arg-type]
            self._hints += 1
            if self._hints <= _HINTS_MAX:
                self._asked.add(address)
                self._say(address, error)
                self._last = error
                return True
        self._note(address, error)
        return True

    def _note(self, address: str, error: Exception) -> None:
        self._asked.add(address)
        self._say(address, error)
        self._last = error
        self._refresh = self._can_refresh()

    def _say(self, address: str, error: Exception) -> None:
        self._said[address] = error.message if isinstance(error, RemoteError) else str(error).partition(";")[0]

    def _can_refresh(self) -> bool:
        return self._key is not None and self._view.is_cluster

    def _needs_leader(self) -> bool:
        return self._key is not None and self._view.is_cluster and self._view.leader_address(self._key) is None

    def _target(self, now_s: float, home: str | None) -> str | None:
        if self._key is not None and self._view.leader(self._key) is not None:
            leader = self._view.leader_address(self._key)
            if leader is not None or self._view.is_cluster:
                return leader
        return self._view.any_broker(now_s, home=home, avoid=self._asked)

    def _exhausted(self) -> Exception:
        leader = None if self._key is None else self._view.leader(self._key)
        if leader is not None and leader.reason:
            return TimedOut(f"no leader was there in time: {leader.reason}", nobody_leads=leader.reason)
        if not self._said:
            return TimedOut("nobody led the partition in time: no broker was asked for it")
        said = "; ".join(f"{one}: {self._said[one]}" for one in sorted(self._said, key=self._unreachable.__contains__))
        if self._unreachable >= self._said.keys():
            if there := [address for address in self._told if address not in self._said]:
                who = "its leader" if leader is None else f"its leader, broker {leader.broker_id},"
                reason = f"{who} cannot be reached ({said}; {', '.join(there)}: knows of no other leader)"
                return TimedOut(f"nobody led the partition in time: {reason}", nobody_leads=reason)
            if len(self._said) == 1 and self._last is not None:
                return self._last
            return Unavailable(f"no broker of the cluster can be reached ({said})")
        return TimedOut(f"no broker could answer within the time-out ({said})", tried=dict(self._said))
