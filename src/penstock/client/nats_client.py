"""nats-py's client, held to the TLS that it is asked for.

Rules: nats-py begins TLS only where the INFO line of a server requires it, and that line comes in plain: without this
class a `tls://` server, or someone on the way, that leaves the requirement out gets the login in plain. TLS is asked
for by `tls://` in a server's URL, and by the options `tls` and `tls_hostname` for all servers, those included that are
announced later. Each connection is checked, before CONNECT. Servers that the INFO line announces are taken once this
one has proved who it is; nats-server tells them again over TLS from 2.12 on only.

| TLS is asked for, and INFO says | then                                                        |
|---------------------------------|-------------------------------------------------------------|
| `tls_required`                  | TLS begins, as nats-py does by itself                       |
| `tls_available`                 | TLS begins, too: that server takes both                     |
| neither                         | `NoTlsError`; nothing is sent                               |
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError

_OVER_TLS = "wss"  # from the first byte
_WEBSOCKET = "ws"


class NoTlsError(NatsError):
    """A server offers no TLS though TLS is asked for. Nothing was sent to it."""

    def __init__(self, server: str) -> None:
        super().__init__(
            f"nats-server at {server} offers no TLS, but tls:// or the TLS options ask for it, so no login was sent; "
            "turn on TLS there (ws:// has none: write wss://), or write nats:// and leave the TLS options out"
        )


class StrictNatsClient(Client):
    """See the module. It connects as nats-py's client does."""

    _announced: list[str]  # by the INFO line of the connection that is being made

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py calls it with the first line of each connection, before it decides whether to begin TLS.
        if initial_connection and self._must_begin_tls():
            if not (info.get("tls_required") or info.get("tls_available")) or self._scheme == _WEBSOCKET:
                assert self._current_server is not None
                assert self._transport is not None
                self._transport.close()  # type: ignore[no-untyped-call]  # so that nothing that waits is written to it
                raise NoTlsError(self._current_server.uri.netloc.rpartition("@")[2])
            info["tls_required"] = True  # nats-py keeps this very object, and looks at it next
            self._announced = info.pop("connect_urls", None) or []
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        # nats-py begins TLS, logs in and waits for PONG.
        self._announced = []
        await super()._process_connect_init()
        if self._announced:
            await super()._process_info({"connect_urls": self._announced}, initial_connection=True)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:  # nats-py would write what waits, to a connection that is not yet encrypted
            self._pending = []
            self._pending_data_size = 0
        await super()._close(status, do_cbs)

    def _must_begin_tls(self) -> bool:
        """Whether TLS is asked for and has not begun."""
        if self._scheme == _OVER_TLS or self.options.get("tls_handshake_first"):
            return False
        return self._scheme == "tls" or any(self.options.get(name) for name in ("tls", "tls_hostname"))

    @property
    def _scheme(self) -> str:
        assert self._current_server is not None
        return str(self._current_server.uri.scheme)
