"""The metadata leader makes a stream, and answers once every live broker has it, or says who has not."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import Encryption, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, StreamId
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AwaitMetadataRequest,
    AwaitMetadataResponse,
    AwaitStreamRequest,
    AwaitStreamResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    Request,
    Response,
    StreamInfo,
)
from penstock.metadata.commands import FenceBroker, RegisterBroker
from penstock.metadata.image import StreamState
from penstock.node.controller.stream_admin import StreamAdmin
from penstock.node.controller.stream_placement import StreamPlacement
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.stream_waiters import Done
from penstock.node.step import PeerRequest
from penstock.raft import RaftMembership
from tests.unit.node.contexts import access_of
from tests.unit.node.quorum.test_quorum import Alone

ONE, TWO = BrokerId(1), BrokerId(2)
CREATE = CreateStreamRequest(config=StreamConfig(name="orders", subject="orders.>"), timeout_ms=5_000)
REFUSED = RemoteError(ErrorCode.NATS_REFUSED, "not allowed", is_empty=True)


class World:
    """A metadata leader with two registered brokers, of which it is one."""

    def __init__(self, *broker_ids: BrokerId) -> None:
        self.alone = Alone().start()
        self.peers = PeerClient(self.alone.outbox)
        self.ms = 0
        self.silent: set[BrokerId] = set()
        self.keyless: set[BrokerId] = set()
        self.unsaid: set[BrokerId] = set()
        self.here: list[Done] = []
        self.heard: list[Response | RemoteError] = []
        self.administration = StreamAdmin(
            self.alone.context,
            self.alone.quorum,
            self.peers,
            StreamPlacement(self.alone.context, self.alone.quorum, self),
            await_here=lambda stream_id, deadline_us, done, intake_us: self.here.append(done),
            info=lambda state: cast(StreamInfo, state),
        )
        for broker_id in broker_ids:
            command = RegisterBroker(
                broker_id=broker_id,
                data_dir_id=f"disk{broker_id}",
                address="h:1",
                rack=None,
                broker_version="1",
                clean_stop=True,
                registered_us=1,
            )
            self.alone.propose("register", command)
            self.alone.run_disk()

    def ready(self, now: Now) -> frozenset[BrokerId]:
        return self.alone.quorum.image.live_brokers() - self.silent

    def without_nats(self) -> frozenset[BrokerId]:
        return frozenset()

    def without_keys(self) -> frozenset[BrokerId]:
        return frozenset(self.keyless)

    def keys_unsaid(self) -> frozenset[BrokerId]:
        return frozenset(self.unsaid)

    @property
    def now(self) -> Now:
        return Now(0, self.ms * 1_000)

    def ask(self, request: Request) -> list[PeerRequest]:
        """What is asked of peers for it, once it is on the disk."""
        self.administration.handle(request, access_of(self.alone.context).of(None), self.heard.append)  # type: ignore[arg-type]
        return self.run()

    def run(self) -> list[PeerRequest]:
        step = self.alone.outbox.take()
        sent = step.peers
        self.alone.disk += step.disk
        while self.alone.disk:
            work = self.alone.disk.pop(0)
            work.run()
            work.done(None)
            step = self.alone.outbox.take()
            sent += step.peers
            self.alone.disk += step.disk
        return sent

    def tick(self, after_ms: int) -> list[PeerRequest]:
        self.ms += after_ms
        self.alone.context.now = self.now
        self.administration.tick(self.now)
        return self.run()

    @property
    def codes(self) -> list[str]:
        return [one.code if isinstance(one, RemoteError) else type(one).__name__ for one in self.heard]

    @property
    def names(self) -> list[str]:
        return sorted(state.config.name for state in self.alone.quorum.image.streams.values())


@pytest.fixture
def world() -> World:
    world = World(ONE, TWO)
    world.peers.up(TWO)
    return world


def test_a_create_is_answered_once_all_have_the_stream(world: World) -> None:
    (asked,) = world.ask(CREATE)
    assert isinstance(asked.request, AwaitStreamRequest)
    assert (asked.to, asked.request.timeout_ms) == (TWO, 5_000)
    world.peers.answered(TWO, asked.token, AwaitStreamResponse(), b"")
    assert world.heard == []
    world.here.pop()(None)
    (response,) = world.heard
    assert isinstance(response, CreateStreamResponse)
    assert response.created
    assert cast(StreamState, response.stream).config.replicas == 2
    assert world.administration.next_deadline_us is None


def test_the_same_again_waits_as_well_and_is_not_made_twice(world: World) -> None:
    world.ask(CREATE)
    (again,) = world.ask(CREATE)
    world.peers.answered(TWO, again.token, AwaitStreamResponse(), b"")
    world.here[1](None)
    (response,) = world.heard
    assert isinstance(response, CreateStreamResponse)
    assert not response.created
    assert world.names == ["orders"]


def test_who_cannot_be_reached_is_asked_again_and_who_is_gone_is_not_waited_for(world: World) -> None:
    world.peers.lost(TWO)
    assert world.ask(CREATE) == []
    world.here.pop()(None)
    world.peers.up(TWO)
    (again,) = world.tick(limits.FORWARD_RETRY_MS)
    assert again.to == TWO
    incarnation = world.alone.quorum.image.brokers[TWO].incarnation
    world.alone.quorum.propose(FenceBroker(broker_id=TWO, incarnation=incarnation), lambda outcome: None)
    world.run()
    assert world.heard == []
    world.tick(limits.FORWARD_RETRY_MS)
    assert world.codes == ["CreateStreamResponse"]


def test_whose_time_is_up_hears_who_is_missing(world: World) -> None:
    world.ask(CREATE)
    world.here.pop()(None)
    world.tick(5_000 + limits.FORWARD_RETRY_MS)
    (error,) = world.heard
    assert isinstance(error, RemoteError)
    assert (error.code, "broker 2" in error.message) == (ErrorCode.TIMED_OUT, True)
    assert world.names == ["orders"]


def test_an_empty_stream_that_nats_refuses_is_taken_back_before_the_answer(world: World) -> None:
    world.ask(CREATE)
    world.administration.tick(world.now)
    world.here.pop()(REFUSED)
    assert world.heard == []
    world.run()
    assert world.codes == [ErrorCode.NATS_REFUSED]
    assert "was not created" in cast(RemoteError, world.heard[0]).message
    assert world.names == []


def test_one_that_was_there_before_is_not_taken_back(world: World) -> None:
    (asked,) = world.ask(CREATE)
    world.peers.answered(TWO, asked.token, AwaitStreamResponse(), b"")
    world.here.pop()(None)
    world.ask(CREATE)
    world.here.pop()(REFUSED)
    world.run()
    assert world.codes == ["CreateStreamResponse", ErrorCode.NATS_REFUSED]
    assert world.names == ["orders"]


def test_alter_and_delete_are_answered_with_what_came_of_them(world: World) -> None:
    world.ask(CREATE)
    stream_id = next(iter(world.alone.quorum.image.streams))
    world.ask(AlterStreamRequest(name="orders", changes={"max_messages": 5}))
    world.ask(DeleteStreamRequest(name="orders", stream_id=StreamId(stream_id + 1)))
    world.ask(DeleteStreamRequest(name="orders"))
    world.ask(DeleteStreamRequest(name="orders"))
    assert isinstance(world.heard[0], AlterStreamResponse)
    assert world.heard[2] == DeleteStreamResponse(stream_id=stream_id)
    assert world.codes[1::2] == [ErrorCode.STREAM_CHANGED, ErrorCode.STREAM_NOT_FOUND]


def test_what_must_be_known_everywhere_is_answered_once_all_live_brokers_have_it(world: World) -> None:
    world.ask(CREATE)
    for number, request in enumerate(
        (
            AlterStreamRequest(name="orders", changes={"max_messages": 5}, everywhere=True),
            DeleteStreamRequest(name="orders", everywhere=True),
        )
    ):
        (asked,) = world.ask(request)
        assert isinstance(asked.request, AwaitMetadataRequest)
        assert len(world.heard) == number
        world.peers.answered(TWO, asked.token, AwaitMetadataResponse(), b"")
    assert world.codes == ["AlterStreamResponse", "DeleteStreamResponse"]


def test_who_asks_again_for_a_deletion_by_id_hears_that_it_is_done_once_all_know_it(world: World) -> None:
    """The forwarder asks again when the metadata leader changes: the first try may have deleted the stream."""
    world.ask(CREATE)
    stream_id = next(iter(world.alone.quorum.image.streams))
    deletion = DeleteStreamRequest(name="orders", stream_id=stream_id, everywhere=True)
    for number in range(2):
        (asked,) = world.ask(deletion)
        assert isinstance(asked.request, AwaitMetadataRequest)
        assert len(world.heard) == number
        world.peers.answered(TWO, asked.token, AwaitMetadataResponse(), b"")
    assert world.heard == [DeleteStreamResponse(stream_id=stream_id)] * 2


def test_a_deletion_by_id_leaves_the_next_stream_of_that_name(world: World) -> None:
    world.ask(CREATE)
    stream_id = next(iter(world.alone.quorum.image.streams))
    world.ask(DeleteStreamRequest(name="orders", stream_id=stream_id))
    world.ask(CREATE)
    (asked,) = world.ask(DeleteStreamRequest(name="orders", stream_id=stream_id, everywhere=True))
    world.peers.answered(TWO, asked.token, AwaitMetadataResponse(), b"")
    assert world.heard[-1] == DeleteStreamResponse(stream_id=stream_id)
    assert world.names == ["orders"]


def test_a_stream_that_there_never_was_is_not_deleted(world: World) -> None:
    world.ask(DeleteStreamRequest(name="orders", stream_id=StreamId(1_000), everywhere=True))
    assert world.codes == [ErrorCode.STREAM_NOT_FOUND]


def test_two_deletions_at_once_are_both_done(world: World) -> None:
    """The second one is proposed before the first one is applied."""
    world.ask(CREATE)
    stream_id = next(iter(world.alone.quorum.image.streams))
    deletion = DeleteStreamRequest(name="orders", stream_id=stream_id, everywhere=True)
    access = access_of(world.alone.context).of(None)
    for _ in range(2):
        world.administration.handle(deletion, access, world.heard.append)
    for asked in world.run():
        world.peers.answered(TWO, asked.token, AwaitMetadataResponse(), b"")
    assert world.heard == [DeleteStreamResponse(stream_id=stream_id)] * 2


def test_where_no_broker_is_there_no_stream_is_made() -> None:
    world = World()
    world.ask(CREATE)
    assert world.codes == [ErrorCode.BROKER_UNAVAILABLE]


def test_how_many_replicas_a_stream_gets_does_not_depend_on_who_is_away(world: World) -> None:
    world.silent = {TWO}
    world.ask(CREATE)
    assert (world.codes, world.names) == ([ErrorCode.BROKER_UNAVAILABLE], [])
    world.silent = set()
    world.ask(CREATE)
    assert [state.config.replicas for state in world.alone.quorum.image.streams.values()] == [2]


def test_a_voter_that_was_never_there_counts_as_a_broker(world: World) -> None:
    world.alone.quorum.change_membership(RaftMembership((ONE,), (BrokerId(3),)), lambda outcome: None)
    world.ask(CREATE)
    assert (world.codes, world.names) == ([ErrorCode.BROKER_UNAVAILABLE], [])


def test_all_who_wait_are_told_when_it_leads_no_more(world: World) -> None:
    world.ask(CREATE)
    world.administration.stop(RemoteError(ErrorCode.NOT_METADATA_LEADER, "changed"))
    world.here.pop()(None)
    assert world.codes == [ErrorCode.NOT_METADATA_LEADER]


def encrypted(replicas: int | None) -> CreateStreamRequest:
    config = StreamConfig(name="s", subject="s.>", replicas=replicas, encryption=Encryption.AES_256_GCM)
    return CreateStreamRequest(config=config, timeout_ms=5_000)


def test_what_is_encrypted_is_placed_on_brokers_that_have_keys() -> None:
    world = World(ONE, TWO)
    world.keyless = {ONE}
    world.ask(encrypted(1))
    world.alone.run_disk()
    assert world.alone.quorum.image.by_name("s").partitions[0].replicas == (TWO,)


def test_what_is_encrypted_is_refused_where_too_few_brokers_have_keys() -> None:
    world = World(ONE, TWO)
    world.keyless = {TWO}
    world.ask(encrypted(None))
    (refused,) = world.heard
    assert isinstance(refused, RemoteError)
    assert refused.code == ErrorCode.NO_ENCRYPTION_KEY
    assert "2 brokers are to hold a copy each, and broker 2 has no encryption keys" in refused.message
    assert not world.alone.quorum.image.streams


def test_what_is_encrypted_waits_for_who_has_not_said_whether_it_has_keys() -> None:
    world = World(ONE, TWO)
    world.unsaid = {TWO}
    world.ask(encrypted(2))
    assert (world.codes, world.names) == ([ErrorCode.BROKER_UNAVAILABLE], [])  # it is asked again
    world.ask(CREATE)
    assert world.names == ["orders"]


def test_one_broker_without_keys_is_named_as_one() -> None:
    world = World(ONE)
    world.keyless = {ONE}
    world.ask(encrypted(None))
    assert "1 broker is to hold a copy, and broker 1 has no encryption keys" in str(world.heard[0])
    assert world.names == []


def test_deletion_is_suspended_once_all_brokers_know_it_and_resumed_at_once(world: World) -> None:
    (asked,) = world.ask(CREATE)
    world.peers.answered(TWO, asked.token, AwaitStreamResponse(), b"")
    world.here.pop()(None)
    (asked,) = world.ask(AlterStreamRequest(name="orders", changes={"suspend_deletion": "yes"}))
    assert asked.request == AwaitMetadataRequest(index=world.alone.quorum.image.index, timeout_ms=10_000)
    assert world.codes == ["CreateStreamResponse"]
    world.peers.answered(TWO, asked.token, AwaitMetadataResponse(), b"")
    assert world.codes == ["CreateStreamResponse", "AlterStreamResponse"]
    for changes in ({"suspend_deletion": "no"}, {"max_messages": 5}):
        assert world.ask(AlterStreamRequest(name="orders", changes=changes)) == []
    assert world.codes[2:] == ["AlterStreamResponse"] * 2
    world.ask(AlterStreamRequest(name="orders", changes={"suspend_deletion": "yes"}))
    assert [world.tick(after_ms=11_000), world.codes[4:]] == [[], ["timed_out"]]
    assert "committed, but broker 2 has not applied it" in str(world.heard[-1])
