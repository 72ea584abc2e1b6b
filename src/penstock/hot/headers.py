"""Look up Penstock's and JetStream's headers in the header block of one message.

Rules: names match exactly, and the first header of a name counts. An empty key header is ignored. The block ends at its
blank line: NATS ignores text after it, too. A line without a colon is no header.

| a name that begins with `Nats-` or `Penstock-`            | result                                                 |
|-----------------------------------------------------------|--------------------------------------------------------|
| it is honoured                                            | its value's begin and end, without surrounding space   |
| it is of JetStream's scheduler: `Nats-Schedule` with any  | `is_schedule`, or `ends_schedule` for what it sets on  |
| end, `Nats-Scheduler`                                     | the messages that it sends; `ingest.schedules` checks  |
| another one that begins with a name in _REQUESTS          | `unsupported`: a JetStream request not supported here  |
| Penstock sets it on messages that it relays or publishes  | ignored: it tells the message's origin or form         |
| any other one that begins with `Penstock-`                | `unsupported`: a request of a later version            |
| any other one that begins with `Nats-`                    | ignored: JetStream stores it, too                      |

The names are those of nats-server 2.15 (`server/stream.go`, `jetstream_api.go`, `msgtrace.go`, `accounts.go`), each of
them in a test.
"""

from __future__ import annotations

from penstock.hot import memory

_HONOURED = (
    b"Nats-Msg-Id",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-TTL",
    b"Nats-Rollup",
    b"Penstock-Key",
    b"Penstock-Key-Base64",
    b"Penstock-Ack",
    b"Penstock-Tombstone",
    b"Nats-Batch-Id",
    b"Nats-Batch-Sequence",
    b"Nats-Batch-Commit",
    b"Nats-Incr",
)
_TOLD = (
    b"Nats-Schedule-Next",
    b"Nats-Scheduler",
    b"Penstock-Offset",
    b"Penstock-Partition",
    b"Penstock-Schema",
    b"Penstock-Stream",
    b"Penstock-Timestamp",
)
"""Headers set by JetStream's scheduler, by `penstock relay` or by a typed publisher, which tell a message's origin or
form. Without this list, the next one would take these names for requests. The first two may end a schedule.
"""
_REQUESTS = (
    b"Nats-Batch-",
    b"Nats-Expected-",
    b"Nats-Incr",
    b"Nats-Msg-Id",
    b"Nats-Rollup",
    b"Nats-Schedule",
    b"Nats-TTL",
)
"""Prefixes, so that `Nats-TTL :` and new checks of later versions are refused, not ignored."""
_NATS = b"Nats-"
_PENSTOCK = b"Penstock-"

_KNOWN = (*_HONOURED, *_TOLD)
_NAMES = b"".join([name + b":" for name in _KNOWN])
"""No name contains a colon or another `Nats-` or `Penstock-`, so the position of a match identifies the name."""
_STREAM = _NAMES.index(b"Nats-Expected-Stream:")
_SEQUENCE = _NAMES.index(b"Nats-Expected-Last-Sequence:")
_SUBJECT_SEQUENCE = _NAMES.index(b"Nats-Expected-Last-Subject-Sequence:")
_OTHER_SUBJECT = _NAMES.index(b"Nats-Expected-Last-Subject-Sequence-Subject:")
_ID = _NAMES.index(b"Nats-Msg-Id:")
_LAST_ID = _NAMES.index(b"Nats-Expected-Last-Msg-Id:")
_TTL = _NAMES.index(b"Nats-TTL:")
_ROLLUP = _NAMES.index(b"Nats-Rollup:")
_KEY = _NAMES.index(b"Penstock-Key:")
_ENCODED_KEY = _NAMES.index(b"Penstock-Key-Base64:")
_ACK = _NAMES.index(b"Penstock-Ack:")
_TOMBSTONE = _NAMES.index(b"Penstock-Tombstone:")
_SCHEDULE_NEXT = _NAMES.index(b"Nats-Schedule-Next:")
_SCHEDULER = _NAMES.index(b"Nats-Scheduler:")
_SCHEDULE = b"Nats-Schedule"
_BATCH = _NAMES.index(b"Nats-Batch-Id:")
_BATCH_SEQUENCE = _NAMES.index(b"Nats-Batch-Sequence:")
_BATCH_COMMIT = _NAMES.index(b"Nats-Batch-Commit:")
_INCR = _NAMES.index(b"Nats-Incr:")

