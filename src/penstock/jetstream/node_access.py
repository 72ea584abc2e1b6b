"""The part of the node that the gateway uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.access.handshake import Principal
from penstock.base.clock import Now
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import Request, Response
from penstock.metadata.image import ClusterImage
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
    def outbox(self) -> Outbox:
        """Collects what the driver must do: answers on NATS, deliveries, disk work."""

    def request(
        self, caller: GatewayCaller, request: Request, raw: bytes, now: Now, who: Principal | None = None
    ) -> None:
        """Answer a request as a client's; the answer goes to `caller`."""

    def callers_disconnected(self, callers: Iterable[GatewayCaller]) -> None:
        """Forget these requests."""

    def send_to_peer(self, to: BrokerId, request: Request, payload: bytes) -> bool:
        """Send a request whose answer is ignored. False if that broker is not connected."""
