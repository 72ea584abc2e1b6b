"""One connection to nats-server, without a socket: what came is handed over once."""

from __future__ import annotations

import pytest

from penstock.broker.nats.connection import NatsConnection
from penstock.broker.security.nats_credentials import NatsServer
from penstock.hot.message_group import MessageGroup
from penstock.ingest.nats import NatsSession, SessionEvent
from tests.groups import values


class _Interrupted:
    """An owner who is interrupted at the first messages."""

    def __init__(self) -> None:
        self.calls = 0
        self.values: list[bytes | None] = []

    def groups_received(self, groups: dict[int, MessageGroup]) -> None:
        self.calls += 1
        if self.calls == 1:
            raise KeyboardInterrupt
        self.values += values(groups[1])

    def session_event(self, event: SessionEvent) -> None: ...

    def writable_changed(self, writable: bool) -> None: ...


def _come(connection: NatsConnection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def test_what_came_before_an_interrupt_is_not_taken_in_twice() -> None:
    owner = _Interrupted()
    connection = NatsConnection(NatsServer("h"), NatsSession(name="test", version="0"), owner, lambda: 0)
    _come(connection, b'INFO {"headers":true,"max_payload":1048576}\r\nPONG\r\n')
    connection.session.subscribe(1, "a", None)
    with pytest.raises(KeyboardInterrupt):
        _come(connection, b"MSG a 1 5\r\nfirst\r\nMSG a")
    _come(connection, b" 1 6\r\nsecond\r\n")
    assert owner.values == [b"second"]
