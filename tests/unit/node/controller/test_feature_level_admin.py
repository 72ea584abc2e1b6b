"""The feature level of a cluster: where it begins, when it is raised, and the brokers that are too old for it."""

from __future__ import annotations

import pytest

from penstock.access import Operation, Rule
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import (
    ChangeRulesRequest,
    CreateStreamResponse,
    PeerHelloRequest,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
    SchemasStreamRequest,
    SchemasStreamResponse,
    StatusRequest,
    StatusResponse,
)
from penstock.node.quorum.metadata_entries import TooOldError
from penstock.raft.tasks import SNAPSHOT_PATH
from penstock.vfs.memory import Keep
from tests.unit.node.controller.test_audit import ADMIN, passes, told
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member
from tests.unit.node.security.test_access import asking, user

RAISE = RaiseFeatureLevelRequest()


def level(broker: Broker) -> str:
    return broker.ask(StatusRequest(), StatusResponse).feature_level


def refused(brokers: Brokers, asked: Member) -> RemoteError:
    caller = asked.request(RAISE)
    brokers.run(500)
    error = asked.replies[caller].response
    assert isinstance(error, RemoteError), error
    assert error.code == ErrorCode.UNSUPPORTED_VERSION
    return error


def raised(broker: Broker, to: str | None = None) -> RaiseFeatureLevelResponse:
    return broker.ask(RaiseFeatureLevelRequest(feature_level=to), RaiseFeatureLevelResponse)


@pytest.mark.parametrize(("version", "begins"), [("0.3.0", "0.3"), ("0.4.0", "0.4"), ("0.5.1", "0.4")])
def test_a_new_cluster_begins_at_the_level_of_its_version(version: str, begins: str) -> None:
    broker = Broker(broker_version=version).start()
    assert level(broker) == begins
    assert level(broker.crash().start()) == begins


@pytest.mark.parametrize(("version", "begins"), [("0.3.0", "0.3"), ("0.4.1", "0.4")])
def test_a_new_cluster_of_several_versions_begins_at_the_level_of_the_oldest(version: str, begins: str) -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.4.0")
    for number, other in ((1, 2), (2, 3), (3, 1)):  # whichever of them is the metadata leader
        hello = {"cluster_id": "", "broker_id": other, "data_dir_id": f"disk-{other}", "address": f"h:{other}"}
        brokers[number].request(PeerHelloRequest(**hello, broker_version=version))
    brokers.run(5_000)
    assert {level(member) for member in brokers.members.values()} == {begins}


def test_an_upgrade_changes_no_level_and_can_be_taken_back() -> None:
    broker = Broker(broker_version="0.3.0").start()
    broker.create("orders")
    for version in ("0.4.0", "0.3.0", "0.4.0"):
        broker.settings["broker_version"] = version
        broker = broker.crash().start()
        broker.append("orders", b"1")
        assert level(broker) == "0.3"
    broker.refusal(SchemasStreamRequest())
    made = raised(broker)
    assert (made.feature_level, made.index > 0) == ("0.4", True)
    assert raised(broker).index == 0
    assert raised(broker, "0.4").index == 0
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    broker = broker.crash().start()
    assert (level(broker), len(broker.read("orders"))) == ("0.4", 3)


@pytest.mark.parametrize("compacts", [False, True])
def test_a_broker_that_is_too_old_for_the_level_does_not_start_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, *, compacts: bool
) -> None:
    broker = Broker().start()
    broker.create("orders")
    broker.append("orders", b"1")
    if compacts:
        monkeypatch.setattr(limits, "METADATA_LOG_BYTES_MAX", 4_000)
        for number in range(20):
            broker.create(f"more{number}")
        monkeypatch.undo()
    assert (broker.memory.open(SNAPSHOT_PATH).size() > 1_000) is compacts
    memory = broker.memory.crash_clone(Keep.SYNCED)
    with pytest.raises(TooOldError) as raised_error:
        Broker(memory, broker_version="0.3.0").start()
    assert str(raised_error.value) == (
        "the cluster is at feature level 0.4, which is never lowered, and this broker is of version 0.3.0: start it "
        "with version 0.4 or later"
    )
    assert Broker(memory).start().values("orders") == [b"1"]


def test_a_level_that_is_lower_or_unknown_is_refused() -> None:
    broker = Broker(broker_version="0.4.0").start()
    lower = broker.refusal(RaiseFeatureLevelRequest(feature_level="0.3"))
    assert (lower.code, "never lowered" in lower.message) == (ErrorCode.CHANGE_REFUSED, True)
    unknown = broker.refusal(RaiseFeatureLevelRequest(feature_level="0.7"))
    assert unknown.code == ErrorCode.BAD_REQUEST
    assert unknown.message == "'0.7' is no feature level of the metadata leader's: 0.3, 0.4"
    assert level(broker) == "0.4"


