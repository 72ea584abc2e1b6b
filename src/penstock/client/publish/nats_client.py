"""nats-py's client with enforced TLS.

Rules: nats-py starts TLS only if the server's INFO line requires it, and that line is not encrypted. Without this class
a `tls://` server, or a man in the middle, that omits the requirement would get the login in plain text. TLS is
requested by `tls://` in a server's URL, or for all servers, including those announced later, by the options `tls` and
`tls_hostname`. Each connection is checked before CONNECT. Servers that the INFO line announces are used only after this
one has authenticated itself; nats-server announces them again over TLS only from 2.12 on.

| TLS is requested, and INFO says | then                                                        |
|---------------------------------|-------------------------------------------------------------|
| `tls_required`                  | TLS starts, as nats-py does by itself                       |
| `tls_available`                 | TLS starts, too: that server accepts both                   |
| neither                         | `NoTlsError`; nothing is sent                               |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError

_OVER_TLS = "wss"  # TLS from the first byte
_WEBSOCKET = "ws"


class NoTlsError(NatsError):
    """The server offers no TLS although TLS is requested. Nothing was sent to it."""

    def __init__(self, server: str) -> None:
        super().__init__(
            f"nats-server at {server} offers no TLS, but tls:// or the TLS options ask for it, so no login was sent; "
            "turn on TLS there (ws:// has none: write wss://), or write nats:// and leave the TLS options out"
        )


class StrictNatsClient(Client):
    """A nats-py client that never sends a login without the requested TLS.

    `acks`: gets subject and data of each message of the subscription `acks_sid` that has no headers, at once. nats-py
    would make an object of it, queue it, and wake a task: as much work as sending the message that it acks.
    """

    acks: Callable[[bytes, bytes], None] | None = None
    acks_sid = 0
    _announced: list[str]  # servers announced by the INFO line of the connection being made

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid == self.acks_sid and self.acks is not None and not headers:
            self.acks(bytes(subject), data)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py calls this with the first line of each connection, before it decides whether to start TLS.
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
        await super()._close(status, do_cbs)

    def _must_begin_tls(self) -> bool:
        """True if TLS is requested and has not started."""
        if self._scheme == _OVER_TLS or self.options.get("tls_handshake_first"):
            return False
        return self._scheme == "tls" or any(self.options.get(name) for name in ("tls", "tls_hostname"))

    @property
    def _scheme(self) -> str:
        assert self._current_server is not None
        return str(self._current_server.uri.scheme)
