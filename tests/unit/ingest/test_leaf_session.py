"""The leaf session: what it says, and what it makes of what it hears."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.base import limits
from penstock.ingest.connect import Authentication, ErrorKind, ServerInfo, SubjectPermission
from penstock.ingest.interest import InterestTable
from penstock.ingest.leaf import LeafSession, delivery_mistake
from penstock.ingest.nats import (
    BarrierReached,
    InfoChanged,
    InterestLost,
    NatsSessionState,
    SessionClosed,
    SessionEvent,
    SessionReady,
    TlsWanted,
)


def _info(**fields: Any) -> bytes:
    return b"INFO " + json.dumps({"headers": True, "version": "2.11.0", **fields}).encode() + b"\r\n"


def _session(table: InterestTable, **options: Any) -> LeafSession:
    return LeafSession(table, name="penstock-c-1", **options)


def _events(session: LeafSession, data: bytes, now_ms: int = 0) -> list[SessionEvent]:
    return session.receive(data, 0, len(data), now_ms).events


def _ready(table: InterestTable) -> LeafSession:
    session = _session(table)
    [ready] = _events(session, _info() + b"PONG\r\n")
    assert isinstance(ready, SessionReady)
    session.take_output()
    return session


def test_connects_as_a_leaf_without_subscriptions() -> None:
    table = InterestTable()
    session = _session(table, authentication=Authentication(user="u", password="p"))
    assert _events(session, _info(nonce="N")) == []
    connect, ping, rest = session.take_output().split(b"\r\n")
    assert (ping, rest) == (b"PING", b"")
    assert json.loads(connect.removeprefix(b"CONNECT ")) == {
        "verbose": False,
        "tls_required": False,
        "server_id": "penstock-c-1",
        "name": "penstock-c-1",
        "remote_account": "penstock",
        "version": "2.11.0",
        "protocol": 1,
        "headers": True,
        "user": "u",
        "pass": "p",
    }
    assert _events(session, b"LS+ a\r\n" + _info(export={"allow": ["_INBOX.>"]}) + b"LS+ b.*\r\n") == []
    assert table.has_interest(b"c") is None
    [ready] = _events(session, b"PONG\r\nPING\r\n")
    assert isinstance(ready, SessionReady)
    assert ready.info.export == SubjectPermission(allow=("_INBOX.>",))
    assert [table.has_interest(subject) for subject in (b"a", b"b.x", b"c")] == [True, True, False]
    assert session.take_output() == b"PONG\r\n"


def test_tls_comes_first_if_the_server_asks_for_it() -> None:
    session = _session(InterestTable())
    assert _events(session, _info(tls_required=True)) == [TlsWanted()]
    session.tls_established()
    assert b'"tls_required":true' in session.take_output()
    for said in (_info(tls_required=True) + b"LS+ a\r\n", _info(tls_required=True) + b"LS", b"LS+ a\r\n"):
        closed = _events(_session(InterestTable()), said)[-1]
        assert isinstance(closed, SessionClosed)


@pytest.mark.parametrize(
    ("said", "kind", "reason"),
    [
        (b"'Authorization Violation'", ErrorKind.AUTHORIZATION, "refuses the leaf's credentials"),
        (b"'Duplicate Remote LeafNode Connection'", ErrorKind.DUPLICATE_LEAF, "has the same name, penstock-c-1"),
        (b"'Permissions Violation for Publish to \"x\"'", ErrorKind.PERMISSION_PUBLISH, "allow its user"),
        (b"'Loop detected for leafnode account'", ErrorKind.OTHER, "Loop detected"),
    ],
)
@pytest.mark.parametrize("is_ready", [False, True])
def test_every_error_ends_it(said: bytes, kind: ErrorKind, reason: str, is_ready: bool) -> None:
    session = _ready(InterestTable()) if is_ready else _session(InterestTable())
    [closed] = _events(session, b"-ERR " + said + b"\r\n")
    assert isinstance(closed, SessionClosed)
    assert closed.kind is kind
    assert reason in closed.reason


def test_messages_are_skipped_with_their_payload() -> None:
    table = InterestTable()
    session = _ready(table)
    data = b"LMSG a 7\r\nLS+ x\r\n\r\nHMSG a + r q 2 4\r\n\r\n\r\n\r\nRMSG A a 1\r\nx\r\nLS+ b\r\nPING\r\n"
    assert _events(session, data) == []
    assert (table.has_interest(b"x"), table.has_interest(b"b")) == (False, True)
    assert session.take_output() == b"PONG\r\n"
    assert _events(session, b"LMSG a 1000000\r\n" + bytes(500_000)) == []
    assert _events(session, bytes(500_000) + b"\r\nLS- b\r\n") == []
    assert table.has_interest(b"b") is False


@pytest.mark.parametrize(
    "said",
    [
        b"LMSG a x\r\n",
        b"LMSG\r\n",
        b"LMSG a 99999999999\r\n",
        b"LS+ a\n",
        b"\n",
        b"what\r\n",
        b"x" * 70_000,
        b"PONG\r\n",
    ],
)
def test_what_is_no_protocol_ends_it(said: bytes) -> None:
    session = _ready(InterestTable())
    closed = _events(session, said)[-1]
    assert isinstance(closed, SessionClosed)
    assert closed.kind is ErrorKind.PROTOCOL
    assert session.state is NatsSessionState.CLOSED
    assert session.receive(b"LS+ a\r\n", 0, 7, 0).position == 7


def test_a_subscriber_cannot_end_it() -> None:
    table = InterestTable()
    session = _ready(table)
    long = b"x" * (2 * limits.NATS_CONTROL_LINE_BYTES_MAX)
    received = session.receive(b"LS+ " + long, 0, len(long) + 4, 0)
    assert (received.position, received.events) == (len(long) + 4, [])
    odd = b"\r\nLS+ a\rb\r\nLS+ \r\nLS+ a b\r\nLS+  q 1\r\nLS- nothing\r\nLS- \r\nLS+ ok\r\n"
    assert _events(session, odd) == []
    assert table.scanned.keys == {b"a\rb", b"ok"}
    assert table.has_interest(b"zz") is False


def test_lost_subjects_are_told_with_the_read_or_the_tick() -> None:
    table = InterestTable()
    session = _ready(table)
    _events(session, b"LS+ a\r\n")
    assert table.watch(b"a", 0)
    assert table.watch(b"never", 0)
    assert _events(session, b"LS- a\r\n", 5) == [InterestLost((b"a",))]
    assert session.next_tick_ms <= 505
    assert session.tick(limits.INTEREST_SETTLE_MS) == [InterestLost((b"never",))]


def test_what_was_lost_before_a_barrier_is_told_before_it() -> None:
    table = InterestTable()
    session = _ready(table)
    assert _events(session, b"LS+ a\r\n") == []
    assert table.watch(b"a", 0)
    token = session.barrier()
    assert _events(session, b"LS- a\r\nPONG\r\n") == [InterestLost((b"a",)), BarrierReached(token)]


def test_pings_as_any_session() -> None:
    session = _ready(InterestTable())
    for _ in range(2):
        session.tick(session._next_ping_ms)
        assert session.take_output() == b"PING\r\n"
    [closed] = session.tick(session._next_ping_ms)
    assert isinstance(closed, SessionClosed)
    assert closed.kind is ErrorKind.STALE_CONNECTION


def test_other_permissions_are_told() -> None:
    session = _ready(InterestTable())
    [changed] = _events(session, _info(export={"deny": ["x.>"]}, leafnode_urls=["a:1", 7]))
    assert isinstance(changed, InfoChanged)
    assert changed.info.leafnode_urls == ("a:1",)
    assert delivery_mistake(changed.info, b"x.y", 0) is not None


@pytest.mark.parametrize(
    ("export", "subject", "allowed"),
    [
        (None, "anything", True),
        (SubjectPermission(), "anything", True),
        (SubjectPermission(allow=("_INBOX.>",)), "_INBOX.a.b", True),
        (SubjectPermission(allow=("_INBOX.>",)), "_INBOX", False),
        (SubjectPermission(allow=("_INBOX.>",)), "other", False),
        (SubjectPermission(allow=("_INBOX.>",)), "$JS.ACK.S.C.1", True),
        (SubjectPermission(allow=("_INBOX.>",)), "_R_.x", True),
        (SubjectPermission(allow=("_INBOX.>",)), "_GR_.abcdef.ghijkl._INBOX.x", True),
        (SubjectPermission(allow=("_INBOX.>",)), "_GR_.abcdef.ghijkl.other", False),
        (SubjectPermission(allow=(">",), deny=("a.*",)), "a.b", False),
        (SubjectPermission(deny=("a.*",)), "b", True),
    ],
)
def test_what_nats_server_would_close_the_connection_for(
    export: SubjectPermission | None, subject: str, allowed: bool
) -> None:
    info = ServerInfo(export=export, max_payload=100)
    assert (delivery_mistake(info, subject.encode(), 100) is None) is allowed
    assert "max_payload" in (delivery_mistake(info, subject.encode(), 101) or "")


@pytest.mark.parametrize("subject", [b"", b"a b", b"a\tb", b"a\rb", b"a..b", b"a.*", b">", b"\xff", b"x" * 5_000])
def test_a_subject_that_would_break_the_frame_is_a_mistake(subject: bytes) -> None:
    assert delivery_mistake(ServerInfo(), subject, 1) is not None
