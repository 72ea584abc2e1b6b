"""A broker asks for a run, says that it lives in it, and asks again when it was taken for dead."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation
from penstock.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    Request,
    Response,
)
from penstock.metadata.image import BrokerState
from penstock.node.quorum.registration import BrokerRegistration
from tests.unit.node.contexts import NothingToReport

ONE = BrokerId(1)
WHO = RegisterBrokerRequest(
    broker_id=ONE,
    data_dir_id="disk",
    address="h:1",
    rack=None,
    broker_version="1",
    clean_stop=False,
)
ALIVE = HeartbeatResponse(metadata_leader=ONE, raft_term=1, committed_index=1)
STALE = RemoteError(ErrorCode.STALE_INCARNATION, "register again")


def state(incarnation: int, *, is_live: bool = True) -> BrokerState:
    return BrokerState(
        ONE, "h:1", None, "disk", Incarnation(incarnation), is_live=is_live, clean_stop=False, broker_version="1"
    )


class World:
    """The metadata leader, whose answers the test gives, and the time."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answer: list[object] = []
        self.changes = 0
        self.is_lost = False
        self.applied = 7
        self.ms = 0
        self.standing = BrokerRegistration(
            WHO,
            self._ask,
            self,
            NothingToReport(),
            self._changed,
        )

    @property
    def missed(self) -> str:
        return "it cannot" if self.is_lost else ""

    def _ask(self, request: Request, done: object) -> None:
        self.asked.append(request)
        self.answer.append(done)

    def _changed(self) -> None:
        self.changes += 1

    def tick(self, after_ms: int = 0) -> list[Request]:
        """Time passes; what is asked then."""
        self.ms += after_ms
        self.asked.clear()
        self.standing.tick(Now(0, self.ms * 1_000))
        return list(self.asked)

    def answers(self, response: Response | RemoteError) -> None:
        """To the oldest question."""
        self.answer.pop(0)(response)  # type: ignore[operator]

    def registered(self, incarnation: int = 3) -> None:
        self.tick()
        self.answers(RegisterBrokerResponse(incarnation=Incarnation(incarnation)))
        assert self.standing.image(state(incarnation))


@pytest.fixture
def world() -> World:
    return World()


def test_a_run_begins_once_the_image_has_what_was_granted(world: World) -> None:
    assert world.tick() == [WHO]
    assert not world.standing.image(state(3))  # of a run before, or of one that is not granted yet
    world.answers(RegisterBrokerResponse(incarnation=Incarnation(3)))
    assert (world.changes, world.standing.incarnation) == (1, None)
    assert world.standing.image(state(3))
    assert world.standing.incarnation == 3
    assert not world.standing.image(state(3))


def test_it_says_that_it_lives_as_often_as_it_has_to_and_with_news_at_once(world: World) -> None:
    world.registered()
    (beat,) = world.tick()
    assert isinstance(beat, HeartbeatRequest)
    assert (beat.broker_id, beat.incarnation, beat.applied_index) == (ONE, 3, 7)
    assert world.tick(limits.HEARTBEAT_MS - 1) == []
    assert len(world.tick(1)) == 1
    world.standing.heartbeat_now()
    assert len(world.tick()) == 1


def test_a_question_that_failed_is_asked_again(world: World) -> None:
    world.tick()
    world.answers(RemoteError(ErrorCode.NOT_METADATA_LEADER, "who knows"))
    assert world.standing.incarnation is None
    assert world.tick(limits.HEARTBEAT_MS) == [WHO]


def test_who_was_fenced_registers_anew_and_has_lost_nothing(world: World) -> None:
    world.registered()
    assert world.standing.image(state(3, is_live=False))
    assert world.standing.incarnation is None
    assert world.tick() == [msgspec.structs.replace(WHO, clean_stop=True, run_before=3)]


def test_who_hears_that_its_run_is_over_leads_no_more_before_the_image_says_so(world: World) -> None:
    world.registered()
    world.tick()
    world.answers(STALE)
    assert world.changes == 2
    assert world.standing.image(state(3))
    assert world.standing.incarnation is None
    assert world.tick() == [msgspec.structs.replace(WHO, clean_stop=True, run_before=3)]


