"""Tells how far the replicas of a partition have erased what was deleted securely, and waits for them.

Rules: each replica erases by the marks in its companion log, whether it is asked or not (`HiddenRows.erasure`). While a
request waits at the leader, it asks the other live brokers that hold the partition once a second: all requests of a
partition share that. A request is answered once all live replicas are done, after ERASURE_ANSWER_MS at the latest, and
names those that are not: a caller repeats it. Absent brokers are not waited for: they erase when they are back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.access.handshake import sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import BrokerId, Offset, PartitionKey
from penstock.messages import (
    AwaitErasureRequest,
    AwaitErasureResponse,
    ErasedRequest,
    ErasedResponse,
    ErasureState,
    ReplicaErasure,
    Request,
    Response,
)
from penstock.node.api.metadata_api import Handler
from penstock.node.context import Context
from penstock.node.partition.internal_streams import users_own
from penstock.node.partition.partition import Partition
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.replicas.hidden_rows import Erasure, HiddenRows
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.replicas.roles import Roles
from penstock.node.security.access import Call

_ANSWER_US = limits.ERASURE_ANSWER_MS * 1_000


@dataclass(slots=True, eq=False)
class _Waiting:
    """A pending request."""

    call: Call
    partition: Partition
    marks_end: int
    deadline_us: int


class Erasures:
    """All pending requests of one broker, and its answers to other brokers."""

    def __init__(
        self,
        context: Context,
        find: PartitionLookup,
        hidden: HiddenRows,
        peers: PeerClient,
        roles: Roles,
        *,
        stopping: RemoteError,
    ) -> None:
        self._context, self._outbox = context, context.outbox
        self._broker_id = context.settings.broker_id
        self._find = find
        self._hidden = hidden
        self._peers = peers
        self._roles = roles
        self._stopping = stopping
        self._waiting: dict[Hashable, _Waiting] = {}
        self._told: dict[tuple[PartitionKey, BrokerId], Erasure] = {}  # of partitions that a request waits for
        self._asked: set[tuple[PartitionKey, BrokerId]] = set()  # not answered yet
        self.handlers: Mapping[type[Request], Handler] = {
            AwaitErasureRequest: self._ask,
            ErasedRequest: self._serve,
        }

    def _serve(self, call: Call, request: ErasedRequest) -> None:
        """Answer another broker. Raise RemoteError if the replica cannot be used here."""
        end, messages, waits_for = self._hidden.erasure(self._find.replica(request.stream_id, request.partition))
        self._outbox.reply(call.caller, ErasedResponse(erased_end=Offset(end), messages=messages, waits_for=waits_for))

    def _ask(self, call: Call, request: AwaitErasureRequest) -> None:
        partition = users_own(self._find.led(request.stream_id, request.partition))
        shares = FairShares((sharer_of(one.call.auth.who), 1) for one in self._waiting.values())
        if not shares.fits(sharer_of(call.auth.who), 1, limits.ERASURE_WAITS_MAX):
            raise RemoteError(ErrorCode.OVERLOADED, "too many requests wait for erasures; wait for some to be answered")
        deadline_us = self._context.now.elapsed_us + _ANSWER_US
        waiting = _Waiting(call.without_raw(), partition, request.marks_end, deadline_us)
        self._waiting[call.caller] = waiting
        self._look_after(waiting, self._context.now.elapsed_us)

    def _look_after(self, waiting: _Waiting, now_us: int) -> None:
        """Answer if all live replicas are done, or if it is time; otherwise ask those that are not."""
        states = self._states(waiting)
        if waiting.deadline_us <= now_us or not any(one.state == ErasureState.WAITING for one in states):
            self._end(waiting, AwaitErasureResponse(replicas=states))
            return
        for one in states:
            if one.state == ErasureState.WAITING and one.broker_id != self._broker_id:
                self._ask_peer(waiting.partition, one.broker_id)

    def _states(self, waiting: _Waiting) -> tuple[ReplicaErasure, ...]:
        partition = waiting.partition
        state = partition.stream.partitions[partition.key.partition]
        found = []
        for broker_id in sorted(state.holders):
            if broker_id == self._broker_id:
                erasure = self._hidden.erasure(partition)
            elif broker_id not in self._roles.live:
                found.append(ReplicaErasure(broker_id=broker_id, state=ErasureState.ABSENT))
                continue
            else:
                erasure = self._told.get((partition.key, broker_id), Erasure(0, 0, "it has not answered yet"))
            if erasure.erased_end >= waiting.marks_end:
                found.append(ReplicaErasure(broker_id=broker_id, state=ErasureState.ERASED))
            else:
                waits_for = erasure.waits_for or "it does not have all marks yet"
                found.append(
                    ReplicaErasure(
                        broker_id=broker_id,
                        state=ErasureState.WAITING,
                        messages=erasure.messages,
                        waits_for=waits_for,
                    )
                )
        return tuple(found)

    def _ask_peer(self, partition: Partition, broker_id: BrokerId) -> None:
        place = partition.key, broker_id
        if place not in self._asked:
            self._asked.add(place)
            request = ErasedRequest(stream_id=partition.key.stream_id, partition=partition.key.partition)
            self._peers.send(broker_id, request, done=partial(self._answered, place))

    def _answered(
        self, place: tuple[PartitionKey, BrokerId], response: Response | RemoteError, _raw: bytes | memoryview
    ) -> None:
        self._asked.discard(place)
        if isinstance(response, ErasedResponse):
            self._told[place] = Erasure(response.erased_end, response.messages, response.waits_for)
        else:
            assert isinstance(response, RemoteError), response
            self._told[place] = Erasure(0, 0, response.message)

    def _end(self, waiting: _Waiting, answer: Response | RemoteError) -> None:
        del self._waiting[waiting.call.caller]
        self._outbox.reply(waiting.call.caller, answer)
        self._forget_told()

    def _forget_told(self) -> None:
        if self._told:
            keys = {one.partition.key for one in self._waiting.values()}
            self._told = {place: one for place, one in self._told.items() if place[0] in keys}

    def refuse(self, partition: Partition, error: RemoteError) -> None:
        """Fail a partition's requests: it is no longer led here, or gone."""
        for waiting in [one for one in self._waiting.values() if one.partition is partition]:
            self._end(waiting, error)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the requests of disconnected callers."""
        for caller in self._waiting.keys() & set(callers):
            del self._waiting[caller]
        self._forget_told()

    def stop(self) -> None:
        """Fail all requests because the broker stops. May be called twice."""
        for waiting in list(self._waiting.values()):
            self._end(waiting, self._stopping)

    def tick(self, now_us: int) -> None:
        """Look after all requests; `now_us` is elapsed time."""
        for waiting in list(self._waiting.values()):
            self._look_after(waiting, now_us)
