"""What a broker that does not lead the metadata asks, whom, and how often."""

from __future__ import annotations

from random import Random

import pytest

from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, StreamId
from penstock.messages import (
    DeleteStreamRequest,
    DeleteStreamResponse,
    ForwardRequest,
    ForwardResponse,
    Request,
    Response,
    StopBrokerRequest,
    StopBrokerResponse,
)
from penstock.node.quorum.metadata_forwarding import THE_BROKER, Done, MetadataForwarder
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.peer_fencing import PeerProcess, ProcessStart
from penstock.node.quorum.quorum import Quorum
from penstock.node.step import PeerRequest
from penstock.raft import Raft, RaftConfig, RaftStorage
from penstock.vfs.memory import MemoryVfs
from penstock.wire.bodies import answer_body
from tests.unit.node.contexts import context_of
from tests.unit.node.quorum.test_quorum import Alone

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
DELETE = DeleteStreamRequest(name="orders")
DELETED = DeleteStreamResponse(stream_id=StreamId(4))
STOP = StopBrokerRequest(broker_id=ONE, incarnation=3)  # type: ignore[arg-type]
ELSEWHERE = RemoteError(ErrorCode.NOT_METADATA_LEADER, "ask 3", leader=3)


class World:
    """A broker that takes no part in the Raft group yet, its peers, and a time that the test moves."""

    def __init__(self) -> None:
        self.context = context_of()
        self.outbox = self.context.outbox
        self.peers = PeerClient(self.outbox)
        self.ms = 0
        self.heard: list[tuple[str, str]] = []
        self.asked_here: list[Request] = []
        self.who_asked: list[Principal | None] = []
        storage = RaftStorage.open(MemoryVfs())
        raft = Raft(RaftConfig(ONE), Random(1), storage.state)
        nobody = Alone()  # hears nothing: nothing is applied
        self.quorum = Quorum(
            self.context,
            storage,
            raft,
            self.peers,
            own=PeerProcess("disk", "p"),
            start=ProcessStart(("p",), 0, 0),
            observer=nobody,
        )
        self.link = self.link_of(self.quorum)

    def link_of(self, quorum: Quorum) -> MetadataForwarder:
        return MetadataForwarder(self.context, quorum, self.peers, self._here)

    def _here(self, request: Request, done: Done, who: Principal | None) -> None:
        self.asked_here.append(request)
        self.who_asked.append(who)
        done(DELETED)

    @property
    def now(self) -> Now:
        return Now(0, self.ms * 1_000)

    def done(self, name: str) -> Done:
        def done(response: Response | RemoteError) -> None:
            code = response.code if isinstance(response, RemoteError) else type(response).__name__
            self.heard.append((name, code))

        return done

    def tick(self, after_ms: int) -> None:
        self.ms += after_ms
        self.context.now = self.now
        self.link.tick(self.now)

    def sent(self) -> PeerRequest:
        (request,) = self.outbox.take().peers
        return request

    def answers(self, to: PeerRequest, response: Response | RemoteError, raw: bytes = b"") -> None:
        self.peers.answered(to.to, to.token, response, raw)


DENIED = RemoteError(ErrorCode.UNAUTHENTICATED, "the credential was removed")


@pytest.fixture
def world() -> World:
    return World()


def test_the_leader_itself_is_asked_where_it_is_here(world: World) -> None:
    link = world.link_of(Alone().start().quorum)
    link.ask(STOP, world.done("a"))
    link.administer(DELETE, world.done("b"), Principal("ann", 7))
    assert world.asked_here == [STOP, DELETE]
    assert world.who_asked == [THE_BROKER, Principal("ann", 7)]
    assert world.heard == [("a", "DeleteStreamResponse"), ("b", "DeleteStreamResponse")]


def test_what_brokers_ask_is_tried_once(world: World) -> None:
    world.link.ask(STOP, world.done("a"))
    world.peers.up(TWO)
    world.link.ask(STOP, world.done("b"))
    world.peers.lost(TWO)
    world.tick(60_000)
    assert world.heard == [("a", ErrorCode.NOT_METADATA_LEADER), ("b", ErrorCode.BROKER_UNAVAILABLE)]


