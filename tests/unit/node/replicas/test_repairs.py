"""A damaged replica is mended with what the others have, and is in sync again; nothing goes where nobody has it."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LogState
from penstock.messages import DeleteMessagesRequest, FetchRequest, GetRequest
from penstock.node.partition.partition import Partition
from penstock.vfs.faulty import no_faults
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.extent import each_change
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.test_older_images import no_metadata

SEGMENT_BYTES = 1 << 20
ROWS = 12


def grown(*, min_isr: int = 2, **settings: int) -> Brokers:
    """Three brokers, and a stream of three segments that all of them have, on their disks."""
    brokers = formed(**settings)
    caller = brokers.leader.create(
        "s", subject="s", replicas=3, min_isr=min_isr, segment_bytes=SEGMENT_BYTES, segment_age_ms=3_600_000
    )
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    for number in range(ROWS):
        brokers.publish("s", b"%d " % number + b"." * (SEGMENT_BYTES // 4))
        brokers.run(50)
    brokers.run(3_000)
    assert {values(member) for member in brokers.members.values()} == {tuple(range(ROWS))}
    return brokers


def values(member: Member) -> tuple[int, ...]:
    return tuple(int(bytes(value or b"").split()[0]) for value in member.values("s"))


def replica(member: Member) -> Partition:
    return member.node._partitions[member.image.by_name("s").partition_keys()[0]]


def segments(disk: MemoryVfs) -> list[str]:
    (stream,) = disk.list("streams")
    folder = f"streams/{stream}0"
    return [f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".arrows")]


def damage(disk: MemoryVfs, number: int) -> str:
    """Turn over a bit in the midst of a segment, which is closed; its path."""
    path = segments(disk)[number]
    flip(disk, path, disk.open(path).size() // 2)
    return path


def read_all(member: Member) -> None:
    """As a consumer who reads this replica, and gets what is sound; the broker's upkeep has heard of the damage."""
    partition = replica(member)
    view = partition.view()
    with pytest.raises(RemoteError, match="damaged"):
        list(view.batches(view.log_start, partition.committed_end))
    member.tick(1_000)


def is_being_repaired(member: Member) -> bool:
    """What a consumer hears who reads the damaged range there."""
    stream_id, lost = member.image.by_name("s").stream_id, Offset(replica(member).log.damage[0].base_offset)
    told = set()
    for request in (
        FetchRequest(stream_id=stream_id, offset=lost),
        FetchRequest(stream_id=stream_id, offset=lost, columns=("offset",)),
        GetRequest(stream_id=stream_id, offset=lost),
    ):
        refused = member.refusal(request)
        assert refused.code == ErrorCode.CORRUPT_RANGE, refused
        told.add(refused.details.get("repairing", False))
    (repairing,) = told
    return bool(repairing)


def others(brokers: Brokers, *but: Member) -> list[Member]:
    return [member for member in brokers.members.values() if member not in but]


@each_change
@pytest.mark.parametrize("number", [0, 1, -1], ids=["the first segment", "in the midst", "the last segment"])
def test_a_follower_that_starts_on_a_damaged_disk_is_mended(number: int) -> None:
    brokers = grown()
    follower = others(brokers, brokers.led("s"))[0]
    disk = brokers.kill(follower.broker_id)
    path = damage(disk, number)
    disk.remove(path.replace(".arrows", ".index"))  # else nobody looks there before somebody reads it
    follower = brokers.start(follower.broker_id, disk)
    brokers.run(20_000)
    assert replica(follower).log.state is LogState.WRITABLE, follower.notices
    assert follower.broker_id in brokers.partition("s").isr
    assert values(follower) == tuple(range(ROWS))
    assert replica(follower).counters["repaired_ranges"] == 1
    assert any("is mended" in notice for notice in follower.notices)
    assert [name for name in disk.list(path.rpartition("/")[0]) if ".cut-" in name]
    brokers.publish("s", b"99 and on")
    brokers.run(1_000)
    assert values(follower)[-1] == 99


@each_change
def test_a_leader_that_is_found_to_be_damaged_follows_and_is_mended() -> None:
    brokers = grown()
    leader = brokers.led("s")
    damage(leader.memory, 0)
    read_all(leader)
    brokers.run(20_000)
    assert brokers.led("s") is not leader
    assert replica(leader).log.state is LogState.WRITABLE
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert values(leader) == tuple(range(ROWS))


