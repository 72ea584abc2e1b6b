"""Model importer: appends rows with their original offsets and timestamps, and checks what is stored.

| invariant                                                                    | checked at                 |
|------------------------------------------------------------------------------|----------------------------|
| the log equals the source up to some row: offsets, timestamps, no gaps       | a read                     |
| nothing is stored twice; the log ends where some batch ended                 | a read, an end-offset query|
| acknowledged rows are stored (see `checks`)                                  | an answer                  |
| the whole source is stored                                                   | the end, after all faults  |

Rules: as in `client/bulk/placing.py`. The importer begins at the log end and appends one batch after the other. It
sends an unanswered batch again; the error then returns the log end. A killed importer leaves only requests in transit;
the next one asks for the log end and cuts the rest of the source into other batches. Sometimes two importers run at
once: rows that one has appended are refused to the other, which stops.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import msgspec
import pyarrow as pa

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from penstock.messages import (
    AlterStreamRequest,
    AppendAtRequest,
    AppendAtResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    Response,
)
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.rows import ReadRows
from penstock.testing.simulation.scheduler import START_US
from tests.sim.models.client_state import kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

NAME = "copied"
ROWS = 320
_AGAIN_US = 400_000
_BATCH_ROWS = 6
_BESIDE = 0.1  # share of the batches for which another importer appends at the same moment
_DAY_US = 86_400_000_000
_ENDS_IT = (ErrorCode.OUT_OF_SEQUENCE, ErrorCode.BAD_REQUEST)


class SourceRow(NamedTuple):
    """One row of the source."""

    offset: int
    timestamp_us: int
    value: bytes


def drawn_source(chance: Random) -> list[SourceRow]:
    """Draw source rows with offset gaps and repeated timestamps; the first offset may exceed 0."""
    rows, offset, timestamp_us = [], int(chance.random() * 4), START_US - _DAY_US
    for _ in range(ROWS):
        value = f"{NAME}/{offset}/".encode().ljust(int(chance.random() ** 4 * 900), b".")
        rows.append(SourceRow(offset, timestamp_us, value))
        offset += 1 if chance.random() < 0.8 else 2 + int(chance.random() * 5)
        timestamp_us += int(chance.random() * 3) * 1_000
    return rows


class Importing:
    """The import of one run. `program`: returns a client that may do everything."""

    def __init__(self, around: Surroundings, checks: Checks, program: Callable[[], SimClient], random: Random) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.IMPORT: self._act}
        self._around = around
        self._checks = checks
        self._program = program
        self._random = random
        self._source = drawn_source(random)
        self._begins = [row.offset for row in self._source]
        self._ends = {0, *self._begins[1:], self._begins[-1] + 1}
        self._config = msgspec.convert(
            {"name": NAME, "subject": NAME, "replicas": min(3, len(around.brokers)), "segment_bytes": 8_192},
            StreamConfig,
        )
        self._stream_id = 0
        self._run = 0  # number of the importer; a killed one is replaced by another
        self._is_running = False
        self._is_reading = False
        self._shown = 0  # end of what was read and verified

    def _trace(self, what: str) -> None:
        self._around.trace.add("import", what)

    @property
    def _history(self) -> PartitionHistory:
        return self._checks.of(NAME, 0)

    @property
    def _end(self) -> int:
        return self._begins[-1] + 1

    def create(self) -> None:
        """Create the stream, paused; retried until it is answered."""
        self._checks.begin(self._config)
        self._checks.sent.update({row.value: NAME for row in self._source})
        self._ask_to_create()

    def _ask_to_create(self) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, CreateStreamResponse):
                self._stream_id = int(response.stream.stream_id)
                self._checks.created[self._stream_id] = self._history
                self._trace(f"created {self._stream_id}")
            else:
                self._around.scheduler.after(_AGAIN_US, self._ask_to_create)

        self._program().ask(CreateStreamRequest(config=self._config, timeout_ms=3_000, is_paused=True), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        if stream_id != self._stream_id:
            return False
        self._history.is_damaged = self._history.is_given_up = True
        request = AlterStreamRequest(name=NAME, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    def _act(self, operation: PlannedOperation) -> None:
        if not self._stream_id:
            return
        if operation.number % 3 == 0:
            self._read()
        elif not self._is_running:
            self._begin()
        elif operation.number % 3 == 1:
            self._trace("killed")
            self._around.count("killed importers")
            self._is_running = False

    # One importer

    def _begin(self) -> None:
        self._run += 1
        self._is_running = True
        self._look(self._run, self._put)

    def _goes_on(self, run: int) -> bool:
        return self._is_running and run == self._run

    def _fail(self, run: int, why: str) -> None:
        if self._goes_on(run):
            self._trace(f"ends: {why}")
            self._is_running = False

    def _again(self, run: int, call: Callable[[], None]) -> None:
        self._around.scheduler.after(_AGAIN_US, lambda: call() if self._goes_on(run) else None)

    def _look(self, run: int, then: Callable[[int, int], None]) -> None:
        """Ask for the log end; `then` receives the importer's number and the end."""

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if not self._goes_on(run):
                return
            if not isinstance(response, ListOffsetsResponse):
                self._again(run, lambda: self._look(run, then))
                return
            end = int(response.committed_end)
            self._trace(f"it ends at {end}")
            if end not in self._ends:
                raise ViolationError(f"{NAME} ends at {end}, where no batch has ended")
            then(run, end)

        stream_id = StreamId(self._stream_id)
        request = ListOffsetsRequest(stream_id=stream_id, partition=PartitionId(0), at="latest")
        self._program().ask_leader(self._stream_id, 0, request, done)

    def _put(self, run: int, end: int) -> None:
        """Append the next batch."""
        left = [row for row in self._source if row.offset >= end]
        if not left:
            self._trace("all is there")
            self._is_running = False
            return
        rows, behind = self._drawn(left)
        if self._random.random() < _BESIDE:
            self._put_beside(*self._drawn(left), end)
        self._send(run, rows, _message(rows, end, behind), behind, in_doubt=False)

    def _drawn(self, left: list[SourceRow]) -> tuple[list[SourceRow], int]:
        """Draw the rows of the next batch and the end of the offsets that it covers."""
        rows = left[: 1 + int(self._random.random() * _BATCH_ROWS)]
        return rows, left[len(rows)].offset if len(left) > len(rows) else self._end

    def _put_beside(self, rows: list[SourceRow], behind: int, end: int) -> None:
        """Append one batch of another importer, which was started by mistake, or killed after it had sent the batch."""

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"beside, up to {behind}: {kind_of(response)}")
            if isinstance(response, AppendAtResponse):
                self._stored(rows, behind, response)

        request = AppendAtRequest(stream_id=StreamId(self._stream_id))
        self._program().ask_leader(self._stream_id, 0, request, done, _message(rows, end, behind))

    def _send(self, run: int, rows: list[SourceRow], message: bytes, end: int, *, in_doubt: bool) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"put up to {end}: {kind_of(response)}")
            if isinstance(response, AppendAtResponse):
                self._stored(rows, end, response)
                if self._goes_on(run):
                    self._put(run, end)
                return
            if not self._goes_on(run):
                return
            error = response if isinstance(response, RemoteError) else None
            if error is None or error.code not in _ENDS_IT:
                again = lambda: self._send(run, rows, message, end, in_doubt=in_doubt or error is None)  # noqa: E731
                self._again(run, again)
            elif error.code == ErrorCode.BAD_REQUEST:
                raise ViolationError(f"{NAME}: rows up to {end} are refused: {error}")
            elif in_doubt and error.details.get("log_end") == end:
                self._around.count("batches that were there")
                self._until(run, end)
            else:
                self._fail(run, "another one puts rows")

        request = AppendAtRequest(stream_id=StreamId(self._stream_id))
        self._program().ask_leader(self._stream_id, 0, request, done, message)

    def _until(self, run: int, end: int) -> None:
        """Wait until the high watermark reaches `end`: the batch was stored at the first attempt."""

        def looked(run: int, found: int) -> None:
            if found >= end:
                self._put(run, found)
            else:
                self._again(run, lambda: self._until(run, end))

        self._look(run, looked)

    def _stored(self, rows: list[SourceRow], end: int, response: AppendAtResponse) -> None:
        self._around.count("rows put", len(rows))
        if response.end_offset != end or response.timestamp_us != rows[-1].timestamp_us:
            raise ViolationError(f"{NAME}: rows up to {end} are said to be there: {response}")
        for row in rows:
            self._checks.promised(self._history, row.offset, response.leader_epoch, row.value, fsynced=response.fsynced)

    # Reads

    def _read(self, position: int = 0) -> None:
        """Read everything that is stored and compare it with the source."""
        if self._is_reading:
            return
        self._is_reading = True

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._is_reading = False
            if not isinstance(response, FetchResponse) or self._history.damaged or self._history.is_given_up:
                self._trace(f"read: {kind_of(response)}")
                return
            end = int(response.end_offset)
            found = [row for row in _rows(raw) if row.offset >= position]
            wanted = [row for row in self._source if position <= row.offset < end]
            if found != wanted or end not in self._ends:
                raise ViolationError(f"{NAME}: read from {position} to {end} {found}, and the source has {wanted}")
            self._around.count("rows compared with their source", len(found))
            self._shown = end
            if end < response.committed_end:
                self._read(end)

        request = FetchRequest(stream_id=StreamId(self._stream_id), offset=Offset(position))
        self._program().ask_leader(self._stream_id, 0, request, done)

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that tells how far the import has come; it returns "" at the end of the source."""
        self._shown = 0

        def left() -> str:
            history = self._history
            if is_stuck(history) or history.is_damaged or history.damaged:
                return ""
            if self._shown < self._end and self._stream_id:
                if not self._is_running:
                    self._begin()
                self._read()
            return f"{NAME} is shown up to {self._shown} of {self._end}" if self._shown < self._end else ""

        return left


def _message(rows: list[SourceRow], begin: int, end: int) -> bytes:
    """Encode a batch of these rows that covers the offsets from `begin` to `end`."""
    columns = {
        "offset": [row.offset for row in rows],
        "timestamp": [row.timestamp_us for row in rows],
        "subject": [NAME] * len(rows),
        "key": [None] * len(rows),
        "value": [row.value for row in rows],
        "headers": [None] * len(rows),
    }
    arrays = [pa.array(columns[field.name], field.type) for field in arrow_schema()]
    return bytes(codec.encode_arrow_at(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema()), begin, end))


def _rows(raw: bytes) -> list[SourceRow]:
    """Decode the rows of some batches."""
    found: list[SourceRow] = []
    view = memoryview(raw)
    while view:
        batch = view[: codec.read_header(view).size_bytes]
        values = ReadRows(bytes(batch)).values
        plain = codec.uncompressed(batch)
        found += map(SourceRow, codec.offsets(plain), codec.timestamps(plain), values)
        view = view[len(batch) :]
    return found