def test_who_asked_one_that_leads_no_more_is_not_kept_waiting(world: World) -> None:
    """One that hands over may never answer what it was asked last, and its connection stays for a while."""
    quorum = Alone()  # it is not elected yet
    link = world.link_of(quorum.quorum)
    world.peers.up(TWO)
    link.ask(STOP, world.done("a"))
    request = world.sent()
    link.tick(world.now)
    assert world.heard == []
    quorum.start()
    link.tick(world.now)
    assert world.heard == [("a", ErrorCode.NOT_METADATA_LEADER)]
    world.answers(request, StopBrokerResponse())
    assert len(world.heard) == 1, "what comes late is not told twice"


def test_peers_are_asked_in_turn_until_one_names_the_leader(world: World) -> None:
    world.peers.up(TWO)
    world.peers.up(THREE)
    asked = []
    for number in range(3):
        world.link.ask(STOP, world.done(str(number)))
        asked.append(world.sent().to)
    assert asked == [TWO, THREE, TWO]
    world.link.ask(STOP, world.done("named"))
    world.peers.answered(TWO, 3, ELSEWHERE, b"")
    for _ in range(2):
        world.outbox.take()
        world.link.ask(STOP, world.done("then"))
        sent = world.sent()
        assert sent.to == THREE
    world.answers(sent, StopBrokerResponse())
    assert world.heard[-1] == ("then", "StopBrokerResponse")


def test_what_a_client_asks_waits_for_a_leader(world: World) -> None:
    world.link.administer(DELETE, world.done("a"))
    world.peers.up(TWO)
    world.tick(limits.FORWARD_RETRY_MS)
    first = world.sent()
    assert isinstance(first.request, ForwardRequest)
    world.answers(first, ELSEWHERE)
    world.peers.up(THREE)
    world.tick(limits.FORWARD_RETRY_MS - 1)
    assert not world.outbox.take().peers
    world.tick(1)
    second = world.sent()
    assert (second.to, second.payload) == (THREE, first.payload)
    world.answers(second, ForwardResponse(), answer_body(DELETED))
    assert world.heard == [("a", "DeleteStreamResponse")]
    world.tick(60_000)
    assert world.heard == [("a", "DeleteStreamResponse")]


def test_what_the_leader_refuses_is_refused(world: World) -> None:
    world.peers.up(TWO)
    world.link.administer(DELETE, world.done("a"))
    refusal = RemoteError(ErrorCode.STREAM_NOT_FOUND, "no")
    world.answers(world.sent(), ForwardResponse(), answer_body(refusal))
    assert world.heard == [("a", ErrorCode.STREAM_NOT_FOUND)]


def test_whose_time_is_up_hears_why(world: World) -> None:
    world.link.administer(DELETE, world.done("nobody"))
    world.tick(limits.FORWARD_TIMEOUT_MS)
    assert world.heard == [("nobody", ErrorCode.NOT_METADATA_LEADER)]
    world.peers.up(TWO)
    world.link.administer(DELETE, world.done("silent"))
    late = world.sent()
    world.tick(limits.FORWARD_TIMEOUT_MS + limits.FORWARD_GRACE_MS)
    assert world.heard[1:] == [("silent", ErrorCode.TIMED_OUT)]
    world.answers(late, ForwardResponse(), answer_body(DELETED))
    assert len(world.heard) == 2


def test_so_many_wait_and_all_are_told_at_the_end(world: World) -> None:
    for _ in range(limits.FORWARDED_REQUESTS_MAX):
        world.link.administer(DELETE, world.done("a"))
    assert world.heard == []
    world.link.administer(DELETE, world.done("too many"))
    assert world.heard == [("too many", ErrorCode.OVERLOADED)]
    world.link.stop(RemoteError(ErrorCode.STOPPING, "stopping"))
    assert world.heard[1:] == [("a", ErrorCode.STOPPING)] * limits.FORWARDED_REQUESTS_MAX


