"""What is held against a stream whose messages find their partitions by themselves: each rule can fail."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.base.config import StreamConfig
from penstock.sim.split import PARTITIONS, WAYS, Split

BY_LEADERS = [way for way in WAYS if way["partition_by"] != "group"]


def made(way: dict[str, Any]) -> Split:
    fields = {"name": "a", "subject": "a.g1.>", "partitions": PARTITIONS, **way}
    split = Split.of(msgspec.convert(fields, StreamConfig))
    assert split is not None
    return split


def sent(split: Split, *names: bytes, partition: int = 1, waits: bool = True) -> Split:
    """One after the other, what belongs together."""
    by = split.keys_of(partition)[0]
    for number, name in enumerate(names, 1):
        split.sends(name, by, number if waits else 0)
    return split


def test_where_publishers_choose_there_is_none() -> None:
    assert Split.of(StreamConfig(name="a", subject="a", partitions=PARTITIONS)) is None
    assert Split.of(StreamConfig(name="a", subject="a")) is None


@pytest.mark.parametrize("way", BY_LEADERS, ids=lambda way: way["partition_by"])
def test_every_partition_has_keys_of_its_own(way: dict[str, Any]) -> None:
    split = made(way)
    keys = [split.keys_of(partition) for partition in range(PARTITIONS)]
    assert [{split.partition_of(key) for key in some} for some in keys] == [{0}, {1}, {2}]
    assert len({key for some in keys for key in some}) == sum(map(len, keys))


@pytest.mark.parametrize("way", BY_LEADERS, ids=lambda way: way["partition_by"])
def test_a_message_in_another_partition(way: dict[str, Any]) -> None:
    split = sent(made(way), b"m")
    assert split.mistake(1, 0, b"m") == ""
    for partition in (0, 2):
        assert "so into partition 1" in split.mistake(partition, 0, b"m")


def test_a_message_in_two_partitions() -> None:
    split = sent(made({"partition_by": "group"}), b"m", b"n", waits=False)
    assert split.mistake(2, 7, b"m") == ""
    assert split.mistake(2, 7, b"m") == ""
    assert split.mistake(0, 7, b"n") == ""
    assert split.mistake(0, 8, b"m") == "it is in partition 2 too, at offset 7"


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0)])
def test_messages_that_lie_in_another_order_than_they_were_sent(first: int, second: int) -> None:
    names = [b"m", b"n"]
    split = sent(made(WAYS[0]), *names)
    assert split.mistake(1, 10 + first, names[second]) == ""
    text = "number 1 of b'.*' lies behind number 2" if first == 0 else "number 2 of b'.*' lies before number 1"
    mistake = split.mistake(1, 10 + second, names[first])
    assert re.match(text, mistake)


def test_messages_that_lie_as_they_were_sent_in_whatever_order_they_are_seen() -> None:
    names = [b"m%d" % number for number in range(4)]
    split = sent(made(WAYS[0]), *names)
    assert [split.mistake(1, 10 + number, names[number]) for number in (2, 0, 3, 1, 2)] == [""] * 5


def test_where_nobody_waits_there_is_no_order() -> None:
    split = sent(made(WAYS[0]), b"m", b"n", waits=False)
    assert split.mistake(1, 10, b"n") == ""
    assert split.mistake(1, 11, b"m") == ""


def test_what_was_cut_may_come_elsewhere_and_later() -> None:
    split = sent(made(WAYS[0]), b"m", b"n")
    assert split.mistake(1, 10, b"n") == ""
    split.cut(0, 0)
    assert split.mistake(1, 11, b"m") != ""
    split.cut(1, 10)
    assert split.mistake(1, 10, b"m") == ""
    assert split.mistake(1, 11, b"n") == ""
