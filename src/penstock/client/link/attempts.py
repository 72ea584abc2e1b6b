"""Retries of one request in a cluster: next broker, meaning of each failure, backoff, time-out. No IO.

Rules: between two pauses each broker is asked at most once; pauses grow up to a limit (exponential backoff with
jitter), so that many clients do not return at the same moment. A repeatable (idempotent) request is retried until its
deadline. Any other is retried only if the broker certainly did nothing; else its outcome is unknown. The final error
lists the brokers asked and the last answer of each.

| what happens, or the broker says            | a repeatable request       | an append                |
|---------------------------------------------|----------------------------|--------------------------|
| no connection, or a login without proof     | refresh, next broker       | the same                 |
| the connection breaks                       | the same; alone: at once   | if sent `OutcomeUnknown` |
| `not_leader`, with the leader               | that one, at once          | the same                 |
| a code of `REPEATS`                         | refresh, again             | the same                 |
| a code of `REPEATS_IF_HARMLESS`             | refresh, again             | raise                    |
| `corrupt_range` that is being repaired      | the same for a while; else | raise                    |
| a code of `ASKS_LEADER`                     | refresh; if another leads, | the same                 |
|                                             | again; else raise          |                          |
| a code of `ASKS_OTHERS`                     | if any broker can answer,  | raise                    |
|                                             | up to two others           |                          |
| `unauthenticated` in the login              | a second broker; if it     | the same                 |
|                                             | agrees, raise              |                          |
| `unauthenticated`, also after a new login   | raise                      | the same                 |
| anything else                               | raise                      | the same                 |

`error_codes` lists the codes of each kind. "Refresh" asks any broker for the leader; a client that knows only one
broker skips it. An append refused with `not_leader` was not written: a leader that loses its leadership while it holds
a written append must not answer so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey
from penstock.client.errors import OutcomeUnknown, TimedOut, Unavailable
from penstock.client.link.cluster import ClusterView
from penstock.client.link.error_codes import AGAIN, DID_NOTHING, IF_LEADER, IN_DOUBT, OF_ONE_BROKER

_BACKOFF_S_MIN = 0.05
_BACKOFF_S_MAX = 2.0
_EARLY_S = 0.002  # a broker may answer `timed_out` this much before the deadline
_HINTS_MAX = 3  # hints followed without a pause; more mean that brokers send the client in circles

_OTHERS_MAX = 2  # brokers asked after one that cannot answer: the metadata leader may have said so, to all


class Ask(NamedTuple):
    """Send the request to the broker at `address`; report `unreachable`, `lost` or `refused`, or stop on success."""

    address: str


class Refresh(NamedTuple):
    """Ask a broker for the current leader, preferably none in `avoid`, and update the view."""

    avoid: frozenset[str]


class Pause(NamedTuple):
    """Wait before the next attempt."""

    seconds: float


class GiveUp(NamedTuple):
    """Raise `error` to the caller."""

    error: Exception


Action = Ask | Refresh | Pause | GiveUp


class OutcomeDoubt:
    """Records that a broker may have executed the request without confirming it; once set, it stays set."""

    __slots__ = ("exists",)

    def __init__(self) -> None:
        self.exists = False


class Attempts:
    """Retry state of one request. `key`: the partition whose leader must answer; None: any broker can."""

    def __init__(
        self,
        view: ClusterView,
        key: PartitionKey | None,
        *,
        what: str,
        repeatable: bool,
        deadline_s: float,
        chance: Callable[[], float],
        doubt: OutcomeDoubt | None = None,
    ) -> None:
        self._view = view
        self._key = key
        self._what = what
        self._repeatable = repeatable
        self._deadline_s = deadline_s
        self._chance = chance
        self._doubt = OutcomeDoubt() if doubt is None else doubt
        self._said: dict[str, str] = {}  # last answer of each broker asked
        self._asked: set[str] = set()  # asked without success since the last pause
        self._pauses = self._hints = 0
        self._broke_once = False
        self._unreachable: set[str] = set()  # brokers whose last connection attempt failed
        self._told: dict[str, None] = {}  # brokers that answered a refresh
        self._last: Exception | None = None
        self._repair_s: float | None = None  # until then a repair is waited for
        self._final: Exception | None = None
        self._doubted: tuple[str, RemoteError] | None = None
        self._cannot: list[RemoteError] = []  # errors that concern one broker only, so another may be able to answer
        self._refresh = self._needs_leader()

    def next(self, now_s: float, home: str | None = None) -> Action:
        """Return the next action; `home` is the preferred broker if any can answer."""
        if self._final is not None:
            return GiveUp(self._final)
        if self._refresh:
            self._refresh = False
            return Refresh(frozenset(self._asked if self._doubted is None else {self._doubted[0]}))
        if self._doubted is not None:
            (address, error), self._doubted = self._doubted, None
            if self._target(now_s, home) == address:
                return GiveUp(error)
            self._asked.add(address)  # the next attempt must go to another broker
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
        """Report that no connection was made: Unavailable, TimedOut, or the broker's refusal in place of hello."""
        self._view.failed(address, now_s)
        is_foreign = isinstance(error, RemoteError) and error.code not in AGAIN
        if isinstance(error, RemoteError) and error.code == ErrorCode.UNAUTHENTICATED:
            if self._view.is_cluster and not self._cannot:
                self._cannot.append(error)  # it may not be a broker at all: ask a second one before believing it
            else:
                self._final = error
        elif is_foreign and not self._view.is_cluster:
            self._final = error
        is_cut_short = isinstance(error, TimedOut) and now_s + _EARLY_S >= self._deadline_s
        if is_cut_short and self._last is not None and address in self._said:
            self._asked.add(address)  # the attempt before says more
        else:
            self._note(address, error)
        self._unreachable.add(address)

    def lost(self, address: str, error: Unavailable, now_s: float, *, sent: bool) -> None:
        """Report that the connection broke before the answer arrived."""
        self._unreachable.discard(address)
        self._view.failed(address, now_s)
        self._doubt.exists |= sent
        if sent and not self._repeatable:
            self._final = OutcomeUnknown(f"the outcome of the {self._what} is unknown: {error}")
        if self._broke_once or self._view.is_cluster:
            self._note(address, error)
        else:  # most causes of a broken connection are transient
            self._broke_once = True
            self._say(address, error)
            self._last = error

    def refused(self, address: str, error: RemoteError, now_s: float) -> None:
        """Report an error answer from the broker."""
        self._unreachable.discard(address)
        self._doubt.exists |= error.code in IN_DOUBT or error.details.get("reason") == ErrorCode.OUTCOME_UNKNOWN
        is_late = now_s + _EARLY_S >= self._deadline_s
        if not is_late and self._goes_on(address, error, now_s):
            return
        if is_late and self._repeatable and error.code in AGAIN and error.code != ErrorCode.TIMED_OUT:
            self._note(address, error)  # ends as it would have, had the answer come a moment earlier
            self._final = self._exhausted()
        else:
            self._final = self._exhausted() if self._is_ours(error) else error

    def refreshed(self, address: str) -> None:
        """Report that a broker answered a refresh: it is reachable, whatever it knows."""
        self._told[address] = None
        if address in self._unreachable:
            self._unreachable.discard(address)
            self._said.pop(address, None)

    def not_told(self, address: str, error: Exception) -> None:
        """Report that a refresh failed at that broker."""
        self._told.pop(address, None)
        self._say(address, error)
        if not isinstance(error, RemoteError):
            self._unreachable.add(address)

    def _is_ours(self, error: RemoteError) -> bool:
        """True if `error` is only a time-out and an earlier error explains more."""
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
        waits = self._repeatable and _is_being_repaired(error)
        if waits and self._repair_s is None:
            self._repair_s = now_s + limits.REPAIR_WAIT_S
        if waits and self._repair_s is not None and now_s > self._repair_s:
            return False
        if not waits and error.code not in (AGAIN if self._repeatable else DID_NOTHING):
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
        if self._last is not None and _is_being_repaired(self._last):
            return self._last
        leader = None if self._key is None else self._view.leader(self._key)
        if leader is not None and leader.reason:
            return TimedOut(f"the partition had no leader in time: {leader.reason}", nobody_leads=leader.reason)
        if not self._said:
            return TimedOut("the partition had no leader in time: no broker was asked")
        said = "; ".join(f"{one}: {self._said[one]}" for one in sorted(self._said, key=self._unreachable.__contains__))
        if self._unreachable >= self._said.keys():
            if there := [address for address in self._told if address not in self._said]:
                who = "its leader" if leader is None else f"its leader, broker {leader.broker_id},"
                reason = f"{who} cannot be reached ({said}; {', '.join(there)}: knows no other leader)"
                return TimedOut(f"the partition had no leader in time: {reason}", nobody_leads=reason)
            if len(self._said) == 1 and self._last is not None:
                return self._last
            return Unavailable(f"no broker of the cluster can be reached ({said})")
        return TimedOut(f"no broker could answer within the time-out ({said})", tried=dict(self._said))


def _is_being_repaired(error: Exception) -> bool:
    """True if the broker can read that range again soon."""
    return (
        isinstance(error, RemoteError)
        and error.code == ErrorCode.CORRUPT_RANGE
        and error.details.get("repairing") is True
    )
