"""Pulls the messages of one consumer of JetStream's API over NATS, request by request.

Rules: one request is open at a time, for a batch; the next one is sent once all of its messages are handed over, so a
client that is slow holds few messages. A request that ends without messages is sent again. While no leader answers it
is sent again after a while, for as long as the consumer may still be there; NATS reconnects by itself.

| status of the answer                       | then                                          |
|--------------------------------------------|-----------------------------------------------|
| 100 (heartbeat)                            | wait on                                       |
| 404, 408 (nothing there, request ended)    | ask again; the end without `follow`, if nothing is left |
| 409 leadership change, server shutdown, …  | ask again in a moment                         |
| 409 consumer deleted                       | `ConsumerNotFound`                            |
| 503, or silence for two heartbeats         | ask for the consumer's info: is it there?     |
| any other                                  | an error with its text                        |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.client.errors import ConsumerExists, ConsumerNotFound, Unavailable

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from penstock.client.publish.nats_client import StrictNatsClient

_EXPIRES_S = 30.0
_HEARTBEAT_S = 2.0
_GIVE_BACK_S = 3.0
_AGAIN_S = 0.25  # after an answer that no leader is there
_LEFT_S = 0.05  # while messages wait for others of their key, or for room, without `follow`
_PATIENCE_S = 60.0  # without any answer
_NOT_FOUND = 10014
_EXISTS = (10013, 10148)
_TRANSIENT = ("leadership change", "server shutdown", "requests pending", "batch completed", "message size")


class ApiPlace(NamedTuple):
    """A consumer in JetStream's API."""

    connection: StrictNatsClient
    prefix: str  # such as "$JS.API"
    stream: str  # that of the partition, if the stream has several
    consumer: str

    async def create(self, config: dict[str, Any], timeout_s: float) -> None:
        """Create the consumer, unless it is there with this config. ConsumerExists, RemoteError, Unavailable."""
        body = {"stream_name": self.stream, "config": {"name": self.consumer, **config}, "action": "create"}
        await self._ask("CONSUMER.CREATE", body, timeout_s)

    async def info(self, timeout_s: float) -> dict[str, Any]:
        """Return JetStream's info. ConsumerNotFound, RemoteError, Unavailable."""
        return await self._ask("CONSUMER.INFO", None, timeout_s)

    @property
    def _label(self) -> str:
        return f"consumer {self.consumer!r} of stream {self.stream!r}"

    async def _ask(self, operation: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        from nats.errors import Error as NatsError
        from nats.errors import NoRespondersError

        subject = f"{self.prefix}.{operation}.{self.stream}.{self.consumer}"
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await self.connection.request(subject, payload, timeout=timeout_s)
        except NoRespondersError:
            text = f"nobody answers JetStream's API at {self.prefix}: start the brokers with --jetstream-api auto"
            raise Unavailable(f"{text}, or name their domain") from None
        except (NatsError, TimeoutError) as error:
            raise Unavailable(f"no answer about {self._label}: {error}") from None
        found: dict[str, Any] = json.loads(answer.data)
        if (refusal := found.get("error")) is not None:
            raise self._error(refusal)
        return found

    def _error(self, error: dict[str, Any]) -> RemoteError | Unavailable:
        number, text = error.get("err_code"), f"{self._label}: {error.get('description', '')}"
        if number == _NOT_FOUND:
            return ConsumerNotFound(ErrorCode.CONSUMER_NOT_FOUND, text)
        if number in _EXISTS:
            return ConsumerExists(ErrorCode.CONSUMER_EXISTS, f"{text}, with another config")
        if error.get("code") == 503:
            return Unavailable(text)
        return RemoteError(ErrorCode.BAD_REQUEST, text, err_code=number)


async def pulled(place: ApiPlace, batch: int, *, follow: bool) -> AsyncGenerator[Msg, None]:
    """Yield the messages of a consumer; without `follow`, up to where nothing is left. Errors as in the table."""
    connection = place.connection
    inbox = connection.new_inbox()
    came: asyncio.Queue[Msg] = asyncio.Queue()  # bounded by the request: `batch` messages, and heartbeats
    subscription = await connection.subscribe(inbox, cb=came.put)
    subject = f"{place.prefix}.CONSUMER.MSG.NEXT.{place.stream}.{place.consumer}"
    request: dict[str, Any] = {"batch": batch}
    if follow:
        request |= {"expires": round(_EXPIRES_S * 1e9), "idle_heartbeat": round(_HEARTBEAT_S * 1e9)}
    else:
        request |= {"no_wait": True}
    clock = asyncio.get_running_loop().time
    heard_s = clock()
    try:
        while True:
            await connection.publish(subject, json.dumps(request).encode(), reply=inbox)
            left = batch
            while left:
                try:
                    async with asyncio.timeout(2 * _HEARTBEAT_S + 1.0):
                        message = await came.get()
                except TimeoutError:
                    status = "503"
                else:
                    status = _status(message, inbox)
                    if not status:
                        heard_s = clock()
                        yield message
                        left -= 1
                        continue
                if status == "100":
                    heard_s = clock()
                    continue
                if status in ("404", "408"):
                    heard_s = clock()
                    if not follow:
                        if left == batch and not await _has_pending(place):
                            return
                        await asyncio.sleep(_LEFT_S if left == batch else 0)
                elif status == "503" or _is_transient(message):
                    await _is_there(place, heard_s + _PATIENCE_S - clock())
                    await asyncio.sleep(_AGAIN_S)
                else:
                    raise _refusal(place, message)
                break
    finally:
        if not connection.is_closed:
            await _give_back(subscription, came, inbox)


async def _give_back(subscription: Subscription, came: asyncio.Queue[Msg], inbox: str) -> None:
    """End the subscription, and give back what has come until then, so that other clients get it at once."""
    from nats.errors import Error as NatsError

    with contextlib.suppress(TimeoutError, NatsError):  # then it comes again after `ack_wait`
        async with asyncio.timeout(_GIVE_BACK_S):
            await subscription.drain()  # type: ignore[no-untyped-call]
        while not came.empty():
            message = came.get_nowait()
            if not _status(message, inbox):
                await message.nak()


def _status(message: Msg, inbox: str) -> str:
    """Return the status of a status message; empty for a message of the stream."""
    if message.subject != inbox or message.headers is None:
        return ""
    return message.headers.get("Status", "")


def _text(message: Msg) -> str:
    return (message.headers or {}).get("Description", "")


def _is_transient(message: Msg) -> bool:
    return _status(message, message.subject) == "409" and _text(message).lower().startswith(_TRANSIENT)


def _refusal(place: ApiPlace, message: Msg) -> RemoteError:
    text = f"consumer {place.consumer!r} of stream {place.stream!r}: {_text(message)}"
    if _text(message).lower().startswith("consumer deleted"):
        return ConsumerNotFound(ErrorCode.CONSUMER_NOT_FOUND, text)
    return RemoteError(ErrorCode.BAD_REQUEST, text)


async def _has_pending(place: ApiPlace) -> bool:
    """Return if messages are left that were not delivered yet: they may wait for others of their key."""
    info = await place.info(5.0)
    return bool(info.get("num_pending")) and not info.get("paused")


async def _is_there(place: ApiPlace, patience_s: float) -> None:
    """Raise ConsumerNotFound if the consumer is gone, Unavailable if no answer says so for too long."""
    try:
        await place.info(5.0)
    except Unavailable:
        if patience_s <= 0:
            raise
