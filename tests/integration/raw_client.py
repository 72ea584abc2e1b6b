"""A client that sends arbitrary bytes to a broker, and reads only when the test requests it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa

from penstock.base import limits
from penstock.batch import codec
from penstock.batch.schema import arrow_schema
from penstock.messages import HelloRequest, Request
from penstock.wire import Frame, FrameDecoder, encode_checked_request, encode_request

HELLO = encode_request(HelloRequest(client_name="raw", client_version="0"), 1)
_TIMEOUT_S = 60.0


class RawClient:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        host, port = writer.get_extra_info("sockname")[:2]
        self.address = f"{host}:{port}"
        self._decoder = FrameDecoder(limits.RESPONSE_BYTES_MAX)

    def send(self, data: bytes) -> None:
        """Write bytes; do not wait for the socket."""
        self.writer.write(data)

    def ask(self, request: Request, correlation_id: int) -> None:
        """Write one request, without checksums."""
        self.send(encode_request(request, correlation_id))

    def ask_as_broker(self, request: Request, correlation_id: int) -> None:
        """Write one request, with checksums."""
        self.send(encode_checked_request(request, correlation_id))

    async def frame(self) -> Frame | None:
        """Return the next frame; None at the end of the connection."""
        async with asyncio.timeout(_TIMEOUT_S):
            while (frame := self._decoder.next_frame()) is None:
                try:
                    data = await self.reader.read(1 << 18)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._decoder.receive(data)
            return frame

    async def hello(self) -> None:
        """Send the hello request and wait for its answer."""
        self.send(HELLO)
        frame = await self.frame()
        assert frame is not None
        assert frame.correlation_id == 1

    async def is_closed(self) -> bool:
        """Read until the broker closes the connection; return True."""
        while await self.frame() is not None:
            pass
        return True


@asynccontextmanager
async def raw_client(
    address: str, *, receive_bytes: int = 1 << 16, source: str = "127.0.0.1"
) -> AsyncIterator[RawClient]:
    """Connect to HOST:PORT, without a hello. The client buffers about `receive_bytes` unread bytes.

    `source`: local address on loopback.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=receive_bytes, local_addr=(source, 0))
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def rows_message(values: list[bytes], subject: str) -> bytes:
    """Return a batch message for an append request."""
    count = len(values)
    columns = [
        pa.array(range(count), pa.int64()),
        pa.array([0] * count, pa.timestamp("us", "UTC")),
        pa.array([subject] * count),
        pa.array([None] * count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([None] * count, pa.binary()),
    ]
    return bytes(codec.encode_arrow(pa.RecordBatch.from_arrays(columns, schema=arrow_schema())))
