"""Consumer groups and archives that a stream with retention `interest` names as its consumers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.errors import RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.groups.rows import OFFSETS_STREAM
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    ReportArchivedRequest,
    ReportArchivedResponse,
)
from tests.unit.jetstream.readers.gateways import ReaderBroker


def started(**config: Any) -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s", subject="s.*", **{"retention": "interest", **config})
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    return broker


def publish(broker: ReaderBroker, count: int) -> None:
    for number in range(count):
        broker.publish("s.a", b"%d" % number)
    settle(broker)


def settle(broker: ReaderBroker) -> None:
    for _ in range(25):
        broker.tick(100)


def commit(broker: ReaderBroker, group: str, offset: int) -> None:
    image = broker.node.image
    offsets = image.by_name(OFFSETS_STREAM)
    number = partition_of(group.encode(), len(offsets.partitions))
    to = OffsetCommit(stream_id=image.by_name("s").stream_id, partition=PartitionId(0), offset=Offset(offset))
    request = CommitOffsetsRequest(
        stream_id=offsets.stream_id, partition=PartitionId(number), group=group, offsets=(to,)
    )
    broker.request(request)  # its log is read meanwhile
    settle(broker)
    broker.ask(request, CommitOffsetsResponse)
    settle(broker)


def alter(broker: ReaderBroker, *names: str) -> None:
    broker.ask(AlterStreamRequest(name="s", changes={"interest_of": names}), AlterStreamResponse)
    settle(broker)


def held(broker: ReaderBroker) -> tuple[int, int]:
    """The messages of the stream, and the first sequence."""
    state: dict[str, Any] = broker.api("STREAM.INFO.s")["state"]
    return state["messages"], state["first_seq"]


def test_a_message_stays_until_the_group_has_committed_an_offset_behind_it() -> None:
    broker = started(interest_of=("group:billing",))
    publish(broker, 5)
    assert held(broker) == (5, 1), "a group that has committed nothing keeps all"
    commit(broker, "billing", 3)
    assert held(broker) == (2, 4)
    commit(broker, "other", 5)
    assert held(broker) == (2, 4)
    commit(broker, "billing", 5)
    assert held(broker)[0] == 0


def test_groups_archives_and_consumers_with_acks_count_together() -> None:
    broker = started(interest_of=("group:billing", "archive:lake"))
    broker.durable("s", "d")
    publish(broker, 4)
    first, *_ = broker.pulled("s", "d", 4)
    commit(broker, "billing", 4)
    settle(broker)
    assert held(broker)[0] == 4, "the archive has nothing"
    stream_id = broker.node.image.by_name("s").stream_id
    report = ReportArchivedRequest(stream_id=stream_id, partition=PartitionId(0), archive="lake", end_offset=Offset(2))
    broker.ask(report, ReportArchivedResponse)
    settle(broker)
    assert held(broker)[0] == 4, "all are in hand"
    broker.ack(first)
    settle(broker)
    assert held(broker) == (3, 2)


def test_a_name_that_is_taken_away_takes_no_message_with_it() -> None:
    broker = started(interest_of=("group:billing", "group:slow"))
    publish(broker, 3)
    commit(broker, "billing", 2)
    assert held(broker)[0] == 3
    alter(broker, "group:billing")
    assert held(broker) == (1, 3)
    alter(broker)
    assert held(broker) == (1, 3), "no consumer is left, and none has passed it"


def test_a_named_group_counts_again_after_a_restart() -> None:
    broker = started(interest_of=("group:billing",))
    publish(broker, 3)
    commit(broker, "billing", 1)
    broker = broker.crash().start()
    broker.tick(1_000)
    publish(broker, 1)
    assert held(broker) == (3, 2)
    commit(broker, "billing", 4)
    assert held(broker)[0] == 0


@pytest.mark.parametrize(
    ("config", "mistake"),
    [
        ({"retention": "limits"}, "it needs retention 'interest'"),
        ({"retention": "workqueue"}, "it needs retention 'interest'"),
        ({"interest_of": ("group:a b",)}, "'group:a b' is neither"),
        ({"interest_of": ("billing",)}, "'billing' is neither"),
        ({"interest_of": ("group:a", "group:a")}, "a name is given twice"),
        ({"interest_of": tuple(f"group:g{number}" for number in range(9))}, "9 are given; the limit is 8"),
    ],
)
def test_what_cannot_be_named_is_refused(config: dict[str, Any], mistake: str) -> None:
    broker = ReaderBroker().start()
    caller = broker.create("s", subject="s.*", **{"retention": "interest", "interest_of": ("group:a",), **config})
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError)
    assert mistake in response.message


def test_a_stream_whose_consumers_are_gone_may_be_given_groups_as_consumers() -> None:
    broker = started(retention="limits")
    broker.durable("s", "d")
    broker.api("CONSUMER.DELETE.s.d")
    broker.tick(120_000)  # the stream has no reader any more
    changes = {"retention": "interest", "interest_of": ("group:billing",)}
    broker.ask(AlterStreamRequest(name="s", changes=changes), AlterStreamResponse)
    publish(broker, 3)
    assert held(broker)[0] == 3
    commit(broker, "billing", 2)
    assert held(broker) == (1, 3)


def test_a_stream_whose_consumers_are_gone_may_be_given_interest() -> None:
    broker = started(retention="limits")
    broker.durable("s", "d")
    broker.api("CONSUMER.DELETE.s.d")
    broker.tick(120_000)  # the stream has no reader any more
    broker.ask(AlterStreamRequest(name="s", changes={"retention": "interest"}), AlterStreamResponse)
    publish(broker, 3)
    assert held(broker)[0] == 0, "no consumer wants them"
    broker.durable("s", "e")
    publish(broker, 2)
    assert held(broker)[0] == 2
