"""Wait until this broker, or every live broker, has applied the metadata up to an index.

Rules: a change of permissions is answered once every live broker has applied it: from then on no client meets a broker
that has not. So is a suspension of deletion: from then on no leader deletes; and a change of a stream's subjects, after
which the leaders' subscriptions are awaited. A broker that is fenced meanwhile is no longer waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import AwaitMetadataRequest, Response
from penstock.node.context import Context
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.quorum import Quorum

Done = Callable[[RemoteError | None], None]
_RETRY_US = limits.FORWARD_RETRY_MS * 1_000


@dataclass(slots=True, eq=False)
class _Waiter:
    index: int
    deadline_us: int
    done: Done


class LocalApplyBarrier:
    """Callers that wait until this broker has applied an index."""

    def __init__(self, applied: Callable[[], int]) -> None:
        self._applied = applied
        self._waiting: list[_Waiter] = []

    def wait(self, index: int, deadline_us: int, done: Done) -> None:
        """Call `done` with None once the index is applied, or with the reason why not. RemoteError overloaded."""
        if index <= self._applied():
            done(None)
        elif len(self._waiting) >= limits.FORWARDED_REQUESTS_MAX:
            raise RemoteError(ErrorCode.OVERLOADED, "too many requests wait for the metadata; try again in a moment")
        else:
            self._waiting.append(_Waiter(index, deadline_us, done))

    def answer_due(self, now: Now) -> None:
        """Answer the callers whose index is applied or whose time is up."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.index <= self._applied():
                one.done(None)
            elif now.elapsed_us >= one.deadline_us:
                text = f"the broker has not applied change {one.index} of the metadata in time"
                one.done(RemoteError(ErrorCode.TIMED_OUT, text))
            else:
                self._waiting.append(one)

    def stop(self, error: RemoteError) -> None:
        """Answer all that wait."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.done(error)


@dataclass(slots=True, eq=False)
class _Change:
    index: int
    deadline_us: int
    done: Done
    missing: set[BrokerId]
    asked: set[BrokerId] = field(default_factory=set)
    retry_us: int = 0


class ClusterApplyBarrier:
    """Callers that wait until all live brokers have applied an index; on the metadata leader."""

    def __init__(self, context: Context, quorum: Quorum, peers: PeerClient) -> None:
        self._quorum = quorum
        self._peers = peers
        self._broker_id = context.settings.broker_id
        self._context = context
        self._changes: list[_Change] = []

    def wait(self, index: int, deadline_us: int, done: Done) -> None:
        """Call `done` with None once all live brokers have applied the index, or with those that have not in time."""
        missing = set(self._quorum.image.live_brokers()) - {self._broker_id}
        change = _Change(index, deadline_us, done, missing)
        self._changes.append(change)
        self._ask(change)

    def _ask(self, change: _Change) -> None:
        change.missing &= self._quorum.image.live_brokers()
        now_us = self._context.now.elapsed_us
        change.retry_us = now_us + _RETRY_US
        left_ms = max(1, (change.deadline_us - now_us) // 1_000)
        for broker_id in sorted(change.missing - change.asked):
            change.asked.add(broker_id)

            def heard(
                response: Response | RemoteError, raw: bytes | memoryview, broker_id: BrokerId = broker_id
            ) -> None:
                change.asked.discard(broker_id)
                if not isinstance(response, RemoteError):
                    change.missing.discard(broker_id)
                self._answer(change)

            self._peers.send(broker_id, AwaitMetadataRequest(index=change.index, timeout_ms=left_ms), done=heard)
        self._answer(change)

    def _answer(self, change: _Change) -> None:
        if not change.missing and change in self._changes:
            self._changes.remove(change)
            change.done(None)

    def tick(self, now: Now) -> None:
        """Ask again the brokers that did not confirm; answer the changes that timed out."""
        for change in list(self._changes):
            if now.elapsed_us >= change.deadline_us + _RETRY_US:
                self._changes.remove(change)
                missing = ", ".join(map(str, sorted(change.missing)))
                text = f"the change is committed, but broker {missing} has not applied it in time"
                change.done(RemoteError(ErrorCode.TIMED_OUT, text))
            elif now.elapsed_us >= change.retry_us:
                self._ask(change)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` has something to do."""
        return min((change.retry_us for change in self._changes), default=None)

    def stop(self, error: RemoteError) -> None:
        """Answer all that wait: this broker no longer leads the metadata, or is stopping."""
        changes, self._changes = self._changes, []
        for change in changes:
            change.done(error)