_COLON = 0x3A
_CRLF = b"\r\n"


class HeaderFields:
    """The headers of one block; reused for block after block. A begin of -1: there is no such header."""

    __slots__ = (
        "ack",
        "ack_end",
        "batch",
        "batch_commit",
        "batch_commit_end",
        "batch_end",
        "batch_sequence",
        "batch_sequence_end",
        "encoded_key",
        "encoded_key_end",
        "ends_schedule",
        "id",
        "id_end",
        "incr",
        "incr_end",
        "is_schedule",
        "key",
        "key_end",
        "last_id",
        "last_id_end",
        "other_subject",
        "other_subject_end",
        "rollup",
        "rollup_end",
        "sequence",
        "sequence_end",
        "stream",
        "stream_end",
        "subject_sequence",
        "subject_sequence_end",
        "tombstone",
        "tombstone_end",
        "ttl",
        "ttl_end",
        "unsupported",
    )

    def __init__(self) -> None:
        self.ack_end = self.encoded_key_end = self.id_end = self.key_end = self.last_id_end = -1
        self.sequence_end = self.stream_end = self.subject_sequence_end = self.tombstone_end = self.ttl_end = -1
        self.rollup_end = self.other_subject_end = -1
        self.batch_end = self.batch_sequence_end = self.batch_commit_end = self.incr_end = -1
        self.clear()

    def clear(self) -> None:
        """Forget the last block."""
        self.ack = self.encoded_key = self.id = self.key = self.last_id = self.sequence = self.stream = -1
        self.subject_sequence = self.other_subject = self.tombstone = self.ttl = self.rollup = -1
        self.batch = self.batch_sequence = self.batch_commit = self.incr = -1
        self.unsupported = self.is_schedule = self.ends_schedule = False

    def forget_publisher(self) -> None:
        """Clear the ack, the expectations and the batch, which are the first publisher's, of a relayed message.

        It ends no schedule here, and is none: JetStream sends it.
        """
        self.unsupported = self.unsupported or self.is_schedule
        self.is_schedule = self.ends_schedule = False
        self.batch = -1
        self.ack = self.stream = self.sequence = self.subject_sequence = self.other_subject = self.last_id = -1

    def read(self, text: bytes, begin: int, end: int) -> None:
        """Read the block text[begin:end]. Raise IndexError if it is not within `text`."""
        if not 0 <= begin <= end <= len(text):
            raise IndexError(f"{begin} to {end} of {len(text)} bytes")
        self.clear()
        line = _line_end(text, begin, end) + 2
        while line < end:
            line_end = _line_end(text, line, end)
            if line_end == line:
                break
            if _is_ours(text, line, line_end):
                colon = memory.find_byte(text, _COLON, line, line_end)
                if colon >= 0:
                    self._take(text, line, colon, line_end)
            line = line_end + 2

    def _take(self, text: bytes, line: int, colon: int, line_end: int) -> None:
        begin = colon + 1
        while begin < line_end and _is_space(text[begin]):
            begin += 1
        end = line_end
        while end > begin and _is_space(text[end - 1]):
            end -= 1
        place = memory.find(_NAMES, 0, len(_NAMES), text, line, colon + 1)
        if place == _KEY:
            if self.key < 0 and end > begin:
                self.key, self.key_end = begin, end
        elif place == _ID:
            if self.id < 0:
                self.id, self.id_end = begin, end
        elif place == _ACK:
            if self.ack < 0:
                self.ack, self.ack_end = begin, end
        elif place == _STREAM:
            if self.stream < 0:
                self.stream, self.stream_end = begin, end
        elif place == _SEQUENCE:
            if self.sequence < 0:
                self.sequence, self.sequence_end = begin, end
        elif place == _SUBJECT_SEQUENCE:
            if self.subject_sequence < 0:
                self.subject_sequence, self.subject_sequence_end = begin, end
        elif place == _OTHER_SUBJECT:
            if self.other_subject < 0:
                self.other_subject, self.other_subject_end = begin, end
        elif place == _LAST_ID:
            if self.last_id < 0:
                self.last_id, self.last_id_end = begin, end
        elif place == _ENCODED_KEY:
            if self.encoded_key < 0 and end > begin:
                self.encoded_key, self.encoded_key_end = begin, end
        elif place == _TOMBSTONE:
            if self.tombstone < 0:
                self.tombstone, self.tombstone_end = begin, end
        elif place == _TTL:
            if self.ttl < 0:
                self.ttl, self.ttl_end = begin, end
        elif place == _ROLLUP:
            if self.rollup < 0:
                self.rollup, self.rollup_end = begin, end
        elif place == _SCHEDULE_NEXT or place == _SCHEDULER:  # noqa: SIM109 (a tuple is no C comparison)
            self.ends_schedule = True
        elif place == _BATCH:
            if self.batch < 0:
                self.batch, self.batch_end = begin, end
        elif place == _BATCH_SEQUENCE:
            if self.batch_sequence < 0:
                self.batch_sequence, self.batch_sequence_end = begin, end
        elif place == _BATCH_COMMIT:
            if self.batch_commit < 0:
                self.batch_commit, self.batch_commit_end = begin, end
        elif place == _INCR:
            if self.incr < 0:
                self.incr, self.incr_end = begin, end
        elif place < 0 and _is_request(text, line, colon):
            if memory.begins(text, line, colon, _SCHEDULE):
                self.is_schedule = True
            else:
                self.unsupported = True


