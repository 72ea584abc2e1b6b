"""Publishers that continue through broker failures and record all acks.

Rules: each message is numbered and published once; after an ack's time-out the publisher goes on to the next message.
The publishers and nats-server run on a thread of their own, so that nothing delays the acks. Other threads only read
its fields, one at a time, without a lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nats
import nats.errors
from nats.js import JetStreamContext
from nats.js.errors import Error as JetStreamError

from penstock.base.errors import OperationalError
from penstock.broker.nats.server import EmbeddedNats

_WIDTH = 32  # messages in flight
_ACK_TIMEOUT_S = 0.25
_PAUSE_S = 0.01  # after a message without an ack
_START_S = 20.0


class DemoLoad:
    """Publishes numbered messages and records their acks."""

    def __init__(self, folder: Path, subject: str) -> None:
        self.nats_url = ""
        self.acked: dict[int, int] = {}  # number → offset
        self.sent = 0
        self.longest_silence_s = 0.0
        self._folder = folder
        self._subject = subject
        self._began_s = self._last_ack_s = 0.0
        self._trouble: BaseException | None = None
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._may_begin = asyncio.Event()
        self._must_stop = asyncio.Event()
        self._must_end = asyncio.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo's load", daemon=True)

    # Called from the main thread

    def start(self) -> None:
        """Start nats-server. Raise OperationalError if it fails."""
        self._thread.start()
        self._is_ready.wait(_START_S)
        self.check()
        if not self.nats_url:
            raise OperationalError(f"nats-server did not start within {_START_S:g} s")

    def begin(self) -> None:
        """Start publishing."""
        self._began_s = self._last_ack_s = time.monotonic()
        self._tell(self._may_begin)

    def stop(self) -> None:
        """Stop publishing; wait for messages in flight."""
        self._tell(self._must_stop)
        self._stopped.wait(_START_S)
        self.check()

    def end(self) -> None:
        """Stop publishing and nats-server."""
        self._tell(self._must_stop)
        self._tell(self._may_begin)
        self._tell(self._must_end)
        if self._thread.ident is not None:
            self._thread.join(_START_S)

    def check(self) -> None:
        """Raise OperationalError if the thread has failed."""
        if self._trouble is not None:
            raise OperationalError(f"publishing failed: {self._trouble}") from self._trouble

    def rate(self) -> float:
        """Return the mean of acked messages per second since the start."""
        return len(self.acked) / max(1e-9, time.monotonic() - self._began_s)

    def forget_silence(self) -> None:
        """Reset the longest time without an ack."""
        self.longest_silence_s = 0.0

    def _tell(self, event: asyncio.Event) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(event.set)

    # Run in the load's thread

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 (`check` raises it in the main thread)
            self._trouble = error
        finally:
            self._is_ready.set()
            self._stopped.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await EmbeddedNats.start(data_dir=self._folder, port=0)
        try:
            self.nats_url = server.url
            self._is_ready.set()
            await self._may_begin.wait()
            await self._publish()
            self._stopped.set()
            await self._must_end.wait()
        finally:
            await server.stop()

    async def _publish(self) -> None:
        connection = await nats.connect(self.nats_url, name="penstock-demo", allow_reconnect=False)
        try:
            jetstream = connection.jetstream()
            await asyncio.gather(*(self._publish_one_by_one(jetstream) for _ in range(_WIDTH)))
        finally:
            await connection.close()

    async def _publish_one_by_one(self, jetstream: JetStreamContext) -> None:
        while not self._must_stop.is_set():
            number, self.sent = self.sent, self.sent + 1
            try:
                ack = await jetstream.publish(self._subject, b"%d" % number, timeout=_ACK_TIMEOUT_S)
            except (JetStreamError, nats.errors.TimeoutError, TimeoutError):
                await asyncio.sleep(_PAUSE_S)
                continue
            now_s = time.monotonic()
            self.longest_silence_s = max(self.longest_silence_s, now_s - self._last_ack_s)
            self._last_ack_s = now_s
            self.acked[number] = ack.seq - 1


@contextmanager
def publishing(folder: Path, subject: str) -> Iterator[DemoLoad]:
    """Yield a load whose nats-server runs, and which publishes after `begin`; stop both at the end of the block."""
    load = DemoLoad(folder, subject)
    try:
        load.start()
        yield load
    finally:
        load.end()
