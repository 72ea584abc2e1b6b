"""`client.queue`: work on the messages of a stream together with other clients, each message until its ack.

Rules: the messages come over NATS, from a consumer of JetStream's API, which is made if it is missing; a stream of
several partitions has one of that name for each. A message is with one client at a time: until it is acked, or given
back, or `ack_wait` has passed without a word. What is in hand when the queue is closed is given back at once.

    async with client.queue("orders", "billing", order_by="key") as queue:
        async for message in queue:
            await charge(message.value)
            await message.ack()
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import difflib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base import limits
from penstock.base.subjects import subject_mistake
from penstock.client.checks import duration_s, seconds_of, whole_number
from penstock.client.consumer_config import consumer_config
from penstock.client.errors import LateAck, TimedOut, Unavailable
from penstock.client.link.keywords import QueueConfig
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.publish_format import KEY_BASE64_HEADER, KEY_HEADER
from penstock.client.queues.pulling import ApiPlace, pulled
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from penstock.client.publish.nats_client import StrictNatsClient

_CLOSE_S = 3.0
_JETSTREAM_NAMES = {
    "ack_policy": "acks",
    "deliver_policy": "start",
    "filter_subject": "subject",
    "filter_subjects": "subject",
    "inactive_threshold": "inactive_after",
    "max_ack_pending": "ack_pending_max",
    "max_deliver": "deliveries_max",
    "opt_start_seq": "start",
    "opt_start_time": "start",
}
"""Options of `client.queue` by JetStream's names of them."""


class QueueMessage(OfThisProcess):
    """A message in this client's hand. End its turn with `ack`, `ack_sync`, `nak` or `term`, once."""

    __slots__ = ("_connection", "_ended", "_message", "_partition")

    def __init__(self, connection: StrictNatsClient, message: Msg, partition: int) -> None:
        self._connection = connection
        self._message = message
        self._ended = ""
        self._partition = partition

    @property
    def subject(self) -> str:
        """The subject on which it was published."""
        return self._message.subject

    @property
    def value(self) -> bytes:
        """The payload; empty for a tombstone."""
        return self._message.data

    @property
    def headers(self) -> dict[str, str]:
        """The headers; of one that is repeated, the last value."""
        return dict(self._message.headers or {})

    @property
    def key(self) -> bytes | None:
        """The message's key; None: it has none."""
        headers = self._message.headers or {}
        if (text := headers.get(KEY_BASE64_HEADER)) is not None:
            with contextlib.suppress(binascii.Error, ValueError):
                return base64.b64decode(text, validate=True)
        return None if (text := headers.get(KEY_HEADER)) is None else text.encode()

    @property
    def partition(self) -> int:
        """Number of its partition."""
        return self._partition

    @property
    def offset(self) -> int:
        """Its offset in the partition."""
        return int(self._message.metadata.sequence.stream) - 1

    @property
    def deliveries(self) -> int:
        """Number of its deliveries, this one included; from 2 on it may have been worked on before."""
        return int(self._message.metadata.num_delivered)

    @property
    def pending(self) -> int:
        """Number of messages that the consumer had not delivered yet."""
        return int(self._message.metadata.num_pending)

    @property
    def timestamp(self) -> datetime:
        """When it was stored."""
        return self._message.metadata.timestamp

    @property
    def is_ended(self) -> bool:
        """True once this client has acked it, given it back or ended it."""
        return bool(self._ended)

    def __repr__(self) -> str:
        ended = f", {self._ended}" if self._ended else ""
        return f"QueueMessage({self.subject!r}, offset={self.offset}, deliveries={self.deliveries}{ended})"

    async def ack(self) -> None:
        """Say that the work is done; it is sent, not confirmed: after a crash the message may come again."""
        await self._end("acked", b"+ACK")

    async def ack_sync(self, *, timeout: float = 10.0) -> None:
        """Say that the work is done, and wait until the ack is stored: then the message does not come again.

        LateAck: it counts no more. TimedOut: no answer; the ack may be stored.
        """
        from nats.errors import Error as NatsError
        from nats.errors import NoRespondersError

        self._check()
        try:
            await self._connection.request(self._message.reply, b"+ACK", timeout=seconds_of(timeout))
        except NoRespondersError:
            text = f"the ack of the message at offset {self.offset} came too late, or its consumer is gone"
            raise LateAck(text) from None
        except (NatsError, TimeoutError) as error:
            raise TimedOut(f"no answer to the ack of the message at offset {self.offset}: {error}") from None
        self._ended = "acked"

    async def nak(self, delay: float | None = None) -> None:
        """Give it back: it is delivered again, at once or after `delay` seconds, perhaps to another client."""
        if delay is None:
            await self._end("given back", b"-NAK")
            return
        nanoseconds = round(duration_s("delay", delay) * 1e9)
        if nanoseconds < 0:
            raise ValueError(f"delay is {delay:g} s; give how long to wait")
        await self._end("given back", b"-NAK " + json.dumps({"delay": nanoseconds}).encode())

    async def in_progress(self) -> None:
        """Say that the work goes on: the time until it is delivered again begins anew."""
        self._check()
        await self._say(b"+WPI")

    async def term(self, reason: str = "") -> None:
        """End it without success: it is not delivered again, and the consumer's dead letters get it, if it has some."""
        await self._end("ended", b"+TERM" + (b" " + " ".join(reason.split()).encode() if reason else b""))

    # Inside

    def _check(self) -> None:
        if self._ended:
            raise ValueError(f"the message at offset {self.offset} is {self._ended} already")

    async def _end(self, how: str, word: bytes) -> None:
        self._check()
        await self._say(word)
        self._ended = how

    async def _say(self, word: bytes) -> None:
        from nats.errors import Error as NatsError

        try:
            await self._connection.publish(self._message.reply, word)
        except NatsError as error:
            raise Unavailable(f"the ack cannot be sent: {error}") from None


