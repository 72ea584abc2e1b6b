"""The part of the node that the gateway uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.access.handshake import Principal
from penstock.base.clock import Now
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionId, PartitionKey, StreamId
from penstock.live.row_set import RowSet
from penstock.messages import Request, Response
from penstock.metadata.image import ClusterImage
from penstock.node.api.last_rows import KeptLasts
from penstock.node.consumers.consumer_logs import KnownConsumers
from penstock.node.partition.partition import Shown
from penstock.node.security.access import Access
from penstock.node.step import Outbox, Payload

Heard = Callable[[Response | RemoteError, Payload], None]
"""Gets the node's answer, and its raw part, in a later turn of the loop than the request."""


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """The caller of the gateway's requests to the node; their answers go to `Gateway.answered`."""

    number: int


class GatewayNode(Protocol):
    """The node, as the gateway uses it."""

    @property
    def image(self) -> ClusterImage:
        """The newest cluster image that this broker has applied."""

    @property
    def broker_id(self) -> BrokerId: ...

    @property
    def process(self) -> str:
        """Name of this run of the broker; empty before it has begun."""

    @property
    def cluster_id(self) -> str:
        """Id of this broker's cluster; empty if unknown."""

    @property
    def incarnation(self) -> Incarnation | None:
        """The incarnation in which this broker is registered; None: it is not."""

    @property
    def api_lease_us(self) -> int:
        """Elapsed time until which this broker may act by the decision on JetStream's API that it has applied."""

    @property
    def confirmed_us(self) -> int | None:
        """Elapsed time up to which all changes of the metadata that were answered are in the image; None: unknown."""

    def confirm_soon(self, now: Now) -> bool:
        """Ask the metadata leader, so that `confirmed_us` soon is at least now; False if it was asked a moment ago."""

    @property
    def event_count(self) -> int:
        """Grows with all that may change what the node says, but for the time."""

    @property
    def now(self) -> Now:
        """The time of the current event."""

    @property
    def access(self) -> Access: ...

    @property
    def outbox(self) -> Outbox:
        """Collects what the driver must do: answers on NATS, deliveries, disk work."""

    def check_session(self, now: Now) -> None:
        """Begin an event of the gateway: leaderships whose session may have ended, as the process slept, are mute."""

    def shown(self, stream_id: StreamId, partition: PartitionId) -> Shown | None:
        """Return what readers are shown of a partition that this broker leads; None: it does not."""

    def kept_lasts(self, stream_id: StreamId, now: Now, who: Principal | None = None) -> KeptLasts | None:
        """Return the last messages of subjects that are in memory, of a stream that this broker leads.

        None: they have to be asked for by a request, which tells why.
        """

    def find_lasts(self, kept: KeptLasts, names: Sequence[bytes]) -> KeptLasts:
        """Look few plain subjects up that `kept` is not certain of, which holds now; return it with what was found.

        What is not found so has to be asked for by a request, which may read the disk, or tells why not.
        """

    def is_stored(self, subject: str) -> bool:
        """Return if a stream stores messages on this subject without wildcards."""

    def request(
        self, caller: GatewayCaller, request: Request, raw: bytes, now: Now, who: Principal | None = None
    ) -> None:
        """Answer a request as a client's; the answer goes to `caller`."""

    def callers_disconnected(self, callers: Iterable[GatewayCaller]) -> None:
        """Forget these requests."""

    def ask_metadata_leader(self, request: Request, done: Callable[[Response | RemoteError], None]) -> None:
        """Ask the metadata leader, as this broker; `done` is called once, perhaps before this returns."""

    def ask_peer(
        self,
        to: BrokerId,
        request: Request,
        done: Callable[[Response | RemoteError, bytes | memoryview], None],
        payload: bytes = b"",
    ) -> None:
        """Ask another broker, as this broker; `done` is called once, perhaps before this returns."""

    @property
    def consumer_logs_version(self) -> int:
        """Grows when a log of consumers that this broker leads has become known, has failed, or is led no more."""

    def led_consumer_logs(self) -> list[PartitionKey]:
        """Return the partitions led here whose stream has logs of consumers; not all of these logs are known yet."""

    def consumer_log(self, stream_id: StreamId, partition: PartitionId) -> KnownConsumers:
        """Return the log of consumers of a partition led here. Raise RemoteError: not_leader, not_yet, corrupt_range, …

        See the table in `penstock.node.consumers.consumer_logs`.
        """

    def consume(
        self, key: PartitionKey, rows: RowSet, done: Callable[[RemoteError | None], None], *, is_awaited: bool = False
    ) -> None:
        """Hide rows that no consumer of a partition led here needs; see `penstock.node.api.consumption`."""

    def when_consumed(self, key: PartitionKey, done: Callable[[RemoteError | None], None]) -> None:
        """Call `done` once all that was given to `consume` before is hidden, or could not be. RemoteError."""

    def tell_interest(self, key: PartitionKey, filters: Collection[str]) -> None:
        """Tell what the consumers of a partition led here want; none want nothing. RemoteError not_leader."""

    def agreed_end(self, key: PartitionKey, offset: int, leader_epoch: int | None) -> int:
        """Return how far a position from an epoch holds in the log of a partition led here; 0 if it is not."""

    def add_consumer_log(self, stream_id: StreamId, done: Callable[[RemoteError | None], None]) -> None:
        """Give a stream logs of consumers, unless it has them; `done` is called once, perhaps before this returns."""
