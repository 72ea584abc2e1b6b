"""What brokers tell each other: bounds of its fields, and that the largest of it fits a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, StreamId, TimestampUs
from penstock.hot.message_ids import key_of
from penstock.messages import (
    ChangeIsrRequest,
    HeartbeatRequest,
    IsrChange,
    IsrMember,
    KnownId,
    MessageIdsRequest,
    MessageIdsResponse,
    RegisterBrokerRequest,
    Request,
    ResignedLeadership,
    UnreachableLeader,
)
from penstock.messages.fields import INT64_MAX

LARGE = 2**31 - 1
REGISTER = {"broker_id": 1, "data_dir_id": "d", "address": "h:1", "broker_version": "1", "clean_stop": True}
CHANGE = [1, 0, 1, 1, [[1, 1]], False]


def decoded(message_type: type[Request], fields: dict[str, Any]) -> Request:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=message_type)


def test_what_is_well_formed_is_taken() -> None:
    assert decoded(RegisterBrokerRequest, REGISTER) == RegisterBrokerRequest(
        broker_id=BrokerId(1), data_dir_id="d", address="h:1", broker_version="1", clean_stop=True
    )
    change = decoded(ChangeIsrRequest, {"broker_id": 1, "incarnation": 5, "changes": [CHANGE]})
    assert isinstance(change, ChangeIsrRequest)
    assert change.changes[0].isr == (IsrMember(BrokerId(1), Incarnation(1)),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker_id": 0},
        {"broker_id": 2**31},
        {"data_dir_id": ""},
        {"data_dir_id": "d" * 129},
        {"address": ""},
        {"address": "h" * 262},
        {"rack": ""},
        {"rack": "r" * 129},
        {"broker_version": "v" * 129},
        {"clean_stop": 1},
    ],
)
def test_registering_is_bounded(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        decoded(RegisterBrokerRequest, {**REGISTER, **wrong})


@pytest.mark.parametrize(
    "change",
    [
        [0, 0, 1, 1, [[1, 1]]],
        [1, -1, 1, 1, [[1, 1]]],
        [1, 0, 2**32, 1, [[1, 1]]],
        [1, 0, 1, -1, [[1, 1]]],
        [1, 0, 1, 1, []],
        [1, 0, 1, 1, [[1, 0]]],
        [1, 0, 1, 1, [[number, 1] for number in range(1, limits.REPLICAS_MAX + 2)]],
    ],
)
def test_a_change_of_an_isr_is_bounded(change: list[Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="changes"):
        decoded(ChangeIsrRequest, {"broker_id": 1, "incarnation": 5, "changes": [change]})


def test_the_largest_requests_fit() -> None:
    member = IsrMember(BrokerId(LARGE), Incarnation(INT64_MAX))
    change = IsrChange(
        StreamId(INT64_MAX),
        PartitionId(LARGE),
        LeaderEpoch(2**32 - 1),
        INT64_MAX,
        (member,) * limits.REPLICAS_MAX,
        commits_resumed=True,
    )
    resigned = ResignedLeadership(StreamId(INT64_MAX), PartitionId(LARGE), LeaderEpoch(2**32 - 1))
    largest = (
        ChangeIsrRequest(
            broker_id=BrokerId(LARGE),
            incarnation=Incarnation(INT64_MAX),
            changes=(change,) * limits.ISR_CHANGES_PER_COMMAND_MAX,
        ),
        HeartbeatRequest(
            broker_id=BrokerId(LARGE),
            incarnation=Incarnation(INT64_MAX),
            applied_index=INT64_MAX,
            unreachable=(UnreachableLeader(BrokerId(LARGE), Incarnation(INT64_MAX)),) * limits.BROKERS_MAX,
            resigned=(resigned,) * limits.ELECTIONS_PER_COMMAND_MAX,
        ),
    )
    assert all(len(msgspec.msgpack.encode(request)) < limits.REQUEST_BODY_BYTES_MAX for request in largest)


ASKED = {"stream_id": 1, "partition": 0, "leader_epoch": 1, "since_us": -5, "end_offset": 7}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stream_id": 0}, {"partition": -1}, {"leader_epoch": 2**32}, {"end_offset": -1}, {"end_offset": 2**63},
        {"since_us": 2**63},
    ],
)  # fmt: skip
def test_asking_for_message_ids_is_bounded(wrong: dict[str, Any]) -> None:
    decoded(MessageIdsRequest, ASKED)
    with pytest.raises(msgspec.ValidationError, match=next(iter(wrong))):
        decoded(MessageIdsRequest, {**ASKED, **wrong})


LONGEST_KEY = key_of(bytes(1_000), 0, 1_000)


@pytest.mark.parametrize(
    "ids",
    [
        [[-1, 0, b"x"]], [[0, 2**63, b"x"]], [[0, 0, b""]], [[0, 0, LONGEST_KEY + b"x"]], [[0, 0]],
        [[0, 0, b"x"]] * (limits.MESSAGE_IDS_PER_ANSWER_MAX + 1),
    ],
    ids=["offset", "time", "no id", "too long", "a part", "too many"],
)  # fmt: skip
def test_a_page_of_message_ids_is_bounded(ids: list[Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="ids"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"ids": ids}), type=MessageIdsResponse)


def test_the_largest_page_of_message_ids_is_small() -> None:
    one = KnownId(Offset(INT64_MAX), TimestampUs(INT64_MAX), LONGEST_KEY)
    page = MessageIdsResponse(ids=(one,) * limits.MESSAGE_IDS_PER_ANSWER_MAX, end_offset=Offset(INT64_MAX))
    raw = msgspec.msgpack.encode(page)
    assert msgspec.msgpack.decode(raw, type=MessageIdsResponse) == page
    assert len(raw) < 512 * limits.KIB