async def _give_back_connection(connection: StrictNatsClient) -> None:
    from penstock.client.publish.publishing import give_back

    await give_back(connection)


class QueueSettings(NamedTuple):
    """Validated arguments of a queue."""

    stream: str
    name: str
    batch: int
    follow: bool
    config: dict[str, Any] | None  # of the consumer to make; None: it is there
    prefix: str  # of JetStream's API, without a last dot
    timeout_s: float


Source = tuple[int, str]
"""A partition, and the name of its stream in JetStream's API."""


def queue_settings(
    stream: str,
    name: str,
    *,
    batch: int,
    follow: bool,
    domain: str | None,
    timeout: float,
    config: dict[str, Any] | None,
) -> QueueSettings:
    """Validate a queue's arguments. ValueError; TypeError: an unknown option."""
    if (mistake := subject_mistake(name)) is not None or "." in name:
        raise ValueError(f"the queue's name {name!r} is not one token of a subject{f': {mistake}' if mistake else ''}")
    if not 1 <= (count := whole_number("batch", batch)) <= limits.QUEUE_BATCH_MAX:
        raise ValueError(f"batch is {count}; it lies between 1 and {limits.QUEUE_BATCH_MAX}")
    _check_options(config or {})
    made = None if config is None else consumer_config(name, **config)
    prefix = "$JS.API" if domain is None else f"$JS.{domain}.API"
    return QueueSettings(stream, name, count, follow, made, prefix, seconds_of(timeout))


def _check_options(given: Iterable[str]) -> None:
    """Raise TypeError if an option of a queue's consumer is unknown; JetStream's names are told ours."""
    known = QueueConfig.__annotations__
    for name in given:
        if name not in known:
            meant = _JETSTREAM_NAMES.get(name) or "".join(difflib.get_close_matches(name, known, 1))
            hint = f"; did you mean {meant}?" if meant else f"; there are {', '.join(known)}"
            raise TypeError(f"client.queue has no option {name!r}{hint}")


def sources_of(info: StreamInfo) -> list[Source]:
    """Return the partitions of a stream, as JetStream's API names them."""
    if len(info.partitions) <= 1:
        return [(0, info.name)]
    return [(int(one.partition), f"{info.name}-p{one.partition}") for one in info.partitions]


