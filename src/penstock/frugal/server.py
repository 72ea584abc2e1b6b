"""A server of services on NATS subjects.

    async with Server(connection, "shop", [(SHOP, handler)], queue="shop") as server:
        await server.drained()

Rules: the subscription never ends because of what comes: a message that is no frame is counted, logged at a bounded
rate, and gets no answer, since it has no operation id; all else is answered. A request without a reply subject is
dropped, unless it is a oneway. Servers with one queue group share the requests. `drain` lets NATS send no more, ends
what has begun, and only then returns; leaving the block does so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Self

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from penstock.base.subjects import subject_mistake
from penstock.frugal.codecs import BINARY, Codec
from penstock.frugal.complaints import Complaints
from penstock.frugal.contracts import ServiceType
from penstock.frugal.discovery import Discovery, Identity
from penstock.frugal.errors import FrameError
from penstock.frugal.framing import Packet
from penstock.frugal.middleware import Middleware
from penstock.frugal.nats_barrier import reach
from penstock.frugal.processor import MethodStats, Processor
from penstock.frugal.workers import CONCURRENCY_DEFAULT, WAITING_DEFAULT, Job, Workers

log = logging.getLogger("penstock.frugal")

DRAIN_TIMEOUT_S = 30.0
"""Duration for which a drain waits for handlers, unless it says another time."""
FLUSH_TIMEOUT_S = 5.0
"""Duration for which a drain waits for NATS to end the subscriptions, and to take the last answers."""


@dataclass(slots=True)
class ServerStats:
    """Counters of a server. `malformed`: messages that were no frame; `no_reply`: those that no answer can go to."""

    malformed: int = 0
    no_reply: int = 0
    lost_answers: int = 0  # NATS did not take them


class Server:
    """Serves services on a subject.

    `connection`: one of nats-py, which stays open. `subject`: one or several. `services`: pairs of a service and its
    handler (see `processor`). `queue`: the queue group. `concurrency_max`: handlers at a time, `waiting_max`: requests
    that wait for one; those beyond are answered with `ServiceOverloaded`. `name`, `version`, `description`, `metadata`:
    for discovery; the name is that of the first service if none is given. `discovery`: False for none.
    ValueError: an invalid subject or name, or a handler that lacks a method.
    """

    def __init__(
        self,
        connection: Client,
        subject: str | Sequence[str],
        services: Sequence[tuple[ServiceType, object]],
        *,
        queue: str = "",
        codec: Codec = BINARY,
        middleware: Sequence[Middleware] = (),
        concurrency_max: int = CONCURRENCY_DEFAULT,
        waiting_max: int = WAITING_DEFAULT,
        name: str = "",
        version: str = "0.0.0",
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        discovery: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._subjects = (subject,) if isinstance(subject, str) else tuple(subject)
        for each in self._subjects:
            if (mistake := subject_mistake(each, wildcards=True)) is not None:
                raise ValueError(mistake)
        if not self._subjects or not services:
            raise ValueError("a server has a subject and a service at least")
        self._queue = queue
        self._processor = Processor(services, now=now, codec=codec, middleware=middleware)
        self._workers = Workers(self._processor, concurrency_max=concurrency_max, waiting_max=waiting_max)
        self._complaints = Complaints(log, now)
        self._subscriptions: list[Subscription] = []
        self._end = asyncio.Event()
        self.stats = ServerStats()
        self._discovery: Discovery | None = None
        if discovery:
            kinds = [service for service, _ in services]
            self.identity = Identity(name or kinds[0].name, uuid.uuid4().hex, version, description, metadata or {})
            self._discovery = Discovery(
                self.identity,
                kinds,
                subjects=self._subjects,
                queue=queue,
                codec=codec.name,
                started=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            )

    @property
    def method_stats(self) -> Mapping[str, MethodStats]:
        """Counters by the names of the methods."""
        return self._processor.stats

    @property
    def overloaded(self) -> int:
        """The number of requests that were refused because the queue was full."""
        return self._workers.overloaded

    @property
    def running(self) -> int:
        """The number of requests whose handlers run."""
        return self._workers.running

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a handler."""
        return self._workers.waiting

    async def start(self) -> None:
        """Subscribe; returns when NATS has the subscriptions. Handlers see the context variables that are set here."""
        self._workers.begin()
        for subject in self._subjects:
            handler = partial(self._on_request, subject)
            self._subscriptions.append(await self._connection.subscribe(subject, queue=self._queue, cb=handler))
        if self._discovery is not None:
            for subject, verb in self._discovery.requests():
                answer = partial(self._on_discovery, self._discovery, verb)
                self._subscriptions.append(await self._connection.subscribe(subject, cb=answer))
        await reach(self._connection)

    async def drain(self, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Take no more requests, and return when those that came are answered; after the time-out, cancel them."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(self._unsubscribe(each) for each in subscriptions))
        await self._workers.drain(timeout_s)
        with contextlib.suppress(NatsError, TimeoutError):  # the last answers are in nats-py's buffer
            await asyncio.wait_for(reach(self._connection), FLUSH_TIMEOUT_S)
        self._end.set()

    async def _unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription, and take what NATS has sent on it. While NATS is away, nothing is to be waited for."""
        with contextlib.suppress(NatsError, TimeoutError):
            draining = subscription.drain()  # type: ignore[no-untyped-call]
            await asyncio.wait_for(draining, FLUSH_TIMEOUT_S)

    async def drained(self) -> None:
        """Wait until the server was drained: for a program that serves until something else drains it."""
        await self._end.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drain()

    async def _on_request(self, subject: str, message: Msg) -> None:
        packet = Packet(message.data, message.headers or {})
        try:
            request = self._processor.accept(packet)
        except FrameError as error:
            self.stats.malformed += 1
            self._complaints.tell("malformed", f"a message on {subject!r} is no request: {error}")
            return
        if not message.reply and not self._processor.is_oneway(request):
            self.stats.no_reply += 1
            self._complaints.tell("no_reply", f"a request on {subject!r} has no reply subject")
            return
        reply = partial(self._reply, message.reply)
        await self._workers.submit(Job(request, reply, self._connection.max_payload, subject))

    async def _reply(self, subject: str, packet: Packet | None) -> None:
        if packet is None or not subject:
            return
        try:
            headers = dict(packet.headers) if packet.headers else None
            await self._connection.publish(subject, packet.data, headers=headers)
        except NatsError as error:
            self.stats.lost_answers += 1
            self._complaints.tell("lost", f"NATS did not take an answer: {error!r}")

    async def _on_discovery(self, discovery: Discovery, verb: str, message: Msg) -> None:
        if message.reply:
            await self._reply(message.reply, Packet(discovery.answer(verb, self._processor.stats)))
