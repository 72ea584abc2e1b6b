"""Offsets of groups on one broker and on several: what is told, what survives, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from penstock.access import Operation, Rule
from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.groups.offsets import CommittedOffsets
from penstock.groups.rows import OFFSETS_STREAM, OffsetKey
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    ChangeRulesRequest,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CreateStreamRequest,
    CreateUserRequest,
    CreateUserResponse,
    DeleteStreamRequest,
    DeleteUserRequest,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListOffsetsRequest,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    Request,
    SetIntakeRequest,
    TruncateRequest,
    TruncateResponse,
)
from penstock.metadata.commands import CreateStream
from penstock.metadata.effects.apply import apply
from penstock.node.partition.internal_streams import offsets_config, overdue_alteration
from penstock.node.step import PeerRequest
from tests.extent import each_change
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers, Member, Proven, formed
from tests.unit.node.replicas.test_leader_leases import apart_from_metadata, depose
from tests.unit.node.security.test_access import credential, who

NUMBER = PartitionId(partition_of(b"billing", limits.OFFSETS_PARTITIONS))


def commit_of(broker: Broker, *offsets: int | None, stream: str = "orders", group: str = "billing") -> Request:
    """A commit of one offset for each partition."""
    return CommitOffsetsRequest(
        stream_id=broker.stream_id(OFFSETS_STREAM),
        partition=PartitionId(partition_of(group.encode(), limits.OFFSETS_PARTITIONS)),
        group=group,
        offsets=tuple(
            OffsetCommit(
                stream_id=broker.stream_id(stream),
                partition=PartitionId(number),
                offset=None if offset is None else Offset(offset),
                leader_epoch=LeaderEpoch(7),
                metadata="m",
            )
            for number, offset in enumerate(offsets)
        ),
    )


def fetch_of(broker: Broker, *, stream: str = "orders", group: str = "billing") -> FetchOffsetsRequest:
    return FetchOffsetsRequest(
        stream_id=broker.stream_id(OFFSETS_STREAM),
        partition=PartitionId(partition_of(group.encode(), limits.OFFSETS_PARTITIONS)),
        group=group,
        of_stream_id=broker.stream_id(stream),
    )


def again(broker: Broker, request: Request) -> object:
    """The answer to a request, as a client gets it, which asks again while it is not yet time."""
    for _ in range(5):
        response = broker.replies[broker.request(request)].response
        if not isinstance(response, RemoteError) or response.code != ErrorCode.NOT_YET:
            return response
    raise AssertionError(response)


def told(broker: Broker, **which: str) -> dict[int, int]:
    response = again(broker, fetch_of(broker, **which))
    assert isinstance(response, FetchOffsetsResponse), response
    return {one.partition: one.offset for one in response.offsets}


def committed(broker: Broker, *offsets: int | None, **which: str) -> None:
    response = again(broker, commit_of(broker, *offsets, **which))
    assert isinstance(response, CommitOffsetsResponse), response


def with_offsets(**config: object) -> Broker:
    broker = Broker().start()
    broker.create("orders", **{"subject": "orders", "partitions": 2, **config})
    broker.fill_partitions("orders")
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    return broker


def test_the_stream_is_made_when_it_is_first_asked_for_and_nobody_listens_for_it() -> None:
    broker = Broker().start()
    assert OFFSETS_STREAM not in broker.streams()
    made = broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse).stream
    assert made.name == OFFSETS_STREAM
    assert len(made.partitions) == limits.OFFSETS_PARTITIONS
    assert broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse).stream.stream_id == made.stream_id
    assert broker.nats.wanted == {}
    assert {part.state for part in broker.stream(OFFSETS_STREAM).partitions} == {"online"}
    again = broker.crash().start()
    assert again.nats.wanted == {}
    assert again.stream(OFFSETS_STREAM).stream_id == made.stream_id


def test_it_can_be_made_and_used_without_nats() -> None:
    broker = Broker(nats_is_up=False).start()
    broker.create("orders", subject="orders")
    broker.fill_partitions("orders")
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    committed(broker, 5)
    assert told(broker) == {0: 5}
    broker.clock.advance_ms(20_000)
    broker.tick()


def test_what_is_committed_is_told_and_so_it_is_after_a_crash() -> None:
    broker = with_offsets()
    assert told(broker) == {}
    committed(broker, 3, 4)
    committed(broker, 5)
    assert told(broker) == {0: 5, 1: 4}
    assert told(broker, group="other") == {}
    (one, _) = broker.ask(fetch_of(broker), FetchOffsetsResponse).offsets
    assert (one.leader_epoch, one.metadata, one.committed_us) == (7, "m", broker.clock.wall_us)
    after = broker.crash().start()
    assert told(after) == {0: 5, 1: 4}
    committed(after, None, 9)
    assert told(after) == {1: 9}
    assert told(after.crash().start()) == {1: 9}


def test_rows_are_text_that_anybody_can_read() -> None:
    broker = with_offsets()
    committed(broker, 3)
    committed(broker, None)
    key = b"v1/offset/billing/%d/0" % broker.stream_id("orders")
    rows = broker.read(OFFSETS_STREAM, NUMBER)
    assert [(row.subject, row.key, row.value) for row in rows] == [
        ("$PENSTOCK.offsets", key, b'{"offset":3,"leader_epoch":7,"metadata":"m"}'),
        ("$PENSTOCK.offsets", key, None),
    ]


def test_a_commit_is_answered_and_told_when_it_is_on_the_disk_and_not_before() -> None:
    broker = with_offsets()
    committed(broker, 3)
    broker.syncs_hang = True
    waiting = broker.request(commit_of(broker, 8))
    assert waiting in broker.open_requests
    assert told(broker) == {0: 3}
    lost = broker.crash()
    broker.syncs_hang = False
    broker.settle()
    broker.answer(waiting, CommitOffsetsResponse)
    assert told(broker) == {0: 8}
    assert told(lost.start()) == {0: 3}
    assert told(broker.crash().start()) == {0: 8}


def test_while_the_log_is_read_everybody_is_asked_to_come_again() -> None:
    broker = with_offsets()
    committed(broker, 3)
    after = broker.crash().start()
    after.disk_runs_at_once = False
    for request in (fetch_of(after), commit_of(after, 4), fetch_of(after)):
        assert after.refusal(request).code == ErrorCode.NOT_YET
    assert len(after.disk) == 1  # it is read once
    after.settle()
    assert told(after) == {0: 3}


def test_a_log_that_cannot_be_read_is_told_and_read_again() -> None:
    broker = with_offsets()
    committed(broker, 3)
    after = broker.crash().start()
    after.disk_runs_at_once = False
    assert after.refusal(fetch_of(after)).code == ErrorCode.NOT_YET
    (work,) = after.disk
    after.disk.clear()
    after.node.complete(work, OSError(5, "Input/output error"), after.clock.now)
    assert after.refusal(fetch_of(after)).code == ErrorCode.STORAGE_FAILED
    after.disk_runs_at_once = True
    after.turn()
    assert told(after) == {0: 3}


def test_offsets_of_a_stream_that_is_deleted_go_and_the_next_one_of_its_name_has_none() -> None:
    broker = with_offsets()
    committed(broker, 3, 4)
    broker.create("other", subject="other")
    broker.fill_partitions("other")
    committed(broker, 6, stream="other")
    gone = commit_of(broker, 5)
    broker.delete("orders")
    assert broker.refusal(gone).code == ErrorCode.STREAM_CHANGED
    broker.create("orders", subject="orders")
    assert told(broker) == {}
    after = broker.crash().start()
    assert told(after, stream="other") == {0: 6}
    after.settle()
    values = [row.value for row in after.read(OFFSETS_STREAM, NUMBER)]
    assert values.count(None) == 2  # a tombstone each
    assert told(after, stream="other") == {0: 6}


def test_groups_are_listed_with_their_streams() -> None:
    broker = with_offsets()
    broker.create("other", subject="other")
    broker.fill_partitions("other")
    committed(broker, 3, 4)
    committed(broker, 6, stream="other")
    request = ListGroupsRequest(stream_id=broker.stream_id(OFFSETS_STREAM), partition=NUMBER)
    found = broker.ask(request, ListGroupsResponse).groups
    wanted = [("billing", broker.stream_id("orders"), 2), ("billing", broker.stream_id("other"), 1)]
    assert [(one.group, one.stream_id, one.partitions) for one in found] == wanted
    request = msgspec.structs.replace(request, after_group="billing", after_stream_id=wanted[0][1])
    assert [one.stream_id for one in broker.ask(request, ListGroupsResponse).groups] == [wanted[1][1]]
    request = msgspec.structs.replace(request, after_stream_id=wanted[1][1])
    assert broker.ask(request, ListGroupsResponse).groups == ()


def test_more_than_are_kept_are_refused_until_some_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 3)
    broker = with_offsets(partitions=4)
    committed(broker, 1, 2, 3)
    error = again(broker, commit_of(broker, 1, 2, 3, 4))
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.TOO_LARGE
    assert told(broker) == {0: 1, 1: 2, 2: 3}  # all or none
    committed(broker, 5, 6, 7)  # no more than there are
    committed(broker, None)
    request = commit_of(broker, 1, 2, 3, 4)
    assert isinstance(request, CommitOffsetsRequest)
    committed_last = msgspec.structs.replace(request, offsets=request.offsets[3:])
    assert isinstance(again(broker, committed_last), CommitOffsetsResponse)
    assert told(broker) == {1: 6, 2: 7, 3: 4}


def test_room_is_made_by_what_was_committed_in_streams_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 2)
    broker = with_offsets()
    committed(broker, 1, 2)
    broker.create("other", subject="other", partitions=2)
    broker.fill_partitions("other")
    broker.delete("orders")
    request = commit_of(broker, 3, 4, stream="other")
    assert broker.refusal(request).code == ErrorCode.TOO_LARGE
    assert isinstance(again(broker, request), CommitOffsetsResponse)


def test_whoever_is_refused_does_not_have_all_offsets_looked_through_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 2)
    broker = with_offsets(partitions=3)
    committed(broker, 1, 2)
    looks: list[int] = []
    left_over = CommittedOffsets.left_over

    def counted(self: CommittedOffsets, is_gone: Callable[[int], bool], count: int) -> list[OffsetKey]:
        looks.append(count)
        return left_over(self, is_gone, count)

    monkeypatch.setattr(CommittedOffsets, "left_over", counted)
    for _ in range(5):
        assert broker.refusal(commit_of(broker, 1, 2, 3)).code == ErrorCode.TOO_LARGE
    assert not looks  # that was done when they were read
    broker.create("other", subject="other")
    broker.delete("other")
    for _ in range(5):
        assert broker.refusal(commit_of(broker, 1, 2, 3)).code == ErrorCode.TOO_LARGE
    assert len(looks) == 1


def test_what_cannot_be_is_refused() -> None:
    broker = with_offsets()
    committed(broker, 1)
    commit = commit_of(broker, 1)
    assert isinstance(commit, CommitOffsetsRequest)
    wrong = PartitionId((NUMBER + 1) % limits.OFFSETS_PARTITIONS)
    assert broker.refusal(msgspec.structs.replace(commit, partition=wrong)).code == ErrorCode.BAD_REQUEST
    orders = broker.stream_id("orders")
    assert broker.refusal(msgspec.structs.replace(commit, stream_id=orders)).code == ErrorCode.BAD_REQUEST
    (one,) = commit.offsets
    for changed, code in (
        (msgspec.structs.replace(one, partition=PartitionId(2)), ErrorCode.BAD_REQUEST),
        (msgspec.structs.replace(one, stream_id=StreamId(1)), ErrorCode.STREAM_CHANGED),
        (msgspec.structs.replace(one, stream_id=StreamId(10**9)), ErrorCode.NOT_YET),
    ):
        assert broker.refusal(msgspec.structs.replace(commit, offsets=(changed,))).code == code
    assert told(broker) == {0: 1}


def test_users_neither_make_nor_change_what_is_penstocks_own() -> None:
    broker = with_offsets()
    offsets = broker.stream_id(OFFSETS_STREAM)
    config = StreamConfig(name="__mine", subject="mine")
    own = StreamConfig(name=OFFSETS_STREAM, subject="$PENSTOCK.offsets")
    batch = batch_of([("$PENSTOCK.offsets", b"v1/offset/billing/4/0", b'{"offset":1}', None)])
    for request, code in (
        (CreateStreamRequest(config=config), ErrorCode.INVALID_CONFIG),
        (CreateStreamRequest(config=own), ErrorCode.READ_ONLY),
        (AlterStreamRequest(name=OFFSETS_STREAM, changes={"max_messages": 1}), ErrorCode.READ_ONLY),
        (
            AlterStreamRequest(name=OFFSETS_STREAM, changes={"allow_unclean_election": True, "max_messages": 1}),
            ErrorCode.READ_ONLY,
        ),
        (AlterStreamRequest(name=OFFSETS_STREAM, changes={}), ErrorCode.READ_ONLY),
        (SetIntakeRequest(name=OFFSETS_STREAM, intake="paused"), ErrorCode.READ_ONLY),  # type: ignore[arg-type]
        (DeleteStreamRequest(name=OFFSETS_STREAM), ErrorCode.READ_ONLY),
        (TruncateRequest(stream_id=offsets, before=Offset(0)), ErrorCode.READ_ONLY),
    ):
        assert broker.refusal(request).code == code, request
    assert broker.refusal(AppendRequest(stream_id=offsets), batch).code == ErrorCode.READ_ONLY


def test_users_may_let_whoever_is_there_lead_what_is_penstocks_own() -> None:
    """Else offsets whose only whole replica is gone for good could never be committed again."""
    broker = with_offsets()
    for is_allowed in (True, False):
        changes = {"allow_unclean_election": is_allowed}
        altered = broker.ask(AlterStreamRequest(name=OFFSETS_STREAM, changes=changes), AlterStreamResponse)
        assert altered.stream.config.allow_unclean_election is is_allowed


def test_a_stream_of_users_that_had_such_a_name_before_stays_theirs() -> None:
    broker = Broker().start()
    node = broker.node
    answers: list[object] = []
    config = StreamConfig(name=OFFSETS_STREAM, subject="mine.>")
    node._cluster.link.administer(CreateStreamRequest(config=config), answers.append)  # as the version before did
    broker.turn()
    broker.publish("mine.x", b"1", reply="r")
    assert broker.acked() == ["r"]
    assert broker.refusal(OffsetsStreamRequest()).code == ErrorCode.STREAM_EXISTS
    request = msgspec.structs.replace(fetch_of_any(broker), partition=PartitionId(0))
    assert broker.refusal(request).code == ErrorCode.BAD_REQUEST
    broker.delete(OFFSETS_STREAM)
    assert broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse).stream.subject == "$PENSTOCK.offsets"


def fetch_of_any(broker: Broker) -> FetchOffsetsRequest:
    stream_id = broker.stream_id(OFFSETS_STREAM)
    return FetchOffsetsRequest(stream_id=stream_id, partition=NUMBER, group="billing", of_stream_id=stream_id)


# Several brokers


def leader_of(brokers: Brokers) -> int:
    member = next(iter(brokers.members.values()))
    state = member.image.by_name(OFFSETS_STREAM).partitions[NUMBER]
    return int(state.leader)


def three() -> Brokers:
    return with_offsets_of(1, 2, 3)


def fill(brokers: Brokers, name: str) -> None:
    """Append ten messages to each partition, where that is led."""
    state = brokers.leader.image.by_name(name)
    for number, placed in enumerate(state.partitions):
        values = [b""] * 10
        brokers[int(placed.leader)].append(name, *values, subject=state.config.subject_of(number), partition=number)
    brokers.run(500)


def with_offsets_of(*ids: int, replicas: int | None = None, kind: type[Brokers] = Brokers) -> Brokers:
    brokers = kind(*ids)
    brokers.run(5_000)
    brokers[1].create("orders", subject="orders", partitions=2, replicas=replicas)
    brokers.run(1_000)
    fill(brokers, "orders")
    caller = brokers[1].request(OffsetsStreamRequest())
    brokers.run(1_000)
    brokers[1].answer(caller, OffsetsStreamResponse)
    return brokers


def asked(brokers: Brokers, broker_id: int, request: Request) -> object:
    """The answer of that broker, asked again while it says that it is not yet time."""
    member = brokers[broker_id]
    for _ in range(20):
        caller = member.request(request)
        brokers.run(100)
        if caller in member.open_requests:
            return caller
        response = member.replies[caller].response
        if not isinstance(response, RemoteError) or response.code != ErrorCode.NOT_YET:
            return response
    raise AssertionError(response)


def offsets_of(response: object) -> dict[int, int]:
    assert isinstance(response, FetchOffsetsResponse), response
    return {one.partition: one.offset for one in response.offsets}


@each_change
def test_the_next_leader_tells_all_that_was_committed_and_who_does_not_lead_says_who_does() -> None:
    brokers = three()
    first = leader_of(brokers)
    assert isinstance(asked(brokers, first, commit_of(brokers[first], 3, 4)), CommitOffsetsResponse)
    other = next(one for one in (1, 2, 3) if one != first)
    refusal = asked(brokers, other, fetch_of(brokers[other]))
    assert isinstance(refusal, RemoteError)
    assert (refusal.code, refusal.details["leader"]) == (ErrorCode.NOT_LEADER, first)
    disk = brokers.kill(first)
    brokers.run(10_000)
    second = leader_of(brokers)
    assert second != first
    assert offsets_of(asked(brokers, second, fetch_of(brokers[second]))) == {0: 3, 1: 4}
    assert isinstance(asked(brokers, second, commit_of(brokers[second], 9)), CommitOffsetsResponse)
    brokers.start(first, disk)
    brokers.run(10_000)
    brokers.kill(second)
    brokers.run(10_000)
    third = leader_of(brokers)
    assert offsets_of(asked(brokers, third, fetch_of(brokers[third]))) == {0: 9, 1: 4}


def test_a_leader_that_is_cut_off_tells_and_commits_nothing_more() -> None:
    brokers = three()
    first = leader_of(brokers)
    assert isinstance(asked(brokers, first, commit_of(brokers[first], 3)), CommitOffsetsResponse)
    for other in (1, 2, 3):
        if other != first:
            brokers.cut(first, other)
    member = brokers[first]
    late = member.request(commit_of(member, 8))
    assert late in member.open_requests
    brokers.run(10_000)
    refusal = asked(brokers, first, fetch_of(member))
    assert isinstance(refusal, RemoteError)
    assert refusal.code == ErrorCode.NOT_LEADER
    second = next(one for one in (1, 2, 3) if one != first)
    second = int(brokers[second].image.by_name(OFFSETS_STREAM).partitions[NUMBER].leader)
    assert second != first
    assert isinstance(asked(brokers, second, commit_of(brokers[second], 5)), CommitOffsetsResponse)
    brokers.join(first, *(other for other in (1, 2, 3) if other != first))
    brokers.run(10_000)
    answer = member.replies[late].response
    assert isinstance(answer, RemoteError), answer
    assert answer.code == ErrorCode.FENCED_EPOCH
    assert offsets_of(asked(brokers, second, fetch_of(brokers[second]))) == {0: 5}
    assert [row.value for row in brokers[second].read(OFFSETS_STREAM, NUMBER)][-1].startswith(b'{"offset":5')  # type: ignore[union-attr]


@each_change
def test_the_next_leader_tells_nothing_before_all_that_it_has_is_committed() -> None:
    brokers = with_offsets_of(1, 2, 3, 4, 5, replicas=5)  # so that no other broker is asked where it ends
    first = leader_of(brokers)
    state = brokers[first].image.by_name(OFFSETS_STREAM).partitions[NUMBER]
    second, hung = (int(one) for one in state.replicas if one != first)
    assert isinstance(asked(brokers, first, commit_of(brokers[first], 3)), CommitOffsetsResponse)
    brokers.hang(hung)
    late = brokers[first].request(commit_of(brokers[first], 8))
    brokers.run(200)
    assert late in brokers[first].open_requests, "one in sync does not have it"
    brokers.kill(first)
    for _ in range(200):
        brokers.run(50)
        if brokers[second].image.by_name(OFFSETS_STREAM).partitions[NUMBER].leader == second:
            break
    for _ in range(20):
        caller = brokers[second].request(fetch_of(brokers[second]))
        brokers.run(50)
        refusal = brokers[second].replies[caller].response
        assert isinstance(refusal, RemoteError), refusal
        assert refusal.code == ErrorCode.NOT_YET
    brokers.wake(hung)
    brokers.run(20_000)
    assert offsets_of(asked(brokers, second, fetch_of(brokers[second]))) == {0: 8}


def apart(brokers: Brokers) -> tuple[int, int, str]:
    """Make a stream that is held by another broker than the one that leads the group's offsets; both, and its name."""
    first = leader_of(brokers)
    for number in range(20):
        made = f"apart{number}"
        brokers[first].create(made, subject=made, replicas=1)
        brokers.run(500)
        (placed,) = brokers.leader.image.by_name(made).partitions
        if placed.leader != first:
            fill(brokers, made)
            return first, int(placed.leader), made
    raise AssertionError("all are led by one broker")


