"""What is thought of brokers, from what they say."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.ids import BrokerId, TimestampUs
from penstock.doctor.asking import Asked
from penstock.doctor.brokers import judge_api_settings, judge_brokers
from penstock.doctor.findings import Finding, Result
from penstock.messages import (
    ApiDecisionInfo,
    BrokerInfo,
    ListUsersResponse,
    NatsStatus,
    StatusResponse,
    UserInfo,
)

SECOND_US = 1_000_000


def broker(number: int, **more: Any) -> BrokerInfo:
    return BrokerInfo(
        **{"broker_id": BrokerId(number), "address": f"b{number}:7422", "broker_version": "1.0.0", **more}
    )


def status(number: int, nats: NatsStatus | None = None, **more: Any) -> StatusResponse:
    known: dict[str, Any] = {
        "broker_id": BrokerId(number),
        "broker_version": "1.0.0",
        "cluster_id": "c",
        "address": f"b{number}:7422",
        "started_us": TimestampUs(0),
        "uptime_ms": 3_600_000,
        "nats": nats or NatsStatus(state="connected", url="nats://n:4222", server_version="2.11.1"),
        "metadata_leader": BrokerId(1),
        "voters": 3,
        "voters_reachable": 3,
        "brokers": tuple(broker(one) for one in (1, 2, 3)),
    }
    return StatusResponse(**{**known, **more})


def three(**of_the_second: Any) -> list[Asked]:
    return [
        Asked(broker(1), status(1), 0, 1_000),
        Asked(broker(2), status(2, **of_the_second), 0, 1_000),
        Asked(broker(3), status(3), 0, 1_000),
    ]


def judged(asked: list[Asked], check: str, *, own: str = "1.0.0", **home: Any) -> list[Finding]:
    return [one for one in judge_brokers(status(1, **home), asked, own) if one.check == check]


def test_three_that_are_well_are_well() -> None:
    results = {one.check: one.result for one in judge_brokers(status(1), three(), "1.0.0")}
    assert set(results.values()) == {Result.OK}
    assert list(results) == ["brokers", "metadata", "voters", "versions", "nats-server", "clocks", "NATS", "load"]


@pytest.mark.parametrize(
    ("ahead_us", "uncertain_us", "expected"),
    [
        (400_000, 0, Result.OK),
        (600_000, 0, Result.WARN),
        (-600_000, 0, Result.WARN),
        (600_000, 200_000, Result.OK),  # it may be the way there
        (11 * SECOND_US, 0, Result.FAIL),
    ],
)
def test_clocks_that_differ_are_told_as_far_as_that_is_certain(
    ahead_us: int, uncertain_us: int, expected: Result
) -> None:
    asked = [Asked(broker(1), status(1), 0, 0), Asked(broker(2), status(2), ahead_us, uncertain_us)]
    found = judged(asked, "clocks")
    assert [one.result for one in found] == [expected]
    if expected is not Result.OK:
        assert "broker 1 and broker 2" in found[0].found or "broker 2 and broker 1" in found[0].found


def test_this_machine_alone_may_be_wrong_and_that_is_no_failure() -> None:
    asked = [Asked(broker(one), status(one), 60 * SECOND_US, 0) for one in (1, 2)]
    assert judged(asked, "clocks")[0].result is Result.WARN
    assert "ahead of this machine by 1m" in judged(asked, "clocks")[0].found


def test_of_brokers_that_do_not_tell_the_time_nothing_is_known() -> None:
    assert [one.result for one in judged([Asked(broker(1), status(1))], "clocks")] == [Result.UNKNOWN]


@pytest.mark.parametrize(
    ("voters", "brokers", "expected"),
    [
        (1, 1, Result.OK),
        (1, 2, Result.WARN),
        (2, 2, Result.WARN),
        (3, 3, Result.OK),
        (4, 4, Result.WARN),
        (5, 7, Result.OK),
    ],
)
def test_an_odd_number_of_voters_is_well(voters: int, brokers: int, expected: Result) -> None:
    known = tuple(broker(one) for one in range(1, brokers + 1))
    found = judged(three(), "voters", voters=voters, voters_reachable=voters, brokers=known)
    assert [one.result for one in found] == [expected]


def test_without_a_metadata_leader_nothing_can_be_decided() -> None:
    found = judged(three(), "metadata", metadata_leader=None, voters_reachable=1)
    assert found[0].result is Result.FAIL
    assert "1 of 3 voters reachable" in found[0].found
    found = judged(three(), "voters", metadata_leader=None, voters_reachable=1)
    assert (found[0].result, found[0].found) == (Result.UNKNOWN, "3, and no leader: more are away than may be")


def test_a_voter_that_is_away_leaves_fewer_that_may_fail() -> None:
    found = judged(three(), "voters", voters_reachable=2)
    assert (found[0].result, found[0].found) == (Result.WARN, "3, of which 1 may fail, and 1 is away: 0 more may")


def test_who_is_away_and_who_is_only_out_of_reach_from_here() -> None:
    asked = [Asked(broker(1), status(1), 0, 0), Asked(broker(2), failure="timed out")]
    asked.append(Asked(broker(3, is_live=False), failure="refused"))
    found = [one.found for one in judged(asked, "brokers")]
    assert found == ["broker 2 at b2:7422 cannot be reached from here: timed out", "broker 3 at b3:7422 is away"]


def test_versions_that_differ_are_named() -> None:
    assert "1.0.0: broker 1, 3; 2.0.0: broker 2" in judged(three(broker_version="2.0.0"), "versions")[0].found
    assert judged(three(), "versions", own="2.0.0")[0].result is Result.WARN


@pytest.mark.parametrize(
    ("level", "versions", "found", "is_hinted"),
    [
        ("0.3", ("0.4.0", "0.4.1", "0.5.0"), ["0.3, and all brokers can 0.4"], True),
        ("0.3", ("0.4.0", "0.3.0", "0.4.0"), ["0.3"], False),
        ("0.4", ("0.4.0", "0.4.0", "0.4.0"), ["0.4"], False),
        ("", ("0.4.0", "0.4.0", "0.4.0"), [], False),
    ],
)
def test_a_level_that_can_be_raised_is_a_hint(
    level: str, versions: tuple[str, ...], found: list[str], *, is_hinted: bool
) -> None:
    brokers = tuple(broker(number, broker_version=version) for number, version in enumerate(versions, 1))
    findings = judged(three(), "feature level", feature_level=level, brokers=brokers)
    assert [(one.result, one.found) for one in findings] == [(Result.OK, text) for text in found]
    assert any("penstock cluster upgrade" in one.advice for one in findings) is is_hinted


def api(state: str, why: str = "", **more: Any) -> ApiDecisionInfo:
    return ApiDecisionInfo(prefix="$JS.API.", state=state, decided_us=TimestampUs(1), index=7, why=why, **more)


@pytest.mark.parametrize(
    ("decision", "served", "result", "found"),
    [
        (api("taken"), ("$JS.API.",), Result.OK, "served as $JS.API.>"),
        (api("taken"), (), Result.WARN, "broker 2 does not serve $JS.API.>, which the cluster has taken"),
        (api("withdrawn", "broker 1: a JetStream"), (), Result.WARN, "left to another service: broker 1: a JetStream"),
        (api("waiting"), (), Result.WARN, "not all brokers know yet"),
        (api("waiting", "the settings of", held_back_by=(BrokerId(3),)), (), Result.WARN, "the settings of"),
    ],
)
def test_who_serves_jetstreams_api(
    decision: ApiDecisionInfo, served: tuple[str, ...], result: Result, found: str
) -> None:
    asked = [Asked(broker(one), status(one, apis_served=served), 0, 1_000) for one in (1, 2, 3)]
    told = judged(asked, "JetStream's API", apis=(decision,))
    assert {one.result for one in told} == {result}
    assert any(found in one.found for one in told)
    assert judged(three(), "JetStream's API") == []


@pytest.mark.parametrize(
    ("nats", "result", "found"),
    [
        ({"api_state": "connecting"}, Result.FAIL, "broker 2 has no connection to NATS for the API: none has been"),
        ({"api_state": "connecting", "api_error": "n:4222: refused"}, Result.FAIL, "for the API: n:4222: refused"),
        ({"api_unknown": ("$JS.API.>: nothing",)}, Result.WARN, "broker 2 cannot find out who serves $JS.API.>: no"),
    ],
)
def test_a_broker_without_its_part_in_the_api(nats: dict[str, Any], result: Result, found: str) -> None:
    first = status(1, of_the_api(api_state="connected"), apis_served=("$JS.API.",))
    asked = [Asked(broker(1), first, 0, 1), Asked(broker(2), status(2, of_the_api(**nats)), 0, 1)]
    told = [one for one in judged(asked, "JetStream's API", apis=(api("taken"),)) if found in one.found]
    assert [one.result for one in told] == [result]


@pytest.mark.parametrize(
    ("nats", "result", "found"),
    [
        ({"state": "connecting", "last_error": "refused"}, Result.FAIL, "broker 2 is not connected: refused"),
        ({"complaints": 3, "last_complaint": "Permissions Violation"}, Result.WARN, "last: Permissions Violation"),
        ({"messages_skipped": 4}, Result.WARN, "did not understand 4 messages"),
        ({"reconnects": 5}, Result.WARN, "has reconnected 5 times in 1h"),
    ],
)
def test_what_brokers_say_of_nats(nats: dict[str, Any], result: Result, found: str) -> None:
    told = judged(three(nats=NatsStatus(**{"state": "connected", **nats})), "NATS")
    assert [one.result for one in told] == [result]
    assert found in told[0].found


def test_an_old_nats_server_is_named() -> None:
    nats = NatsStatus(state="connected", server_version="2.9.25")
    found = [one.found for one in judged(three(nats=nats), "nats-server")]
    assert found == ["version 2.9.25", "versions differ: 2.11.1, 2.9.25"]


def test_overload_is_told() -> None:
    nats = NatsStatus(state="connected", reading_paused=True, answers_dropped=7)
    found = judged(three(nats=nats, counters={"damaged_frames": 2}), "load")
    assert [one.result for one in found] == [Result.FAIL, Result.WARN, Result.WARN]


def test_of_many_findings_some_are_shown() -> None:
    asked = [Asked(broker(one), failure="refused") for one in range(1, 31)]
    found = judged(asked, "brokers")
    assert len(found) == 11
    assert (found[-1].found, found[-1].result) == ("and 20 more of these", Result.FAIL)


LEAF: dict[str, Any] = {"state": "connected", "leaf_state": "connected", "leaf_url": "nats://n:7423"}


@pytest.mark.parametrize(
    ("leaf", "expected", "told"),
    [
        ({"leaf_allowed": ("_INBOX.>", "deliver.>")}, Result.OK, "2 brokers"),
        ({"leaf_allowed": (">",), "leaf_url": "nats://127.0.0.1:7423"}, Result.OK, "2 brokers"),
        ({"leaf_allowed": (">",)}, Result.WARN, "may publish on every subject"),
        ({"leaf_allowed": ("deliver.>",)}, Result.WARN, "may not deliver to inboxes"),
        ({"leaf_state": "connecting", "leaf_error": "nats://n:1: refused"}, Result.FAIL, "nats://n:1: refused"),
        ({"leaf_state": "connecting"}, Result.FAIL, "none has been tried yet"),
        ({"leaf_state": ""}, Result.FAIL, "broker 2 has no leaf connection"),
    ],
)
def test_deliveries(leaf: dict[str, Any], expected: Result, told: str) -> None:
    asked = [
        Asked(broker(number), status(number, NatsStatus(**{**LEAF, "leaf_allowed": ("_INBOX.>",), **more})), 0, 1_000)
        for number, more in ((1, {}), (2, leaf))
    ]
    [found] = judged(asked, "deliveries")
    assert (found.result, told in found.found) == (expected, True), found


def test_without_deliveries_nothing_is_said_of_them() -> None:
    assert judged(three(), "deliveries") == []


def of_the_api(**more: Any) -> NatsStatus:
    known = {"state": "connected", "api_prefixes": ("$JS.API.",), "leaf_state": "connected"}
    return NatsStatus(**{**known, **more})


def users(*names: str) -> ListUsersResponse:
    infos = tuple(UserInfo(name=name, created_us=TimestampUs(0)) for name in names)
    return ListUsersResponse(users=infos, is_guarded=True)


@pytest.mark.parametrize(
    ("first", "second", "known", "expected"),
    [
        ({}, {}, None, [(Result.OK, "callers of JetStream's API may read, without a user")]),
        ({"api_manages": True}, {"api_manages": True}, None, [(Result.OK, "may read and change, without a user")]),
        ({"api_user": "nats"}, {"api_user": "nats"}, users("nats"), [(Result.OK, "may read, as user nats")]),
        ({}, {}, users("ann"), [(Result.FAIL, "broker 1 refuses all"), (Result.FAIL, "broker 2 refuses all")]),
        ({"api_user": "b"}, {"api_user": "b"}, users("ann"), [(Result.FAIL, "there is no user 'b'")] * 2),
        ({}, {"api_manages": True}, None, [(Result.WARN, "brokers have other settings")]),
        ({}, {"leaf_state": ""}, None, [(Result.WARN, "broker 2 has no leaf connection")]),
    ],
)
def test_settings_of_jetstreams_api(
    first: dict[str, Any], second: dict[str, Any], known: ListUsersResponse | None, expected: list[tuple[Result, str]]
) -> None:
    asked = [Asked(broker(n), status(n, of_the_api(**of)), 0, 1) for n, of in ((1, first), (2, second))]
    found = list(judge_api_settings(asked, known))
    assert [one.result for one in found] == [result for result, _ in expected]
    assert all(text in one.found for one, (_, text) in zip(found, expected, strict=True)), found


def test_without_the_api_its_settings_are_no_matter() -> None:
    assert list(judge_api_settings(three(), users("ann"))) == []
