"""The producer of the blocking client; see `client.producing`."""

from __future__ import annotations

from typing import Any

from penstock.client.append import producing
from penstock.client.blocking.threads import LoopThread
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.values import AppendResult


class Producer(OfThisProcess):
    """Appends to one partition of a stream, each row exactly once; made by `Client.producer`."""

    def __init__(self, producer: producing.Producer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread

    @property
    def producer_id(self) -> int:
        """The producer's id."""
        return self._producer.producer_id

    @property
    def epoch(self) -> int:
        """The current epoch of this producer id."""
        return self._producer.epoch

    @property
    def sequence(self) -> int:
        """The sequence number of the next row."""
        return self._producer.sequence

    def append(self, data: Any, *, timeout: float = 60.0) -> list[AppendResult]:
        """Append rows like `Client.append`, each exactly once; concurrent calls keep their order.

        `timeout` applies to each batch, at most 300 s. After an error (which has the results so far, as in
        `Client.append`) the producer continues in a new epoch with sequence 0, after everything that was stored.
        OutcomeUnknown: the time-out passed, or the leader has forgotten the producer, and a batch may be stored.
        RemoteError: producer_fenced, permanently: another producer with this id has a higher epoch; already_appended:
        these rows are stored, too long ago to know their offsets (`details["next_sequence"]` is the next sequence
        number); out_of_sequence: the log has lost acked rows. Others as in `Client.append`.
        """
        return self._thread.run(self._producer.append(data, timeout=timeout))
