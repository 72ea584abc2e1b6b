"""The NATS connection: the session over everything that nats-server may say."""

from __future__ import annotations

from random import Random

from penstock.ingest.connect import Authentication
from penstock.ingest.interest import InterestTable
from penstock.ingest.leaf import LeafSession, delivery_mistake
from penstock.ingest.nats import (
    MessagesSkipped,
    NatsSession,
    NatsSessionState,
    RepliesUnanswerable,
    SessionClosed,
    TlsWanted,
)
from tests import groups
from tests.fuzz.nats_made import made_info, made_leaf_frame, made_line, made_protocol
from tests.fuzz.target import Cover, Modules, Target
from tests.fuzz.targets_hot import made_envelope

_SUBJECTS = ("a.b", "orders.>", "orders.x")
_NONE = "nobody calls it while bytes come in"


def _new(flags: int) -> NatsSession:
    """A session whose connection has come up, unless the flags say that it has not."""
    authentication = Authentication(user="u", password="p", sign=lambda nonce: nonce[:8] + bytes(8))
    session = NatsSession(name="n", version="1", authentication=authentication, tls_wanted=bool(flags & 2), now_ms=0)
    if flags & 1:
        if flags & 4:
            session.tls_established()
        return session
    hello = b'INFO {"headers":true,"tls_available":true}\r\n'
    session.receive(hello, 0, len(hello), 1)
    if session.state is NatsSessionState.TLS:
        session.tls_established()
    session.receive(b"PONG\r\n", 0, 6, 2)
    assert session.state is NatsSessionState.READY, session.state
    for sid, subject in enumerate(_SUBJECTS, 1):
        session.subscribe(sid, subject)
    session.barrier()
    session.barrier()
    return session


def _fed(data: bytes, flags: int, step: int) -> tuple[list[object], dict[int, list[object]], NatsSessionState, bytes]:
    """What comes of bytes that are read so many at a time; as a connection keeps what is not yet used."""
    session = _new(flags)
    events: list[object] = []
    skipped: list[MessagesSkipped] = []
    unanswerable = 0
    rows: dict[int, list[object]] = {}
    buffer, position = bytearray(), 0
    for begin in range(0, len(data), step):
        buffer += data[begin : begin + step]
        received = session.receive(buffer, position, len(buffer), 5)
        assert position <= received.position <= len(buffer)
        assert received.needed_bytes >= 0
        position = received.position
        for sid, group in received.groups.items():
            rows.setdefault(sid, []).extend(groups.messages(group))
        for event in received.events:
            if isinstance(event, MessagesSkipped):
                skipped.append(event)
            elif isinstance(event, RepliesUnanswerable):
                unanswerable += event.count
            else:
                events.append(event)
        if session.state is NatsSessionState.TLS:
            session.tls_established()
        if session.state is NatsSessionState.CLOSED:
            break
    if session.state is not NatsSessionState.CLOSED:  # how many of them came in one read does not matter
        events += [sum(one.count for one in skipped), skipped[0].line if skipped else "", unanswerable]
    return events, rows, session.state, session.take_output()


