"""Raft's files as rows."""

from __future__ import annotations

import pytest

from penstock.raft import Entry, EntryKind, HardState, RaftMembership, RaftStorage, Ready, Snapshot
from penstock.raft.dump import file_rows
from penstock.raft.membership import encode_membership
from penstock.raft.terms import next_term
from penstock.vfs.memory import MemoryVfs


@pytest.fixture
def files() -> dict[str, bytes]:
    memory = MemoryVfs()
    storage = RaftStorage.open(memory, Snapshot(0, 0, RaftMembership((1,)), b"image"))
    entries = (
        Entry(1, 1, EntryKind.LEADERSHIP, b""),
        Entry(1, 2, EntryKind.COMMAND, b"command"),
        Entry(next_term(1, 1, 7), 3, EntryKind.MEMBERSHIP, encode_membership(RaftMembership((1,), (2, 3)))),
    )
    task = storage.save(Ready(True, None, entries, HardState(1, 1, 0), (), (), ()))
    assert task is not None
    task.run()
    return {name: memory.open(f"raft/{name}").read_at(0, 1_000) for name in ("log", "snapshot")}


def test_the_log(files: dict[str, bytes]) -> None:
    rows = list(file_rows(files["log"], "log"))
    assert [row["number"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["record"] for row in rows] == ["base", "hard state", "entry", "entry", "entry", "hard state"]
    assert [row["what"] for row in rows[2:5]] == ["leadership", "command", "voters 1; learners 2, 3"]
    assert [row["term"] for row in rows] == ["0", "0", "1", "1", "2 of broker 1 (0007)", "1"]
    assert rows[3]["data"] == b"command"
    assert rows[5]["vote"] == 1


def test_the_snapshot(files: dict[str, bytes]) -> None:
    assert list(file_rows(files["snapshot"], "snapshot")) == [
        {"index": 0, "term": "0", "what": "voters 1; learners none", "size_bytes": 5}
    ]


def test_damage_stops_nothing(files: dict[str, bytes]) -> None:
    for name, data in files.items():
        for position in range(len(data)):
            damaged = bytearray(data)
            damaged[position] ^= 0x20
            assert any("damage" in row for row in file_rows(bytes(damaged), name))
        assert any("damage" in row for row in file_rows(data[:-1], name))
        assert any("damage" in row for row in file_rows(b"", name))


def test_a_name_that_is_not_ours() -> None:
    with pytest.raises(ValueError, match="not a file of Raft's"):
        file_rows(b"", "reserve")