def test_a_late_refusal_of_a_run_before_does_not_end_this_one(world: World) -> None:
    world.registered(3)
    world.tick()  # a heartbeat that is answered late
    assert world.standing.image(state(3, is_live=False))
    world.tick()
    late = world.answer.pop(0)
    world.answers(RegisterBrokerResponse(incarnation=Incarnation(9)))
    assert world.standing.image(state(9))
    late(STALE)  # type: ignore[operator]
    assert not world.standing.image(state(9))
    assert world.standing.incarnation == 9


def test_a_broker_that_is_not_registered_has_no_place_to_lose(world: World) -> None:
    world.tick(limits.SESSION_MS + 1_000)
    assert world.standing.unheard_us is None
    assert world.standing.is_heard(Now(0, world.ms * 1_000))


def test_another_run_under_its_name_is_not_its_own(world: World) -> None:
    world.registered(3)
    assert world.standing.image(state(5))
    assert world.standing.incarnation is None


def test_other_answers_to_a_heartbeat_change_nothing(world: World) -> None:
    world.registered()
    for answer in (ALIVE, RemoteError(ErrorCode.BROKER_UNAVAILABLE, "gone")):
        world.tick(limits.HEARTBEAT_MS)
        world.answers(answer)
    assert (world.changes, world.standing.incarnation) == (1, 3)


def test_it_is_heard_for_a_session_from_when_that_was_sent_which_was_answered(world: World) -> None:
    world.registered()
    assert len(world.tick(500)) == 1
    world.ms += 1_000
    world.answers(ALIVE)
    sent_ms = world.ms - 1_000
    assert world.standing.unheard_us == (sent_ms + limits.SESSION_MS) * 1_000
    world.tick(500)
    world.answers(RemoteError(ErrorCode.NOT_METADATA_LEADER, "who knows"))
    assert world.standing.is_heard(Now(0, world.standing.unheard_us - 1))
    assert not world.standing.is_heard(Now(0, world.standing.unheard_us))
    world.tick(500)
    world.answers(ALIVE)
    assert world.standing.unheard_us == (world.ms + limits.SESSION_MS) * 1_000


def test_who_does_not_hear_what_is_agreed_on_says_nothing(world: World) -> None:
    world.is_lost = True
    assert world.tick(500) == []
    world.is_lost = False
    world.ms += 500
    world.registered()
    world.is_lost = True
    assert world.tick(500) == []
    world.is_lost = False
    assert len(world.tick(500)) == 1


def test_an_answer_counts_once_all_is_applied_that_it_may_know_of(world: World) -> None:
    world.registered()
    before = world.standing.unheard_us
    world.tick(500)
    first_ms = world.ms
    world.answers(msgspec.structs.replace(ALIVE, committed_index=9))
    world.tick(500)
    world.answers(msgspec.structs.replace(ALIVE, committed_index=10))
    assert world.standing.unheard_us == before
    assert not world.standing.is_heard(Now(0, before))
    world.applied = 9
    assert world.standing.unheard_us == (first_ms + limits.SESSION_MS) * 1_000
    world.applied = 10
    assert world.standing.unheard_us == (world.ms + limits.SESSION_MS) * 1_000


def test_one_that_was_just_elected_is_asked_again_soon_and_then_less_often() -> None:
    world = World()
    asked = [0]
    for _ in range(2_000):
        if world.tick(1):
            asked.append(world.ms)
            world.answers(RemoteError(ErrorCode.NOT_METADATA_LEADER, "not yet"))
            world.standing.retry(Now(0, world.ms * 1_000))
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses[1:] == [20, 40, 80, 160, 320, 500, 500]
    world.standing.heartbeat_now()
    world.tick(1)
    world.answers(RemoteError(ErrorCode.NOT_METADATA_LEADER, "not yet"))
    world.standing.retry(Now(0, world.ms * 1_000))
    assert not world.tick(19)
    assert world.tick(1)
