"""The blocking face of a producer; see `client.producing`."""

from __future__ import annotations

from typing import Any

from penstock.client import producing
from penstock.client.of_this_process import OfThisProcess
from penstock.client.threads import LoopThread
from penstock.client.values import AppendResult


class Producer(OfThisProcess):
    """Appends to one partition of a stream, each row exactly once; made by `Client.producer`."""

    def __init__(self, producer: producing.Producer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread

    @property
    def producer_id(self) -> int:
        """Who it is."""
        return self._producer.producer_id

    @property
    def epoch(self) -> int:
        """Which life of it this is."""
        return self._producer.epoch

    @property
    def sequence(self) -> int:
        """The number of the next row."""
        return self._producer.sequence

    def append(self, data: Any, *, timeout: float = 60.0) -> list[AppendResult]:
        """Append rows as `Client.append` does, each exactly once; calls may overlap, and keep their order.

        `timeout` is for each batch, at most 300 s. After an error (which has the results so far, as there) the
        producer goes on in a new epoch with the sequence 0, behind whatever was stored.
        OutcomeUnknown: the time passed, or the leader had forgotten the producer, and a batch may be stored.
        RemoteError: producer_fenced, for good: another producer of this id has a higher epoch; already_appended: these
        rows are there, longer ago than anybody knows where (`details["next_sequence"]` says how far it has come);
        out_of_sequence: the log has lost what it had acked. Others as in `Client.append`.
        """
        return self._thread.run(self._producer.append(data, timeout=timeout))
