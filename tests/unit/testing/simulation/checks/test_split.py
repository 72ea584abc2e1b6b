"""What is held against a stream whose messages find their partitions by themselves: each rule can fail."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from penstock.base.config import StreamConfig
from penstock.testing.simulation.checks.split import SplitModel
from tests.sim.models.streams import PARTITIONS, WAYS, grown

BY_LEADERS = [way for way in WAYS if way["partition_by"] != "group"]


def config_of(way: dict[str, Any]) -> StreamConfig:
    return msgspec.convert({"name": "a", "subject": "a.g1.>", "partitions": PARTITIONS, **way}, StreamConfig)


def made(way: dict[str, Any]) -> SplitModel:
    split = SplitModel.of(config_of(way))
    assert split is not None
    return split


def sent(split: SplitModel, *names: bytes, partition: int = 1, waits: bool = True) -> SplitModel:
    """One after the other, what belongs together."""
    by = split.keys_of(partition)[0]
    for number, name in enumerate(names, 1):
        split.sends(name, by, number if waits else 0)
    return split


def test_where_publishers_choose_there_is_none() -> None:
    assert SplitModel.of(StreamConfig(name="a", subject="a", partitions=PARTITIONS)) is None
    assert SplitModel.of(StreamConfig(name="a", subject="a")) is None


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


@pytest.mark.parametrize("way", BY_LEADERS, ids=lambda way: way["partition_by"])
def test_where_partitions_were_added_a_key_may_have_moved_and_its_order_holds(way: dict[str, Any]) -> None:
    config = config_of(way)
    split = SplitModel(config)
    split.grows(grown(config, 2))
    moved = next(
        by
        for number in (3, 4)
        for by in split.keys_of(number)
        if len(split.partitions_of(by)) == 2 and min(split.partitions_of(by)) < 3
    )
    was, now = sorted(split.partitions_of(moved))
    for number in (1, 2, 3, 4):
        split.sends(b"m%d" % number, moved, number)
    assert not split.mistake(was, 8, b"m1")
    assert not split.mistake(now, 0, b"m3")
    assert not split.mistake(was, 9, b"m2")
    assert "lies before number 3" in split.mistake(was, 10, b"m4")
    assert "it is in partition" in split.mistake(now, 5, b"m1")
    stays = next(by for by in split.keys_of(0) if len(split.partitions_of(by)) == 1)
    split.sends(b"s", stays)
    assert "so into partition 0" in split.mistake(1, 20, b"s")
    assert all(split.keys_of(number) for number in range(5))
