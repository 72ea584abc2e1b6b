"""Calls within a process: a client's requests go to a processor as bytes, without a network.

For tests of services and of middleware, and for a service that moves into the process of its caller. Requests and
answers are encoded and decoded as over NATS; the deadline is kept, and a cancelled call cancels its handler.
"""

from __future__ import annotations

import asyncio

from penstock.frugal.errors import DeadlineExceeded, TransportClosed
from penstock.frugal.framing import Packet
from penstock.frugal.processor import Processor

BYTES_MAX = 1024 * 1024
"""Most bytes of a request or an answer, unless another number is given: NATS's usual one."""


class LocalTransport:
    """Carries requests to a processor of the same event loop."""

    def __init__(self, processor: Processor, *, subject: str = "local", bytes_max: int = BYTES_MAX) -> None:
        self.subject = subject
        self.request_bytes_max = bytes_max
        self._processor = processor
        self._last_id = 0
        self._tasks: set[asyncio.Task[Packet | None]] = set()
        self._is_closed = False

    def next_operation_id(self) -> int:
        """Return the next number, from 1 on."""
        self._last_id += 1
        return self._last_id

    async def request(self, operation_id: int, packet: Packet, left_s: float) -> Packet:
        """Return the processor's answer."""
        task = self._begin(packet)
        try:
            async with asyncio.timeout(left_s):
                answer = await task
        except TimeoutError:
            raise DeadlineExceeded(f"no answer came from {self.subject!r} in the time of the call") from None
        except asyncio.CancelledError:
            if self._is_closed:
                raise TransportClosed("the client was closed before the answer came", may_be_done=True) from None
            raise
        assert answer is not None, "a oneway was sent as a request"
        return answer

    async def send(self, packet: Packet, left_s: float) -> None:
        """Begin a oneway."""
        self._begin(packet)

    async def idle(self) -> None:
        """Return when all oneways that were sent are done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel the calls that are under way."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, packet: Packet) -> asyncio.Task[Packet | None]:
        if self._is_closed:
            raise TransportClosed(f"the client of {self.subject!r} is closed")
        request = self._processor.accept(packet)
        answer = self._processor.answer(request, bytes_max=self.request_bytes_max, subject=self.subject)
        task = asyncio.get_running_loop().create_task(answer)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
