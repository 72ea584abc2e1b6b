"""The metadata of a broker that is alone: on the disk before it holds, through faults of that disk."""

from __future__ import annotations

import errno
import itertools
from random import Random
from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.hot.crc import crc32c
from penstock.messages import RaftRequest, Response
from penstock.metadata.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    FormCluster,
    RaiseFeatureLevel,
    RegisterBroker,
    encode_command,
)
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.metadata.persistence.snapshot import SNAPSHOT_VERSION, encode_image
from penstock.node.quorum.metadata_entries import TooOldError
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.peer_fencing import PeerProcess, ProcessStart
from penstock.node.quorum.pending_proposals import Done
from penstock.node.quorum.quorum import Quorum
from penstock.node.quorum.raft_listener import EntryPosition
from penstock.node.step import DiskWork
from penstock.raft import Raft, RaftConfig, RaftMembership, RaftStorage, Snapshot, encode_message
from penstock.raft.messages import SnapshotChunk
from penstock.raft.tasks import LOG_PATH, RESERVE_PATH, SNAPSHOT_PATH
from penstock.raft.terms import next_term
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults, nth
from penstock.vfs.memory import MemoryVfs
from tests.unit.node.contexts import context_of

ONE = BrokerId(1)
STOPPING = RemoteError(ErrorCode.STOPPING, "stopping")


def register(number: int) -> RegisterBroker:
    return RegisterBroker(
        broker_id=ONE,
        data_dir_id="disk",
        address=f"h:{number}",
        rack=None,
        broker_version="1",
        clean_stop=True,
        registered_us=number,
    )


def no_room(operation: FileOperation) -> FileFault | None:
    is_metadata = operation.kind is FileOperationKind.WRITE and operation.path.startswith(
        (LOG_PATH, RESERVE_PATH, SNAPSHOT_PATH)
    )
    return FileFault(errno.ENOSPC) if is_metadata else None


