"""Route a group's messages to partitions by key, where several partitions subscribe to the same subject.

Rules: every message goes to exactly one partition, on every broker the same, so each broker that leads some of a
stream's partitions keeps their messages and skips the rest, which other brokers keep. The order of the wire stays. The
stored key decides: a header before an envelope. An invalid key, such as bad base64, is routed by its raw text: so one
partition refuses the message, and not all of them.

| a stream splits by | routed by                                                                               |
|--------------------|-----------------------------------------------------------------------------------------|
| keys (`token` 0)   | the message's key; without one its subject                                              |
| a token            | that token of its subject, counted from 1; empty if the subject has fewer               |
"""

from __future__ import annotations

from typing import Any

from penstock.hot import memory, places, unwrap
from penstock.hot.headers import HeaderFields
from penstock.hot.keymap import KeyMap
from penstock.hot.message_group import MessageGroup, TooLarge

_DOT = 0x2E


def split_by_key(
    group: MessageGroup, key_map: KeyMap, token: int, wanted: bytes, keyless: int = -1
) -> list[MessageGroup | None]:
    """Return the messages of each partition, by number; None if it has none, or its byte in `wanted` is 0.

    `keyless`: index in the result for messages without a key, in place of routing by subject; it may be one beyond the
    partitions, if `wanted` has a byte for it.
    """
    if len(wanted) not in (key_map.partitions, key_map.partitions + 1) or not -1 <= keyless < len(wanted):
        raise ValueError(f"{len(wanted)} marks for {key_map.partitions} partitions, {keyless} for what has no key")
    shares = _Shares(group, key_map, token, wanted, keyless)
    shares.part()
    for message in group.too_large:  # few: they exceed the size of a read
        shares.pass_on(message)
    return shares.found


class _Shares:
    """One group while it is routed."""

    __slots__ = ("_fields", "_group", "_has_envelopes", "_key_map", "_keyless", "_opened", "_scratch", "_token",
                 "_wanted", "found")  # fmt: skip

    _opened: Any  # None if `_has_envelopes` is False

    def __init__(self, group: MessageGroup, key_map: KeyMap, token: int, wanted: bytes, keyless: int) -> None:
        self.found: list[Any] = [None] * len(wanted)
        self._group = group
        self._key_map = key_map
        self._token = token
        self._wanted = wanted
        self._keyless = keyless
        self._fields = HeaderFields()
        self._scratch = bytearray()
        self._opened = unwrap.unwrap(group) if token == 0 else None
        self._has_envelopes = self._opened is not None

    def part(self) -> None:
        """Add each row to its partition."""
        group = self._group
        numbers = group.numbers
        for row in range(group.count):
            place = self._place_of(row)
            if self._wanted[place] == 0:
                continue
            out = self.found[place]
            if out is None:
                out = self.found[place] = MessageGroup(group.data)
            at = row * places.STRIDE
            out.add(
                numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3], numbers[at + 4], numbers[at + 5],
                numbers[at + 6], numbers[at + 7], -1, -1, -1, -1,
            )  # fmt: skip

    def _place_of(self, row: int) -> int:
        came = self._group
        at = row * places.STRIDE
        subject = came.numbers[at + places.SUBJECT]
        subject_end = came.numbers[at + places.SUBJECT + 1]
        if self._token > 0:
            return self._by_token(came.data, subject, subject_end)
        group = came
        if self._has_envelopes:
            group = self._opened.group  # the same rows; headers from an envelope lie behind its bytes
        headers = group.numbers[at + places.HEADERS]
        if headers >= 0:
            fields = self._fields
            fields.read(group.data, headers, group.numbers[at + places.HEADERS + 1])
            if fields.key >= 0:
                return self._key_map.place(group.data, fields.key, fields.key_end)
            if fields.encoded_key >= 0:
                return self._by_encoded(group.data, fields.encoded_key, fields.encoded_key_end)
        if self._has_envelopes and self._opened.key(row) >= 0:
            return self._key_map.place(group.data, self._opened.key(row), self._opened.key_end(row))
        if self._keyless >= 0:
            return self._keyless
        return self._key_map.place(came.data, subject, subject_end)

    def _by_token(self, text: bytes, begin: int, end: int) -> int:
        for _ in range(self._token - 1):
            dot = memory.find_byte(text, _DOT, begin, end)
            begin = end if dot < 0 else dot + 1
        dot = memory.find_byte(text, _DOT, begin, end)
        return self._key_map.place(text, begin, end if dot < 0 else dot)

    def _by_encoded(self, text: bytes, begin: int, end: int) -> int:
        scratch = self._scratch
        memory.cut(scratch, 0)
        if memory.append_base64(scratch, text, begin, end):
            return self._key_map.partition_of(bytes(scratch))
        return self._key_map.place(text, begin, end)

    def pass_on(self, message: TooLarge) -> None:
        """Add a message refused for its size to its partition, by what is known of it."""
        subject, block = message.subject, message.headers or b""
        fields = HeaderFields()
        fields.read(block, 0, len(block))
        if self._token > 0:
            place = self._by_token(subject, 0, len(subject))
        elif fields.key >= 0:
            place = self._key_map.place(block, fields.key, fields.key_end)
        elif fields.encoded_key >= 0:
            place = self._by_encoded(block, fields.encoded_key, fields.encoded_key_end)
        elif self._keyless >= 0:
            place = self._keyless
        else:
            place = self._key_map.place(subject, 0, len(subject))
        if self._wanted[place] == 0:
            return
        out = self.found[place]
        if out is None:
            out = self.found[place] = MessageGroup(self._group.data)
        out.too_large.append(message)
