"""Tables that users fill: nobody fills one alone, and who comes later still gets a first entry."""

from __future__ import annotations

import pytest

from penstock.access import Operation, Quotas, Rule
from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AlterUserRequest,
    AppendRequest,
    ChangeRulesRequest,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CreateStreamRequest,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GetRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    Request,
    StagedStreamRequest,
    TruncateRequest,
)
from penstock.metadata.effects.streams import logs_of
from penstock.node.partition.decisions import DecideRows
from tests.unit.node.api.test_offsets import again
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.security.test_access import asking, stream_id, user

COMMIT, READ = Operation.COMMIT_OFFSETS, Operation.READ


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """`p0` is bob's to read, `p1` eve's; all offsets are in one partition. Ann rules."""
    monkeypatch.setattr(limits, "OFFSETS_PARTITIONS", 1)
    broker = Broker().start()
    broker.create("p0", "p0", partitions=8)
    broker.create("p1", "p1", partitions=8)
    broker.fill_partitions("p0")
    broker.fill_partitions("p1")
    broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("bob", Rule(COMMIT, stream="p0")))
        broker.request(user("eve", Rule(COMMIT, stream="p1")))
    return broker


def commit(
    broker: Broker, by: str | None, group: str, count: int = 1, *, stream: str = "p0", offset: int | None = 1
) -> object:
    number = partition_of(group.encode(), 1)
    with asking(broker, "ann" if by is None else by):
        stream_ids = stream_id(broker, "__offsets"), stream_id(broker, stream)
        commits = tuple(
            OffsetCommit(
                stream_id=stream_ids[1], partition=PartitionId(one), offset=None if offset is None else Offset(offset)
            )
            for one in range(count)
        )
        return again(
            broker, CommitOffsetsRequest(stream_id=stream_ids[0], partition=number, group=group, offsets=commits)
        )


def filled(broker: Broker, by: str, *, stream: str = "p0") -> int:
    """Commit for one group after another until it is refused; how many times it was not."""
    for number in range(1_000):
        response = commit(broker, by, f"{by}-{number}", stream=stream)
        if isinstance(response, RemoteError):
            assert response.code == ErrorCode.TOO_LARGE
            assert f"user {by!r} has" in response.message
            return number
    raise AssertionError("nothing was refused")


def test_one_user_does_not_keep_others_from_committing(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 20)
    assert filled(broker, "bob") == 10
    assert isinstance(commit(broker, "eve", "eve", 2, stream="p1"), CommitOffsetsResponse)
    assert isinstance(commit(broker, "bob", "bob-0", offset=7), CommitOffsetsResponse)  # his are his
    assert isinstance(commit(broker, "bob", "bob-0", offset=None), CommitOffsetsResponse)


def test_one_large_commit_does_not_either(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 8)
    assert isinstance(commit(broker, "bob", "all", 8), RemoteError)
    assert isinstance(commit(broker, "bob", "some", 4), CommitOffsetsResponse)
    assert isinstance(commit(broker, "eve", "eve", stream="p1"), CommitOffsetsResponse)


def test_whose_they_are_is_known_after_a_restart(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 20)
    assert filled(broker, "bob") == 10
    broker.stop()
    after = Broker(broker.memory, clock=broker.clock).start()
    assert isinstance(commit(after, "bob", "more"), RemoteError)
    assert isinstance(commit(after, "eve", "eve", stream="p1"), CommitOffsetsResponse)


def test_what_is_on_its_way_counts(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 3)
    assert isinstance(commit(broker, "bob", "a"), CommitOffsetsResponse)
    stream_ids = stream_id(broker, "__offsets"), stream_id(broker, "p0")
    requests = [
        CommitOffsetsRequest(
            stream_id=stream_ids[0],
            partition=PartitionId(0),
            group=group,
            offsets=(OffsetCommit(stream_id=stream_ids[1], partition=PartitionId(0), offset=Offset(1)),),
        )
        for group in ("b", "c")
    ]
    broker.disk_runs_at_once = False
    with asking(broker, "bob"):
        first = broker.request(requests[0])
        assert first in broker.open_requests
        assert broker.refusal(requests[1]).code == ErrorCode.TOO_LARGE
        broker.settle()
        assert isinstance(broker.replies[first].response, CommitOffsetsResponse)
        assert broker.refusal(requests[1]).code == ErrorCode.TOO_LARGE


