"""What an earlier broker does not know is proposed only when there is none."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.access import Operation, Rule, User
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode
from penstock.base.ids import BrokerId, Incarnation, StreamId
from penstock.metadata import feature_versions
from penstock.metadata.commands import AlterStream, ChangeRules, Command, CreateStream, CreateUser, DeleteStream
from penstock.metadata.image import BrokerState


def brokers(*versions: str) -> list[BrokerState]:
    return [
        BrokerState(BrokerId(number), f"b{number}:7422", None, "d", Incarnation(number), True, True, version)
        for number, version in enumerate(versions, 1)
    ]


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
    assert error.message.startswith("the field suspend_deletion is known since version 0.3, and there is an earlier")
    assert feature_versions.unsupported_reason(brokers("0.3.0", "0.3.1"), command) is None


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (AlterStream(stream_id=StreamId(1), changes={}, add_subjects=("b",)), "add_subjects of the command alter"),
        (AlterStream(stream_id=StreamId(1), changes={}, remove_subjects=("b",)), "remove_subjects of the command"),
        (AlterStream(stream_id=StreamId(1), changes={"metadata": {"k": "v"}}), "the field metadata"),
        (
            CreateStream(config=StreamConfig(name="a", subject="a", more_subjects=("b",)), created_us=0),
            "the field more_subjects",
        ),
    ],
)
def test_a_second_subject_waits_for_the_last_broker_which_would_not_hear_it(command: Command, what: str) -> None:
    error = feature_versions.unsupported_reason(brokers("0.4.0", "0.3.0"), command)
    assert error is not None
    assert error.message.startswith(what)
    assert feature_versions.unsupported_reason(brokers("0.4.0", "0.4.1"), command) is None
    plain = CreateStream(config=StreamConfig(name="a", subject="a"), created_us=0)
    assert feature_versions.unsupported_reason(brokers("0.4.0", "0.3.0"), plain) is None
