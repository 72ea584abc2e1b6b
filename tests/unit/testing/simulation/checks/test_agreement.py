"""What a cluster must agree on: each rule can fail, and what it excuses is excused.

Two worlds are the same until somebody publishes in one of them. What is shown of brokers of both is what no cluster may
show.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.batch.codec import PREFIX_BYTES
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.recovery import CutTail
from penstock.messages import ListOffsetsRequest, ListOffsetsResponse
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker
from penstock.testing.simulation.checks.agreement import Agreement
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from tests.damage import flip
from tests.extent import each_change
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

SUBJECT = "s0.g1.>"
QUIET = make_plan(2, 3, SLOTS)._replace(operations=(), faults=(), end_us=6_000_000)
BUSY = QUIET._replace(operations=tuple(PlannedOperation(5_000_000 + n, Act.PUBLISH, 0, 4) for n in range(3)))


class Replicas(NamedTuple):
    """Partition 0 of the first stream in one world: its leader, what that shows, and who follows it."""

    leader: SimBroker
    look: inspector.PartitionLook
    follower: SimBroker


def replicas(world: World) -> Replicas:
    shown = [(broker, one) for broker in world.brokers.values() for one in shown_by(broker)]
    leader, look = next((broker, one) for broker, one in shown if one.is_leader)
    return Replicas(leader, look, next(broker for broker, one in shown if one.follows and one.is_in_sync))


def shown_by(broker: SimBroker) -> list[inspector.PartitionLook]:
    assert broker.node is not None
    return [one for one in inspector.partitions(broker.node) if (one.subject, one.partition) == (SUBJECT, 0)]


def ran(world: World) -> World:
    assert world.run().error == ""
    return world


@pytest.fixture(scope="module")
def quiet() -> World:
    return ran(World(QUIET))


@pytest.fixture(scope="module")
def busy() -> World:
    return ran(World(BUSY))


def fresh(world: World) -> PartitionHistory:
    """The history of the partition, nothing known yet."""
    return PartitionHistory(world.checks.of(SUBJECT, 0).config, 0)


def standing(broker: SimBroker) -> inspector.StandingLook:
    assert broker.node is not None
    return inspector.standing(broker.node)


def test_two_metadata_leaders_in_a_term(quiet: World) -> None:
    agreement = Agreement(quiet.brokers)
    one, other = (quiet.brokers[1], quiet.brokers[2])
    for broker, term in ((one, 70), (one, 70), (other, 71)):
        agreement.acted(broker, standing(broker)._replace(elected_term=term))
    assert agreement.elections == 2
    with pytest.raises(ViolationError, match="term 70 has two metadata leaders: 1 and 2"):
        agreement.acted(other, standing(other)._replace(elected_term=70))


def test_two_images_at_an_index(quiet: World) -> None:
    agreement = Agreement(quiet.brokers)
    strange = ran(World(QUIET._replace(seed=3))).brokers[2]
    agreement.acted(quiet.brokers[1], standing(quiet.brokers[1])._replace(elected_term=0, applied=90))
    agreement.acted(quiet.brokers[3], standing(quiet.brokers[3])._replace(elected_term=0, applied=90))
    with pytest.raises(ViolationError, match="b2 has another image at index 90"):
        agreement.acted(strange, standing(strange)._replace(elected_term=0, applied=90))


def test_logs_that_differ_below_what_is_committed(quiet: World, busy: World) -> None:
    here, there = replicas(quiet), replicas(busy)
    agreement, history = Agreement({}), fresh(quiet)
    follows = here.look._replace(is_leader=False)
    agreement.committed(history, here.leader, follows)
    agreement.committed(history, here.follower, follows)
    strange = there.look._replace(is_leader=False)
    stranger = next(one for one in busy.brokers.values() if one.broker_id != here.leader.broker_id and shown_by(one))
    agreement.started(stranger)
    with pytest.raises(ViolationError, match=f"{stranger.name} has .* at 0, others have"):
        agreement.committed(history, stranger, strange)


def test_what_was_lost_as_it_may_be_is_not_compared(quiet: World, busy: World) -> None:
    here, there = replicas(quiet), replicas(busy)
    agreement, history = Agreement({}), fresh(quiet)
    agreement.committed(history, here.leader, here.look._replace(is_leader=False))
    agreement.cut(history, 0)
    agreement.committed(history, there.follower, there.look._replace(is_leader=False))


def test_who_has_what_was_committed(quiet: World, busy: World) -> None:
    here, there = replicas(quiet), replicas(busy)
    agreement, history = Agreement({1: here.leader, 2: here.follower, 3: there.follower}), fresh(quiet)
    history.stream_id = here.look.stream_id
    agreement.committed(history, here.leader, here.look._replace(is_leader=False))
    assert agreement.has_committed(history, 1, 0)
    assert agreement.has_committed(history, 2, 0)
    assert not agreement.has_committed(history, 3, 0)  # it has others
    assert not agreement.has_committed(history, 2, here.look.log_end)
    assert agreement.agreed_end(history, here.look, here.follower) == here.look.log_end
    assert agreement.agreed_end(history, there.look, there.follower) == 0
    agreement.cut(history, 0)
    assert not agreement.has_committed(history, 2, 0)


def test_damage_of_one_replica_excuses_no_other(quiet: World, busy: World) -> None:
    here, there = replicas(quiet), replicas(busy)
    agreement, history = Agreement({}), fresh(quiet)
    history.damaged.add((here.leader.broker_id, here.leader.disk.number))
    agreement.committed(history, here.leader, here.look._replace(is_leader=False))
    stranger = next(one for one in busy.brokers.values() if one.broker_id != here.leader.broker_id and shown_by(one))
    with pytest.raises(ViolationError, match="others have"):
        agreement.committed(history, stranger, there.look._replace(is_leader=False))


@pytest.mark.parametrize("was_made", [True, False])
def test_bytes_that_cannot_be_read_are_excused_where_damage_was_made(was_made: bool) -> None:
    world = ran(World(BUSY))
    here = replicas(world)
    agreement, history = Agreement({}), fresh(world)
    if was_made:
        history.damaged.add((here.follower.broker_id, here.follower.disk.number))
    spoil(here.follower, f"streams/{here.look.stream_id:08}-s0/0/00000000000000000000.arrows")
    look = here.look._replace(is_leader=False)
    if was_made:
        agreement.committed(history, here.follower, look)
    else:
        with pytest.raises(ViolationError, match="damage that nobody made"):
            agreement.committed(history, here.follower, look)
    assert not agreement._compared  # it is as soon as it can be


def spoil(broker: SimBroker, path: str) -> None:
    """Turn the last byte of a file over that is not zero: one of the last batch."""
    file = broker.disk.memory.open(path)
    data = file.read_at(0, file.size()).rstrip(b"\0")
    file.write_at(len(data) - 1, bytes([data[-1] ^ 0xFF]))
    file.close()


def test_a_commit_below_min_isr(quiet: World) -> None:
    leader, look, _ = replicas(quiet)
    alone = look._replace(isr=(leader.broker_id,), min_isr=2)
    before = alone._replace(committed_end=look.committed_end - 1)
    agreement, history = Agreement(quiet.brokers), fresh(quiet)
    agreement.committed(history, leader, before)
    agreement.committed(history, leader, alone._replace(version=look.version + 1))  # it may have been enough in between
    agreement = Agreement(quiet.brokers)
    agreement.committed(history, leader, before)
    with pytest.raises(ViolationError, match=rf"{leader.name} has committed {look.committed_end} with"):
        agreement.committed(history, leader, alone)


def test_a_member_that_lacks_what_is_committed(quiet: World, busy: World) -> None:
    leader, look, _ = replicas(busy)
    Agreement(busy.brokers).committed(fresh(busy), leader, look)
    member = replicas(quiet).follower
    (theirs,) = shown_by(member)
    assert theirs.log_end < look.committed_end
    brokers = {**busy.brokers, leader.broker_id: leader, member.broker_id: member}
    assert member.broker_id != leader.broker_id
    text = f"{leader.name} has committed {look.committed_end}, and {member.name}, which is in the ISR, has it up to"
    with pytest.raises(ViolationError, match=text):
        Agreement(brokers).committed(fresh(busy), leader, look._replace(leader_epoch=theirs.leader_epoch))


@pytest.mark.parametrize(
    ("excuse", "is_excused"),
    [
        ("nothing", False),
        ("damage on another", False),
        ("it lost its power", True),
        ("all lost their power", True),
        ("the stream is deleted", True),
        ("the only one who had it is damaged", True),
    ],
)
def test_who_is_in_sync_has_all_that_was_acked(quiet: World, excuse: str, is_excused: bool) -> None:
    _, look, follower = replicas(quiet)
    history = fresh(quiet)
    history.promised_end = look.log_end + 1
    history.isr = look.isr
    if excuse == "damage on another":
        history.damaged.update((one, quiet.brokers[one].disk.number) for one in look.isr if one != follower.broker_id)
    elif excuse == "it lost its power":
        history.unclean.add(follower.broker_id)
    elif excuse == "all lost their power":
        history.may_lose = True
    elif excuse == "the stream is deleted":
        history.is_deleted = True
    elif excuse == "the only one who had it is damaged":
        history.is_damaged = True
    if is_excused:
        Checks._lacks(history, follower, look)
        return
    with pytest.raises(ViolationError, match=rf"{look.log_end} is acked, and {follower.name}, which is in the ISR"):
        Checks._lacks(history, follower, look)


@pytest.mark.parametrize(
    ("how", "may_lack", "may_lose"),
    [
        ("killed, and damaged", True, False),
        ("killed, and damaged, as all others", True, True),
        ("killed", False, False),
        ("killed, and damaged in another segment", False, False),
        ("killed, damaged, and not shorter", False, False),
    ],
)
def test_a_log_that_is_cut_where_it_is_damaged_may_lack_messages(
    quiet: World, monkeypatch: pytest.MonkeyPatch, how: str, may_lack: bool, may_lose: bool
) -> None:
    """A start took the damage for a torn tail. Without damage, a killed broker's log has what it had."""
    _, look, follower = replicas(quiet)
    history, checks = shortened(quiet, monkeypatch, damaged_at="1.arrows" if "another" in how else "0.arrows")
    checks._clean.discard(follower.broker_id)
    history.promised_end = history.synced_end = look.log_end + 1
    if "damaged" not in how:
        history.harmed.clear()
    if "not shorter" in how:
        history.left[follower.broker_id] = look.log_end
    if "others" in how:
        history.unclean.update(set(look.isr) - {follower.broker_id})
    checks._opened(history, follower, look)
    assert (follower.broker_id in history.unclean, history.may_lose) == (may_lack, may_lose)
    assert history.synced_end == look.log_end + (not may_lose), "who else is in sync has it on the disk"


