"""The connection of a relay to NATS: sends frames and waits for confirmation.

Rules: `send` returns once nats-server has answered a PING sent after the frames; it has then delivered the frames to
subscribers. nats-py reconnects by itself; frames in flight may be lost then, so they are sent again, and may be
delivered twice. A rejection by nats-server (a permission, a size) ends the relay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from penstock.base.errors import OperationalError
from penstock.base.nats_logins import shown_url
from penstock.client.errors import Unavailable
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import first_connection, not_connected
from penstock.ops.relay.answers import Answers

_PAUSE_S = 0.2
_LOOK_UP_S = 2.0  # time-out of a request to JetStream's API
_LATE_S = 0.5  # wait for late rejections at the end, if no stream is known to store the target
_STREAMS_MAX = 10_000


class _StreamConfig(msgspec.Struct):
    subjects: list[str] | None = None
    no_ack: bool = False


class _StreamInfo(msgspec.Struct):
    config: _StreamConfig


class _StreamPage(msgspec.Struct):
    """A page of `$JS.API.STREAM.LIST`; `streams` is None in an error response."""

    streams: list[_StreamInfo] | None = None
    total: int = 0


class NatsOutput:
    """Connection to NATS for frames and acks; used on one event loop."""

    def __init__(self, urls: Sequence[str], timeout_s: float) -> None:
        self._urls = tuple(urls)
        self._timeout_s = timeout_s
        self._connection = StrictNatsClient()
        self._refusal: Exception | None = None
        self._lost = asyncio.Event()  # set if the connection was lost since the last send
        self._inbox = ""
        self._answers: Answers | None = None  # answers to the last send
        self._answered = asyncio.Event()

    @property
    def size_max(self) -> int:
        """nats-server's max_payload: largest message in bytes, headers and value."""
        return self._connection.max_payload

    async def open(self, options: Mapping[str, Any]) -> None:
        """Connect. Raise Unavailable on failure."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await first_connection(
                    self._connection,
                    self._urls,
                    name="penstock-relay",
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    error_cb=self._failed,
                    disconnected_cb=self._disconnected,
                    **options,
                )
        except Unavailable:
            raise
        except TimeoutError:
            raise Unavailable(f"{not_connected(self._shown, self._why)}{self._why}") from None
        except (OSError, NatsError) as error:
            raise Unavailable(f"no connection to NATS at {self._shown}: {error}") from None

    @property
    def inbox(self) -> str:
        """The subject prefix on which streams answer; empty until `listen`."""
        return self._inbox

    async def listen(self) -> None:
        """Subscribe to answers of streams. Raise OperationalError if the connection has ended."""
        try:
            inbox = self._connection.new_inbox()
            await self._connection.subscribe(f"{inbox}.>", cb=self._heard)
        except NatsError as error:
            raise OperationalError(f"cannot subscribe to answers of streams: {error}") from None
        self._inbox = inbox

    async def _heard(self, message: Msg) -> None:
        if self._answers is not None:
            status = message.headers.get("Status") if message.headers else None
            self._answers.take(message.subject[len(self._inbox) + 1 :], status, message.data)
            if self._answers.is_settled:
                self._answered.set()

    async def jetstream_patterns(self, target: str) -> list[str] | None:
        """Return the subjects of JetStream's streams that overlap `target` and ack; None if no JetStream answers.

        Raise OperationalError if the answer is invalid, or if there are more than 10,000 streams.
        """
        patterns: list[str] = []
        seen = 0
        while True:
            body = msgspec.json.encode({"subject": target, "offset": seen})
            try:
                answer = await self._connection.request("$JS.API.STREAM.LIST", body, timeout=_LOOK_UP_S)
            except (NatsError, TimeoutError):
                return None  # no JetStream, or none for this account
            try:
                page = msgspec.json.decode(answer.data, type=_StreamPage)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                text = f"cannot find out which JetStream streams store {target}: {error}"
                raise OperationalError(f"{text}; --not-stored waits for no ack") from None
            streams = page.streams or []
            seen += len(streams)
            if seen > _STREAMS_MAX:
                text = f"more than {_STREAMS_MAX:,} streams of JetStream store {target}"
                raise OperationalError(f"{text}; --not-stored waits for no ack")
            for stream in streams:
                if not stream.config.no_ack:
                    patterns += stream.config.subjects or ()
            if not streams or seen >= page.total:
                return patterns

    async def end(self, *, waits: bool) -> None:
        """Raise OperationalError if a stream has rejected a message. `waits`: wait briefly for late rejections."""
        if waits and self._answers is not None and self._answers.refused is None:
            await asyncio.sleep(_LATE_S)
        self._check_refused()

    async def _failed(self, error: Exception) -> None:
        if self._refusal is None and not isinstance(error, OSError):
            self._refusal = error

    async def _disconnected(self) -> None:
        self._lost.set()

    @property
    def _shown(self) -> str:
        return ", ".join(map(shown_url, self._urls))

    @property
    def _why(self) -> str:
        return f" ({self._refusal})" if self._refusal is not None else ""

    async def send(self, lots: Sequence[memoryview], answers: Answers | None = None) -> None:
        """Send whole frames, again after a reconnect, and wait for all required acks.

        Raise Unavailable if NATS does not confirm in time, OperationalError for a rejection or a missing ack.
        """
        self._check_refused()
        self._answers = answers
        self._answered.clear()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not await self._sent(lots):  # noqa: ASYNC110 (it sends each time)
                    await asyncio.sleep(_PAUSE_S)
                if answers is not None and not answers.is_settled:
                    await self._answered.wait()
        except TimeoutError:
            if answers is not None and answers.first_missing is not None:
                text = f"no stream has acked the message at offset {answers.first_missing} in time"
                raise OperationalError(
                    f"{text}; raise the time-out with --timeout, or wait for no acks: --not-stored"
                ) from None
            raise Unavailable(f"NATS at {self._shown} has not confirmed what was sent{self._why}") from None
        self._check_refused()

    def _check_refused(self) -> None:
        refused = None if self._answers is None else self._answers.refused
        if refused is not None:
            who = f"stream {refused.stream}" if refused.stream else "a stream at the target"
            where = f"the message at offset {refused.offset} of partition {refused.partition}"
            text = f"{who} refuses {where}: {refused.text}. The relay stops there"
            raise OperationalError(f"{text}; --without NAME publishes without a header, --from continues after it")

    async def _sent(self, lots: Sequence[memoryview]) -> bool:
        connection = self._connection
        if connection.is_closed:
            raise Unavailable(f"NATS at {self._shown} has closed the connection{self._why}")
        if not connection.is_connected:
            return False
        self._refusal = None
        self._lost.clear()
        for frames in lots:
            # Like nats-py's `publish`, which has no public call for ready-made frames. Each piece holds whole frames,
            # because nats-py sends its pending data on the next connection after a disconnect.
            await connection._send_command(bytes(frames))  # noqa: SLF001
            await connection._flush_pending(force_flush=True)  # noqa: SLF001
        if not await self._confirmed():
            return False
        if self._refusal is not None:  # the error arrived before the PONG
            raise OperationalError(f"NATS at {self._shown} refuses what is relayed: {self._refusal}")
        return True

    async def _confirmed(self) -> bool:
        """True if the PONG arrived on the same connection that the frames were sent on."""
        flushed = asyncio.ensure_future(self._connection.flush(math.ceil(self._timeout_s)))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait((flushed, lost), return_when=asyncio.FIRST_COMPLETED)
            has_come = flushed.done() and not flushed.cancelled() and flushed.exception() is None
            return has_come and not self._lost.is_set()
        finally:
            flushed.cancel()
            lost.cancel()
            await asyncio.gather(flushed, lost, return_exceptions=True)

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()
