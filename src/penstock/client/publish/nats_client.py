"""nats-py's client with enforced TLS, which sends and hears many messages at once.

Rules: nats-py starts TLS only if the server's INFO line requires it, and that line is not encrypted. Without this class
a `tls://` server, or a man in the middle, that omits the requirement would get the login in plain text. TLS is
requested by `tls://` in a server's URL, or for all servers, including those announced later, by the options `tls` and
`tls_hostname`. Each connection is checked before CONNECT. Servers that the INFO line announces are used only after this
one has authenticated itself; nats-server announces them again over TLS only from 2.12 on.

A message that is sent waits where nats-py keeps its own, so reconnects, `flush` and `drain` mean the same. Acks that
are read together are handed over together, before nats-py's parser sees them; everything else is left to that parser.

| TLS is requested, and INFO says | then                                                        |
|---------------------------------|-------------------------------------------------------------|
| `tls_required`                  | TLS starts, as nats-py does by itself                       |
| `tls_available`                 | TLS starts, too: that server accepts both                   |
| neither                         | `NoTlsError`; nothing is sent                               |
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, ConnectionDrainingError, OutboundBufferLimitError
from nats.errors import Error as NatsError
from nats.protocol.parser import AWAITING_MSG_PAYLOAD, CRLF_SIZE, MAX_CONTROL_LINE_SIZE, Parser

_OVER_TLS = "wss"  # TLS from the first byte
_WEBSOCKET = "ws"
_ACK_BYTES_MAX = MAX_CONTROL_LINE_SIZE  # a larger reply is left to nats-py, which looks at it once, not in each read


class NoTlsError(NatsError):
    """The server offers no TLS although TLS is requested. Nothing was sent to it."""

    def __init__(self, server: str) -> None:
        super().__init__(
            f"nats-server at {server} offers no TLS, but tls:// or the TLS options ask for it, so no login was sent; "
            "turn on TLS there (ws:// has none: write wss://), or write nats:// and leave the TLS options out"
        )


class Acks:
    """The subscription whose messages are acks: `INBOX.TOKEN`, and JSON as the data.

    `many`: gets tokens and data of acks, each `{…}` without line ends and braces inside.
    `one`: gets subject and data of any other message without headers. nats-py would make an object of it, queue it, and
    wake a task: as much work as sending the message that it acks.
    """

    def __init__(
        self,
        inbox: str,
        sid: int,
        many: Callable[[list[int], Sequence[bytes]], None],
        one: Callable[[bytes, bytes], None],
    ) -> None:
        self.sid = sid
        self.many = many
        self.one = one
        self._head = b"MSG %b." % inbox.encode()
        line = rb"%b(\d{1,18}) %d (\d{1,9})\r\n" % (re.escape(self._head), sid)
        self._line = re.compile(line)
        # The last group takes what is not an ack, so all that is found is one run from the start.
        self._run = re.compile(line + rb"(\{[^{}\r\n]*\})\r\n|([\s\S]+)")

    def taken(self, data: bytes) -> bytes:
        """Hand over the acks at the start of `data`; return what follows them."""
        found = self._run.findall(data)
        rest: bytes = found.pop()[3] if found and found[-1][3] else b""
        if found:
            tokens, sizes, bodies, _ = zip(*found, strict=True)
            if list(map(int, sizes)) != list(map(len, bodies)):  # what looks like an ack is the data of another message
                return data
            self.many(list(map(int, tokens)), bodies)
        return rest

    def may_become_acks(self, data: bytes) -> bool:
        """True if `data`, which begins with no ack, may do so when more is read."""
        if not data.startswith(self._head):
            return self._head.startswith(data)
        if (line := self._line.match(data)) is not None:
            return (size := int(line[2])) <= _ACK_BYTES_MAX and len(data) < line.end() + size + CRLF_SIZE
        return b"\r\n" not in data and len(data) < MAX_CONTROL_LINE_SIZE


class _AcksFirst(Parser):
    """nats-py's parser, which takes 2 µs for a message, behind one that takes all acks of a read in 1 µs each."""

    nc: StrictNatsClient

    async def parse(self, data: bytes = b"") -> None:
        if (acks := self.nc.acks) is None:
            await super().parse(data)
            return
        if self.state == AWAITING_MSG_PAYLOAD:  # of a message that is no ack: give it no more than that
            missing = self.needed + CRLF_SIZE - len(self.buf)
            await super().parse(data[:missing])
            data = data[missing:]
        elif self.buf:
            data = bytes(self.buf) + data
            self.buf.clear()
        rest = acks.taken(data)
        if acks.may_become_acks(rest):
            self.buf.extend(rest)
        else:
            await super().parse(rest)