def shortened(quiet: World, monkeypatch: pytest.MonkeyPatch, *, damaged_at: str) -> tuple[PartitionHistory, Checks]:
    """The history of a follower's log that had one message more before it was cut within `0.arrows`."""
    _, look, follower = replicas(quiet)
    assert follower.node is not None
    history = fresh(quiet)
    history.isr = look.isr
    history.left[follower.broker_id] = look.log_end + 1
    history.harmed[follower.broker_id, follower.disk.number] = {damaged_at}
    log = follower.node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))].log
    monkeypatch.setattr(log, "cuts", (CutTail("0.arrows", 800, 100, None, "0.arrows: at byte 800: damage"),))
    return history, quiet.checks


def test_a_log_is_not_shorter_after_a_clean_stop_whatever_is_damaged(
    quiet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, look, follower = replicas(quiet)
    history, checks = shortened(quiet, monkeypatch, damaged_at="0.arrows")
    checks._clean.add(follower.broker_id)
    with pytest.raises(ViolationError, match=f"it ended at {look.log_end + 1} when the broker stopped cleanly"):
        checks._opened(history, follower, look)


def test_a_follower_is_held_to_what_was_acked_at_its_next_event() -> None:
    world = ran(World(QUIET))
    _, look, follower = replicas(world)
    history = world.checks.of(SUBJECT, 0)
    world.checks.sent[b"lost"] = SUBJECT
    follower.event(lambda: None)
    follower.end_turn()
    world.checks.promised(history, look.log_end, look.leader_epoch, b"lost", fsynced=True)
    with pytest.raises(ViolationError, match=f"is acked, and {follower.name}, which is in the ISR"):
        follower.end_turn()


def harm(world: World, broker_id: int, look: inspector.PartitionLook) -> None:
    """Turn over a bit in the first batch of a replica."""
    disk = world.brokers[broker_id].disk.memory
    (path,) = (
        path
        for path in disk.files()
        if path.startswith(f"streams/{look.stream_id:08}-") and "/0/" in path and path.endswith(".arrows")
    )
    flip(disk, path, SCHEMA_BYTES + PREFIX_BYTES + 100)


@each_change
@pytest.mark.parametrize(
    ("others", "is_damaged"), [("in sync", False), ("unclean", True), ("damaged", True), ("mended", False)]
)
def test_damage_is_a_loss_only_where_nobody_else_has_all(others: str, is_damaged: bool) -> None:
    world = ran(World(QUIET))
    leader, look, _ = replicas(world)
    history = world.checks.of(SUBJECT, 0)
    history.unclean.clear()
    rest = set(look.isr) - {leader.broker_id}
    assert len(rest) == 2
    if others == "unclean":
        history.unclean.update(rest)
    elif others in ("damaged", "mended"):
        for one in rest:
            harm(world, one, look)
        history.damaged.update((one, world.brokers[one].disk.number) for one in rest)
    if others == "mended":
        for one in rest:
            harm(world, one, look)  # what was turned over is as it was
    world._damaged(leader, f"streams/{look.stream_id:08}-s0/0/0.arrows")
    assert history.is_damaged is is_damaged
    assert (leader.broker_id, 1) in history.damaged
    assert not world.checks.of("s1.g1.>", 0).damaged


def test_where_one_is_damaged_another_is_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ran(World(QUIET))
    leader, look, _ = replicas(world)
    history = world.checks.of(SUBJECT, 0)
    history.damaged.add((leader.broker_id, leader.disk.number))
    harm(world, leader.broker_id, look)
    assert world._sound(history) in set(look.isr) - {leader.broker_id}
    monkeypatch.setattr("tests.sim.run.world.LIVENESS_US", 500_000)
    world._audit()
    history.promised_end += 1
    with pytest.raises(ViolationError, match=f"is promised, the log ends at {look.log_end}|and shows {look.log_end}"):
        world._audit()


def test_where_all_are_damaged_nobody_is_audited(quiet: World) -> None:
    history = fresh(quiet)
    history.isr = (1, 2)
    history.damaged |= {(1, quiet.brokers[1].disk.number), (2, quiet.brokers[2].disk.number)}
    assert quiet._sound(history) == 0
    history.damaged.remove((2, 1))
    assert quiet._sound(history) == 2


class Answering:
    """A client program that answers by itself: what the leader would say."""

    def __init__(self, offset: int, leader_epoch: int) -> None:
        self.answer = ListOffsetsResponse(  # type: ignore[call-arg]
            offset=offset, log_start=0, committed_end=offset, leader_epoch=leader_epoch
        )

    def ask_leader(self, stream_id, partition, request, done) -> None:
        assert isinstance(request, ListOffsetsRequest)
        done(self.answer, b"")


@pytest.mark.parametrize(
    ("behind", "epochs_behind", "is_lost", "is_told"),
    [(0, 0, False, False), (1, 0, False, True), (1, 1, False, True), (1, 0, True, False)],
    ids=["all", "too little", "of who led before", "what was lost with all power"],
)
def test_latest_never_goes_back(quiet: World, behind: int, epochs_behind: int, is_lost: bool, is_told: bool) -> None:
    clients = quiet._clients
    history = quiet.checks.of(SUBJECT, 0)
    epoch = max(history.leaders)
    clients._programs = [Answering(history.promised_end - behind, epoch - epochs_behind)]  # type: ignore[list-item]
    history.may_lose = is_lost
    ask = PlannedOperation(0, Act.OFFSETS, 0, 0)
    if is_told:
        told = rf"latest is .* in epoch {epoch - epochs_behind}, and {history.promised_end} was"
        with pytest.raises(ViolationError, match=told):
            clients.do(ask)
    else:
        clients.do(ask)
    history.may_lose = False
