"""Who leads, who is in sync and who is behind can be seen at a glance."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, StreamId, TimestampUs
from penstock.cli import replicas, report
from penstock.cli.streams import shown_config
from penstock.messages import BrokerInfo, FollowerInfo, NatsStatus, PartitionInfo, StatusResponse, StreamInfo

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
    assert lines[1] == ["orders", "0", "2", "7", "1,2,3", "2,3", "1:", "not", "heard", "of"]
    assert lines[2] == ["orders", "1", "2", "7", "1,2,3", "2,3", "1:", "1,200"]


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
    assert (told["offsets kept"], told["partition 1 offsets"], told["partition 1 size"]) == ("?", "?", "?")
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
