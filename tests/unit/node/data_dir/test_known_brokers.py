"""Whom a data directory knows, read without changing anything."""

from __future__ import annotations

from penstock.base.ids import BrokerId
from penstock.metadata.persistence.snapshot import encode_image
from penstock.node.data_dir.known_brokers import read_known_brokers
from penstock.raft import Entry, EntryKind, RaftMembership, RaftStorage, Snapshot
from penstock.raft.membership import encode_membership
from penstock.raft.records import LogContents, file_bytes
from penstock.vfs.memory import MemoryVfs
from tests.unit.node.members import Brokers


def test_a_new_directory_knows_nobody() -> None:
    vfs = MemoryVfs()
    assert read_known_brokers(vfs) is None
    assert list(vfs.list("")) == []


def test_a_member_knows_the_first_voters_at_once_and_addresses_once_they_are_registered() -> None:
    brokers = Brokers(1, 2, 3)
    known = read_known_brokers(brokers[2].vfs)
    assert known is not None
    assert (known.members, dict(known.addresses)) == ({1, 2, 3}, {})
    brokers.run(5_000)
    known = read_known_brokers(brokers[2].vfs)
    assert known is not None
    assert dict(known.addresses) == {number: one.address for number, one in brokers.leader.image.brokers.items()}
    assert known.members == {1, 2, 3}


def test_what_is_only_in_the_snapshot_is_known_too() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    image = brokers.leader.image
    vfs = MemoryVfs()
    RaftStorage.open(
        vfs, Snapshot(image.index, 1, RaftMembership((BrokerId(1), BrokerId(9))), encode_image(image))
    ).close()
    known = read_known_brokers(vfs)
    assert known is not None
    assert (known.members, sorted(known.addresses)) == ({1, 2, 3, 9}, [1, 2, 3])


def test_damage_is_left_to_the_start() -> None:
    vfs = MemoryVfs()
    vfs.open("raft/log", create=True).write_at(0, b"no log")
    assert read_known_brokers(vfs) is None


def test_what_a_newer_version_wrote_is_left_to_the_start() -> None:
    vfs = MemoryVfs()
    contents = LogContents()
    members = encode_membership(RaftMembership((BrokerId(1), BrokerId(2))))
    unknown = b"register_broker, in another way"
    contents.put((Entry(1, 1, EntryKind.MEMBERSHIP, members), Entry(1, 2, EntryKind.COMMAND, unknown)))
    vfs.open("raft/log", create=True).write_at(0, file_bytes(contents, 0)[0])
    known = read_known_brokers(vfs)
    assert known is not None
    assert known.members == {1, 2}
