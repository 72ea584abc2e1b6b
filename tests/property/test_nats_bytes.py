"""NATS bytes split anywhere, changed anywhere: the same result, or a closed session; never anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.message_group import MessageGroup
from penstock.hot.scan import GROUP_BITS, Frames, ProtocolError, scan
from penstock.ingest.nats import NatsSession, NatsSessionState, SessionClosed, SessionEvent
from tests.groups import messages

_names = st.binary(min_size=1, max_size=12).filter(lambda name: not set(name) & set(b" \t\n"))
_sids = st.integers(1, 3)


@st.composite
def _messages(draw: st.DrawFn) -> bytes:
    subject, sid, value = draw(_names), draw(_sids), draw(st.binary(max_size=40))
    reply = draw(st.none() | _names)
    middle = b"" if reply is None else b"%b " % reply
    headers = draw(st.none() | st.binary(max_size=20))
    if headers is None:
        return b"MSG %b %d %b%d\r\n%b\r\n" % (subject, sid, middle, len(value), value)
    total = len(headers) + len(value)
    return b"HMSG %b %d %b%d %d\r\n%b%b\r\n" % (subject, sid, middle, len(headers), total, headers, value)


@st.composite
def _strange_messages(draw: st.DrawFn) -> bytes:
    """With a line that is not understood: anything between its fields, and line ends in the subject."""
    subject = draw(st.binary(min_size=1, max_size=12).filter(lambda name: b" " not in name))
    rest = draw(st.lists(st.sampled_from([b"", b"r", b"1", b"x\ty", b"+", b"|"]), max_size=4))
    value = draw(st.binary(max_size=40))
    return b"%b %b %b%d\r\n%b\r\n" % (
        draw(st.sampled_from([b"MSG", b"HMSG"])),
        subject,
        b"".join(b"%b " % field for field in (draw(st.sampled_from([b"1", b"2", b"0", b""])), *rest)),
        len(value),
        value,
    )


_lines = st.sampled_from([b"PING\r\n", b"+OK\r\n"])
_frames = st.lists(_messages() | _strange_messages() | _lines, max_size=12).map(b"".join)

Rows = dict[int, list[tuple[bytes, bytes | None, bytes | None, bytes]]]


def _add(rows: Rows, groups: dict[int, MessageGroup]) -> None:
    for sid, group in groups.items():
        rows.setdefault(sid, []).extend(messages(group))


def _scan_in_pieces(data: bytes, cuts: list[int]) -> tuple[Rows, list[bytes], int, tuple[int, int, int]]:
    """Rows, lines, bytes consumed (-1: it was nonsense) and what was counted, when `data` comes cut at `cuts`."""
    rows: Rows = {}
    lines: list[bytes] = []
    position = 0
    needed = skip_bytes = skipped = unanswerable = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        if end - position < needed:
            continue
        frames = Frames(skip_bytes)
        try:
            position = scan(data, position, end, frames)
        except ProtocolError:
            position = -1
        skip_bytes, needed = frames.skip_bytes, frames.needed_bytes
        skipped += frames.skipped
        unanswerable += frames.unanswerable
        _add(rows, frames.groups)
        lines += frames.lines
        if position < 0:
            return rows, lines, position, (skipped, unanswerable, 0)
    return rows, lines, position, (skipped, unanswerable, skip_bytes)


@given(_frames, st.lists(st.integers(0, 2000), max_size=30))
def test_any_split_gives_the_same(data: bytes, cuts: list[int]) -> None:
    whole = _scan_in_pieces(data, [])
    assert whole[2] == len(data)
    assert _scan_in_pieces(data, cuts) == whole
    assert _scan_in_pieces(data, list(range(len(data)))) == whole


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3))), st.lists(st.integers(0, 4000), max_size=20))
def test_messages_of_all_subscriptions_of_one_group_stay_in_their_order(
    sent: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Also where each comes through another subscription, and however the bytes are cut into reads."""
    data = b"".join(
        b"MSG s.%d %d 4\r\n%04d\r\n" % (number, number << GROUP_BITS | owner, place)
        for place, (owner, number) in enumerate(sent)
    )
    rows, _, position, _ = _scan_in_pieces(data, cuts)
    assert position == len(data)
    assert set(rows) == {owner for owner, _ in sent}
    for owner, found in rows.items():
        mine = [(b"s.%d" % number, b"%04d" % at) for at, (one, number) in enumerate(sent) if one == owner]
        assert [(row[0], row[3]) for row in found] == mine


@given(_frames, st.integers(0, 2000), st.binary(max_size=4), st.lists(st.integers(0, 2000), max_size=10))
def test_any_split_of_damaged_bytes_gives_the_same(data: bytes, at: int, damage: bytes, cuts: list[int]) -> None:
    at %= len(data) + 1
    damaged = data[:at] + damage + data[at + len(damage) :]
    assert _scan_in_pieces(damaged, cuts) == _scan_in_pieces(damaged, [])


_INFO = b'INFO {"headers":true,"max_payload":1024}\r\n'


@given(st.binary(max_size=200) | _frames, st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_a_session_survives_any_bytes(data: bytes, cuts: list[int], ready: bool) -> None:
    session = NatsSession(name="test", version="0")
    if ready:
        session.receive(_INFO + b"PONG\r\n", 0, len(_INFO) + 6, 0)
        assert session.state is NatsSessionState.READY
    events: list[SessionEvent] = []
    position = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        received = session.receive(data, position, end, 0)
        assert position <= received.position <= end
        assert received.needed_bytes == 0 or received.needed_bytes > end - received.position
        position = received.position
        events += received.events
    closed = [event for event in events if isinstance(event, SessionClosed)]
    assert len(closed) == (session.state is NatsSessionState.CLOSED)
