"""The brokers' socket API, byte by byte, as programs reach it over the simulated network.

Rules: frames are read and written by the code that real brokers use. A request becomes the broker's where it arrives,
and its answer bytes where it arrives. A frame that cannot be read ends its connection, behind the error that says why.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.messages import Api, Request, Response
from penstock.sim.broker import SimBroker
from penstock.sim.network import Connection
from penstock.wire import Frame, FrameDecoder, decode_request, encode_answer, encode_error

Heard = Callable[[Response | RemoteError, bytes], None]
Took = Callable[[Connection, Request, bytes], Heard]
_FRAME_BYTES_MAX = limits.REQUEST_BODY_BYTES_MAX + limits.APPEND_BYTES_MAX


class SocketApi:
    """One broker's. `took` hears each request, and gives who hears its answer."""

    def __init__(self, broker: SimBroker, took: Took) -> None:
        self._broker = broker
        self._took = took
        self._open: dict[Connection, tuple[FrameDecoder, Callable[[bytes], None]]] = {}

    def opened(self, connection: Connection, take: Callable[[bytes], None]) -> None:
        """A program has connected."""
        self._open = {one: kept for one, kept in self._open.items() if one.is_open}
        self._open[connection] = (FrameDecoder(_FRAME_BYTES_MAX, limits.REQUEST_BODY_BYTES_MAX), take)

    def receive(self, connection: Connection, data: bytes) -> None:
        """Bytes of a program."""
        if connection not in self._open:
            return  # it is closed
        decoder, take = self._open[connection]
        decoder.receive(data)
        try:
            while (frame := decoder.next_frame()) is not None:
                self._request(connection, frame, take)
        except RemoteError as error:
            said = encode_error(Api.HELLO, 1, 0, error)
            connection.send_back(lambda: take(said))
            connection.close(by_source=False)

    def _request(self, connection: Connection, frame: Frame, take: Callable[[bytes], None]) -> None:
        head = frame._replace(body=b"", raw=b"")
        request = decode_request(frame)
        raw = bytes(frame.raw)
        heard = self._took(connection, request, raw)

        def answer(response: Response | RemoteError, payload: bytes) -> None:
            heard(response, payload)
            take(encode_answer(head, response, len(payload), [payload]) + payload)

        self._broker.ask(connection, request, raw, answer)
