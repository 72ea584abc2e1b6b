"""Model idempotent producers: each numbers its rows and resends a batch until it is answered.

Rules: One producer exists for each partition with appends. It pipelines: it does not wait for an answer before it sends
the next batch. Some batches are sent twice at once, and each is resent a while after a refusal or a time-out. After it
gives up on a batch it begins a new producer epoch. Every value is in one batch only, so a value stored twice is
detected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, StreamId
from penstock.messages import AppendOnceRequest, AppendOnceResponse, Response
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from tests.sim.models.requests import SimClient

_TRIES_MAX = 5
_AGAIN_US = 2_000_000
_LOST = (ErrorCode.PRODUCER_FENCED, ErrorCode.STREAM_CHANGED, ErrorCode.STREAM_NOT_FOUND)


@dataclass(slots=True)
class _Producer:
    """`sequence`: that of its next batch."""

    number: int
    epoch: int = 0
    sequence: int = 0
    batches: int = 0


@dataclass(slots=True)
class _Batch:
    epoch: int
    sequence: int
    values: Sequence[bytes]
    data: bytes


class ProducerModels:
    """All producers of one run."""

    def __init__(self, around: Surroundings, checks: Checks, program: Callable[[], SimClient]) -> None:
        self._around = around
        self._checks = checks
        self._program = program
        self._producers: dict[tuple[int, int], _Producer] = {}

    def append(self, history: PartitionHistory, stream_id: int, values: Sequence[bytes], data: bytes) -> None:
        """Send the next batch of that partition's producer."""
        key = (stream_id, history.partition)
        producer = self._producers.setdefault(key, _Producer(len(self._producers) + 1))
        batch = _Batch(producer.epoch, producer.sequence, values, data)
        producer.sequence += len(values)
        producer.batches += 1
        self._send(history, stream_id, producer, batch, _TRIES_MAX)
        if producer.batches % 3 == 0:
            self._send(history, stream_id, producer, batch, 1)

    def _send(self, history: PartitionHistory, stream_id: int, producer: _Producer, batch: _Batch, tries: int) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, AppendOnceResponse):
                self._stored(history, batch, response)
                return
            code = response.code if isinstance(response, RemoteError) else "no answer"
            self._around.trace.add("client", f"not appended once: {code}")
            if code in _LOST:
                return
            if tries > 1:
                again = lambda: self._send(history, stream_id, producer, batch, tries - 1)  # noqa: E731
                self._around.scheduler.after(_AGAIN_US, again)
            elif batch.epoch == producer.epoch:
                producer.epoch += 1
                producer.sequence = 0

        request = AppendOnceRequest(
            stream_id=StreamId(stream_id),
            partition=PartitionId(history.partition),
            producer_id=producer.number,
            producer_epoch=batch.epoch,
            sequence=batch.sequence,
        )
        self._program().ask_leader(stream_id, history.partition, request, done, batch.data)

    def _stored(self, history: PartitionHistory, batch: _Batch, response: AppendOnceResponse) -> None:
        self._around.count("repeated appends" if response.duplicate else "appends")
        self._around.trace.add("client", f"appended once {response.base_offset} {response.duplicate}")
        if response.end_offset - response.base_offset != len(batch.values):
            raise ViolationError(f"{history.name()}: {len(batch.values)} rows are said to be there: {response}")
        for number, value in enumerate(batch.values):
            offset, leader_epoch = response.base_offset + number, response.leader_epoch
            self._checks.promised(history, offset, leader_epoch, value, fsynced=response.fsynced)
