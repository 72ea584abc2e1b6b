"""Idempotent producer: appends stored exactly once, in call order, across lost answers and failovers.

Rules: rows are numbered, and each batch names its first sequence number, so that a leader recognises a duplicate. A
batch is retried until it is answered or its time-out passes. The leader remembers PRODUCER_BATCHES_KEPT batches, so a
new batch waits until fewer than that were sent since the oldest unanswered one; otherwise the leader could not
recognise a retry of the oldest. A batch that arrives out of order is refused and retried in order. A new epoch begins
only when all batches of the old one are answered, so it fences none of them.

| a broker answers a batch with                   | then                                                          |
|-------------------------------------------------|---------------------------------------------------------------|
| nothing, `not_leader` and other passing errors  | ask the next broker, see `attempts`                           |
| `overloaded`, `not_enough_replicas`; a failed   | retry after a pause                                           |
| sync, or a failing disk, if it may be stored    |                                                               |
| `out_of_sequence`, if others were before it     | retry in order                                                |
| `unknown_producer`, if it cannot be stored      | this batch and later ones begin a new epoch                   |
| `already_appended`                              | raise; the producer continues                                 |
| `producer_fenced`                               | raise, now and for all later appends                          |
| anything else, or the time-out passed           | raise: `OutcomeUnknown` if it may be stored; later batches in |
|                                                 | flight fail, too, and the next append begins a new epoch      |

A batch of the old epoch that is still on its way is refused by a leader that knows the new one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from itertools import islice
from typing import Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import PartitionId
from penstock.batch import codec
from penstock.client import columns
from penstock.client.checks import seconds_of
from penstock.client.errors import OutcomeUnknown, TimedOut
from penstock.client.link.attempts import OutcomeDoubt
from penstock.client.link.link import Link
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.publish_format import a_kind
from penstock.client.read import reading
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import AppendResult, StreamName, datetime_of
from penstock.messages import AppendOnceRequest, AppendOnceResponse, StreamInfo

TIMEOUT_S_MAX = limits.PRODUCER_WINDOW_MS / 2_000
"""Longest time-out of a batch: no retry comes so late that the leader may have forgotten the batch."""
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_PASSING = (ErrorCode.OVERLOADED, ErrorCode.NOT_ENOUGH_REPLICAS)


class _Batch:
    """One batch in flight. `failure`: the failure of an earlier batch, so this one must not be stored either."""

    __slots__ = ("answered", "deadline_s", "doubt", "epoch", "failure", "message", "number", "rows", "sequence")

    def __init__(self, message: bytearray, number: int, epoch: int, sequence: int, deadline_s: float) -> None:
        self.number = number
        self.message = message
        self.rows = codec.read_header(message).count
        self.epoch = epoch
        self.sequence = sequence
        self.deadline_s = deadline_s
        self.doubt = OutcomeDoubt()  # set if it may be stored
        self.answered = asyncio.Event()
        self.failure: Exception | None = None


class Producer(OfThisProcess):
    """Appends to one partition of a stream, each row exactly once; made by `Client.producer`."""

    def __init__(
        self,
        link: Link,
        streams: NamedStreams,
        stream: StreamName,
        partition: int,
        producer_id: int | None,
        epoch: int,
        sequence: int,
    ) -> None:
        if producer_id is None:
            producer_id = random.SystemRandom().randrange(1, 2**63)
        for what, number in (("producer id", producer_id), ("epoch", epoch), ("sequence", sequence)):
            if not isinstance(number, int):
                raise TypeError(f"the {what} is {a_kind(number)}; give an int")
        if not 1 <= producer_id < 2**63:
            raise ValueError(f"the producer id is {producer_id}; it is 1 to 2^63 - 1")
        if not (0 <= epoch < 2**32 and 0 <= sequence < 2**63):
            raise ValueError(f"epoch {epoch}, sequence {sequence}: they count from 0, up to 2^32 and 2^63")
        self._producer_id = producer_id
        self._epoch = epoch
        self._sequence = sequence
        self._link = link
        self._streams = streams
        self._stream = stream
        self._info: StreamInfo | None = None
        self._partition = partition
        self._numbering = asyncio.Lock()  # one call at a time: rows keep the order of the calls
        self._batches = 0  # number of batches sent
        self._unanswered: deque[_Batch] = deque()  # in order of their sequence numbers
        self._fenced: RemoteError | None = None

    @property
    def producer_id(self) -> int:
        """The producer's id."""
        return self._producer_id

    @property
    def epoch(self) -> int:
        """The current epoch of this producer id."""
        return self._epoch

    @property
    def sequence(self) -> int:
        """The sequence number of the next row."""
        return self._sequence

    async def append(self, data: Any, *, timeout: float = 60.0) -> list[AppendResult]:
        """Append rows like `Client.append`, each exactly once; concurrent calls keep their order.

        `timeout` applies to each batch, at most 300 s. After an error (which has the results so far, as in
        `Client.append`) the producer continues in a new epoch with sequence 0, after everything that was stored.
        OutcomeUnknown: the time-out passed, or the leader has forgotten the producer, and a batch may be stored.
        RemoteError: producer_fenced, permanently: another producer with this id has a higher epoch; already_appended:
        these rows are stored, too long ago to know their offsets (`details["next_sequence"]` is the next sequence
        number); out_of_sequence: the log has lost acked rows. Others as in `Client.append`.
        """
        if not 0 < seconds_of(timeout) <= TIMEOUT_S_MAX:
            raise ValueError(f"the time-out is {timeout:g} s; a producer's is above 0 and at most {TIMEOUT_S_MAX:g} s")
        tasks: list[asyncio.Task[AppendResult]] = []
        error: BaseException | None = None
        async with self._numbering:
            if self._info is None:
                self._info = await self._streams.info(self._stream, timeout, self._partition or 0)
            number = reading.partition_number(self._info, self._partition)
            table = columns.to_table(data, stream_subject=self._info.config.subject_of(number))
            bytes_max = min(limits.APPEND_BYTES_MAX, self._link.hello.limits.append_bytes_max)
            try:
                for message in columns.batch_messages(table, bytes_max=bytes_max):
                    while self._must_wait():
                        await self._unanswered[0].answered.wait()
                    if any(task.done() and task.exception() is not None for task in tasks):
                        break  # the rest would be stored without the failed batch
                    if self._fenced is not None:
                        raise self._fenced
                    tasks.append(asyncio.create_task(self._send(self._numbered(message, timeout), self._info, number)))
            except RemoteError as too_large:
                error = too_large
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                raise
        found = await asyncio.gather(*tasks, return_exceptions=True)
        done = [one for one in found if isinstance(one, AppendResult)]
        error = next((one for one in found if isinstance(one, BaseException)), error)
        if isinstance(error, OutcomeUnknown):
            error.appended = done
        elif isinstance(error, RemoteError) and done:
            error.details["appended"] = done
        if error is not None:
            raise error
        return done

    def _must_wait(self) -> bool:
        if not self._unanswered:
            return False
        oldest = self._unanswered[0]
        return self._batches - oldest.number >= limits.PRODUCER_BATCHES_KEPT or oldest.epoch != self._epoch

    def _numbered(self, message: bytearray, timeout: float) -> _Batch:
        deadline_s = asyncio.get_running_loop().time() + timeout
        batch = _Batch(message, self._batches, self._epoch, self._sequence, deadline_s)
        self._batches += 1
        self._sequence += batch.rows
        self._unanswered.append(batch)
        return batch

    async def _send(self, batch: _Batch, info: StreamInfo, partition: PartitionId) -> AppendResult:
        try:
            return await self._sent(batch, info, partition)
        except BaseException as error:
            is_past = isinstance(error, RemoteError) and error.code == ErrorCode.ALREADY_APPENDED
            if batch.failure is None and not is_past:
                self._failed(batch, error)
            raise
        finally:
            self._unanswered.remove(batch)
            batch.answered.set()

    async def _sent(self, batch: _Batch, info: StreamInfo, partition: PartitionId) -> AppendResult:
        """Send a batch until it is answered or fails."""
        clock = asyncio.get_running_loop()
        pause_s = _PAUSE_S_MIN
        last: Exception = TimedOut("the time-out passed before the append could be sent")
        while True:
            left_s = batch.deadline_s - clock.time()
            if left_s <= 0:
                raise self._outcome(batch, last)
            epoch, in_turn = batch.epoch, self._unanswered[0] is batch
            request = AppendOnceRequest(
                stream_id=info.stream_id,
                partition=partition,
                producer_id=self._producer_id,
                producer_epoch=epoch,
                sequence=batch.sequence,
            )
            try:
                answer, _ = await self._link.call(
                    request, AppendOnceResponse, timeout_s=left_s, raw=batch.message, doubt=batch.doubt
                )
                moment = datetime_of(answer.timestamp_us)
                return AppendResult(answer.base_offset, answer.end_offset, moment, answer.fsynced, partition)
            except (RemoteError, OperationalError) as error:
                last = error
                while self._unanswered[0] is not batch and batch.failure is None:
                    await self._unanswered[0].answered.wait()
                if batch.failure is not None:
                    raise batch.failure from None
                if epoch != batch.epoch:
                    continue  # the refusal was for the old epoch
                if self._renumbers(batch, error) or _is_early(error, in_turn=in_turn):
                    continue
                if not self._passes(batch, error):
                    raise self._outcome(batch, error) from None
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (spreads load)
            pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    def _renumbers(self, batch: _Batch, error: Exception) -> bool:
        """Begin a new epoch if the producer is unknown to the leader and no batch can be stored; return True if so."""
        if _code_of(error) != ErrorCode.UNKNOWN_PRODUCER or batch.doubt.exists:
            return False
        self._epoch += 1
        self._sequence = 0
        for one in self._unanswered:
            one.epoch, one.sequence = self._epoch, self._sequence
            self._sequence += one.rows
        return True

    @staticmethod
    def _passes(batch: _Batch, error: Exception) -> bool:
        """True if the batch should be retried."""
        if not isinstance(error, RemoteError):
            return False
        if error.code == ErrorCode.STORAGE_FAILED:
            return batch.doubt.exists
        return error.code in _PASSING

    def _outcome(self, batch: _Batch, error: Exception) -> Exception:
        """Return the error for the caller of a batch that will not be retried."""
        if _code_of(error) == ErrorCode.PRODUCER_FENCED and isinstance(error, RemoteError):
            self._fenced = error
        if not batch.doubt.exists or _code_of(error) == ErrorCode.ALREADY_APPENDED:
            return error
        place = f"producer {self._producer_id}, epoch {batch.epoch}, sequence {batch.sequence}"
        return OutcomeUnknown(f"the outcome of the append is unknown ({place}): {error}")

    def _failed(self, batch: _Batch, error: BaseException) -> None:
        """Fail the later batches in flight, which must not be stored without it. The next append begins a new epoch."""
        text = f"an append before it has failed: {error}"
        in_doubt = batch.doubt.exists or not isinstance(error, Exception)
        for one in islice(self._unanswered, self._unanswered.index(batch) + 1, None):
            if one.failure is None:
                one.failure = OutcomeUnknown(text) if in_doubt else _not_stored(text)
        if self._fenced is None:
            self._epoch += 1
        self._sequence = 0


def _code_of(error: Exception) -> str:
    return error.code if isinstance(error, RemoteError) else ""


def _is_early(error: Exception, *, in_turn: bool) -> bool:
    """True if the batch was refused only because an earlier one had not arrived."""
    return _code_of(error) == ErrorCode.OUT_OF_SEQUENCE and not in_turn


def _not_stored(text: str) -> RemoteError:
    return RemoteError(ErrorCode.OUT_OF_SEQUENCE, f"nothing was stored: {text}")
