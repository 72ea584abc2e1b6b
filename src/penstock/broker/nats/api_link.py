"""Connection to NATS for JetStream's API, beside that of the streams' messages (`link`).

Rules: what nats-server queues for a connection is delivered in order, so a message would wait behind all API requests
that came before it. On a connection of their own these only wait for each other. A read of it is small, so that the
event loop soon gets to the messages again, and answers that nats-server does not take stop no ack.
"""

from __future__ import annotations

from typing import Protocol

from penstock.broker.nats.link import LinkEvent
from penstock.hot.message_group import MessageGroup
from penstock.jetstream.gateway import ACK_GROUP, GATEWAY_GROUP


class ApiLinkOwner(Protocol):
    """Receives what the connection delivers."""

    def calls_received(self, calls: MessageGroup) -> None:
        """Requests of one read, and answers to the gateway's own."""

    def acks_received(self, acks: MessageGroup) -> None:
        """Acks of consumers of one read."""

    def api_link_event(self, event: LinkEvent) -> None:
        """An event of the link."""


class ApiLinkEvents:
    """Owner of that link; it passes on what comes."""

    def __init__(self, owner: ApiLinkOwner) -> None:
        self._owner = owner

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        """Pass on acks and requests: who asks for more has acked before."""
        if (acks := groups.get(ACK_GROUP)) is not None:
            self._owner.acks_received(acks)
        if (calls := groups.get(GATEWAY_GROUP)) is not None:
            self._owner.calls_received(calls)

    def link_event(self, event: LinkEvent) -> None:
        """Pass on an event."""
        self._owner.api_link_event(event)
