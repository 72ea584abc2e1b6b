"""Publish through NATS: choose the subject and manage the connection.

Rules: the connection to NATS is made with the first message. If NATS has dropped it and the brokers name other servers
by now, it is replaced. `publish_format` encodes messages, `publishing` sends them and waits for acks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.base.errors import OperationalError
from penstock.client.errors import ClientClosed
from penstock.client.link.link import Link
from penstock.client.publish.ack_waiters import AckFuture, Asked, Outcome
from penstock.client.publish.publishing import Publisher, connected_to
from penstock.client.publish.unseen import UnseenFailures
from penstock.client.publish_format import Ack, Value, message_id, published
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import Envelope

if TYPE_CHECKING:
    from penstock.client.publish.nats_client import StrictNatsClient


class Publications:
    """Publishes the messages of one client through NATS; `timeout` is in seconds."""

    def __init__(
        self,
        link: Link,
        streams: NamedStreams,
        name: str,
        urls: list[str] | None,
        options: dict[str, Any],
    ) -> None:
        """`urls`: NATS servers to publish to, if not those of the brokers."""
        self._link = link
        self._streams = streams
        self._name = name
        self._urls = urls
        self._options = options
        self._publisher: Publisher | None = None
        self._is_closed = False
        self.unseen = UnseenFailures()

    @property
    def urls(self) -> tuple[str, ...]:
        """NATS servers to which messages are published."""
        return tuple(self._urls) if self._urls is not None else self._link.nats_urls

    async def publish(
        self,
        subject: str,
        value: Value,
        key: bytes | str | None,
        headers: Mapping[str, str] | None,
        stream: str | None,
        ack: Ack,
        envelope: Envelope | None,
        retries: int,
        timeout: float,
        notes_failure: bool = False,
        future: Outcome | None = None,
    ) -> AckFuture | None:
        """Send one message; return the future of its ack, or None if it gets no ack.

        With `notes_failure`, `flush` raises the error if it fails. With `future` that one gets the outcome, and None is
        returned; what is raised here it does not get.
        """
        value, all_headers = published(value, key, headers, stream, ack, envelope)
        deciding = message_id(headers) if key is None and headers else key
        routes = self._streams.routes
        now_s = asyncio.get_running_loop().time()
        if routes.must_ask(subject, deciding, now_s):
            routes.learn(subject, await self._streams.storing(subject, timeout), now_s)
        publisher = self._publisher
        if publisher is None or publisher.is_cut_off:
            publisher = await self.connected(timeout)
        if ack == "none":
            routed = routes.subject_for(subject, deciding)
            await publisher.publish_without_ack(routed, value, all_headers, timeout_s=timeout)
            if future is not None:
                future.set_result(None)
            return None
        outcome: Outcome
        ours: AckFuture | None = None
        if future is None:
            outcome = ours = publisher.future()
        else:
            outcome = future
        await publisher.publish(
            outcome,
            routes.subject_for(subject, deciding),
            value,
            all_headers,
            timeout_s=timeout,
            retries=retries,
            asked=Asked(subject, deciding, timeout),
            notes_failure=notes_failure,
        )
        return ours

    async def flush(self, timeout: float) -> None:
        """Wait until every message so far has its ack; raise the first recorded failure."""
        if self._publisher is not None:
            await self._publisher.flush(timeout)

    async def finish(self) -> None:
        """Wait until every message so far has its ack, or has failed, at the latest by its own time-out."""
        if self._publisher is not None:
            await self._publisher.finish()

    async def close(self) -> None:
        """Close the connection; no other one is made. May be called twice."""
        self._is_closed = True
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.close()

    async def _rerouted(self, asked: Asked) -> str:
        """Return the subject of the partition as the brokers know it now."""
        routes, subject, now_s = self._streams.routes, asked.subject, asyncio.get_running_loop().time()
        routes.forget(subject)
        if routes.must_ask(subject, asked.deciding, now_s):
            routes.learn(subject, await self._streams.storing(subject, asked.timeout_s), now_s)
        return routes.subject_for(subject, asked.deciding)

    async def apart(self, timeout: float) -> StrictNatsClient:
        """Return a connection to NATS of its own, for a caller that closes it. OperationalError."""
        from penstock.client.publish.nats_client import StrictNatsClient

        if not self.urls:
            raise OperationalError("the broker names no NATS server; connect with nats=URL")
        return await connected_to(StrictNatsClient(), self.urls, self._name, self._options, timeout)

    async def connected(self, timeout: float) -> Publisher:
        """Return the connection to the NATS servers, which is made with its first message. OperationalError."""
        publisher = self._publisher
        if publisher is not None and publisher.is_cut_off and self._urls is None:
            # The broker may have returned with its NATS at another address, or other brokers may have NATS servers of
            # their own.
            await self._link.refresh(timeout)
            if self._publisher is publisher and not set(self.urls) <= set(publisher.urls):
                self._publisher = None
                await publisher.close()
        if self._is_closed:
            raise ClientClosed
        if self._publisher is None:
            urls = self.urls
            if not urls:
                raise OperationalError("the broker names no NATS server for publishers; connect with nats=URL")
            self._publisher = Publisher(
                urls, self._name, self._options, self._streams.storing, self._rerouted, self.unseen
            )
        return self._publisher
