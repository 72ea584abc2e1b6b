"""The NATS session: its states, what it says, what it makes of what it hears."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.ingest.connect import Authentication, ErrorKind, parse_error
from penstock.ingest.nats import (
    BarrierReached,
    InfoChanged,
    LameDuck,
    MessagesSkipped,
    NatsSession,
    NatsSessionState,
    Received,
    RepliesUnanswerable,
    ServerComplaint,
    SessionClosed,
    SessionEvent,
    SessionReady,
    SubscriptionRefused,
    TlsWanted,
)
from tests.groups import replies, values


def _info(**fields: Any) -> bytes:
    return b"INFO " + json.dumps({"headers": True, "max_payload": 1048576, **fields}).encode() + b"\r\n"


def _session(**options: Any) -> NatsSession:
    return NatsSession(name="test", version="1.2.3", **options)


def _receive(session: NatsSession, data: bytes, now_ms: int = 0) -> Received:
    return session.receive(data, 0, len(data), now_ms)


def _events(session: NatsSession, data: bytes, now_ms: int = 0) -> list[SessionEvent]:
    return _receive(session, data, now_ms).events


def _ready(**options: Any) -> NatsSession:
    session = _session(**options)
    [ready] = _events(session, _info() + b"PONG\r\n")
    assert isinstance(ready, SessionReady)
    session.take_output()
    return session


def _connect_options(output: bytes) -> dict[str, Any]:
    line, ping, rest = output.split(b"\r\n")
    assert (ping, rest) == (b"PING", b"")
    assert line.startswith(b"CONNECT ")
    options: dict[str, Any] = json.loads(line[len(b"CONNECT ") :])
    return options


def test_connects_after_info_and_is_ready_at_the_pong() -> None:
    session = _session()
    assert session.take_output() == b""
    assert _events(session, _info(server_name="here")) == []
    assert session.state is NatsSessionState.CONNECT_SENT
    options = _connect_options(session.take_output())
    assert options == {
        "verbose": False,
        "pedantic": False,
        "tls_required": False,
        "name": "test",
        "lang": "python",
        "version": "1.2.3",
        "protocol": 1,
        "echo": True,
        "headers": True,
        "no_responders": True,
    }
    [ready] = _events(session, b"PONG\r\n")
    assert isinstance(ready, SessionReady)
    assert ready.info.server_name == "here"
    assert session.state.name == "READY"


@pytest.mark.parametrize(
    ("authentication", "said"),
    [
        (Authentication(user="u", password="p"), {"user": "u", "pass": "p"}),
        (Authentication(token="t"), {"auth_token": "t"}),
        (Authentication(nkey="UABC", sign=lambda nonce: b"\xff" + nonce), {"nkey": "UABC", "sig": b"\xffNONCE"}),
        (Authentication(jwt="ey", sign=lambda nonce: b"\xfe" + nonce), {"jwt": "ey", "sig": b"\xfeNONCE"}),
    ],
)
def test_proves_itself(authentication: Authentication, said: dict[str, Any]) -> None:
    session = _session(authentication=authentication)
    _receive(session, _info(nonce="NONCE", auth_required=True))
    options = _connect_options(session.take_output())
    for key, value in said.items():
        if key == "sig":
            value = base64.urlsafe_b64encode(value).rstrip(b"=").decode()
        assert options[key] == value
    assert not {"user", "pass", "auth_token", "nkey", "jwt", "sig"} - said.keys() & options.keys()


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        (["a:1", "[::1]:2"], ("a:1", "[::1]:2")),
        ([], ()),
        (None, ()),
        ({"a": 1}, ()),
        ("a:1", ()),
        (["a:1", 7, None, ["b:1"]], ("a:1",)),
        (["a:1"] * 5_000, ("a:1",) * limits.NATS_ANNOUNCED_MAX),
    ],
)
def test_announced_servers_are_bounded_and_cost_nothing(told: object, taken: tuple[str, ...]) -> None:
    session = _session()
    [ready] = _events(session, _info(connect_urls=told) + b"PONG\r\n")
    assert isinstance(ready, SessionReady)
    assert ready.info.connect_urls == taken
    [changed] = _events(session, _info(connect_urls=["b:1"]))
    assert isinstance(changed, InfoChanged)
    assert changed.info.connect_urls == ("b:1",)


def test_servers_that_are_announced_before_tls_do_not_count() -> None:
    session = _session(tls_wanted=True)
    [wanted] = _events(session, _info(tls_available=True, connect_urls=["evil:1"]))
    assert isinstance(wanted, TlsWanted)
    session.tls_established()
    [ready] = _events(session, b"PONG\r\n")
    assert isinstance(ready, SessionReady)
    assert ready.info.connect_urls == ()
    assert session.has_tls


def test_secrets_are_not_in_repr() -> None:
    shown = repr(Authentication(user="u", password="hidden1", token="hidden2", jwt="hidden3"))
    assert "hidden" not in shown


def test_starts_tls_when_the_server_requires_it() -> None:
    session = _session()
    assert _events(session, _info(tls_required=True)) == [TlsWanted()]
    assert session.take_output() == b""
    session.tls_established()
    assert _connect_options(session.take_output())["tls_required"] is True


def test_bytes_smuggled_in_before_tls_close_the_session() -> None:
    for more in (b"PONG\r\n", b"MSG a 1 1\r\nx\r\n", b"PI", b"\x16\x03\x01"):
        session = _session()
        events = _events(session, _info(tls_required=True) + more)
        assert isinstance(events[-1], SessionClosed), more
        later = _session()
        _receive(later, _info(tls_required=True))
        assert isinstance(_events(later, b"PING\r\n")[0], SessionClosed)


def test_refuses_a_server_without_tls_when_tls_is_wanted() -> None:
    session = _session(tls_wanted=True)
    [closed] = _events(session, _info())
    assert isinstance(closed, SessionClosed)
    assert closed.kind is ErrorKind.TLS_REQUIRED
    assert session.take_output() == b""  # above all no credentials
    assert _events(_session(tls_wanted=True), _info(tls_available=True)) == [TlsWanted()]


def test_tls_before_info() -> None:
    session = _session(tls_wanted=True)
    session.tls_established()
    assert _events(session, _info(tls_required=True)) == []
    assert _connect_options(session.take_output())["tls_required"] is True


def test_refuses_a_server_without_headers() -> None:
    [closed] = _events(_session(), b'INFO {"version":"2.1.0"}\r\n')
    assert isinstance(closed, SessionClosed)
    assert "2.1.0" in closed.reason


@pytest.mark.parametrize(
    "info", [b"INFO nonsense\r\n", b'INFO {"max_payload":"x"}\r\n', b'INFO {"max_payload":-1}\r\n', b"INFO []\r\n"]
)
def test_info_that_cannot_be_read_closes(info: bytes) -> None:
    [closed] = _events(_session(), b"INFO %b\r\n" % info)
    assert isinstance(closed, SessionClosed)
    assert closed.kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize(
    "info",
    [
        b'{"headers":true,"x":' + b"[" * 30_000 + b"}",
        b'{"headers":true,"connect_urls":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"headers":true,"x":' + b'{"a":' * 9_000 + b"1" + b"}" * 9_000 + b"}",
        b'{"headers":true,"port":1e999}',
        b'{"headers":true,"max_payload":1' + b"0" * 5_000 + b"}",
        b"\xff" * 100,
    ],
)
def test_hostile_info_ends_in_an_event_and_nothing_else(info: bytes) -> None:
    events = _events(_session(), b"INFO " + info + b"\r\n")
    assert [type(event) for event in events] in ([], [SessionClosed])


def test_null_in_info_means_not_told() -> None:
    fields = ["server_id", "server_name", "version", "host", "nonce", "cluster", "connect_urls", "port", "tls_required"]
    session = _session()
    assert _events(session, _info(**dict.fromkeys(fields), ip=None)) == []
    assert session.state is NatsSessionState.CONNECT_SENT
    assert session.info.nonce == ""


def test_answers_pings_at_once() -> None:
    session = _ready()
    assert _events(session, b"PING\r\nPING\r\n") == []
    assert session.take_output() == b"PONG\r\nPONG\r\n"


def test_subscribes_and_unsubscribes() -> None:
    session = _ready()
    session.subscribe(1, "a.*.>")
    session.subscribe(2, "b", "workers")
    session.unsubscribe(1)
    session.unsubscribe(99)
    assert session.take_output() == b"SUB a.*.> 1\r\nSUB b workers 2\r\nUNSUB 1\r\n"
    for sid, subject, queue in (
        (2, "a", None),
        (3, "a b", None),
        (3, "a\r\nPUB x 0", None),
        (3, "a", "q q"),
        (0, "a", None),
    ):
        with pytest.raises(AssertionError):
            session.subscribe(sid, subject, queue)


def test_barriers_come_in_order_and_after_the_messages_before_them() -> None:
    session = _ready()
    session.subscribe(1, "a")
    first = session.barrier()
    second = session.barrier()
    assert session.take_output() == b"SUB a 1\r\nPING\r\nPING\r\n"
    received = _receive(session, b"MSG a 1 1\r\nx\r\nPONG\r\n")
    assert values(received.groups[1]) == [b"x"]
    assert received.events == [BarrierReached(first)]
    assert _events(session, b"PONG\r\n") == [BarrierReached(second)]
    [closed] = _events(session, b"PONG\r\n")  # nobody asked
    assert isinstance(closed, SessionClosed)


def test_barriers_are_bounded() -> None:
    session = _ready()
    for _ in range(limits.NATS_BARRIERS_MAX):
        session.barrier()
    with pytest.raises(OperationalError):
        session.barrier()


def test_keeps_alive_and_notices_silence() -> None:
    session = _ready(ping_interval_ms=100)
    assert session.next_tick_ms == 100
    assert session.tick(99) == []
    assert session.take_output() == b""
    assert session.tick(100) == session.tick(200) == []
    assert session.take_output() == b"PING\r\nPING\r\n"
    assert _events(session, b"+OK\r\n", 210) == []  # anything heard starts the count anew
    assert session.next_tick_ms == 300
    assert session.tick(300) == session.tick(400) == []
    [closed] = session.tick(500)
    assert isinstance(closed, SessionClosed)
    assert closed.kind is ErrorKind.STALE_CONNECTION
    assert session.tick(600) == []


def test_only_an_answered_ping_proves_that_nothing_is_missing() -> None:
    session = _ready(ping_interval_ms=100)
    session.subscribe(1, "a")
    assert session.proven_ms == 0
    session.tick(100)
    _receive(session, b"MSG a 1 1\r\nx\r\n", 150)
    session.barrier()  # its time is taken from what was heard last
    session.tick(200)
    assert session.proven_ms == 0
    for now_ms, proven_ms in ((1000, 100), (1001, 150), (1002, 200)):
        _receive(session, b"PONG\r\n", now_ms)
        assert session.proven_ms == proven_ms


def test_silence_means_nothing_while_nobody_reads() -> None:
    session = _ready(ping_interval_ms=100)
    for now_ms in range(100, 2000, 100):
        assert session.tick(now_ms, reading=False) == []
    assert session.take_output() == b""


def test_a_large_message_on_its_way_is_not_silence() -> None:
    session = _ready(ping_interval_ms=100)
    for now_ms in range(100, 2000, 100):
        assert session.tick(now_ms) == []
        session.data_arrived(now_ms)
    assert session.state is NatsSessionState.READY


def test_refused_subscriptions_are_named_in_the_order_made() -> None:
    session = _ready()
    session.subscribe(5, "x")
    session.subscribe(6, "x", "q")
    refusal = b"-ERR 'Permissions Violation for Subscription to \"x\"'\r\n"
    [first] = _events(session, refusal)
    assert first == SubscriptionRefused(5, "x", 'Permissions Violation for Subscription to "x"')
    [second] = _events(session, b'-ERR \'Permissions Violation for Subscription to "x" using queue "q"\'\r\n')
    assert isinstance(second, SubscriptionRefused)
    assert second.sid == 6
    [third] = _events(session, refusal)
    assert isinstance(third, SubscriptionRefused)
    assert third.sid is None
    [fourth] = _events(session, b"-ERR 'maximum subscriptions exceeded'\r\n")
    assert isinstance(fourth, SubscriptionRefused)
    assert session.state is NatsSessionState.READY


def test_a_message_that_is_not_understood_is_told_and_costs_nothing() -> None:
    session = _ready()
    session.subscribe(1, "a.>")
    before, after = b"MSG a.x 1 1\r\nx\r\n", b"MSG a.y 1 1\r\ny\r\nPING\r\n"
    strange = b"MSG $SYS.ACCOUNT.my own account.CONNECT 1  3\r\nxyz\r\n"
    received = _receive(session, before + 2 * strange + after)
    assert values(received.groups[1]) == [b"x", b"y"]
    assert received.events == [MessagesSkipped(2, "MSG $SYS.ACCOUNT.my own account.CONNECT ")]
    assert session.state is NatsSessionState.READY
    # A line of any length is passed over as it comes.
    subject = b"s" * 3 * limits.NATS_CONTROL_LINE_BYTES_MAX
    buffer = b""
    events = []
    line = b"MSG %b 1 r 2\r\nhi\r\n" % subject
    for start in range(0, len(line), 30_000):
        buffer += line[start : start + 30_000]
        received = _receive(session, buffer)
        buffer = buffer[received.position :]
        events += received.events
        assert len(buffer) < limits.NATS_CONTROL_LINE_BYTES_MAX
    assert events == [MessagesSkipped(1, "MSG " + 36 * "s")]
    assert (buffer, session.state) == (b"", NatsSessionState.READY)


def test_a_reply_subject_that_would_end_the_connection_is_told() -> None:
    session = _ready()
    session.subscribe(1, "a")
    received = _receive(session, b"MSG a 1 r\rs 1\r\nx\r\nMSG a 1 r 1\r\ny\r\n")
    assert replies(received.groups[1]) == [None, b"r"]
    assert received.events == [RepliesUnanswerable(1)]


@pytest.mark.parametrize("line", [b"PING\nPING", b"", b"MSG", b"HMSG", b"GET / HTTP/1.1"])
def test_another_line_ends_the_session(line: bytes) -> None:
    [event] = _events(_ready(), line + b"\r\n")
    assert isinstance(event, SessionClosed)
    assert event.kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize(
    ("text", "kind", "closes"),
    [
        ("Authorization Violation", ErrorKind.AUTHORIZATION, True),
        ("Authentication Timeout", ErrorKind.AUTHORIZATION, True),
        ("User Authentication Expired", ErrorKind.AUTHORIZATION, True),
        ("User Authentication Revoked", ErrorKind.AUTHORIZATION, True),
        ("Account Authentication Expired", ErrorKind.AUTHORIZATION, True),
        ("Slow Consumer", ErrorKind.SLOW_CONSUMER, True),
        ("Stale Connection", ErrorKind.STALE_CONNECTION, True),
        ("Maximum Payload Violation", ErrorKind.MAX_PAYLOAD, True),
        ("maximum connections exceeded", ErrorKind.MAX_CONNECTIONS, True),
        ("maximum account active connections exceeded", ErrorKind.MAX_CONNECTIONS, True),
        ("maximum control line exceeded", ErrorKind.MAX_CONTROL_LINE, True),
        ("Unknown Protocol Operation", ErrorKind.PROTOCOL, True),
        ("Secure Connection - TLS Required", ErrorKind.TLS_REQUIRED, True),
        ('Permissions Violation for Publish to "a\\"b"', ErrorKind.PERMISSION_PUBLISH, False),
        ("Invalid Subject", ErrorKind.INVALID_SUBJECT, False),
        ("Something new", ErrorKind.OTHER, False),
    ],
)
def test_errors_are_told_apart(text: str, kind: ErrorKind, closes: bool) -> None:
    error = parse_error(f"-ERR '{text}'".encode())
    assert (error.kind, error.text, error.closes) == (kind, text, closes)
    session = _ready()
    [event] = _events(session, f"-ERR '{text}'\r\n".encode())
    assert isinstance(event, SessionClosed if closes else ServerComplaint)
    assert event.kind is kind


def test_the_subject_of_an_error_is_unquoted() -> None:
    assert parse_error(b'-ERR \'Permissions Violation for Publish to "a\\"b\\\\c"\'').subject == 'a"b\\c'
    assert parse_error(b"-ERR 'Slow Consumer \"x\"'").subject is None
    assert parse_error(b"-ERR").kind is ErrorKind.OTHER
    assert parse_error(b"-ERR '\xff\xfe'").kind is ErrorKind.OTHER


def test_an_error_line_is_read_in_no_time_and_cut() -> None:
    # Once a backtracking expression took ten seconds for this.
    hostile = b"-ERR 'Permissions Violation for Subscription to \"" + b'\\"' * 31_000 + b"'"
    error = parse_error(hostile)
    assert error.kind is ErrorKind.PERMISSION_SUBSCRIBE
    assert error.subject is None
    assert len(error.text) <= limits.NATS_ERROR_BYTES_MAX
    # What is cut is not taken for a subject; the longest subject there can be is not cut.
    subject = "x" * limits.SUBJECT_BYTES_MAX
    assert parse_error(f"-ERR 'Permissions Violation for Subscription to \"{subject}\"'".encode()).subject == subject
    longer = "x" * limits.NATS_ERROR_BYTES_MAX
    assert parse_error(f"-ERR 'Permissions Violation for Subscription to \"{longer}\"'".encode()).subject is None


def test_any_error_before_ready_closes() -> None:
    session = _session()
    _receive(session, _info())
    [closed] = _events(session, b"-ERR 'Something new'\r\n")
    assert closed == SessionClosed(ErrorKind.OTHER, "nats-server says: Something new")


def test_news_of_the_server() -> None:
    session = _ready()
    [changed] = _events(session, _info(max_payload=77))
    assert isinstance(changed, InfoChanged)
    assert session.info.max_payload == changed.info.max_payload == 77
    assert [type(event) for event in _events(session, _info(ldm=True))] == [InfoChanged, LameDuck]
    assert [type(event) for event in _events(session, _info(ldm=True))] == [InfoChanged]


def test_nonsense_closes_after_what_came_before_it() -> None:
    session = _ready()
    session.subscribe(1, "a")
    data = b"MSG a 1 1\r\nx\r\nPING\r\nHTTP/1.1 400 Bad Request\r\n"
    received = _receive(session, data)
    assert values(received.groups[1]) == [b"x"]
    [closed] = received.events
    assert isinstance(closed, SessionClosed)
    assert "HTTP" in closed.reason
    after = _receive(session, b"MSG a 1 1\r\nx\r\n")
    assert (after.groups, after.events) == ({}, [])


def test_messages_before_ready_are_nonsense() -> None:
    session = _session()
    received = _receive(session, _info() + b"PONG\r\nMSG a 1 1\r\nx\r\n")
    assert received.groups == {}
    assert isinstance(received.events[0], SessionClosed)


def test_nothing_comes_behind_the_end_of_a_session() -> None:
    events = _events(_session(tls_wanted=True), _info(ldm=True))
    assert [type(event) for event in events] == [SessionClosed]
