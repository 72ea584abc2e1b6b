"""Model consumers: each reads on from its position, operation by operation. Also queries for single offsets.

Rules: A consumer goes back only if the broker reports that messages were lost; that report is checked against the
promises. The end of a log is asked of all brokers that take themselves for its leader: none tells one that is older
than an ack given before it was asked, from feature level 0.4 on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.messages import (
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Response,
)
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from tests.sim.checks.observing import CommitPromises
from tests.sim.models.client_state import ConsumerModel, StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

_REPEATED, _REPEATED_US = 12, 20_000


class Readers:
    """All consumers of one run. `generations`: the current stream of each slot; `program`: returns a client."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        generations: list[StreamGeneration | None],
        program: Callable[[], SimClient],
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {
            Act.FETCH: self._fetch,
            Act.REWIND: self._rewind,
            Act.OFFSETS: self._offsets,
            Act.GET: self._get,
        }
        self._around = around
        self._is_alone = len(around.brokers) == 1
        self._checks = checks
        self._generations = generations
        self._program = program
        self._promises: dict[int, CommitPromises] = {}  # by id() of the history
        self._fetches = 0
        self._consumers: dict[tuple[int, int], list[ConsumerModel]] = {}  # by stream id and partition

    def _trace(self, what: str) -> None:
        self._around.trace.add("client", what)

    def _history(self, generation: StreamGeneration, partition: int) -> PartitionHistory:
        return self._checks.of(generation.config.subject, partition)

    def _consumer(self, operation: PlannedOperation) -> ConsumerModel | None:
        generation = self._generations[operation.slot]
        if generation is None or not generation.stream_id:
            return None
        partition = operation.number // 2 % generation.config.partitions
        return self.consumers(generation, partition)[operation.number % 2]

    def consumers(self, generation: StreamGeneration, partition: int) -> list[ConsumerModel]:
        """Return the two consumers of a partition."""
        key = (generation.stream_id, partition)
        if key not in self._consumers:
            history = self._history(generation, partition)
            self._consumers[key] = [ConsumerModel(history, generation.stream_id) for _ in range(2)]
        return self._consumers[key]

    def _fetch(self, operation: PlannedOperation) -> None:
        consumer = self._consumer(operation)
        if consumer is not None and not consumer.is_asking:
            wait_ms = (0, 20, 300, 2_000)[operation.number // 2 % 4]
            self.fetch(consumer, (1_000, 20_000, 1_000_000)[operation.number // 8 % 3], wait_ms)

    def fetch(
        self, consumer: ConsumerModel, bytes_max: int, wait_ms: int, then: Callable[[], None] | None = None
    ) -> None:
        """Read on; `then` is called in any case."""
        consumer.is_asking = True
        offset, history = consumer.position, consumer.history
        asked_us = self._around.scheduler.now_us
        promises = self._promises.setdefault(id(history), CommitPromises())
        promises.note(history, asked_us)
        broker_id, max_staleness_ms = self._whom(consumer)
        request = FetchRequest(
            stream_id=StreamId(consumer.stream_id),
            partition=PartitionId(consumer.history.partition),
            offset=Offset(offset),
            bytes_max=bytes_max,
            wait_ms_max=wait_ms,
            leader_epoch=consumer.leader_epoch,  # type: ignore[arg-type]
            max_staleness_ms=max_staleness_ms,
        )

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            consumer.is_asking = False
            if isinstance(response, FetchResponse):
                promises.check(history, response.committed_end, asked_us, response.behind_us)
            if offset == consumer.position:
                self._fetched(consumer, response, raw)
            if then is not None:
                then()

        if broker_id:
            self._program().ask(request, done, broker_id=broker_id)
        else:
            self._program().ask_leader(consumer.stream_id, consumer.history.partition, request, done)

    def _whom(self, consumer: ConsumerModel) -> tuple[int, int | None]:
        """Choose the broker (0: the leader) and the accepted staleness; with observers, rotate over all brokers."""
        brokers = len(self._around.brokers)
        if consumer.broker_id or not consumer.history.config.observers:
            return consumer.broker_id, None
        self._fetches += 1
        turn = self._fetches // 2
        return (1 + turn % brokers, (None, 2_000)[turn // brokers % 2]) if self._fetches % 2 else (0, None)

    def _fetched(self, consumer: ConsumerModel, response: Response | RemoteError | None, raw: bytes) -> None:
        history = consumer.history
        if isinstance(response, FetchResponse):
            end_offset = int(response.end_offset)
            self._trace(f"read {history.config.subject} {consumer.position} {end_offset}")
            if end_offset > consumer.position:
                rows = self._checks.read(history, consumer.position, end_offset, raw, consumer.broker_id)
                if rows is None:
                    self._around.count("damaged reads")
                    return
                self._around.count("rows read", end_offset - consumer.position)
                self._around.count("compressed batches read", rows.compressed)
                consumer.position = end_offset
                consumer.leader_epoch = rows.leader_epoch
            consumer.committed_end = int(response.committed_end)
            consumer.log_start = int(response.log_start)
        elif isinstance(response, RemoteError):
            self._trace(f"read {history.config.subject} {consumer.position}: {response}")
            self._refused(consumer, response)
        else:
            self._trace("read: no answer")

    def _refused(self, consumer: ConsumerModel, error: RemoteError) -> None:
        history, details = consumer.history, error.details
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE and consumer.position < details["log_start"]:
            if not history.may_begin_at(details["log_start"]):
                raise ViolationError(f"{history.name()}: {error}")
            consumer.position = consumer.log_start = details["log_start"]
            consumer.leader_epoch = None
        elif error.code in {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.LOG_TRUNCATED}:
            back_to = details["end_offset"] if "end_offset" in details else details["committed_end"]
            if not (history.is_cut_at(back_to) or history.may_lose or history.is_damaged or history.is_deleted):
                raise ViolationError(f"{history.name()}: a reader at {consumer.position} is sent back: {error}")
            self._around.count("readers sent back")
            consumer.position = back_to
            consumer.leader_epoch = None
        elif error.code == ErrorCode.CORRUPT_RANGE:
            if not history.was_damaged_on(consumer.broker_id):
                raise ViolationError(f"{history.name()}: damage that nobody made: {error}")
        elif error.code in {ErrorCode.STREAM_CHANGED, ErrorCode.STREAM_NOT_FOUND}:
            if history.is_deleted:
                consumer.is_over = True
            elif self._is_alone:  # else the broker does not know the stream yet
                raise ViolationError(f"{history.name()}: {error}")

    def _rewind(self, operation: PlannedOperation) -> None:
        consumer = self._consumer(operation)
        if consumer is not None and not consumer.is_asking:
            consumer.position = min(consumer.position, consumer.log_start)
            consumer.leader_epoch = None

    def _offsets(self, operation: PlannedOperation) -> None:
        generation = self._generations[operation.slot]
        if generation is None or not generation.stream_id:
            return
        partition = operation.number % generation.config.partitions
        history = self._history(generation, partition)
        self._latest(generation, partition, history)
        self._latest_of_all(generation, partition, history, _REPEATED)

    def _latest_of_all(
        self, generation: StreamGeneration, partition: int, history: PartitionHistory, left: int
    ) -> None:
        """Ask all brokers that lead by their own account, and again a moment later: so a lease goes on."""
        if self._is_alone or history.is_deleted:
            return
        for broker in self._around.brokers.values():
            if broker.node is None:
                continue
            look = inspector.partition(broker.node, generation.stream_id, partition)
            if look is not None and look.is_leader:
                self._latest(generation, partition, history, broker.broker_id)
        if left:
            again = partial(self._latest_of_all, generation, partition, history, left - 1)
            self._around.scheduler.after(_REPEATED_US, again)

    def _are_leased(self) -> bool:
        nodes = (broker.node for broker in self._around.brokers.values())
        return all(node is None or inspector.has_leases(node) for node in nodes)

    def _latest(
        self, generation: StreamGeneration, partition: int, history: PartitionHistory, broker_id: int = 0
    ) -> None:
        promised_end, epoch = history.promised_end, max(history.leaders, default=0)
        is_leased, stream_id = self._are_leased(), StreamId(generation.stream_id)
        request = ListOffsetsRequest(stream_id=stream_id, partition=PartitionId(partition), at="latest")

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"latest: {kind_of(response)}")
            if not isinstance(response, ListOffsetsResponse):
                return
            if response.leader_epoch < epoch:
                if not is_leased:
                    return  # a deposed leader that does not know its successor
                self._around.count("look-ups that a deposed leader answered in time")
            end = min(promised_end, history.promised_end)  # excludes messages that were permissibly lost meanwhile
            if response.offset < end and not (history.is_damaged or history.may_lose):
                text = f"{history.name()}: latest is {response.offset} in epoch {response.leader_epoch}"
                raise ViolationError(f"{text}, and {end} was promised")

        if broker_id:
            self._program().ask(request, done, broker_id=broker_id)
        else:
            self._program().ask_leader(generation.stream_id, partition, request, done)

    def _get(self, operation: PlannedOperation) -> None:
        generation = self._generations[operation.slot]
        if generation is None or not generation.stream_id:
            return
        partition = operation.number % generation.config.partitions
        history = self._history(generation, partition)
        offset = operation.number % (history.promised_end + 1)
        stream_id = StreamId(generation.stream_id)
        request = GetRequest(stream_id=stream_id, partition=PartitionId(partition), offset=Offset(offset))

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._trace(f"get {offset}: {kind_of(response)}")
            if isinstance(response, GetResponse):
                self._checks.read(history, offset, offset + 1, raw)
            elif isinstance(response, RemoteError) and response.code == ErrorCode.MESSAGE_NOT_FOUND:
                if history.compacted is None:
                    raise ViolationError(f"{history.name()}: {response}")
                self._checks.passed_over(history, [offset])

        self._program().ask_leader(generation.stream_id, partition, request, done)
