"""Names of consumer groups, and the subject of a stored message."""

from __future__ import annotations

from penstock.base.config import StreamConfig
from penstock.client.values import Message
from penstock.frugal.scopes.subscriber import group_name, published_subject
from penstock.groups.rows import group_mistake
from penstock.messages import StreamInfo


def test_a_group_is_named_after_what_it_reads() -> None:
    assert group_name("billing", "frugal.shop.*.Orders.Placed") == "billing.shop._.Orders.Placed"
    assert group_name("billing", "frugal.shop.eu.Orders.Placed") == "billing.shop.eu.Orders.Placed"


def test_what_is_read_is_never_another_ones() -> None:
    subjects = ["frugal.*.S.O", "frugal._.S.O", "frugal.ü.S.O", "frugal.x%.S.O", "frugal." + "y" * 200, "frugal.*.*.O"]
    names = [group_name("g", subject) for subject in subjects]
    assert len(set(names)) == len(names)
    assert all(group_mistake(name) is None for name in names)
    assert group_name("g", subjects[2]) == names[2]  # the same in each process


def info(**config: object) -> StreamInfo:
    return StreamInfo(stream_id=1, config=StreamConfig(name="s", subject="a.b", **config), partitions=(), created_us=0)  # type: ignore[arg-type]


def message(subject: str, partition: int = 0) -> Message:
    return Message(0, 0, subject, None, b"", None, partition)


def test_the_number_of_a_partition_is_no_part_of_the_subject() -> None:
    numbered = info(partitions=3)
    assert published_subject(numbered, message("a.b")) == "a.b"
    assert published_subject(numbered, message("a.b.2", 2)) == "a.b"
    assert published_subject(numbered, message("a.b.1", 2)) == "a.b.1"
    assert published_subject(info(partitions=3, partition_by="key"), message("a.b.2", 2)) == "a.b.2"
    assert published_subject(info(), message("penstock.dead.x.a.b")) == "a.b"