class Alone:
    """A quorum of one, its disk, and who hears what becomes of it."""

    def __init__(self, memory: MemoryVfs | None = None, *, is_voter: bool = True) -> None:
        self.memory = MemoryVfs() if memory is None else memory
        self.vfs = FaultyVfs(self.memory)
        self.context = context_of(self.vfs)
        self.outbox = self.context.outbox
        self.disk: list[DiskWork] = []
        self.notices: list[str] = []
        self.told: list[str] = []
        self.heard: list[tuple[str, str]] = []
        first = Snapshot(0, 0, RaftMembership((ONE,)), b"") if is_voter else None
        storage = RaftStorage.open(self.vfs, first)
        raft = Raft(RaftConfig(ONE), Random(1), storage.state)
        peers = PeerClient(self.outbox)
        self.quorum = Quorum(
            self.context,
            storage,
            raft,
            peers,
            own=PeerProcess("disk", "p"),
            start=ProcessStart(("p",), 0, 0),
            observer=self,
        )

    def start(self) -> Alone:
        self.quorum.start()
        self.quorum.started()
        self.take()
        return self

    # The observer

    def applied(self, place: EntryPosition, command: Command, outcome: CommandOutcome | RemoteError) -> None:
        self.told.append(f"applied {place.log_index}")

    def replaced(self, before: ClusterImage) -> None:
        self.told.append("replaced")

    def metadata_leadership_gained(self) -> None:
        self.told.append("leads")

    def answered(self, broker_id: BrokerId, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        pass

    def metadata_leadership_lost(self) -> None:
        self.told.append("leads no more")

    def failed(self, reason: str) -> None:
        self.told.append(f"failed: {reason}")

    # What a test does

    def done(self, name: str) -> Done:
        def done(outcome: CommandOutcome | RemoteError) -> None:
            self.heard.append((name, outcome.code if isinstance(outcome, RemoteError) else ""))

        return done

    def propose(self, name: str, command: Command) -> None:
        self.quorum.propose(command, self.done(name))
        self.take()

    def take(self) -> None:
        step = self.outbox.take()
        self.disk += step.disk
        self.notices += step.notices

    def run_disk(self) -> None:
        """All of it, and what comes of it."""
        while self.disk:
            work = self.disk.pop(0)
            error: Exception | None = None
            try:
                work.run()
            except Exception as raised:  # noqa: BLE001 (as a disk thread does)
                error = raised
            work.done(error)
            self.take()

    @property
    def address(self) -> str:
        return self.quorum.image.brokers[ONE].address


def test_a_command_holds_once_it_is_on_the_disk() -> None:
    one = Alone().start()
    assert one.told == ["leads"]
    one.propose("a", register(1))
    assert (one.heard, one.quorum.image.brokers.get(ONE)) == ([], None)
    one.run_disk()
    assert (one.heard, one.address) == ([("a", "")], "h:1")
    assert Alone(one.memory.crash_clone()).start().address == "h:1"


def test_what_is_asked_during_a_save_waits_and_goes_together() -> None:
    one = Alone().start()
    one.propose("a", register(1))
    for number in (2, 3):
        one.propose(f"b{number}", register(number))
    one.quorum.tick()
    one.take()
    assert len(one.disk) == 1
    syncs: list[str] = []
    one.vfs.watcher = lambda operation: (
        syncs.append(operation.path) if operation.kind is FileOperationKind.SYNC else None
    )
    one.run_disk()
    assert one.heard == [("a", ""), ("b2", ""), ("b3", "")]
    assert syncs.count(LOG_PATH) == 2  # the one that was under way, and one for the two that waited
    assert one.address == "h:3"


def test_so_much_waits_for_a_save_and_what_is_beyond_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_INPUTS_WAITING_MAX", 3)
    one = Alone().start()
    one.propose("under way", register(1))
    for number in range(2, 5):
        one.propose("waits", register(number))
    for _ in range(2):
        one.propose("too many", register(9))
    assert one.heard == [("too many", ErrorCode.OVERLOADED)] * 2
    one.run_disk()
    assert one.heard[2:] == [("under way", ""), *[("waits", "")] * 3]
    assert one.address == "h:4"
    one.propose("later", register(5))
    one.run_disk()
    assert one.address == "h:5"


def test_so_many_bytes_wait_for_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = len(encode_command(register(1)))
    monkeypatch.setattr(limits, "METADATA_INPUT_BYTES_WAITING_MAX", 2 * size_bytes)
    one = Alone().start()
    for _ in range(2):  # the room is there again each time
        for name in ("under way", "waits", "waits", "too much"):
            one.propose(name, register(2))
        assert one.heard == [("too much", ErrorCode.OVERLOADED)]
        one.run_disk()
        assert one.heard[1:] == [("under way", ""), ("waits", ""), ("waits", "")]
        one.heard.clear()


def test_a_command_without_room_is_as_never_asked_and_the_next_one_tries_again() -> None:
    one = Alone().start()
    one.vfs.plan = no_room
    one.propose("a", register(1))
    one.run_disk()
    assert one.heard == [("a", ErrorCode.STORAGE_FAILED)]
    assert one.quorum.is_leader
    assert "No space" in one.quorum.obstacle
    one.vfs.plan = no_faults
    one.propose("b", register(2))
    one.run_disk()
    assert one.heard[1:] == [("b", "")]
    assert one.quorum.obstacle == ""
    assert one.notices == []
    assert Alone(one.memory.crash_clone()).start().address == "h:2"


def test_a_start_on_a_full_disk_has_the_image_and_leads_once_there_is_room() -> None:
    before = Alone().start()
    before.propose("a", register(1))
    before.run_disk()
    one = Alone(before.memory.crash_clone())
    one.vfs.plan = no_room
    one.start()
    assert one.address == "h:1"
    assert not one.quorum.is_leader
    assert "No space" in one.quorum.obstacle
    assert one.quorum.needs_ticks
    for _ in range(3):
        one.quorum.tick()
        one.take()
        one.run_disk()
    assert not one.quorum.is_leader
    one.vfs.plan = no_faults
    one.quorum.tick()
    one.take()
    one.run_disk()
    assert one.quorum.is_leader
    assert one.quorum.obstacle == ""
    assert not one.quorum.needs_ticks


def test_a_failed_sync_ends_its_part_until_a_restart() -> None:
    one = Alone().start()
    one.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC, path_end=LOG_PATH)
    one.propose("a", register(1))
    one.propose("waits", register(2))
    one.run_disk()
    one.propose("later", register(3))
    assert one.heard == [(name, ErrorCode.STORAGE_FAILED) for name in ("a", "waits", "later")]
    assert one.told == ["leads", f"failed: {one.quorum.trouble}", "leads no more"]
    assert (one.quorum.is_leader, one.quorum.leader, one.disk) == (False, None, [])
    assert one.quorum.obstacle == one.quorum.trouble != ""
    assert Alone(one.memory.crash_clone()).start().quorum.is_leader


@pytest.mark.parametrize("changes", [None, {}, {"a_later_field": 5}, {"acks": "a later value"}])
def test_a_command_that_this_version_does_not_know_ends_its_part(changes: dict[str, Any] | None) -> None:
    one = Alone().start()
    one.propose("a", CreateStream(config=StreamConfig(name="s", subject="s", replicas=1), created_us=1))
    one.run_disk()
    (stream_id,) = one.quorum.image.streams
    later = b"register_broker, as a later version has it"
    if changes is not None:
        later = encode_command(AlterStream(stream_id=stream_id, changes=changes))
    if changes == {}:
        later = msgspec.msgpack.encode({**msgspec.msgpack.decode(encode_command(register(2))), "a_later_field": 5})
    image = one.quorum.image
    one.quorum._raft.propose(later)
    one.propose("behind it", register(2))
    one.run_disk()
    one.propose("later", register(3))
    assert one.told[-2:] == [f"failed: {one.quorum.trouble}", "leads no more"]
    assert "something that this version does not know: upgrade this broker" in one.quorum.trouble
    assert one.quorum.image is image
    assert one.heard == [("a", ""), *((name, ErrorCode.STORAGE_FAILED) for name in ("behind it", "later"))]
    with pytest.raises(TooOldError):  # with half of the metadata it would take folders of streams for nobody's
        Alone(one.memory.crash_clone()).start()


