"""What an earlier broker does not know is proposed only when there is none, and from 0.4 on at its feature level."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.access import Operation, Rule, User
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode
from penstock.base.ids import BrokerId, Incarnation, StreamId
from penstock.metadata import feature_versions
from penstock.metadata.commands import (
    AlterStream,
    ChangeRules,
    Command,
    CreateStream,
    CreateUser,
    DeleteStream,
    FormCluster,
    RaiseFeatureLevel,
)
from penstock.metadata.feature_levels import FIRST_LEVEL, LEVELS, SCHEMA_REGISTRY, FeatureLevel
from penstock.metadata.image import BrokerState, ClusterImage
from penstock.metadata.persistent_map import PersistentMap


def brokers(*versions: str, level: FeatureLevel = FIRST_LEVEL) -> ClusterImage:
    states = [
        BrokerState(BrokerId(number), f"b{number}:7422", None, "d", Incarnation(number), True, True, version)
        for number, version in enumerate(versions, 1)
    ]
    return ClusterImage(brokers=PersistentMap({one.broker_id: one for one in states}), feature_level=level)


USER = CreateUser(user=User("ann", 0, (), ()), created_us=0)
CREATE = CreateStream(config=StreamConfig(name="a", subject="a"), created_us=0)


@pytest.mark.parametrize(
    ("versions", "older"),
    [
        (("0.2.0", "0.2.0"), []),
        (("0.2.0", "0.10.0", "1.0"), []),
        (("0.2.0", "0.2.1rc1"), []),
        (("0.2.0", ""), []),  # it has not registered since it was alone
        (("0.2.0", "0.1.9"), [2]),
        (("0.1.0", "0.2.0", "0.1.0"), [1, 3]),
    ],
)
def test_a_command_waits_for_the_last_broker(versions: tuple[str, ...], older: list[int]) -> None:
    error = feature_versions.unsupported_reason(brokers(*versions), USER)
    assert ([] if error is None else error.details["brokers"]) == older
    if error is not None:
        assert error.code == ErrorCode.UNSUPPORTED_VERSION
        assert f"broker {older[0]} ({versions[older[0] - 1]})" in error.message


def test_what_was_always_known_waits_for_nobody() -> None:
    for command in (CREATE, DeleteStream(stream_id=1)):
        assert feature_versions.unsupported_reason(brokers("0.1.0"), command) is None


@pytest.mark.parametrize(
    ("command", "is_refused"),
    [
        (CREATE, False),
        (CreateStream(config=StreamConfig(name="a", subject="a", dedup_ids_max=7), created_us=0), True),
        (AlterStream(stream_id=1, changes={"max_age_ms": 7}), False),
        (AlterStream(stream_id=1, changes={"dedup_ids_max": 7}), True),
        (CreateStream(config=StreamConfig(name="a", subject="a"), created_us=0, assignments=((BrokerId(1),),)), True),
    ],
)
def test_a_field_counts_where_it_says_something(
    monkeypatch: pytest.MonkeyPatch, command: Command, is_refused: bool
) -> None:
    fields: dict[Any, Any] = {CreateStream: {"assignments": (0, 2)}}
    monkeypatch.setattr(feature_versions, "CONFIG_FIELDS", {"dedup_ids_max": (0, 2)})
    monkeypatch.setattr(feature_versions, "COMMAND_FIELDS", fields)
    assert (feature_versions.unsupported_reason(brokers("0.1.0"), command) is not None) is is_refused
    assert feature_versions.unsupported_reason(brokers("0.2.0"), command) is None


@pytest.mark.parametrize(
    "command",
    [
        CreateUser(user=User("ann", 0, (), (Rule(Operation.MONITOR),)), created_us=0),
        ChangeRules(name="ann", changed_us=0, add=(Rule(Operation.READ, stream="a"), Rule(Operation.MONITOR))),
    ],
)
def test_a_rule_with_a_new_operation_waits_for_the_last_broker(command: Command) -> None:
    error = feature_versions.unsupported_reason(brokers("0.3.0", "0.2.0"), command)
    assert error is not None
    assert error.message.startswith("the operation monitor of a rule is known since version 0.3")
    assert feature_versions.unsupported_reason(brokers("0.3.0", "0.3.1"), command) is None
    assert feature_versions.unsupported_reason(brokers("0.2.0"), ChangeRules(name="ann", changed_us=0)) is None


@pytest.mark.parametrize("choice", ["yes", "no"])
def test_suspended_deletion_waits_for_the_last_broker_which_would_delete(choice: str) -> None:
    command = AlterStream(stream_id=StreamId(1), changes={"suspend_deletion": choice})
    error = feature_versions.unsupported_reason(brokers("0.3.0", "0.2.0"), command)
    assert error is not None
    assert error.message.startswith(
        "the option suspend_deletion of a stream is known since version 0.3, and there is an earlier"
    )
    assert feature_versions.unsupported_reason(brokers("0.3.0", "0.3.1"), command) is None


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (
            AlterStream(stream_id=StreamId(1), changes={}, add_subjects=("b",)),
            "a change of a stream's subjects",
        ),
        (
            AlterStream(stream_id=StreamId(1), changes={}, remove_subjects=("b",)),
            "a change of a stream's subjects",
        ),
        (AlterStream(stream_id=StreamId(1), changes={"metadata": {"k": "v"}}), "the option metadata of a stream"),
        (
            CreateStream(config=StreamConfig(name="a", subject="a", more_subjects=("b",)), created_us=0),
            "a second subject of a stream",
        ),
        (
            CreateStream(config=StreamConfig(name="a", subject="a", schema_check="refuse"), created_us=0),
            "the option schema_check of a stream",
        ),
        (AlterStream(stream_id=StreamId(1), changes={"schema_check": "count"}), "the option schema_check of a stream"),
        (AlterStream(stream_id=StreamId(1), changes={"discard": "new"}), "the option discard of a stream"),
        (
            AlterStream(stream_id=StreamId(1), changes={"discard_new_per_subject": True}),
            "the option discard_new_per_subject of a stream",
        ),
        (AlterStream(stream_id=StreamId(1), changes={"retention": "interest"}), "the option retention of a stream"),
        (AlterStream(stream_id=StreamId(1), changes={"deny_purge": True}), "the option deny_purge of a stream"),
        (AlterStream(stream_id=StreamId(1), changes={"nats_readable": True}), "the option nats_readable of a stream"),
        (
            CreateStream(config=StreamConfig(name="a", subject="a", first_offset=1), created_us=0),
            "the option first_offset of a stream",
        ),
        (
            ChangeRules(name="ann", changed_us=0, add=(Rule(Operation.REGISTER, stream="a"), Rule(Operation.MONITOR))),
            "the operation register of a rule",
        ),
    ],
)
def test_what_0_4_added_waits_for_the_level_also_when_all_brokers_know_it(command: Command, what: str) -> None:
    error = feature_versions.unsupported_reason(brokers("0.4.0", "0.4.1"), command)
    assert error is not None
    assert (error.code, error.details["feature_level"]) == (ErrorCode.UNSUPPORTED_VERSION, "0.3")
    assert error.message == (
        f"{what} needs feature level 0.4; the cluster is at 0.3: run `penstock cluster upgrade` once all brokers are "
        "upgraded"
    )
    assert feature_versions.unsupported_reason(brokers("0.4.0", "0.4.1", level=(0, 4)), command) is None


def test_a_feature_that_is_no_command_waits_for_the_level() -> None:
    error = feature_versions.missing(brokers("0.4.0"), SCHEMA_REGISTRY)
    assert error is not None
    assert error.message.startswith("the registry of schemas needs feature level 0.4; the cluster is at 0.3: ")
    raised = brokers("0.4.0", level=(0, 4))
    assert feature_versions.missing(raised, SCHEMA_REGISTRY) is None
    assert (brokers("0.4.0").has_feature(SCHEMA_REGISTRY), raised.has_feature(SCHEMA_REGISTRY)) == (False, True)


def test_what_0_3_added_needs_no_level() -> None:
    command = AlterStream(stream_id=StreamId(1), changes={"suspend_deletion": "yes"})
    assert feature_versions.unsupported_reason(brokers("0.3.0", "0.4.0"), command) is None


@pytest.mark.parametrize("kind", [RaiseFeatureLevel, FormCluster])
def test_a_level_waits_for_the_brokers(kind: Any) -> None:
    more = {"cluster_id": "c"} if kind is FormCluster else {}
    command = kind(feature_level=(0, 4), **more)
    error = feature_versions.unsupported_reason(brokers("0.4.0", "0.3.1", "0.3.0"), command)
    assert error is not None
    assert error.message == (
        "feature level 0.4 needs version 0.4 of every broker, and there is an earlier one: broker 2 (0.3.1), broker 3 "
        "(0.3.0); upgrade it first"
    )
    assert error.details["brokers"] == [2, 3]
    assert feature_versions.unsupported_reason(brokers("0.4.0", "0.10.0", "1"), command) is None
    lowest = kind(feature_level=FIRST_LEVEL, **more)
    assert feature_versions.unsupported_reason(brokers("0.2.0"), lowest) is None


def test_what_is_new_is_listed_with_a_level_that_there_is() -> None:
    new = [
        *feature_versions.COMMANDS.values(),
        *(since for fields in feature_versions.COMMAND_FIELDS.values() for since in fields.values()),
        *feature_versions.CONFIG_FIELDS.values(),
        *feature_versions.OPERATIONS.values(),
    ]
    assert {since for since in new if since > FIRST_LEVEL} <= set(LEVELS)
    assert feature_versions.features_of((0, 4)) == sorted(feature_versions.features_of((0, 4)))
    assert "a second subject of a stream" in feature_versions.features_of((0, 4))
    assert {"the registry of schemas", "the option schema_check of a stream", "the permission register"} <= {
        *feature_versions.features_of((0, 4))
    }
