"""Who leads, who is in sync and who is behind can be seen at a glance."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, StreamId, TimestampUs
from penstock.cli.stream import replicas, report
from penstock.cli.stream.streams import shown_config
from penstock.messages import (
    BrokerInfo,
    DamageInfo,
    FollowerInfo,
    NatsStatus,
    PartitionInfo,
    StatusResponse,
    StreamInfo,
)

ANNA, BERT, CARL = (BrokerId(number) for number in (1, 2, 3))


def partition(**more: Any) -> PartitionInfo:
    known: dict[str, Any] = {
        "leader": "h:2",
        "leader_id": BERT,
        "leader_epoch": LeaderEpoch(7),
        "log_start": Offset(0),
        "committed_end": Offset(10),
        "log_end": Offset(10),
        "replicas": (ANNA, BERT, CARL),
        "isr": (BERT, CARL),
        "followers": (FollowerInfo(broker_id=ANNA), FollowerInfo(broker_id=CARL, lag=0)),
    }
    return PartitionInfo(**{**known, **more})


def stream(*partitions: PartitionInfo) -> StreamInfo:
    return StreamInfo(stream_id=StreamId(4), config=StreamConfig(name="orders", subject="o.>"), partitions=partitions)


def cluster_state(**more: Any) -> StatusResponse:
    return StatusResponse(
        broker_id=ANNA,
        broker_version="1",
        cluster_id="c",
        address="h:1",
        started_us=TimestampUs(0),
        uptime_ms=1,
        nats=NatsStatus(state="connected"),
        **more,
    )


def shown(table: Table) -> list[list[str]]:
    """The words of each line."""
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    return [line.split() for line in out.getvalue().splitlines() if "─" not in line and line.strip()]


def test_a_partition_is_one_line() -> None:
    late = partition(
        partition=1, followers=(FollowerInfo(broker_id=ANNA, lag=1_200), FollowerInfo(broker_id=CARL, lag=0))
    )
    lines = shown(replicas.replica_table([stream(partition(), late)]))
    assert lines[1] == ["orders", "0", "2", "7", "1,2,3", "2,3", "1:", "unknown"]
    assert lines[2] == ["orders", "1", "2", "7", "1,2,3", "2,3", "1:", "1,200"]


def many(count: int, *bad: int) -> tuple[PartitionInfo, ...]:
    """So many partitions, all well but these."""
    followers = (FollowerInfo(broker_id=ANNA, lag=3), FollowerInfo(broker_id=CARL, lag=0))
    well = partition(isr=(ANNA, BERT, CARL), followers=followers)
    parts = [msgspec.structs.replace(well, partition=PartitionId(number)) for number in range(count)]
    for number in bad:
        parts[number] = msgspec.structs.replace(parts[number], isr=(BERT,), state_reason="why")
    return tuple(parts)


def test_of_many_partitions_those_are_shown_that_are_not_well() -> None:
    told = stream(*many(1024, 40, 700, 1023))
    lines = shown(replicas.replica_table([told]))[1:]
    assert len(lines) == replicas.SHOWN_MAX
    assert [line[1] for line in lines[:3]] == ["0", "1", "2"]
    assert [line[1] for line in lines[-3:]] == ["40", "700", "1023"]
    assert replicas.left_out([told]).startswith("… and 992 more partitions, none of them in trouble; ")
    assert replicas.left_out([stream(*many(1024, *range(100)))]).startswith("… and 992 more partitions, 68 of them in ")
    few = stream(*many(replicas.SHOWN_MAX, 3))
    assert len(shown(replicas.replica_table([few]))[1:]) == replicas.SHOWN_MAX
    assert replicas.left_out([few]) == ""


@pytest.mark.parametrize(
    "more",
    [
        {"isr": (BERT, CARL)},
        {"leader_id": None},
        {"state": "fenced"},
        {"committed_end": None},
        {"followers": ()},
        {"followers": (FollowerInfo(broker_id=CARL, lag=0, is_impeded=True),)},
        {"followers": (FollowerInfo(broker_id=CARL, lag=0, state="failed"),)},
        {"damage": (DamageInfo(file="f", position=0, expected="a", found="b"),)},
    ],
)
def test_what_is_wrong_with_a_partition_brings_it_to_the_top(more: dict[str, Any]) -> None:
    (well,) = many(1)
    assert replicas.is_well(well)
    assert not replicas.is_well(well, frozenset({BERT}))
    assert not replicas.is_well(msgspec.structs.replace(well, **more))


def test_a_partition_of_a_broker_that_is_alone_is_well() -> None:
    alone = partition(leader="", leader_id=None, replicas=(), isr=(), followers=())
    assert replicas.is_well(alone)


def test_a_stream_of_many_partitions_fits_a_terminal_or_two() -> None:
    told = report.stream_pairs(stream(*many(1024, 700)))
    assert told["partitions"] == "1,024: … and 1,008 more partitions, none of them in trouble; --json has them"
    assert "partition 700 in sync" in told
    assert "partition 14 in sync" in told
    assert "partition 15 in sync" not in told
    assert len(told) < 200
    assert "partitions" not in report.stream_pairs(stream(*many(16)))


def test_the_trouble_of_some_partitions_is_shown_and_counted_of_the_others() -> None:
    out = io.StringIO()
    report.print_troubles(Console(file=out, width=120), [stream(*many(20)), stream(*many(1024, *range(0, 1024, 2)))])
    text = out.getvalue()
    assert text.count(": why") == 10
    assert "and 502 more partitions in trouble (see --json)" in text


def test_what_only_the_leader_knows_is_not_made_up() -> None:
    assert replicas.behind_text(partition(followers=())) == "?"
    assert replicas.behind_text(partition(followers=(FollowerInfo(broker_id=CARL, lag=0),))) == "nobody"
    assert replicas.behind_text(partition(followers=(), replicas=(ANNA,))) == "-"


def test_a_follower_whose_disk_is_full_is_told_also_where_it_has_all() -> None:
    full = partition(followers=(FollowerInfo(broker_id=CARL, lag=0, is_impeded=True),))
    assert replicas.behind_text(full) == f"{CARL}: 0, its disk takes nothing"


def test_a_partition_that_nobody_leads_says_so() -> None:
    shown = report.stream_pairs(stream(partition(leader="", leader_id=None, eligible=(ANNA,))))
    assert shown["leader"] == "nobody"
    assert shown["may lead too"] == "1, until messages are acked again"


def test_who_leads_and_holds_a_stream_is_told_in_a_cluster_also_of_one_replica() -> None:
    alone = stream(partition(replicas=(BERT,), isr=(BERT,), followers=()))
    shown = report.stream_pairs(alone)
    assert (shown["leader"], shown["on brokers"], shown["in sync"]) == ("broker 2 at h:2", "2", "2")
    assert not {"leader", "on brokers", "in sync"} & report.stream_pairs(alone, is_clustered=False).keys()


def test_who_holds_a_stream_is_not_hidden_by_how_many_are_to() -> None:
    told = stream(partition())
    assert not report.stream_pairs(told).keys() & shown_config(told).keys()


def test_what_nobody_says_is_not_taken_for_nothing() -> None:
    unknown = partition(partition=1, log_start=None, committed_end=None, log_end=None, leader_id=None, leader="")
    told = report.stream_pairs(stream(partition(), unknown))
    assert (told["messages kept"], told["partition 1 offsets"], told["partition 1 size"]) == ("?", "?", "?")
    assert told["partition 0 offsets"] == "0 to 9"
    lines = shown(report.stream_table([stream(unknown)], width=100))
    assert lines[1][:4] == ["orders", "o.>", "?", "?"]


def test_leaders_that_do_not_answer_are_named() -> None:
    silent = partition(followers=(), leader_id=CARL)
    unknown = partition(partition=1, log_start=None, committed_end=None, log_end=None, replicas=(ANNA,), leader_id=ANNA)
    nobody = partition(partition=2, followers=(), leader_id=None)
    assert replicas.silent_leaders([stream(partition(), nobody)]) == ""
    assert replicas.silent_leaders([stream(partition(), silent)]).startswith("no answer from broker 3: ")
    assert replicas.silent_leaders([stream(silent), stream(unknown)]).startswith("no answer from brokers 1,3: ")


def test_brokers_are_told_with_their_state() -> None:
    state = cluster_state(
        metadata_leader=BERT,
        brokers=(
            BrokerInfo(broker_id=ANNA, address="h:1", broker_version="1", rack="north", is_live=False),
            BrokerInfo(broker_id=BERT, address="h:2", broker_version="1", rack=None, is_live=True),
            BrokerInfo(broker_id=BrokerId(3), address="h:3", broker_version="1", votes=False),
        ),
    )
    lines = shown(replicas.broker_table(state))
    assert lines[1:] == [
        ["1", "h:1", "north", "1", "away"],
        ["2", "h:2", "-", "1", "live,", "metadata", "leader"],
        ["3", "h:3", "-", "1", "live,", "no", "vote"],
    ]


def test_who_is_not_reached_is_not_called_live_where_nobody_leads_the_metadata() -> None:
    brokers = (
        BrokerInfo(broker_id=ANNA, address="h:1", broker_version="1", is_reachable=True),
        BrokerInfo(broker_id=BERT, address="h:2", broker_version="1", is_reachable=False),
        BrokerInfo(broker_id=CARL, address="h:3", broker_version="1", is_live=False, is_reachable=False),
    )
    lost = cluster_state(brokers=brokers)
    assert [line[4:] for line in shown(replicas.broker_table(lost))[1:]] == [
        ["live"],
        ["not", "reachable", "from", "here"],
        ["away"],
    ]
    led = cluster_state(brokers=brokers, metadata_leader=ANNA)
    assert shown(replicas.broker_table(led))[2][4:] == ["live,", "not", "reachable", "from", "here"]
    lines = shown(replicas.replica_table([stream(partition())], frozenset({BERT})))
    assert lines[1][:5] == ["orders", "0", "2,", "not", "reachable"]
