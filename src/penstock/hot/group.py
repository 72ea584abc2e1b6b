"""Messages as positions in the bytes that they came in: no Python object is made for any of them.

Rules: a row is numbers (see `places`); the parts of a message stay where they lie in `data`, which never changes. `add`
is the only way in, and checks that each part lies within what it points into: whoever follows the numbers need not.

    data    MSG orders.eu 7 _INBOX.a 5␍␊hello␍␊MSG orders.us 7 2␍␊hi␍␊
                ╰───────╯   ╰──────╯     ╰───╯
    row 0    SUBJECT 4 13  REPLY 16 24  VALUE 28 33  HEADERS, KEY, EARLY -1 -1

Keys lie in bytes of their own: one that was written in base64 stands nowhere in `data`.
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


class TooLarge(NamedTuple):
    """A message whose payload was skipped. `size` counts payload and headers, in bytes.

    `headers` is the beginning of its header block, at most HEADER_BLOCK_BYTES_MAX bytes (None for a message without).
    """

    subject: bytes
    reply: bytes | None
    headers: bytes | None
    size: int


class Group:
    """Messages for one stream, in the order in which they came. None stands for a part that a message does not have.

    `too_large` holds the messages beyond NATS_FRAME_BYTES_MAX, which are no rows. `enveloped` holds who waits for acks
    of rows that came in an envelope (see `envelope_acks`): those rows have no REPLY and no EARLY.
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
    ) -> Group:
        """Rows from columns of equal length; a column that is None is None in every row."""
        nothing: list[bytes | None] = [None] * len(subjects)
        columns = (subjects, replies or nothing, headers or nothing, values)
        assert all(len(column) == len(subjects) for column in (*columns, keys or nothing)), "columns of unequal length"
        group = Group(b"".join([part or b"" for column in columns for part in column]))
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
        """Put text[begin:end] behind the keys; where it begins there."""
        size = len(self.keys)
        if not 0 <= begin <= end <= len(text) or size + end - begin > _PLACE_MAX:
            raise IndexError(f"{begin} to {end} of {len(text)} bytes")
        memory.append(self.keys, text, begin, end)
        return size

    def keep_encoded_key(self, text: bytes, begin: int, end: int) -> int:
        """The same for a key in base64; -1 if it is not base64 to the letter."""
        size = len(self.keys)
        if not 0 <= begin <= end <= len(text) or size + end - begin > _PLACE_MAX:
            raise IndexError(f"{begin} to {end} of {len(text)} bytes")
        return size if memory.append_base64(self.keys, text, begin, end) else -1

    @property
    def has_enveloped(self) -> bool:
        """Whether somebody waits with an envelope."""
        return self.enveloped is not None

    def key_bytes(self) -> int:
        """Bytes of all keys together."""
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
        """Put a row behind the others. A part is in `data`, the key in `keys`; IndexError if one is not."""
        if not cython.compiled:  # where no slice leaves its bytes
            self.numbers += (
                subject, subject_end, reply, reply_end, headers, headers_end, value, value_end,
                key, key_end, early, early_end,
            )  # fmt: skip
            self.count += 1
            return
        size = len(self.data)
        # From here on the numbers are followed without another look: this is the check of all bounds.
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
        """How far a batch goes that begins with row `start`: one row at least, and no more rows or bytes than these."""
        last = min(self.count, start + rows_max)
        # No two rows share a byte.
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

    def subject(self, row: int) -> bytes:
        """The subject of one row."""
        subject = self._part(row, places.SUBJECT)
        assert subject is not None
        return subject

    def reply(self, row: int) -> bytes | None:
        """Who waits for the ack of one row."""
        return self._part(row, places.REPLY)

    def early(self, row: int) -> bytes | None:
        """Who waits for the ack of one row that comes as soon as it is written."""
        return self._part(row, places.EARLY)

    def headers(self, row: int) -> bytes | None:
        """The header block of one row."""
        return self._part(row, places.HEADERS)

    def value(self, row: int) -> bytes | None:
        """The value of one row."""
        return self._part(row, places.VALUE)

    def key(self, row: int) -> bytes | None:
        """The key of one row."""
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
