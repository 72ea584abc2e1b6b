"""Groups where everybody logs in: bob may do in `scratch` what he likes, and nothing to a group that reads `orders`."""

from __future__ import annotations

import pytest

from penstock.access import Operation, Rule
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.messages import (
    ChangeRulesRequest,
    CommitOffsetsRequest,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
)
from penstock.node.security.access import ClientOrigin
from tests.unit.node.api.test_offsets import again
from tests.unit.node.harness import Broker
from tests.unit.node.members import Proven
from tests.unit.node.security.test_access import GROUP, allow, asking, offsets, stream_id, user, who


def beat(broker: Broker, member: str, number: int, *streams: str, is_leaving: bool = False) -> object:
    ids = tuple(stream_id(broker, one) for one in streams)
    request = GroupHeartbeatRequest(
        **offsets(broker), group=GROUP, member_id=member, number=number, stream_ids=ids, is_leaving=is_leaving
    )
    return again(broker, request)


def commit(broker: Broker, stream: str, member: str | None = None) -> object:
    one = OffsetCommit(stream_id=stream_id(broker, stream), partition=PartitionId(0), offset=Offset(0))
    return again(
        broker,
        CommitOffsetsRequest(
            **offsets(broker), group=GROUP, offsets=(one,), member_id=member, generation=1 if member else 0
        ),
    )


def members(broker: Broker, stream: str) -> list[str]:
    asked = FetchOffsetsRequest(**offsets(broker), group=GROUP, of_stream_id=stream_id(broker, stream))
    response = again(broker, asked)
    assert isinstance(response, FetchOffsetsResponse), response
    return [one.member_id for one in response.members]


@pytest.fixture
def broker() -> Broker:
    """Ann rules; `billing`, a program of pay's, is a member of the group; bob has no right on `orders`."""
    broker = Broker().start()
    broker.create("orders")
    broker.create("scratch", "scratch.>")
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("pay", *(Rule(one, stream="orders") for one in (Operation.READ, Operation.COMMIT_OFFSETS))))
        broker.request(
            user("bob", *(Rule(one, stream="scratch") for one in (Operation.READ, Operation.COMMIT_OFFSETS)))
        )
    with asking(broker, "pay"):
        for number in (1, 2):
            assert isinstance(beat(broker, "m1", number, "orders"), GroupHeartbeatResponse)
    return broker


def test_a_member_is_thrown_out_by_nobody_else(broker: Broker) -> None:
    with asking(broker, "bob"):
        for refused in (
            beat(broker, "m1", 10**6, is_leaving=True),
            beat(broker, "m1", 10**6),
            beat(broker, "m1", 10**6, "scratch"),
            commit(broker, "scratch", "m1"),
        ):
            assert isinstance(refused, RemoteError)
            assert refused.code == ErrorCode.UNKNOWN_MEMBER
    with asking(broker, "pay"):
        assert not isinstance(commit(broker, "orders", "m1"), RemoteError)
        assert members(broker, "orders") == ["m1"]


def test_it_is_thrown_out_by_nobody_else_with_the_same_rights(broker: Broker) -> None:
    allow(broker, *(Rule(one, stream="orders") for one in (Operation.READ, Operation.COMMIT_OFFSETS)))
    with asking(broker, "bob"):
        refused = beat(broker, "m1", 10**6, "orders", is_leaving=True)
        assert isinstance(refused, RemoteError)
        assert refused.code == ErrorCode.UNKNOWN_MEMBER
    with asking(broker, "pay"):
        assert not isinstance(beat(broker, "m1", 3, is_leaving=True), RemoteError)
        assert members(broker, "orders") == []


def test_it_is_bound_to_its_user_after_a_crash_too(broker: Broker) -> None:
    before = broker.who
    after = broker.crash().start()
    assert before is None
    with asking(after, "bob"):
        refused = beat(after, "m1", 10**6, is_leaving=True)
        assert isinstance(refused, RemoteError)
        assert refused.code == ErrorCode.UNKNOWN_MEMBER
    with asking(after, "pay"):
        assert not isinstance(beat(after, "m1", 3, "orders"), RemoteError)