def test_brokers_are_upgraded_one_by_one_and_then_the_level_is_raised() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    brokers.leader.create("orders", replicas=3)
    brokers.run(500)
    brokers.settings["broker_version"] = "0.4.0"
    for broker_id in (1, 2, 3):
        for member in brokers.members.values():
            assert f"broker {broker_id} (0.3.0)" in refused(brokers, member).message
        memory = brokers.stop(broker_id)
        brokers.run(1_000)
        error = refused(brokers, brokers.leader)  # the one that is away may return as it was
        assert f"broker {broker_id} (0.3.0)" in error.message
        assert "it cannot be removed from the cluster" in error.message
        brokers.start(broker_id, memory)
        brokers.run(5_000)
    assert {level(member) for member in brokers.members.values()} == {"0.3"}
    asked = next(member for member in brokers.members.values() if member is not brokers.leader)
    caller = asked.request(RAISE)
    brokers.run(500)
    assert asked.answer(caller, RaiseFeatureLevelResponse).feature_level == "0.4"
    assert {level(member) for member in brokers.members.values()} == {"0.4"}
    away = next(one for one in brokers.ids if one != brokers.leader.broker_id)
    memory = brokers.stop(away)
    brokers.settings["broker_version"] = "0.3.0"
    older = brokers.start(away, memory)
    brokers.run(5_000)
    assert older.quorum.trouble.startswith("the cluster is at feature level 0.4, which is never lowered, and this ")
    brokers.settings["broker_version"] = "0.4.0"
    back = brokers.start(away, brokers.kill(away))
    brokers.run(5_000)
    assert set(back.stream("orders").partitions[0].isr) == {1, 2, 3}


def test_a_broker_that_was_away_when_the_level_was_raised_ends_as_an_older_version() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    brokers.settings["broker_version"] = "0.4.0"
    for broker_id in (1, 2, 3):
        brokers.start(broker_id, brokers.stop(broker_id))
        brokers.run(5_000)
    away = next(one for one in brokers.ids if one != brokers.leader.broker_id)
    memory = brokers.stop(away)
    brokers.run(1_000)
    caller = brokers.leader.request(RAISE)
    brokers.run(1_000)
    assert brokers.leader.answer(caller, RaiseFeatureLevelResponse).feature_level == "0.4"
    brokers.settings["broker_version"] = "0.3.0"
    older = brokers.start(away, memory)
    brokers.run(5_000)
    assert older.quorum.trouble.startswith("the cluster is at feature level 0.4, which is never lowered, and this ")
    assert not brokers.leader.image.brokers[older.broker_id].is_live
    assert brokers.leader.image.brokers[older.broker_id].broker_version == "0.4.0"


def test_a_raise_is_told_in_the_audit_log() -> None:
    broker = Broker(broker_version="0.3.0").start()
    broker.request(user("ann", ADMIN))
    passes(broker)
    passes(broker)
    broker.settings["broker_version"] = "0.4.0"
    broker = broker.crash().start()
    with asking(broker, "ann"):
        refused = broker.refusal(ChangeRulesRequest(name="ann", add=(Rule(Operation.REGISTER, stream="orders"),)))
        assert "needs feature level 0.4" in refused.message
        raised(broker)
        raised(broker)
    passes(broker)
    passes(broker)
    rows = [one for one in told(broker) if one["act"] == "raise_feature_level"]
    assert [(one["by"], one["level"]) for one in rows] == [("ann", "0.4")]


def test_an_option_of_0_4_waits_for_the_level() -> None:
    broker = Broker(broker_version="0.3.0").start()
    broker.settings["broker_version"] = "0.4.0"
    broker = broker.crash().start()
    caller = broker.create("orders", schema_check="refuse")
    error = broker.replies[caller].response
    assert "the option schema_check of a stream needs feature level 0.4" in str(error)
    raised(broker)
    broker.answer(broker.create("orders", schema_check="refuse"), CreateStreamResponse)


def test_the_level_is_not_raised_where_companion_logs_of_rollups_would_pass_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker(broker_version="0.3.0").start()
    broker.create("rolled", "rolled.*", allow_rollup=True, partitions=3, partition_by="token:2")
    broker.create("other", "other", partitions=2)
    broker.settings["broker_version"] = "0.4.0"
    broker = broker.crash().start()
    there = sum(len(state.partitions) for state in broker.node._cluster.image.streams.values())
    monkeypatch.setattr(limits, "PARTITIONS_MAX", there + 2)
    error = broker.refusal(RAISE)
    assert (error.code, f"with 3 more they pass {there + 2}" in error.message) == (ErrorCode.TOO_LARGE, True)
    assert level(broker) == "0.3"
    monkeypatch.setattr(limits, "PARTITIONS_MAX", there + 3)
    assert raised(broker).feature_level == "0.4"
    assert raised(broker).index == 0
