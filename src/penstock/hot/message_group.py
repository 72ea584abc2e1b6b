"""Messages as positions in the received bytes: no Python object per message.

Rules: a row is numbers (see `places`); the parts of a message stay in `data`, which never changes. Rows are added only
by `add`, which checks that each part lies within its bytes: readers of the numbers need no check.

    data    MSG orders.eu 7 _INBOX.a 5␍␊hello␍␊MSG orders.us 7 2␍␊hi␍␊
                ╰───────╯   ╰──────╯     ╰───╯
    row 0    SUBJECT 4 13  REPLY 16 24  VALUE 28 33  HEADERS, KEY, EARLY -1 -1

Keys have bytes of their own, because a base64 key has no decoded bytes in `data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import memory, places

_ROOM_MIN = 8
_PLACE_MAX = 2**31 - 1  # an int32
_DOLLAR = ord("$")


class TooLarge(NamedTuple):
    """A message whose payload was skipped. `size` counts payload and headers, in bytes.

    `headers` is the beginning of its header block, at most HEADER_BLOCK_BYTES_MAX bytes (None for a message without).
    """

    subject: bytes
    reply: bytes | None
    headers: bytes | None
    size: int


class MessageGroup:
    """Messages for one stream, in order of arrival. None stands for a missing part of a message.

    `too_large` holds the messages beyond NATS_FRAME_BYTES_MAX, which are no rows. `enveloped` holds the ack records of
    rows that came in an envelope (see `envelope_acks`): those rows have no REPLY and no EARLY.
    """

    __slots__ = ("_room", "count", "data", "enveloped", "keys", "numbers", "too_large")

    def __init__(self, data: bytes) -> None:
        if len(data) > _PLACE_MAX:
            raise ValueError(f"{len(data)} bytes are more than a place can point to")
        self.data = data
        self.keys = bytearray()
        self.enveloped: bytearray | None = None
        self.count = 0
        self.too_large: list[TooLarge] = []
        self._room = 0
        if not cython.compiled:
            self.numbers: list[int] = []

    def __dealloc__(self) -> None:
        if cython.compiled:
            memory.free_places(self.numbers)

    @staticmethod
    def of(
        subjects: Sequence[bytes],
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        replies: Sequence[bytes | None] | None = None,
    ) -> MessageGroup:
        """Build rows from columns of equal length; a column that is None is None in every row."""
        nothing: list[bytes | None] = [None] * len(subjects)
        columns = (subjects, replies or nothing, headers or nothing, values)
        assert all(len(column) == len(subjects) for column in (*columns, keys or nothing)), "columns of unequal length"
        group = MessageGroup(b"".join([part or b"" for column in columns for part in column]))
        ends = [sum([len(part or b"") for column in columns[:number] for part in column]) for number in range(4)]
        for *parts, key in zip(*columns, keys or nothing, strict=True):
            row: list[int] = []
            for number, part in enumerate(parts):
                begin = ends[number]
                ends[number] += len(part or b"")
                row += [-1 if part is None else begin, -1 if part is None else ends[number]]
            row.append(-1 if key is None else group.keep_key(key, 0, len(key)))
            row.append(-1 if key is None else row[-1] + len(key))
            row += (-1, -1)  # EARLY
            group.add(*row)
        return group

    def __len__(self) -> int:
        return self.count

    def keep_key(self, text: bytes, begin: int, end: int) -> int:
        """Append text[begin:end] to the keys; return its position there."""
        size = len(self.keys)
        if not 0 <= begin <= end <= len(text) or size + end - begin > _PLACE_MAX:
            raise IndexError(f"{begin} to {end} of {len(text)} bytes")
        memory.append(self.keys, text, begin, end)
        return size

    def keep_encoded_key(self, text: bytes, begin: int, end: int) -> int:
        """Append a decoded base64 key; return its position, or -1 if it is not strict base64."""
        size = len(self.keys)
        if not 0 <= begin <= end <= len(text) or size + end - begin > _PLACE_MAX:
            raise IndexError(f"{begin} to {end} of {len(text)} bytes")
        return size if memory.append_base64(self.keys, text, begin, end) else -1

    @property
    def has_enveloped(self) -> bool:
        """True if acks of enveloped messages are pending."""
        return self.enveloped is not None

    def key_bytes(self) -> int:
        return len(self.keys)

    def add(
        self,
        subject: int,
        subject_end: int,
        reply: int,
        reply_end: int,
        headers: int,
        headers_end: int,
        value: int,
        value_end: int,
        key: int,
        key_end: int,
        early: int,
        early_end: int,
    ) -> None:
        """Append a row. A part is in `data`, the key in `keys`; raise IndexError if one is not."""
        if not cython.compiled:  # slices cannot leave their bytes
            self.numbers += (
                subject, subject_end, reply, reply_end, headers, headers_end, value, value_end,
                key, key_end, early, early_end,
            )  # fmt: skip
            self.count += 1
            return
        size = len(self.data)
        # The only bounds check: afterwards the numbers are used unchecked.
        if not (
            0 <= subject <= subject_end <= size
            and _lies_within(reply, reply_end, size)
            and _lies_within(headers, headers_end, size)
            and _lies_within(value, value_end, size)
            and _lies_within(key, key_end, len(self.keys))
            and _lies_within(early, early_end, size)
        ):
            raise IndexError("a part of the row lies outside of the group's bytes")
        if self.count == self._room:
            self._room = 2 * self._room + _ROOM_MIN
            self.numbers = memory.more_places(self.numbers, self._room * places.STRIDE)
        numbers = self.numbers
        at = self.count * places.STRIDE
        numbers[at + places.SUBJECT] = subject
        numbers[at + places.SUBJECT + 1] = subject_end
        numbers[at + places.REPLY] = reply
        numbers[at + places.REPLY + 1] = reply_end
        numbers[at + places.HEADERS] = headers
        numbers[at + places.HEADERS + 1] = headers_end
        numbers[at + places.VALUE] = value
        numbers[at + places.VALUE + 1] = value_end
        numbers[at + places.KEY] = key
        numbers[at + places.KEY + 1] = key_end
        numbers[at + places.EARLY] = early
        numbers[at + places.EARLY + 1] = early_end
        self.count += 1

    def batch_end(self, start: int, rows_max: int, bytes_max: int) -> int:
        """Return the end of a batch that begins with row `start`: at least one row, and within both limits."""
        last = min(self.count, start + rows_max)
        # Rows do not share bytes.
        if len(self.data) + len(self.keys) <= bytes_max:
            return last
        numbers = self.numbers
        size = 0
        for row in range(start, last):
            at = row * places.STRIDE
            size += numbers[at + places.SUBJECT + 1] - numbers[at + places.SUBJECT]
            size += numbers[at + places.HEADERS + 1] - numbers[at + places.HEADERS]
            size += numbers[at + places.VALUE + 1] - numbers[at + places.VALUE]
            size += numbers[at + places.KEY + 1] - numbers[at + places.KEY]
            if size > bytes_max and row > start:
                return row
        return last

    def with_headers(self, replaced: dict[int, bytes]) -> MessageGroup:
        """Return the same messages, of which some rows have other header blocks."""
        data = bytearray(self.data)
        places_of: dict[int, tuple[int, int]] = {}
        for row, block in replaced.items():
            places_of[row] = len(data), len(data) + len(block)
            data += block
        out = MessageGroup(bytes(data))
        out.keys += self.keys
        out.enveloped, out.too_large = self.enveloped, self.too_large
        numbers = self.numbers
        for row in range(self.count):
            at = row * places.STRIDE
            begin, end = numbers[at + places.HEADERS], numbers[at + places.HEADERS + 1]
            if row in places_of:
                begin, end = places_of[row]
            out.add(
                numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3], begin, end,
                numbers[at + 6], numbers[at + 7], numbers[at + 8], numbers[at + 9], numbers[at + 10], numbers[at + 11],
            )  # fmt: skip
        return out

    def part(self, begin: int, end: int) -> MessageGroup:
        """Return the rows [begin, end), which have no key yet, as a group of the same bytes."""
        if not 0 <= begin <= end <= self.count:
            raise IndexError(f"rows {begin} to {end} of {self.count}")
        out = MessageGroup(self.data)
        numbers = self.numbers
        for row in range(begin, end):
            at = row * places.STRIDE
            out.add(
                numbers[at + places.SUBJECT], numbers[at + places.SUBJECT + 1],
                numbers[at + places.REPLY], numbers[at + places.REPLY + 1],
                numbers[at + places.HEADERS], numbers[at + places.HEADERS + 1],
                numbers[at + places.VALUE], numbers[at + places.VALUE + 1],
                -1, -1, -1, -1,
            )  # fmt: skip
        return out

    def drop_subject_prefix(self, prefix: bytes) -> None:
        """Take `prefix` off the subjects that begin with it and go on with a `$`."""
        size = len(prefix)
        text, numbers = self.data, self.numbers
        for row in range(self.count):
            at = row * places.STRIDE + places.SUBJECT
            begin, end = numbers[at], numbers[at + 1]
            if end - begin > size and memory.begins(text, begin, end, prefix) and text[begin + size] == _DOLLAR:
                numbers[at] = begin + size
        self.too_large = [
            one._replace(subject=one.subject[size:]) if one.subject.startswith(prefix + b"$") else one
            for one in self.too_large
        ]

    def subject(self, row: int) -> bytes:
        subject = self._part(row, places.SUBJECT)
        assert subject is not None
        return subject

    def reply(self, row: int) -> bytes | None:
        """The reply subject for the ack of one row."""
        return self._part(row, places.REPLY)

    def early(self, row: int) -> bytes | None:
        """The reply subject for the ack of one row that is sent as soon as it is written."""
        return self._part(row, places.EARLY)

    def headers(self, row: int) -> bytes | None:
        return self._part(row, places.HEADERS)

    def value(self, row: int) -> bytes | None:
        return self._part(row, places.VALUE)

    def key(self, row: int) -> bytes | None:
        return self._part(row, places.KEY)

    def _part(self, row: int, place: int) -> bytes | None:
        if not 0 <= row < self.count:
            raise IndexError(f"row {row} of {self.count}")
        begin = self.numbers[row * places.STRIDE + place]
        end = self.numbers[row * places.STRIDE + place + 1]
        if begin < 0:
            return None
        return bytes(self.keys[begin:end]) if place == places.KEY else self.data[begin:end]


def _lies_within(begin: int, end: int, size: int) -> bool:
    return begin == end == -1 or 0 <= begin <= end <= size