def test_a_feature_level_that_this_version_does_not_know_ends_its_part() -> None:
    one = Alone().start()
    image = one.quorum.image
    one.quorum._raft.propose(encode_command(RaiseFeatureLevel(feature_level=(0, 5))))
    one.propose("behind it", register(2))
    one.run_disk()
    assert one.quorum.trouble.startswith("the cluster is at feature level 0.5, which is never lowered, and this broker")
    assert one.quorum.image is image
    with pytest.raises(TooOldError, match=r"start it with version 0\.5 or later"):
        Alone(one.memory.crash_clone()).start()


def test_a_snapshot_that_this_version_does_not_know_ends_its_part() -> None:
    one = Alone(is_voter=False).start()
    two, term = BrokerId(2), next_term(0, BrokerId(2), 7)
    fields = msgspec.msgpack.decode(encode_image(ClusterImage(index=5)))
    data = msgspec.msgpack.encode([SNAPSHOT_VERSION + 1, *fields[1:]])
    members = RaftMembership((two, BrokerId(3)), (ONE,))
    chunk = SnapshotChunk(two, ONE, term, 5, term, members, len(data), crc32c(data), 0, data)
    one.quorum.received(
        RaftRequest(data_dir_id="another", to_data_dir_id="disk", process="q", to_process=""), encode_message(chunk)
    )
    one.take()
    one.run_disk()
    assert "upgrade this broker" in one.quorum.trouble
    one.quorum.tick()
    one.propose("later", register(1))
    assert one.heard == [("later", ErrorCode.STOPPING)]
    with pytest.raises(TooOldError):
        Alone(one.memory.crash_clone(), is_voter=False)


def test_a_log_that_has_become_long_gives_way_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_LOG_BYTES_MAX", 2_000)
    one = Alone().start()
    sizes = []
    for number in range(100):
        one.propose(f"{number}", register(number))
        one.run_disk()
        sizes.append(one.memory.open(LOG_PATH).size())
    assert [code for _, code in one.heard] == [""] * 100
    assert sum(after < before for before, after in itertools.pairwise(sizes)) > 2
    again = Alone(one.memory.crash_clone())
    assert again.quorum.image.index > 50  # before anything is applied
    assert again.start().address == "h:99"


def test_a_snapshot_without_room_stands_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_LOG_BYTES_MAX", 2_000)
    one = Alone().start()
    one.vfs.plan = lambda operation: (
        FileFault(errno.ENOSPC)
        if operation.kind is FileOperationKind.WRITE and operation.path.startswith(SNAPSHOT_PATH)
        else None
    )
    for number in range(60):
        one.propose(f"{number}", register(number))
        one.run_disk()
    assert [code for _, code in one.heard] == [""] * 60
    assert one.memory.open(LOG_PATH).size() > 2_000
    one.vfs.plan = no_faults
    one.propose("last", register(99))
    one.run_disk()
    assert one.memory.open(LOG_PATH).size() < 2_000
    assert Alone(one.memory.crash_clone()).start().address == "h:99"


def test_what_cannot_be_is_refused_when_it_is_applied() -> None:
    one = Alone().start()
    one.propose("a", FormCluster(cluster_id="c"))
    one.propose("b", DeleteStream(stream_id=77))
    one.run_disk()
    assert one.heard == [("a", ""), ("b", ErrorCode.STREAM_NOT_FOUND)]


def test_who_waits_at_the_end_is_told_also_where_the_disk_does_not_answer() -> None:
    one = Alone().start()
    one.propose("under way", register(1))
    one.propose("waits", register(2))
    one.quorum.stop(STOPPING)
    assert sorted(one.heard) == [("under way", ErrorCode.STOPPING), ("waits", ErrorCode.STOPPING)]
    assert Alone(one.memory.crash_clone()).start().quorum.is_leader


def test_a_member_of_several_waits_for_ticks() -> None:
    one = Alone().start()
    assert one.quorum.is_alone
    assert not one.quorum.needs_ticks
    one.quorum.change_membership(RaftMembership((ONE,), (BrokerId(2),)), one.done("learner"))
    one.take()
    one.run_disk()
    assert one.heard == [("learner", "")]
    assert not one.quorum.is_alone
    assert one.quorum.needs_ticks