class StrictNatsClient(Client):
    """A nats-py client that never sends a login without the requested TLS.

    `acks`: the subscription for acks, if there is one.
    """

    acks: Acks | None = None
    _announced: list[str]  # servers announced by the INFO line of the connection being made

    def __init__(self) -> None:
        super().__init__()
        self._ps = _AcksFirst(self)

    def send(self, frame: bytes, payload_bytes: int) -> bool:
        """Send a whole PUB or HPUB command; True: await `pass_on` next. nats-py's errors, as from its `publish`."""
        if self._status != Client.CONNECTED:
            if self.is_closed:
                raise ConnectionClosedError
            if self.is_draining_pubs:
                raise ConnectionDrainingError
            if not self.is_connected and (
                self._max_pending_size <= 0 or payload_bytes + self._pending_data_size > self._max_pending_size
            ):
                raise OutboundBufferLimitError
        self._pending.append(frame)
        self._pending_data_size = waiting_bytes = self._pending_data_size + len(frame)
        stats = self.stats
        stats["out_msgs"] += 1
        stats["out_bytes"] += payload_bytes
        return 0 < self._max_pending_size < waiting_bytes or self._flush_queue is None or self._flush_queue.empty()

    async def pass_on(self, deadline_s: float | None = None) -> bool:
        """Have nats-py write what waits; if that is too much, wait for it until the deadline, in the loop's time.

        False: the deadline has passed.
        """
        if (queue := self._flush_queue) is None:
            return True
        flusher, is_too_much = self._flusher_task, 0 < self._max_pending_size < self._pending_data_size
        if not is_too_much or not self.is_connected or flusher is None or flusher.done():
            await self._flush_pending()
            return True
        # Not nats-py's own wait: it swallows a cancellation.
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline_s):
                await queue.put(written)
                await written
        except TimeoutError:
            return False
        return True

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if self.acks is not None and sid == self.acks.sid and not headers:
            self.acks.one(bytes(subject), data)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py calls this with the first line of each connection, before it decides whether to start TLS.
        if initial_connection:  # what the last connection left may have come after nats-py emptied its parser
            self._ps.reset()
        if initial_connection and self._must_begin_tls():
            if not (info.get("tls_required") or info.get("tls_available")) or self._scheme == _WEBSOCKET:
                assert self._current_server is not None
                assert self._transport is not None
                self._transport.close()  # type: ignore[no-untyped-call]  # so that no pending bytes are written to it
                raise NoTlsError(self._current_server.uri.netloc.rpartition("@")[2])
            info["tls_required"] = True  # nats-py keeps this very object and checks it next
            self._announced = info.pop("connect_urls", None) or []
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        # nats-py starts TLS, logs in and waits for PONG.
        self._announced = []
        await super()._process_connect_init()
        if self._announced:
            await super()._process_info({"connect_urls": self._announced}, initial_connection=True)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:  # nats-py would write pending bytes to a connection that is not encrypted yet
            self._pending = []
            self._pending_data_size = 0
        try:
            await super()._close(status, do_cbs)
        finally:  # nats-py leaves the socket open if it is cancelled here, as the end of an event loop does
            if isinstance(self._transport, TcpTransport):
                self._transport.close()  # type: ignore[no-untyped-call]

    def _must_begin_tls(self) -> bool:
        """True if TLS is requested and has not started."""
        if self._scheme == _OVER_TLS or self.options.get("tls_handshake_first"):
            return False
        return self._scheme == "tls" or any(self.options.get(name) for name in ("tls", "tls_hostname"))

    @property
    def _scheme(self) -> str:
        assert self._current_server is not None
        return str(self._current_server.uri.scheme)