def test_what_is_told_of_members_is_told_of_those_who_read_the_stream(broker: Broker) -> None:
    with asking(broker, "bob"):
        assert members(broker, "scratch") == []
        assert not isinstance(commit(broker, "scratch"), RemoteError)  # the members of `orders` are nothing to it
        listed = broker.ask(ListGroupsRequest(**offsets(broker)), ListGroupsResponse).groups
        assert [(one.stream_id, one.members) for one in listed] == [(stream_id(broker, "scratch"), 0)]
    with asking(broker, "pay"):
        assert members(broker, "orders") == ["m1"]


def test_who_reads_something_else_under_the_same_name_keeps_nobody_out(broker: Broker) -> None:
    with asking(broker, "bob"):
        for number in (1, 2):
            assert isinstance(beat(broker, "mallory", number, "scratch"), GroupHeartbeatResponse)
    with asking(broker, "pay"):
        assert not isinstance(beat(broker, "m1", 3, "orders"), RemoteError)
        assert not isinstance(commit(broker, "orders", "m1"), RemoteError)
        assert members(broker, "orders") == ["m1"]
        assert not isinstance(beat(broker, "m1", 4, is_leaving=True), RemoteError)
        assert not isinstance(commit(broker, "orders"), RemoteError)  # though mallory is there still
        assert not isinstance(beat(broker, "m2", 1, "orders"), RemoteError)


def test_a_user_whose_right_is_taken_away_has_nothing_more_and_may_leave(broker: Broker) -> None:
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="pay", drop=(Rule(Operation.COMMIT_OFFSETS, stream="orders"),)))
        broker.request(ChangeRulesRequest(name="pay", add=(Rule(Operation.COMMIT_OFFSETS, stream="scratch"),)))
    with asking(broker, "pay"):
        refused = beat(broker, "m1", 3, "orders")
        assert isinstance(refused, RemoteError)
        assert refused.code == ErrorCode.NOT_AUTHORIZED
        assert not isinstance(beat(broker, "m1", 4, is_leaving=True), RemoteError)


def test_who_was_a_member_before_there_were_users_is_from_then_on_the_one_who_goes_on() -> None:
    broker = Broker().start()
    broker.create("orders")
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    for number in (1, 2):
        assert isinstance(beat(broker, "m1", number, "orders"), GroupHeartbeatResponse)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("bob", Rule(Operation.COMMIT_OFFSETS, stream="orders")))
        assert isinstance(beat(broker, "m1", 3, "orders"), GroupHeartbeatResponse)
    with asking(broker, "bob"):
        assert isinstance(beat(broker, "m1", 4, "orders"), RemoteError)


def test_who_leaves_its_cluster_judges_nobody_any_more() -> None:
    """Others may take a change of users for done as soon as it has said that it leaves, and not wait for it."""
    brokers = Proven(1, 2, 3)
    brokers.run(5_000)
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    made = brokers.leader.request(user("ann", Rule(Operation.ADMIN)))
    brokers.run(5_000)
    assert not isinstance(brokers.leader.answer(made, object), RemoteError)  # type: ignore[type-var]
    member = brokers.led("s")
    member.who = who(member, "ann")
    asked = ListOffsetsRequest(stream_id=member.stream_id("s"), partition=PartitionId(0), at="latest")
    caller = member.request(asked)
    brokers.settle()  # the others promise to wait
    assert not isinstance(member.answer(caller, object), RemoteError)  # type: ignore[type-var]
    member.node.leave(brokers.clock.now, lambda: None)
    assert member.refusal(asked).code == ErrorCode.NOT_YET


def test_name_and_address_of_a_member_are_told_to_its_user_and_to_those_who_monitor(broker: Broker) -> None:
    asked = FetchOffsetsRequest(**offsets(broker), group=GROUP, of_stream_id=stream_id(broker, "orders"))

    def told(name: str) -> tuple[str, str]:
        with asking(broker, name):
            (one,) = broker.ask(asked, FetchOffsetsResponse).members
            return one.client_name, one.address

    allow(broker, Rule(Operation.READ, stream="orders"))
    with asking(broker, "ann"):
        broker.request(user("eye", Rule(Operation.MONITOR)))
    with asking(broker, "pay"):
        broker.origin = ClientOrigin("billing-1", "10.0.0.7:40312")
        assert isinstance(beat(broker, "m1", 3, "orders"), GroupHeartbeatResponse)
    assert told("pay") == told("ann") == told("eye") == broker.origin
    assert told("bob") == ("", "")