def test_an_offset_beyond_the_end_is_refused_and_one_at_the_end_is_not() -> None:
    broker = with_offsets()
    committed(broker, 10, 10)
    error = again(broker, commit_of(broker, 3, 11))
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert error.message == (
        "nothing was committed: offset 11 is beyond the end of partition 1 of stream 'orders', "
        "which holds the offsets from 0 up to, but not including, 10"
    )
    assert error.details == {"partition": 1, "log_start": 0, "committed_end": 10}
    assert told(broker) == {0: 10, 1: 10}  # all or none
    broker.ask(TruncateRequest(stream_id=broker.stream_id("orders"), before=Offset(10)), TruncateResponse)
    committed(broker, 4)  # what is gone was there


def test_the_leader_is_asked_where_another_broker_keeps_the_offsets() -> None:
    brokers = three()
    first, other, name = apart(brokers)
    answer = asked(brokers, first, commit_of(brokers[first], 10, stream=name))
    assert isinstance(answer, CommitOffsetsResponse), answer
    brokers[other].append(name, b"one more", subject=name)
    brokers.run(100)
    answer = asked(brokers, first, commit_of(brokers[first], 11, stream=name))
    assert isinstance(answer, CommitOffsetsResponse), "a consumer that reads there commits at once"
    error = asked(brokers, first, commit_of(brokers[first], 12, stream=name))
    assert isinstance(error, RemoteError)
    assert (error.code, error.details["committed_end"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, 11)


def test_commits_that_come_at_once_ask_the_leader_together() -> None:
    brokers = three()
    first, other, name = apart(brokers)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {}  # they are read
    brokers.hang(other)
    commits = [commit_of(brokers[first], 10 + number % 2, stream=name) for number in range(100)]
    callers = [brokers[first].request(commit) for commit in commits]
    brokers.run(50)

    def questions() -> int:
        waiting = (item for _, item in brokers._hung[BrokerId(other)] if isinstance(item, PeerRequest))
        return sum(isinstance(item.request, ListOffsetsRequest) for item in waiting)

    assert questions() == 1
    brokers.wake(other)
    brokers.run(500)
    answers = [brokers[first].replies[caller].response for caller in callers]
    assert {type(answer).__name__ for answer in answers[::2]} == {"CommitOffsetsResponse"}
    assert {type(answer).__name__ for answer in answers[1::2]} == {"RemoteError"}


def led_by(brokers: Brokers, first: int) -> str:
    """Make a stream with three replicas that is led by this broker, with ten messages; its name."""
    for number in range(20):
        made = f"with{number}"
        brokers[first].create(made, subject=made, replicas=3)
        brokers.run(500)
        (placed,) = brokers.leader.image.by_name(made).partitions
        if placed.leader == first:
            fill(brokers, made)
            return made
    raise AssertionError("it leads none of them")


@pytest.mark.parametrize("is_led_elsewhere", [False, True])
def test_an_offset_beyond_the_end_is_refused_once_the_leader_is_confirmed(is_led_elsewhere: bool) -> None:
    brokers = three()
    first = leader_of(brokers)
    name = led_by(brokers, next(one for one in (1, 2, 3) if one != first) if is_led_elsewhere else first)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {}  # they are read
    caller = brokers[first].request(commit_of(brokers[first], 11, stream=name))
    assert caller in brokers[first].open_requests, "another one may have committed more by now"
    brokers.run(200)
    error = brokers[first].replies[caller].response
    assert isinstance(error, RemoteError), error
    assert (error.code, error.details["committed_end"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, 10)


@each_change
def test_a_leader_that_may_be_deposed_refuses_no_offset() -> None:
    brokers = three()
    first = leader_of(brokers)
    name = led_by(brokers, first)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {}  # they are read
    others = [other for other in (1, 2, 3) if other != first]
    for other in others:
        brokers.cut(first, other)
    caller = brokers[first].request(commit_of(brokers[first], 11, stream=name))
    brokers.run(20_000)
    (placed,) = brokers[others[0]].image.by_name(name).partitions
    assert placed.leader in others
    brokers[int(placed.leader)].append(name, b"11", subject=name)
    brokers.run(500)
    brokers.join(first, *others)
    brokers.run(10_000)
    answer = brokers[first].replies[caller].response
    assert isinstance(answer, RemoteError), answer
    assert answer.code in (ErrorCode.NOT_LEADER, ErrorCode.FENCED_EPOCH)


@each_change
def test_what_nobody_can_judge_is_taken() -> None:
    brokers = three()
    first, other, name = apart(brokers)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {}  # they are read
    brokers.hang(other)
    caller = brokers[first].request(commit_of(brokers[first], 10, stream=name))
    brokers.run(1_000)
    assert caller in brokers[first].open_requests
    brokers.cut(first, other)  # as a driver does that hears nothing of it for long
    brokers.run(20_000)  # and until the offsets are committed without it
    brokers[first].answer(caller, CommitOffsetsResponse)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {0: 10}


@each_change
def test_a_commit_takes_the_permissions_of_the_moment_at_which_it_was_judged() -> None:
    brokers = with_offsets_of(1, 2, 3, kind=Proven)
    first, other, name = apart(brokers)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {}  # they are read
    may_commit = Rule(Operation.COMMIT_OFFSETS, stream="*")
    for user, rule in (("ann", Rule(Operation.ADMIN)), ("bob", may_commit)):
        made = brokers[first].request(CreateUserRequest(name=user, credentials=(credential(),), rules=(rule,)))
        brokers.run(1_000)
        brokers[first].answer(made, CreateUserResponse)
        brokers[first].who = who(brokers[first], "ann")
    brokers[first].who = who(brokers[first], "bob")
    brokers.hang(other)
    caller = brokers[first].request(commit_of(brokers[first], 10, stream=name))
    brokers.run(1_000)
    assert caller in brokers[first].open_requests
    brokers[first].who = who(brokers[first], "ann")
    brokers[first].request(ChangeRulesRequest(name="bob", drop=(may_commit,)))
    brokers.run(1_000)
    brokers.cut(first, other)  # nobody can judge it any more
    brokers.run(20_000)
    error = brokers[first].replies[caller].response
    assert isinstance(error, RemoteError), error
    assert error.code in (ErrorCode.NOT_AUTHORIZED, ErrorCode.STREAM_CHANGED)
    assert offsets_of(asked(brokers, first, fetch_of(brokers[first], stream=name))) == {}


# A stream that an earlier version has made


def create_as_before(brokers: Brokers) -> None:
    """Make `__offsets` as a version without compaction does."""
    config = msgspec.structs.replace(offsets_config(), compact=False, replicas=3, min_isr=2)
    command = CreateStream(config=config, created_us=1, assignments=(tuple(sorted(brokers.members)),) * 16)
    brokers.leader.quorum.propose(command, lambda outcome: None)
    brokers.run(1_000)


def are_compacted(brokers: Brokers) -> set[bool]:
    """What its replicas go by."""
    found: set[bool] = set()
    for member in brokers.members.values():
        logs = [one.log for one in member.node._partitions.values() if one.stream.name == OFFSETS_STREAM]
        assert len(logs) == limits.OFFSETS_PARTITIONS
        found |= {log.config.compact for log in logs} | {member.image.by_name(OFFSETS_STREAM).config.compact}
    return found


def test_a_broker_that_leads_before_it_is_registered_as_of_a_new_version_alters_nothing() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    image = brokers.leader.image
    config = msgspec.structs.replace(offsets_config(), compact=False, replicas=3, min_isr=2)
    command = CreateStream(config=config, created_us=1, assignments=((BrokerId(1), BrokerId(2), BrokerId(3)),) * 16)
    image, _ = apply(image, image.index + 1, command)
    (version,) = {one.broker_version for one in image.brokers.values()}
    assert overdue_alteration(image, version) is not None
    assert overdue_alteration(image, "2") is None


@each_change
def test_brokers_that_are_upgraded_one_by_one_have_it_compacted_when_all_are() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    brokers.settings["broker_version"] = "2"
    brokers.start(1, brokers.kill(1))
    brokers.run(10_000)
    create_as_before(brokers)
    for broker_id in (2, 3):
        assert are_compacted(brokers) == {False}
        memory = brokers.kill(broker_id)
        brokers.run(10_000)  # also while it is away: it may come back as it was
        assert not brokers.leader.image.by_name(OFFSETS_STREAM).config.compact
        brokers.start(broker_id, memory)
        brokers.run(10_000)
    assert are_compacted(brokers) == {True}
    index = brokers.leader.image.index
    brokers.run(10_000)
    assert brokers.leader.image.index == index


def test_where_a_group_begins_is_kept_only_where_nothing_is_committed_or_on_its_way() -> None:
    broker = with_offsets()

    def begins(offset: int) -> CommitOffsetsRequest:
        request = commit_of(broker, offset)
        assert isinstance(request, CommitOffsetsRequest)
        offsets = tuple(msgspec.structs.replace(one, is_begin=True) for one in request.offsets)
        return msgspec.structs.replace(request, offsets=offsets)

    assert told(broker) == {}  # and what is there is read
    broker.disk_runs_at_once = False
    callers = [broker.request(begins(3)), broker.request(begins(5))]
    broker.disk_runs_at_once = True
    broker.settle()
    for caller in callers:
        broker.answer(caller, CommitOffsetsResponse)
    assert told(broker) == {0: 3}
    committed(broker, 8)
    broker.ask(begins(1), CommitOffsetsResponse)
    assert told(broker) == {0: 8}


FIRST = next(one for one in map(str, range(100)) if partition_of(one.encode(), limits.OFFSETS_PARTITIONS) == 0)
"""A group whose offsets are in the first partition."""


def with_offsets_of_three(brokers: Brokers | None = None) -> tuple[Brokers, Member]:
    """Three brokers and the leader of the first group's offsets, which has committed 1 and does not lead the metadata.

    It has the lease.
    """
    brokers = formed() if brokers is None else brokers
    for request in (
        CreateStreamRequest(config=StreamConfig(name="orders", subject="orders", replicas=3)),
        OffsetsStreamRequest(),
    ):
        brokers.leader.request(request)
        brokers.run(2_000)
    for number in range(10):
        brokers.publish("orders", b"%d" % number)
    led = apart_from_metadata(brokers, OFFSETS_STREAM)
    brokers.run(2_000)
    led.request(fetch_of(led, group=FIRST))  # it reads the log first
    brokers.run(1_000)
    asked = led.request(commit_of(led, 1, group=FIRST))
    brokers.run(500)
    led.answer(asked, CommitOffsetsResponse)
    asked = led.request(fetch_of(led, group=FIRST))
    brokers.settle()
    assert [one.offset for one in led.answer(asked, FetchOffsetsResponse).offsets] == [1]
    return brokers, led


@pytest.mark.parametrize("lists", [False, True])
def test_a_deposed_leader_tells_no_offsets_once_its_successor_has_committed_others(lists: bool) -> None:
    brokers, led = with_offsets_of_three()
    depose(brokers, led, OFFSETS_STREAM)
    successor = brokers.led(OFFSETS_STREAM)
    answered = 0
    for _ in range(3 * limits.SESSION_MS // 50):
        committed = successor.request(commit_of(successor, 5, group=FIRST))
        brokers.settle()
        has_committed = isinstance(getattr(successor.replies.get(committed), "response", None), CommitOffsetsResponse)
        stream_id, number = led.stream_id(OFFSETS_STREAM), PartitionId(0)
        request = ListGroupsRequest(stream_id=stream_id, partition=number) if lists else fetch_of(led, group=FIRST)
        asked = led.request(request)
        is_answered = asked in led.replies and not isinstance(led.replies[asked].response, RemoteError)
        assert not (is_answered and has_committed)
        answered += has_committed
        brokers.run(50)
    assert answered


@pytest.mark.parametrize("lists", [False, True])
def test_who_loses_the_login_while_the_leader_is_confirmed_is_told_no_offsets(lists: bool) -> None:
    brokers = Proven(1, 2, 3)
    brokers.run(5_000)
    _, led = with_offsets_of_three(brokers)
    lead = brokers.leader
    for name in ("ann", "bob"):
        lead.request(CreateUserRequest(name=name, credentials=(credential(),), rules=(Rule(Operation.ADMIN),)))
        brokers.run(500)
        lead.who = who(lead, "ann")
    (third,) = [one for one in brokers.ids if one not in (led.broker_id, lead.broker_id)]
    brokers.run(2 * limits.LEADER_LEASE_MS)
    brokers.hang(int(third))
    brokers.run(limits.LEADER_LEASE_MS)
    led.who = who(led, "bob")
    stream_id, number = led.stream_id(OFFSETS_STREAM), PartitionId(0)
    request = ListGroupsRequest(stream_id=stream_id, partition=number) if lists else fetch_of(led, group=FIRST)
    asked = led.request(request)
    assert asked not in led.replies
    lead.request(DeleteUserRequest(name="bob"))
    for _ in range(100):
        brokers.run(50)
        if asked in led.replies:
            break
    refusal = led.replies[asked].response
    assert isinstance(refusal, RemoteError)
    assert refusal.code == ErrorCode.UNAUTHENTICATED