def nats_session(modules: Modules, data: bytes) -> object:
    """However it is cut, the same messages and events, and an end with one reason."""
    if not data:
        return "empty"
    flags, said = data[0], data[1:]
    events, rows, state, output = _fed(said, flags, max(1, len(said)))
    again = _fed(said, flags, max(1 + said[-1] % 37 if said else 1, len(said) // 50))
    if any(isinstance(event, TlsWanted) for event in (*events, *again[0])):
        return "tls"  # what comes before TLS is up depends on what came with the INFO
    if any(_is_early(one) for one in (*events, *again[0])):
        return "early"  # before any subscription: whether the PONG before it was read by itself decides
    assert again[2] is state, (again[2], state, events, again[0])
    if state is NatsSessionState.CLOSED:
        assert isinstance(events[-1], SessionClosed)
        assert sum(isinstance(event, SessionClosed) for event in events) == 1
        return f"closed {events[-1].kind} {len(events)}"
    assert again == (events, rows, state, output), (again, (events, rows, output))
    return " ".join(type(event).__name__ for event in events[:8]) + f" {len(rows)}"


def _is_early(event: object) -> bool:
    return isinstance(event, SessionClosed) and "before any subscription" in event.reason


def made_nats(chance: Random) -> bytes:
    """What comes over a connection, from its beginning or later."""
    flags = chance.choice((0, 0, 0, 2, 1, 1, 3, 5))
    begin = made_info(chance) + (b"PONG\r\n" if chance.random() < 0.8 else b"") if flags & 1 else b""
    rest = made_protocol(chance, made_envelope) if chance.random() < 0.7 else made_line(chance) * 2
    return bytes((flags,)) + begin + rest


def leaf_session(modules: Modules, data: bytes) -> object:
    """However it is cut, the same interest, and an end with one reason."""
    if not data:
        return "empty"
    flags, said = data[0], data[1:]
    whole = _leaf_fed(said, flags, max(1, len(said)))
    split = _leaf_fed(said, flags, max(1 + said[-1] % 37 if said else 1, len(said) // 50))
    if whole[0] is NatsSessionState.TLS or split[0] is NatsSessionState.TLS or flags & 1:
        return f"{whole[0]}"  # what comes with the INFO, or before the PONG, is not told apart by reads
    assert whole[0] is split[0], (whole, split)
    if whole[0] is NatsSessionState.CLOSED:
        return "closed"  # the interest that it told before is void
    assert whole == split, (whole, split)
    return f"{whole[0]} {len(whole[1])} {whole[2]}"


def _leaf_fed(data: bytes, flags: int, step: int) -> tuple[NatsSessionState, set[bytes], int]:
    table = InterestTable(keys_max=8)
    session = LeafSession(table, name="n", tls_wanted=bool(flags & 2))
    if not flags & 1:
        hello = b'INFO {"headers":true,"tls_available":true}\r\n'
        session.receive(hello, 0, len(hello), 1)
        if session.state is NatsSessionState.TLS:
            session.tls_established()
        session.receive(b"PONG\r\n", 0, 6, 2)
        table.watch(b"a.b", 2)
    buffer, position = bytearray(), 0
    for begin in range(0, len(data), step):
        buffer += data[begin : begin + step]
        received = session.receive(buffer, position, len(buffer), 5)
        assert position <= received.position <= len(buffer)
        position = received.position
        if session.state is NatsSessionState.TLS:
            session.tls_established()
        if session.state is NatsSessionState.CLOSED:
            assert sum(isinstance(event, SessionClosed) for event in received.events) == 1
            break
    assert len(table) <= 8
    assert table.scanned.size_bytes == sum(map(len, table.scanned.keys))
    assert sum(table.scanned.shapes.values()) <= len(table)
    for subject in (b"a.b", b"orders.x", b"a..b", b"x" * 300):
        table.has_interest(subject)
        table.has_interest(subject, b"q")
    for subject in (b"a.b", b"_GR_.a", data[:20]):
        delivery_mistake(session.info, subject, 1 << 20)
        delivery_mistake(session.info, subject, 1)
    table.lost(10_000)
    return session.state, table.scanned.keys, table.scanned.untracked


_KEYS = (
    b"a.b", b"a.b", b"a.*", b"a.>", b">", b"*.b", b"*.*", b"a.b q", b"a.* q", b"orders.x", b"a\rb", b"a..b", b"",
    b"a." * 26 + b"*", b"_INBOX.x.*",
)  # fmt: skip


def _made_interest(chance: Random) -> bytes:
    key = chance.choice(_KEYS)
    if (odd := chance.random()) < 0.02:
        key = b"x" * 70_000
    if odd < 0.5:
        return b"LS- %b\r\n" % key
    return b"LS+ %b%b\r\n" % (key, b" 1" if b" " in key else b"")


def made_leaf(chance: Random) -> bytes:
    """What comes over a leaf connection, from its beginning or later."""
    flags = chance.choice((0, 0, 0, 2, 1))
    begin = made_info(chance) + b"PONG\r\n" if flags & 1 else b""
    makers = (_made_interest, _made_interest, _made_interest, made_leaf_frame, made_leaf_frame, made_line)
    rest = b"".join(chance.choice(makers)(chance) for _ in range(1 + int(chance.random() * 20)))
    return bytes((flags,)) + begin + rest


TARGETS: tuple[Target, ...] = (
    Target(
        "leaf_session",
        leaf_session,
        made_leaf,
        (
            Cover("penstock.ingest.leaf", (), {"LeafSession.tick": _NONE, "LeafSession.next_tick_ms": _NONE}),
            Cover("penstock.hot.interest"),
            Cover(
                "penstock.ingest.interest",
                (),
                {"InterestTable.ended": _NONE, "InterestTable.unwatch": _NONE, "InterestTable._release": _NONE},
            ),
        ),
        pieces=(
            b"\r\n",
            b"LS+ ",
            b"LS- ",
            b"LS+ a.* q 1\r\n",
            b"LMSG a 2\r\n\r\n\r\n",
            b"-ERR ",
            b"INFO {}\r\n",
            b"*",
            b">",
        ),
        memory_bytes=8 * 1024 * 1024,
    ),
    Target(
        "nats_session",
        nats_session,
        made_nats,
        (
            Cover("penstock.ingest.connect"),
            Cover(
                "penstock.ingest.nats",
                ("NatsSession", "ServerSession"),
                {
                    "ServerSession.tick": _NONE,
                    "ServerSession.next_tick_ms": _NONE,
                    "ServerSession.receive": "its subclasses have their own",
                    "ServerSession._connect_line": "its subclasses have their own",
                    "NatsSession.unsubscribe": _NONE,
                    "ServerSession.barrier": _NONE,
                },
            ),
        ),
        pieces=(
            b"\r\n",
            b"PING\r\n",
            b"PONG\r\n",
            b"INFO {}\r\n",
            b"-ERR ",
            b"MSG a.b 1 0\r\n\r\n",
            b"HMSG ",
            b'"',
            b"\\",
        ),
        memory_bytes=8 * 1024 * 1024,
    ),
)