def test_a_request_is_authorized_before_each_try(world: World) -> None:
    not_yet = RemoteError(ErrorCode.NOT_YET, "out of contact")
    refusals: list[RemoteError | None] = [None, None, not_yet, None]

    def authorize() -> None:
        if (refusal := refusals.pop(0) if refusals else DENIED) is not None:
            raise refusal

    world.link.administer(DELETE, world.done("a"), Principal("bob"), authorize)
    world.tick(limits.FORWARD_RETRY_MS)  # nobody is up
    world.peers.up(TWO)
    world.tick(limits.FORWARD_RETRY_MS)
    assert (world.outbox.take().peers, world.heard) == ([], [])  # it waits until the permission is known
    world.tick(limits.FORWARD_RETRY_MS)
    world.answers(world.sent(), RemoteError(ErrorCode.OVERLOADED, "later"))
    world.tick(limits.FORWARD_RETRY_MS)
    assert (world.outbox.take().peers, world.heard) == ([], [("a", ErrorCode.UNAUTHENTICATED)])


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_permission_lost_after_a_try_that_may_have_succeeded_is_told_as_timed_out(
    world: World, is_answered: bool
) -> None:
    """For example, the try has changed the caller's own password."""
    refusals: list[RemoteError] = []

    def authorize() -> None:
        if refusals:
            raise refusals[0]

    world.peers.up(TWO)
    world.peers.up(THREE)
    world.link.administer(DELETE, world.done("a"), Principal("bob"), authorize)
    sent = world.sent()
    refusals.append(DENIED)
    if is_answered:
        world.answers(sent, RemoteError(ErrorCode.NOT_METADATA_LEADER, "deposed"))
    else:
        world.peers.lost(sent.to)
    world.tick(limits.FORWARD_RETRY_MS)
    assert world.heard == [("a", ErrorCode.TIMED_OUT)]


def _in_doubt(world: World) -> None:
    """Have the first try of "a" end without an answer; the second one is sent."""
    world.peers.up(TWO)
    world.peers.up(THREE)
    world.link.administer(DELETE, world.done("a"), Principal("bob"))
    world.peers.lost(world.sent().to)
    world.tick(limits.FORWARD_RETRY_MS)


def test_what_the_leader_refuses_after_a_try_without_an_answer_is_told_as_timed_out(world: World) -> None:
    """That try may have deleted the very user."""
    _in_doubt(world)
    world.answers(world.sent(), DENIED)
    assert world.heard == [("a", ErrorCode.TIMED_OUT)]


def test_an_overloaded_leader_does_not_deny_a_try_without_an_answer(world: World) -> None:
    _in_doubt(world)
    for _ in range(limits.FORWARD_TIMEOUT_MS // limits.FORWARD_RETRY_MS + 2):
        for request in world.outbox.take().peers:
            world.answers(request, RemoteError(ErrorCode.OVERLOADED, "later"))
        world.tick(limits.FORWARD_RETRY_MS)
    assert world.heard == [("a", ErrorCode.TIMED_OUT)]


@pytest.mark.parametrize("is_sent", [False, True])
def test_who_stops_does_not_deny_what_is_sent(world: World, is_sent: bool) -> None:
    if is_sent:
        world.peers.up(TWO)
    world.link.administer(DELETE, world.done("a"), Principal("bob"))
    world.link.stop(RemoteError(ErrorCode.STOPPING, "stopping"))
    assert world.heard == [("a", ErrorCode.TIMED_OUT if is_sent else ErrorCode.STOPPING)]


def test_a_request_that_was_never_sent_is_told_why(world: World) -> None:
    def authorize() -> None:
        raise RemoteError(ErrorCode.NOT_YET, "out of contact")

    world.link.administer(DELETE, world.done("a"), Principal("bob"), authorize)
    world.tick(limits.FORWARD_TIMEOUT_MS)
    assert (world.outbox.take().peers, world.heard) == ([], [("a", ErrorCode.NOT_YET)])


def test_one_user_does_not_take_all_places(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORWARDED_REQUESTS_MAX", 8)
    for number in range(6):
        world.link.administer(DELETE, world.done(f"bob {number}"), Principal("bob"))
    assert world.heard == [("bob 4", ErrorCode.OVERLOADED), ("bob 5", ErrorCode.OVERLOADED)]
    world.link.administer(DELETE, world.done("eve"), Principal("eve"))
    world.link.administer(DELETE, world.done("a broker"))
    assert len(world.heard) == 2


def test_a_disk_that_stands_in_the_way_is_told_at_once_where_nobody_else_can_be_asked(world: World) -> None:
    world.quorum.trouble = "the disk is gone"
    world.link.administer(DELETE, world.done("a"))
    assert world.heard == [("a", ErrorCode.STORAGE_FAILED)]
    world.peers.up(TWO)
    world.link.administer(DELETE, world.done("b"))
    assert world.sent().to == TWO
