"""The verdict on a cluster, from what its brokers answer: a table of states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.base.config import Storage, StreamConfig
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, StreamId
from penstock.client.errors import StreamNotFound
from penstock.doctor.cluster_state import BrokerAnswer, ClusterState
from penstock.doctor.verdict import Health, Kind, judge, session_text
from penstock.doctor.waiting import check_names, what_is_missing
from penstock.messages import (
    BrokerInfo,
    DamageInfo,
    FollowerInfo,
    NatsStatus,
    PartitionInfo,
    PeerFailure,
    StreamInfo,
)
from tests.unit.doctor.test_brokers import broker, status

GIB = 1 << 30
REFUSED = "connection refused"


def answer(number: int, nats: NatsStatus | None = None, **more: Any) -> BrokerAnswer:
    space = {"disk_free_bytes": 50 * GIB, "disk_size_bytes": 100 * GIB}
    return BrokerAnswer(broker_id=number, address=f"b{number}:7422", status=status(number, nats, **space, **more))


def no_answer(number: int, failure: str = REFUSED) -> BrokerAnswer:
    return BrokerAnswer(broker_id=number, address=f"b{number}:7422", failure=failure)


def partition(number: int = 0, **more: Any) -> PartitionInfo:
    known: dict[str, Any] = {
        "partition": number,
        "leader_id": BrokerId(1),
        "leader_epoch": LeaderEpoch(1),
        "committed_end": Offset(0),
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "followers": (FollowerInfo(broker_id=BrokerId(2), lag=0), FollowerInfo(broker_id=BrokerId(3), lag=0)),
    }
    return PartitionInfo(**{**known, **more})


def orders(*parts: PartitionInfo, **config: Any) -> StreamInfo:
    known = {"name": "orders", "subject": "orders.>", "replicas": 3, "min_isr": 2}
    return StreamInfo(stream_id=StreamId(1), config=StreamConfig(**{**known, **config}), partitions=parts)


def seen_by_1(*brokers: BrokerInfo, **more: Any) -> dict[str, Any]:
    return {"brokers": brokers, **more}


def state(*answers: BrokerAnswer, stream: StreamInfo | None = None) -> ClusterState:
    return ClusterState(answers=answers, streams=(stream or orders(partition(0), partition(1)),))


WELL = state(answer(1), answer(2), answer(3))
AWAY = broker(3, is_live=False, is_reachable=False)
SILENT = broker(3, silent_ms=2_100, is_reachable=False)
NO_NATS = NatsStatus(state="connecting", last_error="nats://n:4222: Connection refused")
PAUSED = NatsStatus(state="connected", reading_paused=True)
LOST: dict[str, Any] = {
    "metadata_leader": None,
    "voters_reachable": 1,
    "metadata_heard_ms": 5_000,
    "peer_failures": tuple(
        PeerFailure(broker_id=BrokerId(one), address=f"b{one}:7422", reason="it closed the connection")
        for one in (2, 3)
    ),
}
SECRET = "it does not accept this broker's proof; is the cluster_secret_file the same?"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (WELL, "healthy"),
        (
            ClusterState(answers=(BrokerAnswer(address="b1:7422", failure=REFUSED),)),
            "down: no broker answers at b1:7422 (connection refused)",
        ),
        (
            state(answer(1, **seen_by_1(broker(1), broker(2), AWAY)), answer(2), no_answer(3)),
            "degraded: broker 3 is away (connection refused); all 2 partitions lack the replica on broker 3",
        ),
        (
            state(answer(1, **seen_by_1(broker(1), broker(2), SILENT)), answer(2), no_answer(3)),
            "degraded: broker 3 does not answer (connection refused), silent for 2.1 s; its session ends in 0.9 s; "
            "all 2 partitions lack the replica on broker 3",
        ),
        (
            state(answer(1), answer(2), no_answer(3)),
            "degraded: broker 3 is live, and cannot be reached from here (connection refused)",
        ),
        (
            state(answer(1, **LOST), no_answer(2), no_answer(3), stream=orders(partition(leader_id=None))),
            "down: no metadata leader: 1 of 3 voters reachable (broker 2: connection refused, broker 3: "
            "connection refused)",
        ),
        (
            state(
                answer(1, **{**LOST, "voters_reachable": 3, "peer_failures": ()}),
                no_answer(2, failure="no answer in time"),
                no_answer(3, failure="no answer in time"),
            ),
            "down: no metadata leader: 1 of 3 voters reachable (broker 2: no answer in time, broker 3: no answer in "
            "time)",
        ),
        (
            state(answer(1, NO_NATS), answer(2, NO_NATS), answer(3, NO_NATS)),
            "down: no broker is connected to NATS: nats://n:4222: Connection refused",
        ),
        (
            state(answer(1, NO_NATS), answer(2), answer(3), stream=orders(partition(state="starting"))),
            "degraded: broker 1 is not connected to NATS: nats://n:4222: Connection refused",
        ),
        (
            state(
                answer(1, brokers=(broker(1), broker(2)), voters=3),
                answer(2),
                answer(3, brokers=(), metadata_leader=None, waits_for="waiting for a majority", peer_failures=(
                    PeerFailure(broker_id=BrokerId(1), address="b1:7422", reason=SECRET),
                )),
            ),
            f"degraded: broker 3 at b3:7422 has not joined: waiting for a majority (broker 1: {SECRET})",
        ),
        (
            state(answer(1, brokers=(broker(1), broker(2)), voters=3), answer(2, brokers=(broker(1), broker(2)))),
            "degraded: 1 voter of 3 has not joined yet",
        ),
        (
            state(answer(1), answer(2), answer(3), BrokerAnswer(address="b9:7422", failure=REFUSED)),
            "degraded: no broker answers at b9:7422 (connection refused)",
        ),
        (
            state(answer(1, brokers=(broker(1), broker(2)), voters=3), answer(2), no_answer(3)),
            "degraded: broker 3 at b3:7422 has not joined: it does not answer: connection refused",
        ),
        (
            state(answer(1), answer(2, disk_is_full=True), answer(3)),
            "degraded: the disk of broker 2 is full (50.0 GiB of 100.0 GiB free): it stores nothing",
        ),
        (state(answer(1), answer(2, disk_answers=False), answer(3)), "degraded: the disk of broker 2 does not answer"),
        (
            state(answer(1, PAUSED, in_flight_bytes=GIB), answer(2), answer(3)),
            "degraded: broker 1 does not read from NATS: 1.0 GiB wait",
        ),
        (
            state(answer(1), answer(2), answer(3), stream=orders(partition(leader_id=None, state_reason="why"))),
            "down: partition orders has no leader: why",
        ),
        (
            state(answer(1), answer(2), answer(3), stream=orders(partition(), partition(1, leader_id=None))),
            "degraded: partition orders/1 has no leader",
        ),
        (
            state(answer(1), answer(2), answer(3), stream=orders(partition(state="impeded", state_reason="disk full"))),
            "down: partition orders is impeded: disk full",
        ),
        (
            state(answer(1), answer(2), answer(3), stream=orders(partition(isr=(1, 2)), partition(1, isr=(1, 2)))),
            "degraded: all 2 partitions lack the replica on broker 3",
        ),
        (
            state(answer(1), answer(2), answer(3), stream=orders(partition(isr=(1,)))),
            "down: partition orders acks nothing: fewer replicas in sync than min_isr; partition orders lacks the "
            "replica on broker 2; partition orders lacks the replica on broker 3",
        ),
        (
            state(
                answer(1),
                answer(2),
                answer(3),
                stream=orders(
                    partition(followers=(FollowerInfo(broker_id=BrokerId(2), lag=9, is_impeded=True),)), replicas=3
                ),
            ),
            "degraded: partition orders lacks the replica on broker 2 (impeded: its disk takes nothing)",
        ),
        (
            state(answer(1), answer(2), answer(3), stream=orders(partition(), observers=1)),
            "degraded: 1 partition (orders) lacks an observer",
        ),
        (
            state(
                answer(1), answer(2), answer(3), stream=orders(partition(observers=(BrokerId(4),)), observers=1)
            ),
            "degraded: 1 partition (orders) lacks an observer",
        ),
        (
            state(
                answer(1),
                answer(2),
                answer(3),
                stream=orders(partition(damage=(DamageInfo(file="f", position=1, expected="a", found="b"),))),
            ),
            "degraded: partition orders has corruption",
        ),
        (
            msgspec.structs.replace(WELL, streams=(), streams_failure="no answer in time"),
            "degraded: the streams are not known: no answer in time",
        ),
    ],
)  # fmt: skip
def test_each_state_is_told_as_what_it_is(seen: ClusterState, said: str) -> None:
    assert str(judge(seen)) == said


def test_what_takes_all_messages_away_comes_first_and_the_line_has_three_reasons() -> None:
    brokers = (broker(1), broker(2, is_live=False), AWAY)
    seen = state(answer(1, NO_NATS, brokers=brokers), no_answer(2), no_answer(3), stream=orders(partition(isr=(1, 2))))
    verdict = judge(seen)
    assert verdict.health is Health.DOWN
    assert [one.kind for one in verdict.reasons] == [
        Kind.NATS_AWAY, Kind.BROKER_AWAY, Kind.BROKER_AWAY, Kind.REPLICAS_MISSING, Kind.REPLICAS_MISSING
    ]  # fmt: skip
    assert str(verdict).endswith("; broker 3 is away (connection refused); and 2 more")
    assert len(verdict.left_out) == 2


def test_the_answer_that_counts_is_the_metadata_leaders() -> None:
    old = answer(3, metadata_leader=None, metadata_heard_ms=90_000, brokers=(broker(3),))
    seen = state(answer(1), answer(2), old)
    assert seen.best is not None
    assert seen.best.broker_id == 1


def test_only_named_streams_count() -> None:
    bad = state(answer(1), answer(2), answer(3), stream=orders(partition(isr=(1, 2))))
    assert judge(bad).health is Health.DEGRADED
    assert judge(bad, ["bills"]).health is Health.HEALTHY


def test_a_cluster_is_ready_without_all_replicas_and_in_sync_with_them() -> None:
    late = state(answer(1), answer(2), answer(3), stream=orders(partition(isr=(1, 2))))
    assert what_is_missing(late) == []
    assert what_is_missing(late, in_sync=True) == ["partition orders lacks the replica on broker 3"]
    assert what_is_missing(late, in_sync=True, streams=["bills"]) == ["there is no stream bills"]
    assert what_is_missing(WELL, in_sync=True, streams=["orders"]) == []


def test_rates_are_what_was_counted_in_the_time_between() -> None:
    def at(uptime_ms: int, **counters: int) -> ClusterState:
        return state(answer(1, uptime_ms=uptime_ms, counters=counters), answer(2, uptime_ms=uptime_ms))

    rates = at(4_000, messages_in=300, bytes_in=4_000, fetched_bytes=50).rates_since(at(2_000, messages_in=100))
    assert (rates[1].messages_in, rates[1].bytes_in, rates[1].bytes_out) == (100, 2_000, 25)
    restarted = state(answer(1, uptime_ms=10, started_us=99))
    assert restarted.rates_since(at(2_000)) == {}


def test_a_live_broker_is_silent_once_it_has_missed_a_heartbeat() -> None:
    assert session_text(broker(1, silent_ms=600)) == ""
    assert session_text(broker(1, silent_ms=2_100)) == "silent for 2.1 s"
    assert session_text(broker(1, silent_ms=2_100, is_live=False)) == ""


def test_a_broker_alone_is_judged_by_itself() -> None:
    alone = msgspec.structs.replace(
        status(1), voters=1, brokers=(broker(1),), metadata_leader=BrokerId(1), voters_reachable=1
    )
    seen = ClusterState(answers=(BrokerAnswer(broker_id=1, address="b1:7422", status=alone),))
    assert str(judge(seen)) == "healthy"
    joining = msgspec.structs.replace(
        alone, voters=0, brokers=(), metadata_leader=None, waits_for="waiting to be added"
    )
    seen = ClusterState(answers=(BrokerAnswer(broker_id=1, address="b1:7422", status=joining),))
    assert str(judge(seen)) == "down: broker 1 has joined no cluster yet: waiting to be added"


IMPEDED, FEW = partition(state="impeded", state_reason="disk full"), partition(isr=(BrokerId(1),))
FULL, HANGING = {"disk_is_full": True}, {"disk_answers": False}


@pytest.mark.parametrize(
    ("of_all", "parts", "expected"),
    [
        (FULL, (IMPEDED, IMPEDED), Health.DOWN),
        (HANGING, (partition(), partition(1)), Health.DOWN),
        ({}, (FEW, FEW), Health.DOWN),
        ({}, (partition(leader_id=None), partition(1, state="failed")), Health.DOWN),
        ({}, (FEW, IMPEDED, partition(2)), Health.DEGRADED),
        ({}, (partition(state="read_only"), partition(1, state="starting")), Health.DEGRADED),
    ],
)
def test_it_is_down_where_no_partition_can_store(of_all, parts, expected) -> None:
    verdict = judge(state(*(answer(one, **of_all) for one in (1, 2, 3)), stream=orders(*parts)))
    assert verdict.health is expected
    assert verdict.reasons[0].health is expected


def test_a_stream_in_memory_needs_no_disk() -> None:
    statuses = [answer(one, **FULL) for one in (1, 2, 3)]
    assert judge(state(*statuses, stream=orders(partition()))).health is Health.DOWN
    assert judge(state(*statuses, stream=orders(partition(), storage=Storage.MEMORY))).health is Health.DEGRADED


def test_the_clusters_own_streams_keep_nothing_up() -> None:
    seen = state(answer(1), answer(2), answer(3), stream=orders(FEW))
    own = orders(partition(), name="__offsets", subject="$PENSTOCK.offsets")
    assert own.config.is_internal
    assert judge(msgspec.structs.replace(seen, streams=(*seen.streams, own))).health is Health.DOWN


def test_a_stream_that_the_metadata_leader_does_not_know_is_not_waited_for() -> None:
    led = ClusterState(answers=(answer(1, **seen_by_1(metadata_leader=BrokerId(1))),), streams=(orders(partition()),))
    check_names(led, ["orders"])
    with pytest.raises(StreamNotFound, match=r"there is no stream 'ordres'; did you mean orders\?"):
        check_names(led, ["orders", "ordres"])
    behind = ClusterState(
        answers=(answer(1, **seen_by_1(metadata_leader=BrokerId(2))),), streams=(orders(partition()),)
    )
    check_names(behind, ["new"])
