"""Which subject a message goes to, from what is known of the streams on it."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.client.streams.routing import Routes
from penstock.messages import PartitionInfo, StreamInfo


def info(partitions: int, name: str = "orders", subject: str = "orders") -> StreamInfo:
    """A stream of so many partitions."""
    parts = (
        PartitionInfo(
            partition=PartitionId(number),
            leader_epoch=LeaderEpoch(1),
            log_start=Offset(0),
            committed_end=Offset(0),
            log_end=Offset(0),
        )
        for number in range(partitions)
    )
    config = StreamConfig(name=name, subject=subject, partitions=partitions)
    return StreamInfo(stream_id=StreamId(1), config=config, partitions=tuple(parts))


def knowing(*infos: StreamInfo) -> Routes:
    """What is known of `orders` at 0 s."""
    routes = Routes()
    routes.learn("orders", infos, 0.0)
    return routes


# XXH64 with seed 0 of "", "a", "abc" is 0xEF46DB3751D8E999, 0xD24EC4F1A98C6E5B, 0x44BC2CF5AD770999.
@pytest.mark.parametrize(
    ("key", "hashed"), [("", 0xEF46DB3751D8E999), ("a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999)]
)
@pytest.mark.parametrize("partitions", [2, 3, 7, 1024])
def test_a_key_goes_where_its_hash_says(key: bytes | str, hashed: int, partitions: int) -> None:
    number = hashed % partitions
    wanted = f"orders.{number}" if number else "orders"
    assert knowing(info(partitions)).subject_for("orders", key) == wanted


def test_a_subject_that_another_stream_has_among_several_is_not_parted() -> None:
    """Its messages on `orders.1` would miss that stream."""
    one = info(1, "mixed", "prices")
    mixed = msgspec.structs.replace(one, config=msgspec.structs.replace(one.config, more_subjects=("orders",)))
    assert knowing(info(3), mixed).subject_for("orders", "key") == "orders"


def test_without_a_key_all_have_their_turn() -> None:
    routes = knowing(info(3))
    assert [routes.subject_for("orders", None) for _ in range(4)] == ["orders", "orders.1", "orders.2", "orders"]


def test_no_stream_on_the_subject_misses_a_message() -> None:
    for other in (info(1, "copy"), info(2, "copy")):
        assert knowing(info(3), other).subject_for("orders", "a") == "orders"
    assert knowing(info(3), info(3, "copy")).subject_for("orders", "a") != "orders"
    assert knowing(info(3), info(1, "all", "orders.>")).subject_for("orders", "a") != "orders"


def test_who_is_asked_about_and_when() -> None:
    routes = Routes()
    assert routes.must_ask("orders", "a", 0.0)
    assert not routes.must_ask("orders", None, 0.0)
    routes.note(info(1))
    assert not routes.must_ask("orders", None, 0.0)
    routes.note(info(3))
    assert routes.must_ask("orders", None, 0.0)
    routes.learn("orders", [info(3)], 0.0)
    assert not routes.must_ask("orders", "a", limits.PUBLISH_ROUTE_S - 1)
    assert routes.must_ask("orders", None, limits.PUBLISH_ROUTE_S)


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUBLISH_ROUTES_MAX", 2)
    routes = Routes()
    for subject in ("a", "b", "c"):
        routes.learn(subject, (), 0.0)
    assert [routes.must_ask(subject, "key", 0.0) for subject in ("a", "b", "c")] == [True, False, False]