def test_an_administrator_makes_room_at_once(broker, monkeypatch) -> None:
    """What was committed before there were users may have filled it all."""
    monkeypatch.setattr(limits, "OFFSETS_KEPT_MAX", 8)
    assert isinstance(commit(broker, None, "old", 8), CommitOffsetsResponse)
    assert isinstance(commit(broker, "eve", "eve", stream="p1"), RemoteError)
    assert isinstance(commit(broker, None, "old", 2, offset=None), CommitOffsetsResponse)
    assert isinstance(commit(broker, "eve", "eve", stream="p1"), CommitOffsetsResponse)
    with asking(broker, "ann"):
        asked = FetchOffsetsRequest(
            stream_id=stream_id(broker, "__offsets"),
            partition=PartitionId(0),
            group="old",
            of_stream_id=stream_id(broker, "p0"),
        )
        assert len(broker.ask(asked, FetchOffsetsResponse).offsets) == 6


def joined(broker: Broker, by: str, group: str, *, stream: str = "p0") -> object:
    with asking(broker, by):
        request = GroupHeartbeatRequest(
            stream_id=stream_id(broker, "__offsets"),
            partition=PartitionId(0),
            group=group,
            member_id=f"{group}-member",
            number=1,
            stream_ids=(stream_id(broker, stream),),
        )
        return again(broker, request)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_one_user_does_not_keep_others_from_groups_with_members(broker, monkeypatch, is_restarted) -> None:
    monkeypatch.setattr(limits, "GROUPS_IN_USE_MAX", 6)
    for number in range(3):
        assert isinstance(joined(broker, "bob", f"bob-{number}"), GroupHeartbeatResponse)
    if is_restarted:
        broker.stop()
        broker = Broker(broker.memory, clock=broker.clock).start()
    refused = joined(broker, "bob", "bob-3")
    assert isinstance(refused, RemoteError)
    assert refused.code == ErrorCode.TOO_LARGE
    assert isinstance(joined(broker, "eve", "eve", stream="p1"), GroupHeartbeatResponse)
    assert isinstance(joined(broker, "ann", "ann"), GroupHeartbeatResponse)


def test_one_user_does_not_take_all_places_of_truncations(broker, monkeypatch) -> None:
    monkeypatch.setattr(limits, "TRUNCATIONS_WAITING_MAX", 4)
    with asking(broker, "ann"):
        for name in ("bob", "eve"):
            broker.request(ChangeRulesRequest(name=name, add=(Rule(Operation.DELETE, stream="p*"),)))
        broker.publish("p0", b"1")
        ids = {name: stream_id(broker, name) for name in ("p0", "p1")}
    broker.disk_runs_at_once = False
    request = TruncateRequest(stream_id=ids["p0"], before=Offset(1))
    with asking(broker, "bob"):
        for _ in range(2):
            assert broker.request(request) in broker.open_requests
        assert broker.refusal(request).code == ErrorCode.OVERLOADED
    with asking(broker, "eve"):
        assert broker.request(request) in broker.open_requests
    broker.settle()


def test_one_user_does_not_take_all_places_of_those_that_wait_for_a_limit_by_subject(monkeypatch) -> None:
    monkeypatch.setattr(limits, "DECISION_WAITERS_MAX", 4)
    broker = Broker().start()
    broker.create("lasts", "lasts", max_messages_per_subject=1)
    broker.settle()
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        for name in ("bob", "eve"):
            broker.request(user(name, Rule(READ, stream="lasts")))
        request = GetRequest(stream_id=stream_id(broker, "lasts"), subject="lasts")
    broker.hung = (DecideRows,)
    broker.publish("lasts", b"1")
    broker.tick(limits.DECISION_PAUSE_MS)
    with asking(broker, "bob"):
        for _ in range(2):
            assert broker.request(request) in broker.open_requests
        assert broker.refusal(request).code == ErrorCode.OVERLOADED
    with asking(broker, "eve"):
        assert broker.request(request) in broker.open_requests


def test_one_user_does_not_take_all_room_for_appends() -> None:
    batch = bytes(batch_of([("p0", None, b"x" * 100, None)]))
    broker = Broker(partition_in_flight_bytes_max=4 * len(batch)).start()
    broker.create("p0", "p0")
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        for name in ("bob", "eve"):
            broker.request(user(name, Rule(Operation.APPEND, stream="p0")))
        request = AppendRequest(stream_id=stream_id(broker, "p0"))
    broker.disk_runs_at_once = False
    with asking(broker, "bob"):
        for _ in range(2):
            assert broker.request(request, batch) in broker.open_requests
        assert broker.refusal(request, batch).code == ErrorCode.OVERLOADED
    assert [work.user for work in broker.disk] == ["bob", "bob"], "the same as of his fetches, or he has two turns"
    with asking(broker, "eve"):
        assert broker.request(request, batch) in broker.open_requests
    with asking(broker, "ann"):
        assert broker.request(request, batch) in broker.open_requests
        assert broker.refusal(request, batch).code == ErrorCode.OVERLOADED
    broker.settle()
    assert not broker.open_requests


