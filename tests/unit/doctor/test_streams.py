"""What is thought of streams, from what brokers say of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.base.ids import BrokerId, LeaderEpoch, StreamId, TimestampUs
from penstock.base.units import utc_text
from penstock.doctor.findings import Finding, Result
from penstock.doctor.streams import judge_streams
from penstock.messages import (
    BrokerInfo,
    DamageInfo,
    FollowerInfo,
    GapInfo,
    PartitionInfo,
    StreamInfo,
)
from penstock.messages.streams import ReportedConfig

NOW_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000


def stream(config: dict[str, Any] | None = None, **part: Any) -> StreamInfo:
    known = {"leader_epoch": LeaderEpoch(1), "leader_id": BrokerId(1), "leader": "b1:7422"}
    copies = {"replicas": (1, 2, 3), "isr": (1, 2, 3)}
    made = ReportedConfig(**{"name": "orders", "subject": "orders.>", "min_isr": 2, **(config or {})})
    return StreamInfo(stream_id=StreamId(1), config=made, partitions=(PartitionInfo(**{**known, **copies, **part}),))


def judged(info: StreamInfo, check: str, brokers: int = 3, racks: tuple[str | None, ...] = ()) -> list[Finding]:
    known = [
        BrokerInfo(broker_id=BrokerId(one), address=f"b{one}:7422", rack=racks[one - 1] if racks else None)
        for one in range(1, brokers + 1)
    ]
    return [one for one in judge_streams([info], known, NOW_US) if one.check == check]


def test_a_stream_that_is_well_is_well() -> None:
    found = list(judge_streams([stream()], [], NOW_US))
    assert [one.check for one in found] == ["partitions", "replicas", "damage", "gaps", "message times", "configs"]
    assert {one.result for one in found} == {Result.OK}


@pytest.mark.parametrize(("intake", "said"), [("paused", "paused"), ("read_only", "read-only")])
def test_a_stream_that_takes_nothing_is_not_said_to_take_messages(intake: str, said: str) -> None:
    (one,) = judged(msgspec.structs.replace(stream(), intake=intake), "partitions")
    text = f"all 1 are led, and take messages but where that was stopped: orders is {said}"
    assert (one.result, one.found) == (Result.OK, text)


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ({"leader_id": None, "state": "no_leader", "state_reason": "why"}, "orders has no leader: why"),
        ({"state": "read_only", "state_reason": "why"}, "orders is read only: why"),
        ({"state": "something new", "state_reason": "why"}, "orders is something new: why"),
    ],
)
def test_a_partition_that_does_not_take_messages_has_failed(part: dict[str, Any], found: str) -> None:
    told = judged(stream(**part), "partitions")
    assert [(one.result, one.found) for one in told] == [(Result.FAIL, found)]


@pytest.mark.parametrize(
    ("isr", "result", "found"),
    [
        ((1, 2), Result.WARN, "orders has 2 of 3 copies in sync"),
        ((1,), Result.FAIL, "orders takes nothing: 1 in sync, and an ack needs 2"),
    ],
)
def test_copies_that_are_not_in_sync(isr: tuple[int, ...], result: Result, found: str) -> None:
    assert [(one.result, one.found) for one in judged(stream(isr=isr), "replicas")] == [(result, found)]


def test_a_follower_whose_disk_takes_nothing_has_failed() -> None:
    impeded = FollowerInfo(broker_id=BrokerId(2), lag=5, is_impeded=True)
    assert judged(stream(followers=(impeded,)), "replicas")[0].result is Result.FAIL


def test_a_copy_that_says_why_it_is_not_in_sync_is_told_with_that() -> None:
    away = FollowerInfo(broker_id=BrokerId(3), lag=5, is_impeded=True, state="read_only", state_reason="why")
    told, copies = judged(stream(isr=(1, 2), followers=(away,)), "replicas")
    assert copies.found == "orders has 2 of 3 copies in sync"
    assert (told.result, told.found) == (Result.FAIL, "the copy of orders on broker 3 is read only: why")
    assert told.advice == "docs/how-to/repair.md"


def test_damage_is_told() -> None:
    damage = DamageInfo(file="0.arrows", position=7, expected="CRC-32C 1", found="2")
    told = judged(stream(damage=(damage,)), "damage")[0].found
    assert told == "orders: 0.arrows at byte 7: expected CRC-32C 1, found 2"


@pytest.mark.parametrize(
    ("start_us", "end_us", "result", "found"),
    [
        (NOW_US - 2 * HOUR_US, NOW_US - HOUR_US, Result.WARN, "orders: no broker subscribed for 1h, 1h ago (why)"),
        (NOW_US - 2 * HOUR_US, None, Result.FAIL, "orders: no broker subscribes, since 2h (why)"),
        (NOW_US - 90 * HOUR_US, NOW_US - 80 * HOUR_US, Result.OK, "none in the last 24 hours"),
    ],
)
def test_gaps_of_today_are_told(start_us: int, end_us: int | None, result: Result, found: str) -> None:
    end = None if end_us is None else TimestampUs(end_us)
    gap = GapInfo(start_us=TimestampUs(start_us), end_us=end, reason="why")
    assert [(one.result, one.found) for one in judged(stream(gaps=(gap,)), "gaps")] == [(result, found)]


def gap_of(start_us: int, end_us: int, reason: str) -> GapInfo:
    return GapInfo(start_us=TimestampUs(NOW_US - start_us), end_us=TimestampUs(NOW_US - end_us), reason=reason)


def test_one_cause_is_told_once() -> None:
    gaps = [gap_of(9_000_000 + number, 6_000_000 - number, "nobody led it") for number in range(3)]
    killed = [stream({"name": f"s{number}"}, gaps=(gap,)) for number, gap in enumerate(gaps)]
    found = [one.found for one in judge_streams(killed, [], NOW_US) if one.check == "gaps"]
    assert found == ["s2, s1, s0: no broker subscribed for 3s, 5s ago (nobody led it)"]


def test_a_planned_restart_is_one_line() -> None:
    alone = stream({"name": "alone"}, gaps=(gap_of(9_000_000, 4_000_000, "the broker was stopped"),))
    others = [
        stream({"name": f"s{number}"}, gaps=(gap_of(8_900_000, 8_880_000, "the leader changed"),))
        for number in range(2)
    ]
    found = [one.found for one in judge_streams([alone, *others], [], NOW_US) if one.check == "gaps"]
    assert found == [
        "a planned restart: alone: no broker subscribed for 5s, 4s ago (the broker was stopped); "
        "s0, s1: for 20ms (the leader changed)"
    ]
    crashed = stream({"name": "alone"}, gaps=(gap_of(9_000_000, 4_000_000, "the broker was killed"),))
    (found_,) = [one.found for one in judge_streams([crashed], [], NOW_US) if one.check == "gaps"]
    assert "planned" not in found_


def test_without_a_metadata_leader_leaders_and_replicas_are_one_line_each() -> None:
    some = [stream({"name": f"s{number}"}, state="no_leader") for number in range(5)]
    found = list(judge_streams(some, [], NOW_US, is_led=False))
    assert [(one.check, one.result) for one in found[:3]] == [
        ("partitions", Result.FAIL),
        ("replicas", Result.UNKNOWN),
        ("damage", Result.OK),
    ]
    (gaps,) = [one for one in found if one.check == "gaps"]
    assert (gaps.result, gaps.found) == (
        Result.UNKNOWN,
        "without a metadata leader it is not known who subscribes",
    )


def test_a_partition_without_nats_is_no_matter_of_permissions() -> None:
    starting = {"state": "starting", "state_reason": "not subscribed: NATS is not connected"}
    assert [one.advice for one in judged(stream(**starting), "partitions")] == ["see `NATS`"]
    refused = {"state": "starting", "state_reason": "Permissions Violation"}
    assert "permission" in judged(stream(**refused), "partitions")[0].advice


ONE = {"replicas": (1,), "isr": (1,)}
TWO = {"replicas": (1, 2), "isr": (1, 2)}


@pytest.mark.parametrize(
    ("config", "part", "brokers", "found"),
    [
        ({"durability": "os", "min_isr": 1}, ONE, 1, "durability `os` with one copy"),
        ({"storage": "memory", "min_isr": 1}, ONE, 1, "it is in memory"),
        ({"min_isr": 1}, ONE, 3, "one copy, though there are 3 brokers"),
        ({"min_isr": 2}, TWO, 3, "all 2 copies are needed for an ack"),
        ({"min_isr": 1}, {}, 3, "an ack needs one copy only"),
        ({"allow_unclean_election": True}, {}, 3, "a copy that lacks acked messages may lead"),
        ({"acks": "never"}, {}, 3, "it acks nothing"),
        ({"suspend_deletion": "yes"}, {}, 3, "deletion is suspended: its limits"),
        ({"suspend_deletion": "copying"}, {}, 3, "deletion is suspended: a copy, restore or import"),
        ({"name": "__offsets", "subject": "$PENSTOCK.offsets", "acks": "never"}, ONE, 3, "1 copy of where"),
        ({"name": "__audit", "subject": "$PENSTOCK.audit", "acks": "never"}, ONE, 3, "1 copy of who did what, of 3"),
    ],
)
def test_a_config_that_promises_less_than_it_could(
    config: dict[str, Any], part: dict[str, Any], brokers: int, found: str
) -> None:
    from penstock.base.config import Acks, Durability, Storage, SuspendDeletion

    types = {"durability": Durability, "storage": Storage, "acks": Acks, "suspend_deletion": SuspendDeletion}
    typed = {name: types[name](value) if name in types else value for name, value in config.items()}
    told = judged(stream(typed, **part), "configs", brokers)
    assert [(one.result, found in one.found) for one in told] == [(Result.WARN, True)]


def test_one_broker_alone_holds_the_only_copy_and_that_is_well() -> None:
    assert [one.result for one in judged(stream({"min_isr": 1}, **ONE), "configs", 1)] == [Result.OK]


def test_copies_on_one_rack_are_told_where_there_are_several() -> None:
    assert "all copies are on rack a" in judged(stream(), "configs", 4, ("a", "a", "a", "b"))[0].found
    assert judged(stream(), "configs", 3, ("a", "a", "a"))[0].result is Result.OK
    assert judged(stream(), "configs", 3, ("a", "a", "b"))[0].result is Result.OK


@pytest.mark.parametrize(
    ("last_us", "result", "found"),
    [
        (NOW_US - HOUR_US, Result.OK, "no message is dated in the future"),
        (NOW_US + 60_000_000, Result.OK, "no message is dated in the future"),
        (
            NOW_US + 48 * HOUR_US,
            Result.WARN,
            f"orders: its last message is dated {utc_text(NOW_US + 48 * HOUR_US)}, 2d ahead of the broker's clock",
        ),
    ],
)
def test_a_stream_whose_clock_was_ahead_is_told(last_us: int, result: Result, found: str) -> None:
    told = judged(stream(last_timestamp_us=TimestampUs(last_us)), "message times")
    assert [(one.result, one.found) for one in told] == [(result, found)]
