"""The scan of NATS frames: columns, bounds, nonsense."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.hot.message_group import TooLarge
from penstock.hot.scan import Frames, ProtocolError, scan
from tests import groups
from tests.extent import each_change


def _scan(data: bytes) -> tuple[int, Frames]:
    frames = Frames()
    return scan(bytearray(data), 0, len(data), frames), frames


def test_messages_become_columns_by_subscription() -> None:
    headers = b"NATS/1.0\r\nPenstock-Key: k\r\n\r\n"
    data = b"MSG a.b 1 5\r\nhello\r\nMSG a.c 22 _INBOX.x 0\r\n\r\n" + b"HMSG a.d 1 reply %d %d\r\n%bxy\r\n" % (
        len(headers),
        len(headers) + 2,
        headers,
    )
    position, frames = _scan(data)
    assert position == len(data)
    assert frames.lines == []
    assert sorted(frames.groups) == [1, 22]
    one = frames.groups[1]
    assert groups.subjects(one) == [b"a.b", b"a.d"]
    assert groups.replies(one) == [None, b"reply"]
    assert groups.headers(one) == [None, headers]
    assert groups.values(one) == [b"hello", b"xy"]
    assert len(one) == 2
    other = frames.groups[22]
    assert (groups.subjects(other), groups.replies(other), groups.values(other)) == ([b"a.c"], [b"_INBOX.x"], [b""])


def test_payload_that_looks_like_protocol_is_payload() -> None:
    payload = b"\r\nMSG evil 1 3\r\nxyz\r\nPING\r\n"
    data = b"MSG a 1 %d\r\n%b\r\nPONG\r\n" % (len(payload), payload)
    position, frames = _scan(data)
    assert position == len(data)
    assert groups.values(frames.groups[1]) == [payload]
    assert frames.lines == [b"PONG"]


def test_other_lines_come_in_order() -> None:
    _, frames = _scan(b"INFO {\"a\":1}\r\nPING\r\n+OK\r\n-ERR 'x'\r\nPONG\r\n")
    assert frames.lines == [b'INFO {"a":1}', b"PING", b"+OK", b"-ERR 'x'", b"PONG"]
    _, frames = _scan(b"PI\rNG\r\n\r\nMSG\r\nPING\r")
    assert frames.lines == [b"PI\rNG", b"", b"MSG"]


def test_only_the_given_range_is_looked_at() -> None:
    data = bytearray(b"garbagePING\r\nMSG a 1 1\r\nx\r\ngarbage")
    frames = Frames()
    start, end = 7, len(data) - 7
    assert scan(data, start, end, frames) == end
    assert frames.lines == [b"PING"]
    assert groups.values(frames.groups[1]) == [b"x"]


@pytest.mark.parametrize("end", range(1, 21))
def test_an_unfinished_frame_stays(end: int) -> None:
    data = b"MSG a.b 1 5\r\nhello\r\n"
    position, frames = _scan(data[:end])
    assert position == (len(data) if end == len(data) else 0)
    if 13 <= end < len(data):
        assert frames.needed_bytes == len(data)
    else:
        assert frames.needed_bytes == 0


def test_what_a_publisher_may_choose_never_raises() -> None:
    # nats-server lets through any byte but space, tab and line feed.
    subject = bytes(byte for byte in range(256) if byte not in b" \t\n")
    reply = subject.replace(b"\r", b"")
    subject += b"\nx"  # through MQTT older versions of nats-server let this through, too
    data = b"MSG %b 1 %b 000000001\r\nx\r\n" % (subject, reply)
    position, frames = _scan(data)
    assert position == len(data)
    assert groups.subjects(frames.groups[1]) == [subject]
    assert groups.replies(frames.groups[1]) == [reply]
    assert (frames.skipped, frames.unanswerable) == (0, 0)


@pytest.mark.parametrize("reply", [b"a\rb", b"\r", b"r" * (limits.NATS_REPLY_BYTES_MAX + 1)])
def test_a_reply_subject_that_would_end_our_connection_is_none(reply: bytes) -> None:
    size = limits.NATS_FRAME_BYTES_MAX + 1
    data = b"MSG a 1 %b 1\r\nx\r\nHMSG b 1 %b 2 3\r\nhhx\r\nMSG c 1 %b %d\r\n" % (reply, reply, reply, size)
    longest = b"r" * limits.NATS_REPLY_BYTES_MAX
    _, frames = _scan(b"MSG d\r 1 %b 1\r\nx\r\n" % longest + data)
    assert frames.skip_bytes == size + 2
    assert groups.subjects(frames.groups[1]) == [b"d\r", b"a", b"b"]
    assert groups.replies(frames.groups[1]) == [longest, None, None]
    assert frames.groups[1].too_large == [TooLarge(b"c", None, None, size)]
    assert (frames.skipped, frames.unanswerable) == (0, 3)


def test_an_empty_reply_subject_is_none() -> None:
    # What nats-server publishes itself: message traces, service latency, advisories, system events.
    headers = b"NATS/1.0\r\nAccept-Encoding: snappy\r\n\r\n"
    large = limits.NATS_FRAME_BYTES_MAX + 1
    data = b"MSG t.a 1  5\r\nhello\r\nMSG t.b 1  0\r\n\r\nHMSG t.c 1  %d %d\r\n%bxy\r\nMSG t.d 1  %d\r\n" % (
        len(headers),
        len(headers) + 2,
        headers,
        large,
    )
    position, frames = _scan(data)
    assert position == len(data)
    assert groups.subjects(frames.groups[1]) == [b"t.a", b"t.b", b"t.c"]
    assert groups.replies(frames.groups[1]) == [None, None, None]
    assert groups.headers(frames.groups[1]) == [None, None, headers]
    assert groups.values(frames.groups[1]) == [b"hello", b"", b"xy"]
    assert frames.groups[1].too_large == [TooLarge(b"t.d", None, None, large)]


@pytest.mark.parametrize(
    "line",
    [
        b"MSG a 1 r 5 5",
        b"MSG  1 5",
        b"MSG a  5",
        b"MSG a x 5",
        b"MSG a 0 5",
        b"MSG a 01 5",
        b"MSG a -1 5",
        b"MSG a 1234567890123456789 5",
        b"HMSG a 1 5",
        b"HMSG a 1 6 5",
        b"HMSG a 1 r x 5",
        b"HMSG a 1 r 99999999999 5",
        b"HMSG a 1  5",
        # The name of an account may have spaces.
        b"MSG $SYS.ACCOUNT.my account.CONNECT 1  5",
        b"MSG $SYS.ACCOUNT.a b c d.CONNECT 1 0000000005",
        # Through MQTT older versions let line ends into a subject: what stands there ends no line.
        b"MSG a\r\nb 1 5",
        b"MSG 2\r\nMSG\tb\t1\t2\r\nPING\r\n 1 5",
        b"MSG 7\r\nb 1 r 5",
        b"MSG a\r\nb 1  5",
        b"MSG %b 1 5" % (b"s" * limits.NATS_CONTROL_LINE_BYTES_MAX),
        b"MSG %b\n 1 5" % (b"s" * limits.NATS_CONTROL_LINE_BYTES_MAX),
        b"HMSG a 1 %b 3 5" % (b"7" * 3 * limits.NATS_CONTROL_LINE_BYTES_MAX),
    ],
)
def test_a_message_that_is_not_understood_is_skipped(line: bytes) -> None:
    before, after = b"MSG ok 7 2\r\nok\r\n", b"MSG ok 7 3\r\noh!\r\nPING\r\n"
    data = before + line + b"\r\nM\r\nx \r\n" + after
    for read_bytes in (1, 2, 7, len(before) + 12, len(data)) if len(data) < 500 else (4_000, 65_536, len(data)):
        found, left_max = _scan_in_reads(data, read_bytes)
        assert [value for one in found for value in (groups.values(one.groups[7]) if 7 in one.groups else ())] == [
            b"ok",
            b"oh!",
        ]
        assert [said for one in found for said in one.lines] == [b"PING"]
        assert sum(one.skipped for one in found) == 1
        assert all(bool(one.skipped) == bool(one.skipped_line) for one in found)
        assert left_max <= max(limits.NATS_CONTROL_LINE_BYTES_MAX, read_bytes)


def test_the_first_message_that_is_skipped_is_told_and_the_others_counted() -> None:
    _, frames = _scan(b"MSG a b c d 1\r\nx\r\n" * 3 + b"MSG other b c d 1\r\nx\r\n")
    assert (frames.skipped, frames.skipped_line[:13]) == (4, b"MSG a b c d 1")


@pytest.mark.parametrize(
    "data",
    [
        b"MSG a 1 +5\r\nhello\r\n",
        b"MSG a 1 -5\r\nhello\r\n",
        b"MSG a 1 5_0\r\nhello\r\n",
        b"MSG a 1 \r\nhello\r\n",
        b"MSG a 1 \nx\r\n",
        b"MSG a 1 \xd9\xa5\r\nhello\r\n",
        b"MSG a 1 99999999999999999999\r\n",
        b"MSG a 1 %b\r\n" % (b"9" * 2 * limits.NATS_CONTROL_LINE_BYTES_MAX),
        b"MSG a 1 %d\r\n" % (limits.NATS_PAYLOAD_BYTES_MAX + 1),
        b"MSG a 1 5\nhello\r\n",
        b"MSG a 1 5\r\nhelloX\r\n",
        b"MSG a 1 5\r\nhello\rX",
        b"MSG a 1 x 5\r\nhelloX\r\n",
        b"\n",
        b"PING\n",
        b"PING\nPING\r\n",
        b"PING\r\n\nPING\r\n",
        b"x" * limits.NATS_CONTROL_LINE_BYTES_MAX,
    ],
)
def test_nonsense_raises_and_keeps_what_came_before(data: bytes) -> None:
    frames = Frames()
    before = b"MSG ok 7 2\r\nok\r\n"
    with pytest.raises(ProtocolError) as raised:
        scan(before + data, 0, len(before) + len(data), frames)
    assert raised.value.position >= len(before)
    assert len(str(raised.value)) < 300
    assert groups.values(frames.groups[7]) == [b"ok"]


def test_the_largest_frame_is_waited_for() -> None:
    line = b"MSG a 1 %d\r\n" % limits.NATS_FRAME_BYTES_MAX
    position, frames = _scan(line + b"xyz")
    assert position == 0
    assert frames.needed_bytes == len(line) + limits.NATS_FRAME_BYTES_MAX + 2


def _scan_in_reads(data: bytes, read_bytes: int) -> tuple[list[Frames], int]:
    """The frames of each read, when `data` comes `read_bytes` at a time, and the most that one left in the buffer."""
    found = []
    skip_bytes = left_max = 0
    buffer = bytearray()
    for start in range(0, len(data), read_bytes):
        buffer += data[start : start + read_bytes]
        frames = Frames(skip_bytes)
        del buffer[: scan(buffer, 0, len(buffer), frames)]
        skip_bytes = frames.skip_bytes
        left_max = max(left_max, len(buffer))
        found.append(frames)
    assert not buffer
    assert not skip_bytes
    return found, left_max


@each_change
@pytest.mark.parametrize("read_bytes", [65_536, 65_537, 1 << 20, 1 << 27])
def test_a_message_that_no_stream_takes_is_skipped_and_reported(read_bytes: int) -> None:
    headers = b"NATS/1.0\r\nPenstock-Ack: none\r\n\r\n"
    size = limits.NATS_FRAME_BYTES_MAX + 1
    large = b"MSG o.big 3 _INBOX.x %d\r\n%b\r\n" % (size, bytes(size))
    larger = b"HMSG o.bigger 3 %d %d\r\n%b%b\r\n" % (
        len(headers),
        size + 1,
        headers,
        b"\r\nMSG evil 3 1\r\nx\r\n".ljust(size + 1 - len(headers), b"x"),
    )
    found, left_max = _scan_in_reads(b"MSG a 3 1\r\n1\r\n" + large + larger + b"PING\r\nMSG a 3 1\r\n2\r\n", read_bytes)
    found_groups = [frames.groups[3] for frames in found if 3 in frames.groups]
    assert [value for group in found_groups for value in groups.values(group)] == [b"1", b"2"]
    assert [message for group in found_groups for message in group.too_large] == [
        TooLarge(b"o.big", b"_INBOX.x", None, size),
        TooLarge(b"o.bigger", None, headers, size + 1),
    ]
    assert [line for frames in found for line in frames.lines] == [b"PING"]
    assert left_max < 100


def test_of_the_headers_of_a_skipped_message_only_so_much_is_kept() -> None:
    header_bytes, size = 50_000_000, limits.NATS_PAYLOAD_BYTES_MAX
    line = b"HMSG o 1 %d %d\r\n" % (header_bytes, size)
    kept = bytes(limits.HEADER_BLOCK_BYTES_MAX)
    position, frames = _scan(line + kept[:-1])
    assert (position, frames.skip_bytes) == (0, 0)
    assert frames.needed_bytes == len(line) + len(kept)
    position, frames = _scan(line + kept)
    assert position == len(line) + len(kept)
    assert frames.groups[1].too_large == [TooLarge(b"o", None, kept, size)]
    assert frames.skip_bytes == size - len(kept) + 2


def test_a_skipped_payload_ends_with_its_line() -> None:
    for end in (b"xX", b"\rX", b"X\n"):
        with pytest.raises(ProtocolError, match="payload without CR LF"):
            scan(b"x" * 5 + end, 0, 7, Frames(7))
    # The end of the line is looked at as a whole.
    frames = Frames(7)
    assert scan(b"x" * 5 + b"\r", 0, 6, frames) == 5
    assert (frames.skip_bytes, frames.needed_bytes) == (2, 2)
