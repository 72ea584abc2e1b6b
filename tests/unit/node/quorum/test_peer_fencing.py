"""Whose Raft messages count: of disks and of processes, those that are registered, and never two beside each other."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import RaftRequest
from penstock.metadata.commands import RegisterBroker, encode_command
from penstock.metadata.effects.apply import apply
from penstock.metadata.image import ClusterImage
from penstock.node.quorum.peer_fencing import PeerFencing, PeerProcess, ProcessStart
from penstock.node.quorum.raft_listener import EntryPosition
from penstock.raft import Entry, EntryKind, Message
from penstock.raft.messages import VoteRequest, VoteResponse
from tests.unit.node.contexts import context_of

ONE, TWO = BrokerId(1), BrokerId(2)
ASKS = VoteRequest(TWO, ONE, 5, 7, 4, is_pre_vote=True)
ANSWERS = VoteResponse(TWO, ONE, 5, is_granted=True, is_pre_vote=False)
OURS = VoteResponse(ONE, TWO, 5, is_granted=True, is_pre_vote=False)
WAIT_TICKS = limits.DUPLICATE_PROCESS_MS // limits.RAFT_TICK_MS


def register(process: str) -> RegisterBroker:
    return RegisterBroker(
        broker_id=TWO,
        data_dir_id="disk-2",
        address="h:2",
        rack=None,
        broker_version="1",
        clean_stop=True,
        registered_us=1,
        process=process,
    )


class World:
    """Broker 1, which knows broker 2."""

    def __init__(self, process: str = "p") -> None:
        self.context = context_of()
        self.context.image, _ = apply(ClusterImage(), 1, register(process))
        self.acknowledged = EntryPosition(0, 4)
        self.refusals: list[RemoteError] = []
        start = ProcessStart(("old", "own"), 7, 4)
        self.speakers = PeerFencing(self.context, PeerProcess("disk-1", "own"), start, lambda one: self.acknowledged)

    def hears(self, process: str, message: Message = ASKS, *, disk: str = "disk-2", **fields: object) -> bool:
        request = RaftRequest(data_dir_id=disk, process=process, **fields)  # type: ignore[arg-type]
        try:
            is_heard = self.speakers.may_speak(request, message, is_member=True)
        except RemoteError as error:
            self.refusals.append(error)
            return False
        return is_heard

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.speakers.tick()


def test_a_copy_is_not_heard_beside_the_original_and_the_original_always_is() -> None:
    world = World("p")
    for _ in range(3 * WAIT_TICKS):
        assert world.hears("p")
        assert not world.hears("copy")
        assert not world.hears("copy", ANSWERS)
        assert not world.hears("")  # nor one that does not say which it is
        world.wait(1)
    world.wait(WAIT_TICKS)
    assert world.hears("copy")  # for all that is known, it was restarted
    assert world.hears("p")


def test_a_restarted_broker_is_heard_once_the_run_before_has_been_silent_for_a_while() -> None:
    world = World("p")
    assert world.hears("p")
    world.wait(WAIT_TICKS - 1)
    assert not world.hears("q")
    world.wait(1)
    assert world.hears("q")


def test_what_is_registered_counts_at_once() -> None:
    world = World("p")
    assert world.hears("p")
    world.speakers.note([Entry(1, 9, EntryKind.COMMAND, encode_command(register("q")))])
    assert world.hears("q")
    assert not world.hears("p")


@pytest.mark.parametrize(("runs", "is_heard"), [(("a", "q"), False), (("p", "q"), True), (("", "q"), True), ((), True)])
@pytest.mark.parametrize("message", [ASKS, ANSWERS])
def test_an_older_copy_of_a_disk_is_not_heard(message: Message, runs: tuple[str, ...], *, is_heard: bool) -> None:
    world = World("p")
    assert world.hears("q", message, runs=runs) == is_heard
    assert [error.details for error in world.refusals] == [{"older_copy": True}] * (not is_heard)  # it is told so
    assert world.speakers.older_copies == (TWO,) * (not is_heard)
    assert world.hears("p")
    assert world.speakers.older_copies == ()


@pytest.mark.parametrize(
    ("log_index", "raft_term", "is_heard"), [(8, 4, False), (8, 3, False), (9, 4, True), (8, 5, True), (None, 0, True)]
)
def test_a_copy_that_lacks_what_was_acknowledged_is_not_heard(
    log_index: int | None, raft_term: int, *, is_heard: bool
) -> None:
    world = World("p")
    world.acknowledged = EntryPosition(9, 4)
    for _ in range(2):
        fields = {"runs": ("p", "q"), "log_index": log_index, "raft_term": raft_term}
        assert world.hears("q", ANSWERS, **fields) == is_heard


@pytest.mark.parametrize("process", ["q", ""], ids=["named", "on a full disk, without a name"])
def test_what_a_process_has_acknowledged_itself_is_not_held_against_where_it_was_started(process: str) -> None:
    world = World("p")
    world.acknowledged = EntryPosition(9, 4)
    assert world.hears(process, runs=("p", process), log_index=9, raft_term=4)
    world.acknowledged = EntryPosition(20, 4)
    assert world.hears(process, runs=("p", process), log_index=9, raft_term=4)
    assert world.speakers.acknowledged(TWO, process) == EntryPosition(9, 4)
    assert world.speakers.acknowledged(TWO, "r") == EntryPosition(20, 4)


def test_an_empty_disk_has_no_runs_of_the_one_before() -> None:
    assert World("p").hears("q", disk="empty", runs=("q",))


def test_an_answer_to_another_process_is_not_for_this_one() -> None:
    world = World("p")
    assert world.hears("p", ANSWERS, to_process="own")
    assert world.hears("p", ANSWERS, to_process="")
    assert not world.hears("p", ANSWERS, to_process="a copy")
    assert world.hears("p", ASKS, to_process="before")  # who asks need not know that it was restarted


def test_an_answer_names_who_has_asked_and_whoever_is_not_registered_its_runs() -> None:
    world = World("p")
    assert world.speakers.request(OURS).to_process == ""
    world.hears("p")
    request = world.speakers.request(OURS)
    assert (request.process, request.to_process) == ("own", "p")
    assert (request.runs, request.log_index, request.raft_term) == (("old", "own"), 7, 4)
    world.speakers.registered()
    request = world.speakers.request(OURS)
    assert (request.runs, request.log_index, request.raft_term) == ((), None, 0)