def under_way(broker: Broker, *requests: Request) -> list[RemoteError]:
    """What bob asks for at once, before any of it is applied; what was refused of it."""
    broker.disk_runs_at_once = False
    with asking(broker, "bob"):
        callers = [broker.request(one) for one in requests]
    broker.settle()
    broker.disk_runs_at_once = True
    answers = [broker.replies[caller].response for caller in callers]
    return [one for one in answers if isinstance(one, RemoteError)]


def of_bob(broker: Broker, number: int, partitions: int) -> CreateStreamRequest:
    return CreateStreamRequest(
        config=StreamConfig(
            name=f"b{number}", subject=f"b.{number}", partitions=partitions, partition_by="key", replicas=1
        )
    )


def may_create(broker: Broker, quotas: Quotas | None = None) -> None:
    """Bob may create streams, within his quotas, and do anything with them."""
    rules = tuple(Rule(one, subject="b.>") for one in (Operation.CREATE, Operation.ALTER, Operation.APPEND))
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", add=rules))
        broker.request(AlterUserRequest(name="bob", quotas=quotas or Quotas()))


def partitions_of(broker: Broker, beginning: str) -> int:
    with asking(broker, "ann"):
        return sum(len(one.partitions) for name, one in broker.streams().items() if name.startswith(beginning))


def test_streams_that_are_asked_for_at_once_come_to_no_more_than_a_share(broker, monkeypatch) -> None:
    may_create(broker)
    monkeypatch.setattr(limits, "PARTITIONS_MAX", partitions_of(broker, "") + 40)
    refused = under_way(broker, *(of_bob(broker, number, 4) for number in range(20)))
    assert {one.code for one in refused} == {ErrorCode.TOO_LARGE}
    assert partitions_of(broker, "b") == 20
    again = under_way(broker, of_bob(broker, 99, 4))
    assert [one.code for one in again] == [ErrorCode.TOO_LARGE]


def test_partitions_that_are_asked_for_at_once_come_to_no_more_than_a_quota(broker) -> None:
    may_create(broker, Quotas(partitions_max=10))
    assert not under_way(broker, *(of_bob(broker, number, 2) for number in range(3)))
    grown = (AlterStreamRequest(name=f"b{number}", changes={"partitions": 6}) for number in range(3))
    assert [one.code for one in under_way(broker, *grown)] == [ErrorCode.QUOTA_EXCEEDED] * 2
    assert partitions_of(broker, "b") == 10


def test_what_is_staged_for_a_user_leaves_others_as_much(broker, monkeypatch) -> None:
    may_create(broker)
    monkeypatch.setattr(limits, "PARTITIONS_MAX", partitions_of(broker, "") + 40)
    under_way(broker, *(of_bob(broker, number, 4) for number in range(5)))
    staged = (StagedStreamRequest(stream_id=stream_id(broker, f"b{number}")) for number in range(5))
    assert [one.code for one in under_way(broker, *staged)] == [ErrorCode.TOO_LARGE] * 5


def test_changes_at_once_that_ask_for_no_more_are_made(broker) -> None:
    may_create(broker)
    under_way(broker, of_bob(broker, 0, 2))
    changes = (AlterStreamRequest(name="b0", changes={"max_age_ms": 60_000 + number}) for number in range(3))
    assert not under_way(broker, *changes)


def test_a_limit_that_needs_companion_logs_needs_room_for_them(monkeypatch) -> None:
    broker = Broker().start()
    broker.create("plain", subject="plain", partitions=2)
    logs = sum(map(logs_of, broker.node._cluster.image.streams.values()))
    monkeypatch.setattr(limits, "PARTITIONS_MAX", logs + 1)
    request = AlterStreamRequest(name="plain", changes={"max_messages_per_subject": 1})
    assert broker.refusal(request).code == ErrorCode.TOO_LARGE
    monkeypatch.setattr(limits, "PARTITIONS_MAX", logs + 2)
    broker.ask(request, AlterStreamResponse)
    again = AlterStreamRequest(name="plain", changes={"max_messages_per_subject": 2})
    broker.ask(again, AlterStreamResponse)