class Queue(OfThisProcess):
    """Messages to work on, shared with other clients; use it in `async with` and `async for`.

    Made by `Client.queue`. Several tasks may iterate over one queue: each message goes to one of them.
    """

    def __init__(
        self,
        settings: QueueSettings,
        connect: Callable[[float], Awaitable[StrictNatsClient]],
        sources: Callable[[float], Awaitable[Sequence[Source]]],
    ) -> None:
        """`connect` makes the connection to NATS, `sources` finds the partitions; both take a time-out in seconds."""
        self._settings = settings
        self._connect = connect
        self._find_sources = sources
        self._connection: StrictNatsClient | None = None
        self._pulls: list[asyncio.Task[None]] = []
        self._ready: asyncio.Queue[QueueMessage | None] = asyncio.Queue(1)  # None: a pull has ended
        self._running = 0
        self._failure: BaseException | None = None
        self._is_closed = False

    @property
    def name(self) -> str:
        """Name of the consumer."""
        return self._settings.name

    def __repr__(self) -> str:
        return f"Queue({self._settings.stream!r}, {self.name!r}{', closed' if self._is_closed else ''})"

    async def open(self) -> None:
        """Connect to NATS, make the consumers that are missing, and begin to pull. ConsumerExists, Unavailable."""
        if self._pulls or self._is_closed:
            return
        settings = self._settings
        sources = await self._find_sources(settings.timeout_s)
        self._connection = connection = await self._connect(settings.timeout_s)
        places = [(number, ApiPlace(connection, settings.prefix, one, settings.name)) for number, one in sources]
        try:
            for _, place in places:
                if settings.config is None:
                    await place.info(settings.timeout_s)
                else:
                    await place.create(settings.config, settings.timeout_s)
        except BaseException:  # `open` may be tried again, or the queue be given up without a `close`
            self._connection = None
            await _give_back_connection(connection)
            raise
        self._running = len(places)
        self._pulls = [asyncio.create_task(self._pull(number, place)) for number, place in places]

    async def take(self) -> QueueMessage | None:
        """Return the next message; None: nothing is left, without `follow`, or the queue is closed."""
        while not self._is_closed:
            found = await self._ready.get()
            if found is not None:
                return found
            if not self._running or self._failure is not None:
                if self._ready.empty():
                    self._ready.put_nowait(None)  # for other tasks that iterate
                break
        if self._failure is not None:
            raise self._failure
        return None

    async def close(self) -> None:
        """Stop, and give back what was not handed over. May be called twice; acks that were sent before are kept."""
        if self._is_closed:
            return
        self._is_closed = True
        for one in self._pulls:
            one.cancel()
        await asyncio.gather(*self._pulls, return_exceptions=True)
        connection = self._connection
        with contextlib.suppress(Exception):  # what cannot be given back comes again after `ack_wait`
            async with asyncio.timeout(_CLOSE_S):
                while not self._ready.empty():
                    await self._give_back(self._ready.get_nowait())
                if connection is not None:
                    await connection.flush()
        if connection is not None:
            await _give_back_connection(connection)
        with contextlib.suppress(asyncio.QueueFull):
            self._ready.put_nowait(None)

    async def __aenter__(self) -> Queue:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Queue:
        return self

    async def __anext__(self) -> QueueMessage:
        await self.open()
        if (message := await self.take()) is None:
            raise StopAsyncIteration
        return message

    # Inside

    async def _pull(self, partition: int, place: ApiPlace) -> None:
        settings, message = self._settings, None
        try:
            async with contextlib.aclosing(pulled(place, settings.batch, follow=settings.follow)) as found:
                async for one in found:
                    message = QueueMessage(place.connection, one, partition)
                    await self._ready.put(message)
                    message = None
        except asyncio.CancelledError:
            if message is not None:
                await self._give_back(message)
            raise
        except BaseException as error:  # noqa: BLE001 (raised to the caller that iterates)
            self._failure = error
        self._running -= 1
        await self._ready.put(None)

    async def _give_back(self, message: QueueMessage | None) -> None:
        if message is not None and not message.is_ended:
            with contextlib.suppress(Unavailable):
                await message.nak()
