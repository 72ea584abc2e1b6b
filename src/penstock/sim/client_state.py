"""State of the model clients: decoded acks, requested streams, and consumer positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.messages import Response
from penstock.sim.checks import PartitionHistory


class AckBody(msgspec.Struct):
    """The answer on a reply subject: an ack or an error."""

    stream: str
    seq: int
    error: dict[str, Any] | None = None
    partition: int = 0
    offset: int | None = None  # None: duplicate of a message in an older partition
    epoch: int = 0
    replicas: int = 0
    fsynced: bool = False
    duplicate: bool = False


ACK = msgspec.json.Decoder(AckBody)


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
