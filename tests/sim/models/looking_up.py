"""Look-ups of the last message of a subject, beside all faults and losses of subject indexes.

| invariant                                                                      | unless                       |
|--------------------------------------------------------------------------------|------------------------------|
| the answer has the subject that was asked for, and is what its offset has      |                              |
| no message of the subject that was known by then lies behind the answer        | compaction, permitted losses |
| "none" is answered only if no such message was known                           | as above, and truncation     |

Rules: a broker is asked that takes itself for the leader. Below feature level 0.4 it is that of the newest epoch, and
its answer counts if it still leads then: a deposed leader may not have what its successor stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, StreamId
from penstock.messages import GetRequest, GetResponse, Response
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.rows import subjects_of
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

_ABSENT = b"none.of.them"
_ABSENT_ONES = 8  # one look-up in so many is for a subject without messages


class LastLookups:
    """The look-ups of one run. `generations`: the current stream of each slot; `program`: returns a client."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        brokers: Mapping[int, SimBroker],
        generations: list[StreamGeneration | None],
        program: Callable[[], SimClient],
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.LAST: self._last}
        self._around = around
        self._checks = checks
        self._brokers = brokers
        self._generations = generations
        self._program = program

    def _last(self, operation: PlannedOperation) -> None:
        generation = self._generations[operation.slot]
        if generation is None or not generation.stream_id:
            return
        number = operation.number % generation.config.partitions
        history = self._checks.of(generation.config.subject, number)
        if not history.known or (led := self._led(generation, history, operation.number)) is None:
            return
        broker_id, epoch = led
        is_leased = self._are_leased()
        subject, last = self._chosen(history, operation.number // 16)
        cuts, truncating = len(history.cuts), history.truncating
        stream_id, partition = StreamId(generation.stream_id), PartitionId(number)
        request = GetRequest(stream_id=stream_id, partition=partition, subject=subject.decode())

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._around.trace.add("client", f"last {subject!r}: {kind_of(response)}")
            found: int | None = None
            if isinstance(response, GetResponse):
                found = int(response.offset)
                if subjects_of(raw) != {subject}:
                    raise ViolationError(f"{history.name()}: the last message of {subject!r} is {subjects_of(raw)}")
                self._checks.read(history, found, found + 1, raw)
            elif not isinstance(response, RemoteError) or response.code != ErrorCode.MESSAGE_NOT_FOUND:
                return
            if len(history.cuts) != cuts or self._is_excused(history):
                return
            if not is_leased and self._led(generation, history) != led:
                return
            self._around.count("look-ups of a last message")
            is_truncated = last is not None and last < max(truncating, history.truncating)
            if last is not None and not is_truncated and (found is None or found < last):
                text = f"the last message of {subject!r} was at offset {last}, and {found} was answered"
                raise ViolationError(f"{history.name()} in epoch {epoch}: {text}")

        self._program().ask(request, done, broker_id=broker_id)

    def _are_leased(self) -> bool:
        return all(one.node is None or inspector.has_leases(one.node) for one in self._brokers.values())

    def _led(self, generation: StreamGeneration, history: PartitionHistory, chance: int = 0) -> tuple[int, int] | None:
        """Return a broker that leads a partition by its own account, and its epoch; without leases the newest one."""
        found = []
        for broker_id, broker in self._brokers.items():
            if broker.node is None:
                continue
            look = inspector.partition(broker.node, generation.stream_id, history.partition)
            if look is not None and look.is_leader:
                found.append((broker_id, look.leader_epoch))
        if not self._are_leased():
            found = [one for one in found if one[1] == max(history.leaders, default=0)]
        return found[chance % len(found)] if found else None

    def _chosen(self, history: PartitionHistory, chance: int) -> tuple[bytes, int | None]:
        """Return a subject, and the highest offset at which it is known; None: it has no message."""
        if chance % _ABSENT_ONES == 0:
            return _ABSENT, None
        told = self._checks.told_subjects  # not of rows that other programs than publishers made
        at = {offset: told[value] for offset, value in sorted(history.known.items()) if value in told}
        if not at:
            return _ABSENT, None
        subject = list(at.values())[chance // _ABSENT_ONES % len(at)]
        return subject, max(offset for offset, one in at.items() if one == subject)

    @staticmethod
    def _is_excused(history: PartitionHistory) -> bool:
        is_lost = history.may_lose or history.is_damaged or history.is_given_up or history.is_deleted
        return is_lost or history.retains or history.compacted is not None