@each_change
def test_what_is_damaged_before_it_is_erased_is_mended() -> None:
    """The sweep for a secure deletion removed what the repair had written, so that it failed again and again."""
    brokers = grown()
    led = brokers.led("s")
    follower = others(brokers, led, brokers.leader)[0]
    follower.vfs.plan = no_metadata  # it hears later of the deletion
    stream_id = led.image.by_name("s").stream_id
    led.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(1), Offset(2)), is_secure=True))
    brokers.run(5_000)
    damage(follower.memory, 0)
    read_all(follower)
    brokers.run(5_000)
    follower.vfs.plan = no_faults
    brokers.run(30_000)
    assert replica(follower).log.state is LogState.WRITABLE, replica(follower).mending
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert values(follower) == values(led) == (0, *range(3, ROWS))


@each_change
def test_two_that_are_damaged_in_different_places_mend_each_other() -> None:
    """The third one is gone: each of the two has what the other one lacks, and nobody else has either."""
    brokers = grown()
    leader = brokers.led("s")
    follower, gone = others(brokers, leader)
    brokers.kill(gone.broker_id)
    brokers.run(5_000)
    damage(follower.memory, 1)
    read_all(follower)
    brokers.run(10_000)
    assert replica(follower).log.state is LogState.WRITABLE
    damage(leader.memory, 0)
    read_all(leader)
    brokers.run(20_000)
    assert replica(leader).log.state is LogState.WRITABLE
    assert values(leader) == values(follower) == tuple(range(ROWS))


@each_change
def test_what_is_damaged_everywhere_is_refused_and_nothing_goes() -> None:
    brokers = grown()
    before = {}
    for member in brokers.members.values():
        path = damage(member.memory, 0)
        before[member.broker_id] = member.memory.open(path).size(), path
        read_all(member)
    brokers.run(30_000)
    for member in brokers.members.values():
        size_bytes, path = before[member.broker_id]
        assert replica(member).log.state is LogState.READ_ONLY
        assert member.memory.open(path).size() == size_bytes
        view = replica(member).view()
        assert [header.base_offset for header, _ in view.batches(ROWS - 3, ROWS)] == [ROWS - 3, ROWS - 2, ROWS - 1]


@each_change
def test_a_reader_hears_that_a_range_is_being_repaired_only_where_it_is() -> None:
    brokers = grown()
    old = brokers.led("s")
    damage(old.memory, 0)
    view = replica(old).view()
    with pytest.raises(RemoteError, match="damaged"):
        list(view.batches(0, ROWS))
    assert is_being_repaired(old)  # before anybody else has heard of it
    brokers.run(20_000)
    assert brokers.led("s") is not old
    assert values(brokers.led("s")) == tuple(range(ROWS))
    # Nobody has it any more: the last leader has nobody in sync to hand over to.
    for member in brokers.members.values():
        damage(member.memory, 0)
        read_all(member)
    brokers.run(30_000)
    assert not is_being_repaired(brokers.led("s"))


def test_a_range_of_the_only_replica_is_lost_at_once() -> None:
    brokers = formed()
    brokers.leader.create("one", subject="one", replicas=1)
    brokers.run(500)
    led = brokers.led("one")
    brokers.publish("one", b"." * 1_000)
    brokers.publish("one", b"." * 1_000)
    brokers.run(2_000)
    (path,) = [path for path in led.memory.files() if path.endswith(".arrows") and "-one/" in path]
    flip(led.memory, path, SCHEMA_BYTES + 500)
    stream_id = led.image.by_name("one").stream_id
    refused = led.refusal(FetchRequest(stream_id=stream_id, offset=Offset(0), columns=("offset",)))
    assert (refused.code, "repairing" in refused.details) == (ErrorCode.CORRUPT_RANGE, False)


def test_a_stream_that_goes_while_it_is_mended_is_gone() -> None:
    brokers = grown()
    follower = others(brokers, brokers.led("s"))[0]
    damage(follower.memory, 0)
    follower.disk_runs_at_once = False
    read_all(follower)
    for _ in range(40):
        brokers.run(50)
        if follower.disk:
            break
    assert follower.disk, "nothing is under way"
    brokers.leader.delete("s")
    brokers.run(500)
    follower.disk_runs_at_once = True
    brokers.run(10_000)
    assert not follower.memory.list("streams")
    assert not follower.node._partitions
