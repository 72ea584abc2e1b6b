"""Model Spark drivers that stage rows and publish them exactly once, and invariants of the leaders.

| invariant                                                                   | checked at                |
|-----------------------------------------------------------------------------|---------------------------|
| acknowledged published rows are stored, as any acked message                | an answer, by `checks`    |
| staged rows are reported lost only after a permitted loss                   | an answer                 |
| staged rows are removed only when their batch, or a later one, is published | every event of a leader   |
| of each batch the rows of one attempt are stored, piece by piece, whole     | the audit                 |
| a batch that was answered as complete is complete                           | the audit                 |
| every query completes its batch                                             | the end, after all faults |

Rules: Each partition of one stream has one query. A batch is attempted again while another attempt is in progress, with
other rows in other pieces. Drivers are killed between any two steps; requests are sent twice. A permitted loss or an
unclean election ends these checks for its partition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.base.staged import is_plan, plan_mark, plan_offset
from penstock.base.subjects import partition_subject
from penstock.batch import codec
from penstock.batch.header import ENDS_RUN, OF_RUN
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    GetRequest,
    GetResponse,
    PublishStagedRequest,
    PublishStagedResponse,
    Response,
    StagedRange,
    StagedStreamRequest,
    StagedStreamResponse,
    StageRequest,
    StageResponse,
)
from penstock.node.partition.internal_streams import staged_config
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.rows import ReadRows
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

_AGAIN_US = 700_000
_TRIES_MAX = 6
_UNNAMED = 8  # every eighth attempt stages without query id, as clients of earlier versions do
_GONE = (ErrorCode.STREAM_CHANGED, ErrorCode.STREAM_NOT_FOUND)
_PIECE_ROWS = 2


@dataclass(slots=True)
class _Batch:
    """The state of one batch of a query."""

    number: int
    attempts: int = 0
    is_complete: bool = False


@dataclass(slots=True)
class _Query:
    """The query of one partition. `era` rises when the query must start anew after a permitted loss of staged rows."""

    partition: int
    era: int = 1
    batch: _Batch = field(default_factory=lambda: _Batch(0))
    completed: int = 0

    def query_id(self, era: int) -> bytes:
        return b"%08d%08d" % (self.partition + 1, era)


@dataclass(slots=True, eq=False)
class _Attempt:
    """One driver's attempt: the pieces of the plan that it follows (its own or another's), and its progress."""

    query: _Query
    era: int
    batch: _Batch
    number: int
    wanted: int  # wanted pieces
    tries: int
    lives: int  # steps until the driver is killed; negative: never
    twice: bool  # sends every publish request twice
    values: list[list[bytes]] = field(default_factory=list)
    ranges: list[StagedRange] = field(default_factory=list)
    plan: int | None = None
    piece: int = 0
    own_plan: int | None = None
    is_plan_gone: bool = False  # the other attempt's plan that it was to follow


class Publishing:
    """All drivers of one run. `generations`: the current stream of each slot; `program`: returns a client."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        generations: list[StreamGeneration | None],
        slot: int,
        program: Callable[[], SimClient],
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.RUN: self._run}
        self._around = around
        self._checks = checks
        self._generations = generations
        self._slot = slot
        self._program = program
        self._queries: dict[int, _Query] = {}
        self._plans: dict[bytes, tuple[list[list[bytes]], list[StagedRange]]] = {}  # by the value of the plan row
        self._stream_id = 0  # of the `__staged-…` stream, once a broker has returned it
        self._is_asked = False
        self._complete: set[tuple[int, int, int]] = set()  # partition, era, batch
        self._staged: dict[int, dict[int, tuple[int, int]]] = {}  # partition → offset → era and batch
        self._begin: dict[int, int] = {}  # partition → log start offset of its staged rows

    def _trace(self, what: str) -> None:
        self._around.trace.add("driver", what)

    def _history(self, partition: int, *, staged: bool) -> PartitionHistory:
        generation = self._generations[self._slot]
        assert generation is not None
        subject = self._holder(generation).subject if staged else generation.config.subject
        return self._checks.of(subject, partition)

    @staticmethod
    def _holder(generation: StreamGeneration) -> StreamConfig:
        return staged_config(StreamId(generation.stream_id), generation.config)

    def _generation(self) -> StreamGeneration | None:
        """Return the target stream; None unless it and its stream of staged rows exist."""
        generation = self._generations[self._slot]
        if generation is None or not generation.stream_id:
            return None
        if not self._is_asked:
            self._is_asked = True
            self._checks.begin(self._holder(generation))
            for partition in range(generation.config.partitions):
                self._history(partition, staged=True).began = partial(self._began, partition)
            self._ask_for_holder(generation)
        return generation if self._stream_id else None

    def _ask_for_holder(self, generation: StreamGeneration) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, StagedStreamResponse):
                self._stream_id = int(response.stream.stream_id)
                self._trace(f"staged rows are in {self._stream_id}")
                return
            self._around.scheduler.after(_AGAIN_US, lambda: self._ask_for_holder(generation))

        self._program().ask(StagedStreamRequest(stream_id=StreamId(generation.stream_id), timeout_ms=3_000), done)

    # Attempts

    def _run(self, operation: PlannedOperation) -> None:
        generation = self._generation()
        if generation is None:
            return
        partition = operation.number % generation.config.partitions
        chance = operation.number // 8
        query = self._queries.setdefault(partition, _Query(partition))
        if query.batch.is_complete and chance % 5:
            query.batch = _Batch(query.batch.number + 1)
        lives = -1 if chance // 5 % 3 else chance // 15 % 8
        self._attempt(query, 1 + chance // 120 % 3, lives, _TRIES_MAX, twice=chance // 360 % 4 == 0)

    def _attempt(self, query: _Query, pieces: int, lives: int, tries: int, *, twice: bool) -> None:
        query.batch.attempts += 1
        attempt = _Attempt(query, query.era, query.batch, query.batch.attempts, pieces, tries, lives, twice)
        self._around.count("attempts to publish")
        self._stage(attempt)

    def _stage(self, attempt: _Attempt) -> None:
        """Stage the next piece; after the last one write the plan, if there are several pieces, and publish."""
        generation = self._generations[self._slot]
        assert generation is not None
        query = attempt.query
        count = len(attempt.ranges)
        if count == attempt.wanted:
            self._write_plan(attempt) if count > 1 else self._publish(attempt)
            return
        name = f"{generation.config.subject}/r/{query.partition}/{attempt.era}/{attempt.batch.number}/{attempt.number}"
        values = [f"{name}/{count}/{row}".encode() for row in range(_PIECE_ROWS)]
        for value in values:
            self._checks.sent[value] = generation.config.subject
        subject = generation.config.subject_of(query.partition).encode()
        data = _batch([subject] * len(values), values)

        def staged(response: StageResponse) -> None:
            history = self._history(query.partition, staged=True)
            for row, value in enumerate(values):
                inner = b"staged %d.%d " % (response.base_offset, response.leader_epoch) + value
                self._checks.sent[inner] = history.config.subject
                offset = response.base_offset + row
                self._checks.promised(history, offset, response.leader_epoch, inner, fsynced=response.fsynced)
            attempt.values.append(values)
            attempt.ranges.append(_range(response))
            self._note(attempt, response)
            self._stage(attempt)

        self._ask_to_stage(attempt, data, staged, is_plan=False)

    def _write_plan(self, attempt: _Attempt) -> None:
        holder = self._history(attempt.query.partition, staged=True).config
        value = b"plan %d" % len(self._plans)
        self._plans[value] = (attempt.values, attempt.ranges)
        data = _batch([partition_subject(holder.subject, attempt.query.partition).encode()], [value])

        def staged(response: StageResponse) -> None:
            attempt.plan = attempt.own_plan = plan_mark(response.base_offset, response.leader_epoch)
            self._note(attempt, response)
            self._publish(attempt)

        self._ask_to_stage(attempt, data, staged, is_plan=True)

    def _ask_to_stage(
        self, attempt: _Attempt, data: bytes, staged: Callable[[StageResponse], None], *, is_plan: bool
    ) -> None:
        if self._dies(attempt):
            return

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"staged: {kind_of(response)}")
            if isinstance(response, StageResponse):
                staged(response)
            else:
                self._again(attempt, response, lambda: self._ask_to_stage(attempt, data, staged, is_plan=is_plan))

        request = StageRequest(
            stream_id=StreamId(self._stream_id),
            partition=PartitionId(attempt.query.partition),
            is_plan=is_plan,
            query_id=None if attempt.number % _UNNAMED == 0 else attempt.query.query_id(attempt.era),
            batch_id=attempt.batch.number,
        )
        self._program().ask_leader(self._stream_id, attempt.query.partition, request, done, data)

    def _dies(self, attempt: _Attempt) -> bool:
        if attempt.lives == 0:
            self._around.count("killed drivers")
            return True
        attempt.lives -= attempt.lives > 0
        return False

    def _again(self, attempt: _Attempt, response: object, ask: Callable[[], None]) -> None:
        if isinstance(response, RemoteError) and response.code in _GONE:
            return
        attempt.tries -= 1
        if attempt.tries > 0:
            self._around.scheduler.after(_AGAIN_US, ask)

    def _publish(self, attempt: _Attempt) -> None:
        if self._dies(attempt) or attempt.query.era != attempt.era:
            return
        query, number = attempt.query, attempt.piece

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"published {query.partition}/{attempt.batch.number}.{number}: {kind_of(response)}")
            if isinstance(response, PublishStagedResponse):
                self._told(attempt, number, response)
            elif isinstance(response, RemoteError) and response.code == ErrorCode.STAGED_LOST:
                self._lost(attempt, response)
            elif self._is_taken_back(attempt, response):
                self._begin_anew(attempt)
            else:
                self._again(attempt, response, lambda: self._publish(attempt))

        generation = self._generations[self._slot]
        assert generation is not None
        request = PublishStagedRequest(
            stream_id=StreamId(generation.stream_id),
            partition=PartitionId(query.partition),
            staged_stream_id=StreamId(self._stream_id),
            query_id=query.query_id(attempt.era),
            batch_id=attempt.batch.number,
            piece=number,
            is_last=number == len(attempt.ranges) - 1,
            plan=None if attempt.plan is None else Offset(attempt.plan),
            staged=(attempt.ranges[number],),
        )
        self._program().ask_leader(generation.stream_id, query.partition, request, done)
        if attempt.twice:
            self._program().ask_leader(generation.stream_id, query.partition, request, lambda _response, _raw: None)

    def _told(self, attempt: _Attempt, number: int, response: PublishStagedResponse) -> None:
        query, batch = attempt.query, attempt.batch
        history = self._history(query.partition, staged=False)
        self._around.count("pieces that were there" if response.duplicate else "published pieces")
        is_mine = not response.duplicate or (response.plan is not None and response.plan == attempt.plan)
        if is_mine and response.base_offset is not None:
            for row, value in enumerate(attempt.values[number]):
                offset = response.base_offset + row
                self._checks.promised(history, offset, response.leader_epoch, value, fsynced=response.fsynced)
        if response.is_complete:
            self._complete.add((query.partition, attempt.era, batch.number))
            if not batch.is_complete:
                batch.is_complete = True
                query.completed += 1
            return
        if response.plan is None or response.pieces is None:
            raise ViolationError(f"{history.name()}: a part of batch {batch.number} is there, by no plan: {response}")
        attempt.piece = response.pieces
        if response.plan == attempt.plan:
            self._publish(attempt)
        else:
            attempt.plan = int(response.plan)
            self._read_plan(attempt)

    def _read_plan(self, attempt: _Attempt) -> None:
        assert attempt.plan is not None
        mark, offset = attempt.plan, plan_offset(attempt.plan)

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._trace(f"the plan: {kind_of(response)}")
            if isinstance(response, GetResponse):
                rows = ReadRows(raw)
                row = rows.offsets.index(offset)
                value = rows.values[row] if is_plan(mark, rows.epochs[row]) else b"another one"
                attempt.values, attempt.ranges = self._plans.get(value, ([], []))
                if len(attempt.ranges) > attempt.piece:
                    self._publish(attempt)
                else:
                    self._lost(attempt, RemoteError(ErrorCode.STAGED_LOST, f"the plan is {value!r}"))
            elif isinstance(response, RemoteError) and response.code in _LOST_PLAN:
                self._lost_plan(attempt, offset, response)
            else:
                self._again(attempt, response, lambda: self._read_plan(attempt))

        request = GetRequest(
            stream_id=StreamId(self._stream_id), partition=PartitionId(attempt.query.partition), offset=Offset(offset)
        )
        self._program().ask_leader(self._stream_id, attempt.query.partition, request, done)

    def _lost_plan(self, attempt: _Attempt, offset: int, error: RemoteError) -> None:
        """Retry once when a plan is missing: another attempt may have completed the batch, which frees it."""
        if attempt.is_plan_gone or offset >= self._begin.get(attempt.query.partition, 0):
            self._lost(attempt, error)
            return
        attempt.is_plan_gone, attempt.plan, attempt.piece = True, attempt.own_plan, 0
        self._publish(attempt)

    # Removal

    def _note(self, attempt: _Attempt, response: StageResponse) -> None:
        staged = self._staged.setdefault(attempt.query.partition, {})
        for offset in range(response.base_offset, response.end_offset):
            staged[offset] = attempt.era, attempt.batch.number

    def _began(self, partition: int, broker: SimBroker, look: inspector.PartitionLook) -> None:
        """Check the staged rows that a leader has removed: its replica of the target must hold their batches."""
        if not look.is_leader or look.log_start <= self._begin.get(partition, 0):
            return
        self._begin[partition] = look.log_start
        self._around.count("times that staged rows went")
        histories = [self._history(partition, staged=staged) for staged in (False, True)]
        generation = self._generations[self._slot]
        if generation is None or any(map(_may_lose, histories)) or histories[0].truncating:
            return
        staged, last = self._staged.get(partition, {}), self._last_runs(generation.stream_id, partition, broker)
        if last is None:
            return
        for offset in [offset for offset in staged if offset < look.log_start]:
            era, batch = staged.pop(offset)
            number, is_complete = last.get(era, (-1, True))
            if batch > number or (batch == number and not is_complete):
                text = f"{histories[1].name()} on {broker.name}: it begins at {look.log_start}, and what was staged at"
                raise ViolationError(f"{text} {offset} is for batch {batch}; batch {number} is the last that is there")

    @staticmethod
    def _last_runs(stream_id: int, partition: int, broker: SimBroker) -> dict[int, tuple[int, bool]] | None:
        """Return era → last batch committed in that broker's log, and whether it is complete; None: no replica."""
        assert broker.node is not None
        look = inspector.partition(broker.node, stream_id, partition)
        if look is None:
            return None
        with broker.disk.undisturbed():
            batches = inspector.batches(broker.node, look, look.log_start, look.committed_end)
        headers = [header for header, _ in batches if header.flags & OF_RUN]
        return {int(one.run_id[8:]): (one.producer_sequence, bool(one.flags & ENDS_RUN)) for one in headers}

    def _lost(self, attempt: _Attempt, error: RemoteError) -> None:
        """Check that a loss was permitted when a leader reports staged rows as lost, and start the query anew."""
        history = self._history(attempt.query.partition, staged=True)
        if not (_may_lose(history) or _may_lose(self._history(attempt.query.partition, staged=False))):
            raise ViolationError(f"{history.name()}: it was staged, and nothing was lost: {error.message}")
        self._around.count("staged rows that were lost")
        self._begin_anew(attempt)

    def _is_taken_back(self, attempt: _Attempt, response: object) -> bool:
        """True if the previous complete batch was permissibly lost, and another attempt has republished part of it.

        A driver that knows the batch as complete does not publish it again.
        """
        history = self._history(attempt.query.partition, staged=False)
        is_refused = isinstance(response, RemoteError) and response.code == ErrorCode.RUN_UNFINISHED
        return is_refused and bool(history.cuts or history.may_lose or history.is_given_up)

    def _begin_anew(self, attempt: _Attempt) -> None:
        if attempt.query.era == attempt.era:
            attempt.query.era += 1
            attempt.query.batch = _Batch(attempt.query.batch.number)

    # The end

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        generation = self._generations[self._slot]
        if stream_id != self._stream_id or generation is None:
            return False
        for partition in range(generation.config.partitions):
            history = self._history(partition, staged=True)
            history.is_damaged = history.is_given_up = True
        name = self._holder(generation).name
        request = AlterStreamRequest(name=name, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names a query without a newly completed batch; it returns "" when there is none."""
        before = {query.partition: query.completed for query in self._queries.values()}
        turn = 0

        def left() -> str:
            nonlocal turn
            turn += 1
            for partition, completed in before.items():
                query = self._queries[partition]
                histories = [self._history(partition, staged=staged) for staged in (False, True)]
                # A corrupt replica of the staged rows may be on the broker that leads the target partition.
                is_waiting = any(is_stuck(one) or one.damaged - one.mended for one in histories)
                if query.completed > completed or is_waiting:
                    continue
                if turn % 8 == 1:
                    if query.batch.is_complete:
                        query.batch = _Batch(query.batch.number + 1)
                    self._attempt(query, 1 + turn // 8 % 3, -1, _TRIES_MAX, twice=False)
                return f"batch {query.batch.number} of the query of partition {partition} is not published"
            return ""

        return left

    def check(self) -> None:
        """After the audit: check which rows of the batches are stored."""
        for partition in sorted(self._queries):
            history = self._history(partition, staged=False)
            if not (history.is_damaged or history.is_given_up or history.cuts):
                self._check(history, partition)

    def _check(self, history: PartitionHistory, partition: int) -> None:
        found: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}  # era, batch → attempt, piece, row, offset
        for offset, value in sorted(history.known.items()):
            if b"/r/" in value and offset >= history.truncating:
                era, batch, attempt, piece, row = map(int, value.split(b"/")[3:])
                found.setdefault((era, batch), []).append((attempt, piece, row, offset))
        for (_, batch), rows in found.items():
            text = f"{history.name()}: batch {batch} of its query is there as {rows}"
            if len({attempt for attempt, *_ in rows}) != 1:
                raise ViolationError(f"{text}: the rows of several attempts")
            pieces = [(piece, [one[2:] for one in own]) for piece, own in groupby(rows, key=lambda one: one[1])]
            numbers = [piece for piece, _ in pieces]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or (numbers[0] and not history.truncating):
                raise ViolationError(f"{text}: pieces that do not follow each other")
            for _, places in pieces:
                (row, offset), *_ = places
                if row == 0 and places != [(one, offset + one) for one in range(_PIECE_ROWS)]:
                    raise ViolationError(f"{text}: a piece that is not whole")
            self._around.count("batches that were looked at")
        for place, era, batch in self._complete:
            if place == partition and (era, batch) not in found and not history.truncating:
                raise ViolationError(f"{history.name()}: batch {batch} of its query was published, and is not there")


def _may_lose(history: PartitionHistory) -> bool:
    """True if a loss of messages of the partition is permitted."""
    return bool(history.cuts or history.may_lose or history.damaged or history.is_given_up)


_LOST_PLAN = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.MESSAGE_NOT_FOUND)


def _range(response: StageResponse) -> StagedRange:
    return StagedRange(response.base_offset, response.end_offset, LeaderEpoch(response.leader_epoch))


def _batch(subjects: list[bytes], values: list[bytes]) -> bytes:
    group = MessageGroup.of(subjects, values, keys=[None] * len(values))
    return bytes(codec.encode(group, 0, len(values), base_offset=0, timestamp_us=0, leader_epoch=0)[0])
