"""NATS bytes split anywhere, changed anywhere: the same result, or a closed session; never anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.hot.group import Group
from penstock.hot.scan import Frames, ProtocolError, scan
from penstock.ingest.nats import NatsSession, SessionClosed, SessionEvent, SessionState
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


_frames = st.lists(_messages() | st.sampled_from([b"PING\r\n", b"+OK\r\n"]), max_size=12).map(b"".join)

Rows = dict[int, list[tuple[bytes, bytes | None, bytes | None, bytes]]]


def _add(rows: Rows, groups: dict[int, Group]) -> None:
    for sid, group in groups.items():
        rows.setdefault(sid, []).extend(messages(group))


def _scan_in_pieces(data: bytes, cuts: list[int]) -> tuple[Rows, list[bytes], int, bool]:
    """Rows, lines, bytes consumed and whether it was nonsense, when `data` comes cut at `cuts`."""
    rows: Rows = {}
    lines: list[bytes] = []
    position = 0
    needed = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        if end - position < needed:
            continue
        frames = Frames()
        try:
            position = scan(data, position, end, frames)
        except ProtocolError:
            _add(rows, frames.groups)
            return rows, lines + frames.lines, -1, True
        needed = frames.needed_bytes
        _add(rows, frames.groups)
        lines += frames.lines
    return rows, lines, position, False


@given(_frames, st.lists(st.integers(0, 2000), max_size=30))
def test_any_split_gives_the_same(data: bytes, cuts: list[int]) -> None:
    whole = _scan_in_pieces(data, [])
    assert whole[2] == len(data)
    assert _scan_in_pieces(data, cuts) == whole
    assert _scan_in_pieces(data, list(range(len(data)))) == whole


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
        assert session.state is SessionState.READY
    events: list[SessionEvent] = []
    position = 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        received = session.receive(data, position, end, 0)
        assert position <= received.position <= end
        assert received.needed_bytes == 0 or received.needed_bytes > end - received.position
        position = received.position
        events += received.events
    closed = [event for event in events if isinstance(event, SessionClosed)]
    assert len(closed) == (session.state is SessionState.CLOSED)
