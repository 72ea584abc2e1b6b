"""Fetch session from one broker to another: all partitions that the one follows and the other leads.

Rules: a partition is named in a request when its log is idle and wants more, and gets one answer for it; see
`messages.replicas`. One long poll waits at the leader. A second request is made only if there is something to name, and
makes the leader answer the first one at once. Any failure of a request ends the session: the next one names everything
again, so nothing depends on the failed request. Partitions that are not in sync are named within a byte rate of their
own, or else only as fast as a multiple of what their leader gets (`pace`); partitions in sync never wait for them.

```
              ┌── stalled: its leader, or its log, refused; backoff grows ◀────────┐
              ▼                                                                     │
follow ──▶ ready ──named──▶ asked ──answered──▶ (append, truncate, reset) ──proceed─┴─▶ ready
              ▲                                                           └─▶ catching up: waits for the rate
              └─────────────────────────────────────────────────────────────────┘
```
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import earliest
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionKey
from penstock.messages import (
    FetchPosition,
    FlushedEnd,
    PartitionName,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaNews,
    ReplicaProgressRequest,
)
from penstock.replication.catch_up import CatchUpBudget, CatchUpPace
from penstock.replication.follower import Following, FollowState, LogOrders
from penstock.replication.freshness import LeaderNews

_IN_FLIGHT_MAX = 2  # one long poll, and one that makes the leader answer it
_TIMEOUT_US = limits.REPLICA_FETCH_TIMEOUT_MS * 1_000
_UNREACHABLE = frozenset({ErrorCode.BROKER_UNAVAILABLE, ErrorCode.TIMED_OUT, ErrorCode.STOPPING})


class FetchSent(NamedTuple):
    """A request to be sent; pass its answer to `answered` with `number`."""

    number: int
    request: ReplicaFetchRequest


class Delivery(NamedTuple):
    """Work for one log; its batches are the bytes from `position` to `position_end` of the raw part."""

    following: Following
    orders: LogOrders
    position: int
    position_end: int


class _Asked(NamedTuple):
    number: int
    deadline_us: int
    sent_us: int


class Fetcher:
    """Consecutive fetch sessions with one leader's broker. Times are elapsed microseconds.

    `chance` returns random numbers from 0 to 1, so that brokers do not retry in step.
    """

    def __init__(
        self, broker_id: BrokerId, incarnation: Incarnation, chance: Callable[[], float], catch_up: CatchUpBudget
    ) -> None:
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._chance = chance
        self._catch_up = catch_up
        self._followings: dict[PartitionKey, Following] = {}
        self._ready: dict[PartitionKey, None] = {}
        self._catching_up: dict[PartitionKey, None] = {}
        self._paces: dict[PartitionKey, CatchUpPace] = {}  # of partitions that are not in sync
        self._stalls: dict[PartitionKey, int] = {}  # consecutive stalls
        self._stalled: list[tuple[int, PartitionKey]] = []  # a heap of backoff deadlines
        self._forgotten: dict[PartitionKey, None] = {}  # to be reported to the leader
        self._impeded: dict[PartitionKey, None] = {}  # partitions whose logs accept nothing
        self._untold: dict[PartitionKey, None] = {}  # those of them not yet reported to the leader
        self._named: set[PartitionKey] = set()  # in this session
        self._flushed: dict[PartitionKey, None] = {}  # flushed ends to be reported
        self._progress_number = 0  # in flight; 0: none
        self._asked: deque[_Asked] = deque()
        self._number = 0
        self._session = 0
        self._is_open = False
        self._failures = 0
        self._retry_us = 0
        self._patient_us = 0  # received bytes of an answer extend the next deadline to here
        self._began_us: int | None = None  # start of a large answer
        self._bytes_max = limits.REPLICA_FETCH_BYTES
        self.heard = LeaderNews()
        self.unreachable_since_us: int | None = None  # since when the leader is unreachable; sent with the heartbeat

    @property
    def is_idle(self) -> bool:
        """True if no partition is followed."""
        return not self._followings

    @property
    def partitions(self) -> int:
        return len(self._followings)

    # Followed partitions

    def follow(self, following: Following) -> None:
        """Fetch this partition from now on; or again, in another epoch."""
        key = following.key
        if not self._followings:
            self.unreachable_since_us = None  # void: no request was sent since
        self._followings[key] = following
        following.freshness.follow(self.heard)
        self._forgotten.pop(key, None)
        self._stalls.pop(key, None)
        self._paces.pop(key, None)
        self._catch_up.forget(key)
        if following.may_ask:
            self._ready[key] = None

    def forget(self, key: PartitionKey) -> None:
        """Stop fetching this partition: deleted, or led by another broker or by this one."""
        if (following := self._followings.pop(key, None)) is None:
            return
        following.unasked()
        following.freshness.lose()
        self._catch_up.forget(key)
        is_known = key in self._named or key in self._impeded
        for place in (
            *(self._ready, self._catching_up, self._paces, self._stalls),
            *(self._flushed, self._impeded, self._untold),
        ):
            place.pop(key, None)
        if is_known:
            self._named.discard(key)
            self._forgotten[key] = None
        if not self._followings:
            self._stalled.clear()

    def impeded(self, following: Following) -> None:
        """The partition's log accepts nothing: report it to the leader at once, so that commits do not wait for it."""
        if self._followings.get(following.key) is following and following.key not in self._impeded:
            self._impeded[following.key] = self._untold[following.key] = None
            self._catch_up.forget(following.key)

    def free(self, following: Following) -> None:
        """The partition's log accepts data again."""
        key = following.key
        if key in self._impeded:
            del self._impeded[key]
            self._untold.pop(key, None)
            if following.may_ask:
                self._stalls.pop(key, None)
                self._ready[key] = None  # naming it without `impeded` lets it join the ISR again

    def in_sync(self, following: Following, is_in_sync: bool) -> None:
        """Record the partition's ISR membership; in the ISR it waits for no rate limit."""
        following.is_in_sync = is_in_sync
        if is_in_sync:
            self._paces.pop(following.key, None)
            self._catch_up.forget(following.key)
            if following.key in self._catching_up:
                del self._catching_up[following.key]
                self._ready[following.key] = None

    def registered(self, incarnation: Incarnation, now_us: int) -> None:
        """This broker was registered anew: start over, because statements of its earlier incarnation are void."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._end_session()
            self._retry_us = now_us

    # Requests

    def rests(self, now_us: int) -> bool:
        """True if neither `request` nor `progress` has anything to send, as in most steps."""
        if self._flushed:
            return False
        if not self._followings or now_us < self._retry_us or len(self._asked) >= _IN_FLIGHT_MAX:
            return True
        return bool(self._asked) and not (self._ready or self._stalled or self._catching_up or self._untold)

    def request(self, now_us: int) -> FetchSent | None:
        """Return the next request if one is due. Call it again until it returns None."""
        if not self._followings or now_us < self._retry_us or len(self._asked) >= _IN_FLIGHT_MAX:
            return None
        self._wake(now_us)
        if self._asked and not self._ready and not self._untold:
            return None
        is_first = not self._is_open
        changed: list[FetchPosition] = []
        forgotten: list[PartitionName] = []
        impeded: list[PartitionName] = []
        if is_first:
            self._session += 1
            self._is_open = True
            self.heard.begin(self._session)
        while self._ready and len(changed) < limits.REPLICA_NAMED_AT_ONCE:
            key = next(iter(self._ready))
            del self._ready[key]
            following = self._followings[key]
            if following.may_ask:
                changed.append(following.position())
                following.freshness.named(self._number + 1, following.log.log_end)
                self._named.add(key)
                self._flushed.pop(key, None)
                if key in self._impeded:
                    self._untold[key] = None
        while self._untold and len(impeded) < limits.REPLICA_POSITIONS_MAX:
            key = next(iter(self._untold))
            del self._untold[key]
            impeded.append(PartitionName(*key))
        while self._forgotten and len(forgotten) < limits.REPLICA_POSITIONS_MAX:
            key = next(iter(self._forgotten))
            del self._forgotten[key]
            forgotten.append(PartitionName(*key))
        self._number += 1
        self._asked.append(_Asked(self._number, now_us + _TIMEOUT_US, now_us))
        request = ReplicaFetchRequest(
            broker_id=self._broker_id,
            incarnation=self._incarnation,
            session=self._session,
            is_first=is_first,
            changed=tuple(changed),
            forgotten=tuple(forgotten),
            impeded=tuple(impeded),
            bytes_max=self._bytes_max,
            wait_ms_max=0 if self._ready else limits.REPLICA_FETCH_WAIT_MS,
        )
        return FetchSent(self._number, request)

    def flushed(self, following: Following) -> None:
        """Report more flushed data to the leader, at once if commits or joining the ISR wait for it."""
        self._catch_up.synced(following.key, following.log.flushed_end)
        if following.reports_flushes and following.key in self._named and following.may_ask:
            self._flushed[following.key] = None

    def progress(self) -> tuple[int, ReplicaProgressRequest] | None:
        """Return the flushed ends to report beside the waiting fetch, or None; one such request at a time."""
        if not self._flushed or self._progress_number or not self._is_open:
            return None
        told = list(self._flushed)[: limits.REPLICA_POSITIONS_MAX]
        flushed = []
        for key in told:
            del self._flushed[key]
            position = self._followings[key]
            flushed.append(FlushedEnd(*key, position.leader_epoch, position.log.flushed_end))  # type: ignore[arg-type]
        self._number += 1
        self._progress_number = self._number
        request = ReplicaProgressRequest(
            broker_id=self._broker_id, incarnation=self._incarnation, session=self._session, flushed=tuple(flushed)
        )
        return self._number, request

    # Answers

    def answered(self, number: int, response: ReplicaFetchResponse, raw_bytes: int, now_us: int) -> list[Delivery]:
        """Return the work for each partition; after each, call `proceed` or `stall`.

        Raise RemoteError (bad_frame), with nothing done, if the answer contradicts itself; the session has ended then.
        """
        if all(asked.number != number for asked in self._asked):
            return []  # of an ended session
        if sum(news.size_bytes for news in response.partitions) != raw_bytes:
            self.failed(number, RemoteError(ErrorCode.BAD_FRAME, "the batches do not have the announced sizes"), now_us)
            raise RemoteError(ErrorCode.BAD_FRAME, "the batches of a replica fetch do not have the announced sizes")
        sent_us = next(asked.sent_us for asked in self._asked if asked.number == number)
        made_us = min(now_us, sent_us + response.held_us)
        if self._asked[0].number == number:
            self._patient_us = now_us + _TIMEOUT_US  # the next answer could not come earlier
        self._asked = deque(asked for asked in self._asked if asked.number != number)
        self._note_speed(raw_bytes, now_us)
        self._failures = 0
        self.unreachable_since_us = None
        out, position = [], 0
        for news in response.partitions:
            position_end = position + news.size_bytes
            following = self._followings.get(PartitionKey(news.stream_id, news.partition))
            if following is not None:
                if not following.is_in_sync:
                    self._charge(following, news, now_us)
                orders = following.news(news, made_us)
                if orders.error:
                    why = f"its leader, broker {following.leader}, refuses the replica fetch: {orders.error}"
                    self.stall(following, now_us, why)
                out.append(Delivery(following, orders, position, position_end))
            position = position_end
        self.heard.answered(number, made_us, response.confirmed_us, is_all=response.is_all, has_nats=response.has_nats)
        return out

    def receiving(self, size_bytes: int, now_us: int) -> None:
        """Record `size_bytes` more of a large answer, 0 at its begin: the leader is alive if that is fast enough."""
        if self._began_us is None:
            self._began_us = now_us
        if self._asked:
            earned_us = size_bytes * 1_000_000 // limits.TRANSFER_BYTES_PER_S_MIN
            self._patient_us = min(self._due_us + earned_us, now_us + _TIMEOUT_US)

    @property
    def _due_us(self) -> int:
        """Deadline for the leader's answer."""
        return max(self._asked[0].deadline_us, self._patient_us)

    def _note_speed(self, raw_bytes: int, now_us: int) -> None:
        """Adapt the request size to what arrives within REPLICA_ANSWER_MS, because other requests queue behind it."""
        took_us = 0 if self._began_us is None else now_us - self._began_us
        self._began_us = None
        if took_us > limits.REPLICA_ANSWER_MS * 1_000:
            self._bytes_max = raw_bytes * limits.REPLICA_ANSWER_MS * 1_000 // took_us
        elif took_us < limits.REPLICA_ANSWER_MS * 500:
            self._bytes_max *= 2
        self._bytes_max = min(max(self._bytes_max, limits.REPLICA_SHARE_BYTES_MIN), limits.REPLICA_FETCH_BYTES)

    def _charge(self, following: Following, news: ReplicaNews, now_us: int) -> None:
        """Charge an answer for a partition that is not in sync to the shared rate."""
        key, log_end = following.key, following.log.log_end
        pace = self._paces.get(key) or self._paces.setdefault(key, CatchUpPace())
        if news.leader_epoch == following.leader_epoch and news.committed_end:
            pace.leader_end_reported(news.committed_end, log_end)
        if news.size_bytes:
            self._catch_up.take(news.size_bytes, now_us)
            pace.came(news.size_bytes, log_end)
        elif key in self._catching_up and pace.is_free(log_end):
            del self._catching_up[key]
            self._ready[key] = None

    def proceed(self, following: Following) -> None:
        """The ordered work is done (batches appended, or log cut): name the partition again."""
        key = following.key
        if self._followings.get(key) is not following or not following.may_ask:
            return
        self._stalls.pop(key, None)
        following.trouble = ""
        is_free = following.is_in_sync
        if (pace := self._paces.get(key)) is not None:
            log_end = following.log.log_end
            if following.state is FollowState.FETCHING:
                self._catch_up.written(key, log_end, pace.came_bytes)
            else:
                self._catch_up.forget(key)  # the log was cut
            self._catch_up.give(pace.taken(log_end))
            is_free = is_free or pace.is_free(log_end)
        (self._ready if is_free else self._catching_up)[key] = None

    def stall(self, following: Following, now_us: int, why: str = "") -> None:
        """The work cannot be done now: name the partition again after a backoff."""
        key = following.key
        if self._followings.get(key) is not following:
            return
        following.trouble = why
        following.unasked()
        self._ready.pop(key, None)
        count = self._stalls.get(key, 0)
        self._stalls[key] = count + 1
        heapq.heappush(self._stalled, (now_us + self._delay_us(count), key))

    def failed(self, number: int, error: RemoteError, now_us: int) -> None:
        """A request failed or timed out: end the session and name everything again after a backoff."""
        if number == self._progress_number:
            self._progress_number = 0
        elif all(asked.number != number for asked in self._asked):
            return
        self._end_session()
        self._retry_us = now_us + self._delay_us(self._failures)
        self._failures += 1
        if error.code in _UNREACHABLE:
            self.unreached(now_us)
        # a leader that hangs is overloaded, too: by all its unanswered requests
        elif error.code != ErrorCode.OVERLOADED:
            self.unreachable_since_us = None

    def lost(self, now_us: int) -> None:
        """The connection was closed."""
        if self._asked:
            self.failed(self._asked[0].number, RemoteError(ErrorCode.BROKER_UNAVAILABLE, "no connection"), now_us)
        else:
            self._end_session()

    def progress_answered(self, number: int) -> None:
        """The leader received the flushed ends."""
        if number == self._progress_number:
            self._progress_number = 0

    def unreached(self, now_us: int) -> None:
        """Record that the leader's broker is unreachable since now, for the heartbeat."""
        if self.unreachable_since_us is None:
            self.unreachable_since_us = now_us

    def tick(self, now_us: int) -> bool:
        """Return True if the leader's broker has not answered in time: the caller closes the connection."""
        if not self._asked or now_us < self._due_us:
            return False
        self.failed(self._asked[0].number, RemoteError(ErrorCode.TIMED_OUT, "no answer"), now_us)
        return True

    def next_deadline_us(self, now_us: int) -> int | None:
        """The time at which `tick`, and then `request`, have something to do; None if never."""
        first_us = self._due_us if self._asked else None  # the others were sent later
        if not self._followings:
            return first_us
        if not self._is_open:
            return earliest(first_us, self._retry_us)
        if len(self._asked) < _IN_FLIGHT_MAX:
            if self._stalled:
                first_us = earliest(first_us, self._stalled[0][0])
            if self._catching_up:
                first_us = earliest(first_us, self._catch_up.free_us(now_us))
        return first_us

    def _wake(self, now_us: int) -> None:
        while self._stalled and self._stalled[0][0] <= now_us:
            _, key = heapq.heappop(self._stalled)
            if key in self._stalls and key in self._followings:
                self._ready[key] = None
        if self._catching_up and (free_us := self._catch_up.free_us(now_us)) is not None and free_us <= now_us:
            self._ready.update(self._catching_up)
            self._catching_up.clear()

    def _end_session(self) -> None:
        for key in self._named:
            self._followings[key].freshness.lose()
        self._is_open = self.heard.is_open = False
        self._asked.clear()
        self._patient_us = 0
        self._began_us = None
        self._forgotten.clear()
        self._flushed.clear()
        self._untold.update(self._impeded)
        self._progress_number = 0
        waiting = {key for _, key in self._stalled if key in self._stalls}
        for key in self._named:
            following = self._followings[key]
            following.unasked()
            if following.may_ask and key not in waiting and key not in self._catching_up:
                self._ready[key] = None
        self._named.clear()

    def _delay_us(self, failures: int) -> int:
        whole_ms = min(limits.REPLICA_RETRY_MS_MIN << min(failures, 16), limits.REPLICA_RETRY_MS_MAX)
        return int(whole_ms * (500 + 500 * self._chance()))
