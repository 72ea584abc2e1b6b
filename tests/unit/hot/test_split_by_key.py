"""Messages are parted by their keys: each goes to one partition, and what is not wanted is left out."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.envelope_format import enveloped
from penstock.client.values import Envelope
from penstock.hot.keymap import KeyMap
from penstock.hot.message_group import MessageGroup, TooLarge
from penstock.hot.split_by_key import split_by_key
from tests import hot_modes

TOKENS = st.sampled_from(["a", "b", "eu", "7"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(lambda tokens: ".".join(tokens).encode())
KEYS = st.none() | st.sampled_from([b"", b"k", b"customer-7", b"\xff\x00"])
MESSAGES = st.lists(st.tuples(SUBJECTS, KEYS, st.sampled_from(["text", "base64", "bad"])), max_size=12)


def block(key: bytes | None, how: str) -> bytes | None:
    """A header block with that key."""
    if key is None:
        return None
    if how == "bad":
        return b"NATS/1.0\r\nPenstock-Key-Base64: a=%b\r\n\r\n" % base64.b64encode(key)
    if how == "text" and b"\xff" not in key:
        return b"NATS/1.0\r\nPenstock-Key: %b\r\n\r\n" % key
    return b"NATS/1.0\r\nPenstock-Key-Base64: %b\r\n\r\n" % base64.b64encode(key)


def key_of(subject: bytes, key: bytes | None, how: str, token: int) -> bytes:
    """What decides, as the module says it."""
    if token:
        return (subject.split(b".") + [b""] * token)[token - 1]
    if key is None or (key == b"" and how != "bad"):
        return subject
    return b"a=" + base64.b64encode(key) if how == "bad" else key


def group_of(messages: list[tuple[bytes, bytes | None, str]]) -> MessageGroup:
    """One read, each message with its number for a value."""
    return MessageGroup.of(
        [subject for subject, _, _ in messages],
        [b"%d" % number for number in range(len(messages))],
        headers=[block(key, how) for _, key, how in messages],
        replies=[b"_INBOX.%d" % number if number % 2 else None for number in range(len(messages))],
    )


def rows(group: MessageGroup | None) -> list[tuple[Any, ...]]:
    """All there is of its rows."""
    if group is None:
        return []
    parts = (group.subject, group.reply, group.headers, group.value, group.key, group.early)
    return [tuple(part(row) for part in parts) for row in range(len(group))]


@given(MESSAGES, st.integers(0, 4), st.integers(1, 5), st.integers(0, 31))
def test_each_message_is_one_partitions_and_keeps_its_order(
    messages: list[tuple[bytes, bytes | None, str]], token: int, partitions: int, mask: int
) -> None:
    key_map = KeyMap((partitions,))
    wanted = bytes(mask >> number & 1 for number in range(partitions))
    group = group_of(messages)
    every = rows(group)
    found = split_by_key(group, key_map, token, wanted)
    assert len(found) == partitions
    for number in range(partitions):
        own = [
            every[row]
            for row, (subject, key, how) in enumerate(messages)
            if wanted[number] and key_map.partition_of(key_of(subject, key, how, token)) == number
        ]
        assert rows(found[number]) == own
        assert (found[number] is None) == (not own)


def test_the_key_of_an_envelope_counts_behind_that_of_a_header() -> None:
    key_map = KeyMap((64,))
    plain = enveloped(b"v", b"inner", {}, "all", Envelope())
    group = MessageGroup.of([b"a", b"a"], [plain, plain], headers=[None, block(b"outer", "text")])
    found = split_by_key(group, key_map, 0, b"\1" * 64)
    places = [number for number in range(64) for _ in rows(found[number])]
    assert sorted(places) == sorted([key_map.partition_of(b"inner"), key_map.partition_of(b"outer")])
    assert all(rows(one)[0][3] == plain for one in found if one is not None)  # it is opened by whoever stores it


def test_what_is_too_large_to_be_looked_at_is_refused_by_one_of_them() -> None:
    key_map = KeyMap((8,))
    group = MessageGroup(b"")
    large = [TooLarge(b"a.b", None, block(key, "text"), 1 << 30) for key in (b"k", b"l", None)]
    group.too_large.extend(large)
    for token, keys in ((0, (b"k", b"l", b"a.b")), (2, (b"b", b"b", b"b"))):
        found = split_by_key(group, key_map, token, b"\1" * 8)
        for one, key in zip(large, keys, strict=True):
            holders = [number for number in range(8) if (there := found[number]) is not None and one in there.too_large]
            assert holders == [key_map.partition_of(key)]
    assert split_by_key(group, key_map, 0, bytes(8)) == [None] * 8


def test_there_is_a_mark_for_each_partition() -> None:
    with pytest.raises(ValueError, match="marks"):
        split_by_key(group_of([]), KeyMap((3,)), 0, b"\1")


@hot_modes.needs_compiled
@given(MESSAGES, st.integers(0, 3))
def test_both_modes_agree(messages: list[tuple[bytes, bytes | None, str]], token: int) -> None:
    def found(modules: Any) -> list[list[tuple[Any, ...]]]:
        subjects = [subject for subject, _, _ in messages]
        headers = [block(key, how) for _, key, how in messages]
        group = modules("message_group").MessageGroup.of(subjects, [b"v"] * len(messages), headers=headers)
        return [
            rows(one)
            for one in modules("split_by_key").split_by_key(group, modules("keymap").KeyMap((3, 5)), token, b"\1" * 5)
        ]

    assert found(hot_modes.running) == found(hot_modes.plain)
