"""The brokers' socket API for simulated programs, byte by byte.

Rules: frames are encoded and decoded by the code of real brokers. A request is decoded when it arrives at the broker,
and its answer is encoded when it arrives at the program. An undecodable frame closes its connection, after the error.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.messages import Api, Request, Response
from penstock.testing.simulation.broker.broker import SimBroker
from penstock.testing.simulation.network import SimConnection
from penstock.wire import Frame, FrameDecoder, decode_request, encode_answer, encode_error

Heard = Callable[[Response | RemoteError, bytes], None]
Took = Callable[[SimConnection, Request, bytes], Heard]
_FRAME_BYTES_MAX = limits.REQUEST_BODY_BYTES_MAX + limits.APPEND_BYTES_MAX


class SocketApi:
    """The socket API of one broker. `took` is called with each request; it returns the callback for its answer."""

    def __init__(self, broker: SimBroker, took: Took) -> None:
        self._broker = broker
        self._took = took
        self._open: dict[SimConnection, tuple[FrameDecoder, Callable[[bytes], None]]] = {}

    def opened(self, connection: SimConnection, take: Callable[[bytes], None]) -> None:
        """Register a program's new connection."""
        self._open = {one: kept for one, kept in self._open.items() if one.is_open}
        self._open[connection] = (FrameDecoder(_FRAME_BYTES_MAX, limits.REQUEST_BODY_BYTES_MAX), take)

    def receive(self, connection: SimConnection, data: bytes) -> None:
        """Take bytes from a program."""
        if connection not in self._open:
            return  # the connection is closed
        decoder, take = self._open[connection]
        decoder.receive(data)
        try:
            while (frame := decoder.next_frame()) is not None:
                self._request(connection, frame, take)
        except RemoteError as error:
            said = encode_error(Api.HELLO, 1, 0, error)
            connection.send_back(lambda: take(said))
            connection.close(by_source=False)

    def _request(self, connection: SimConnection, frame: Frame, take: Callable[[bytes], None]) -> None:
        head = frame._replace(body=b"", raw=b"")
        request = decode_request(frame)
        raw = bytes(frame.raw)
        heard = self._took(connection, request, raw)

        def answer(response: Response | RemoteError, payload: bytes) -> None:
            heard(response, payload)
            take(encode_answer(head, response, len(payload), [payload]) + payload)

        self._broker.ask(connection, request, raw, answer)
