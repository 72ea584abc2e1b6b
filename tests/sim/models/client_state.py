"""State of the model clients: requested streams, and consumer positions."""

from __future__ import annotations

from typing import NamedTuple

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.messages import Response
from penstock.testing.simulation.checks.checks import PartitionHistory


class StreamGeneration(NamedTuple):
    """A stream as it was requested; `stream_id` is 0 until a broker has returned it."""

    config: StreamConfig
    stream_id: int


class ConsumerModel:
    """Reads one partition, operation by operation."""

    def __init__(self, history: PartitionHistory, stream_id: int) -> None:
        self.history = history
        self.stream_id = stream_id
        self.position = 0
        self.leader_epoch: int | None = None
        self.is_asking = False
        self.committed_end = 0  # as last received
        self.log_start = 0
        self.is_over = False  # the stream was deleted
        self.broker_id = 0  # the broker to ask; 0: the leader


def kind_of(response: Response | RemoteError | None) -> str:
    """Return an answer as text for the trace."""
    if response is None:
        return "no answer"
    return response.code if isinstance(response, RemoteError) else type(response).__name__