def asked_for(text: bytes, begin: int, end: int) -> bytes:
    """Return the names behind `unsupported` in the block text[begin:end]: CR LF, name and colon for each such line."""
    if not 0 <= begin <= end <= len(text):
        raise IndexError(f"{begin} to {end} of {len(text)} bytes")
    out = bytearray()
    line = _line_end(text, begin, end) + 2
    while line < end:
        line_end = _line_end(text, line, end)
        if line_end == line:
            break
        if _is_ours(text, line, line_end):
            colon = memory.find_byte(text, _COLON, line, line_end)
            if colon >= 0 and _is_unsupported(text, line, colon):
                memory.append(out, _CRLF, 0, 2)
                memory.append(out, text, line, colon + 1)
        line = line_end + 2
    return bytes(out)


def _line_end(text: bytes, begin: int, end: int) -> int:
    """Return the end of the line at `begin`: its CR LF, or the end of the block."""
    at = memory.find(text, begin, end, _CRLF, 0, 2)
    return end if at < 0 else at


def _is_ours(text: bytes, begin: int, end: int) -> bool:
    return memory.begins(text, begin, end, _NATS) or memory.begins(text, begin, end, _PENSTOCK)


def _is_unsupported(text: bytes, begin: int, end: int) -> bool:
    """True if the name text[begin:end], followed by a colon, is an unsupported request."""
    return memory.find(_NAMES, 0, len(_NAMES), text, begin, end + 1) < 0 and _is_request(text, begin, end)


def _is_request(text: bytes, begin: int, end: int) -> bool:
    if memory.begins(text, begin, end, _PENSTOCK):
        return True
    for name in _REQUESTS:  # noqa: SIM110 (a generator is no C loop)
        if memory.begins(text, begin, end, name):
            return True
    return False


def _is_space(byte: int) -> bool:
    return byte == 0x20 or 0x09 <= byte <= 0x0D


def unsupported(block: bytes) -> list[bytes]:
    """Return the names in a header block that this version does not support, sorted, each once."""
    return sorted({line[:-1] for line in asked_for(block, 0, len(block)).split(_CRLF)[1:]})
