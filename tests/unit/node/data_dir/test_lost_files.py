"""Every file of a data directory, missing, zeroed or of an older copy: what a start makes of it, row by row.

The table is in docs/how-to/broker-does-not-start.md; `penstock.json` and `LOCK` are tested in
tests/unit/broker/config/test_data_dir.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from penstock.base.errors import CorruptionError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LogState
from penstock.commitlog.files.batch_walk import Walk
from penstock.node.data_dir.lost_files import GUARDS
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import content, flip
from tests.extent import each_change
from tests.unit.node.harness import Broker, Clock
from tests.unit.node.replicas.test_repairs import ROWS, grown, others, replica, values

ORDERS = "streams/00000004-orders/0"
SEGMENT = f"{ORDERS}/{0:020d}.arrows"
VALUES = [b"1", b"2", b"3", b"4"]
READ_ONLY = "read-only"


@cache
def directories() -> tuple[MemoryVfs, MemoryVfs, Clock]:
    """A data directory after a broker has stopped, and the same after a later run."""
    broker = Broker(scrub_bytes_per_s=0).start()
    broker.create("orders")
    broker.publish("orders.a", b"1", reply="r")
    broker.tick(2_000)
    broker.stop()
    older = broker.memory.crash_clone(Keep.ALL)
    broker = broker.crash(Keep.ALL).start()
    for value in VALUES[1:]:
        broker.publish("orders.a", value, reply="r")
        broker.tick(2_000)
    broker.stop()
    return older, broker.memory.crash_clone(Keep.ALL), broker.clock


def newest() -> MemoryVfs:
    """What the last run has left."""
    return directories()[1].crash_clone(Keep.ALL)


def starting(memory: MemoryVfs) -> Broker:
    """The next broker on it, which knows from `penstock.json` that all guards were there."""
    return Broker(memory, clock=directories()[2], scrub_bytes_per_s=0, guards=frozenset(GUARDS))


def missing(path: str) -> Callable[[MemoryVfs], None]:
    return lambda memory: memory.remove(path)


def zeroed(path: str) -> Callable[[MemoryVfs], None]:
    def harm(memory: MemoryVfs) -> None:
        size = len(content(memory, path))
        assert size, path
        memory.open(path).write_at(0, bytes(size))

    return harm


def older(path: str) -> Callable[[MemoryVfs], None]:
    def harm(memory: MemoryVfs) -> None:
        data = content(directories()[0], path)
        assert data != content(memory, path), f"{path} has not changed"
        memory.open(path).truncate(0)
        memory.open(path).write_at(0, data)

    return harm


HARMS = {"missing": missing, "zeroed": zeroed, "older": older}


@pytest.mark.parametrize(
    ("path", "what", "match"),
    [
        ("raft/log", "missing", "raft/log: .*it has run on this data directory, found no file"),
        ("raft/log", "zeroed", "raft/log: .*PNRL"),
        ("raft/log", "older", "raft/log: .*all was synced"),
        ("raft/snapshot", "missing", "raft/snapshot: .*found no file"),
        ("raft/snapshot", "zeroed", "raft/snapshot: .*PNRS"),
        ("raft/synced", "missing", "raft/synced: .*nothing was cut off.*found no file"),
        ("raft/synced", "zeroed", "raft/synced: .*nothing was cut off.*found no mark"),
        ("raft/synced", "older", "raft/synced: .*nothing was cut off.*an older file"),
        ("raft", "missing", "raft/log: .*it has run on this data directory, found no file"),
        ("made", "missing", "made: .*would be replaced by an empty one, found no folder. If no folder is missing in"),
    ],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_start_is_refused_and_says_what_to_do(path: str, what: str, match: str, is_alone: bool) -> None:
    memory = newest()
    HARMS[what](path)(memory)
    before = {name: content(memory, name) for name in memory.files()}
    broker = starting(memory)
    if not is_alone:
        broker = Broker(memory, join=("other:1",), guards=frozenset(GUARDS))
    with pytest.raises(CorruptionError, match=match) as caught:
        broker.start()
    assert {name: content(memory, name) for name in memory.files()} == before
    advice = "start with an empty one and restore a backup" if is_alone else "the others fill it"
    assert f"Nothing was deleted. {'This broker is alone' if is_alone else 'While most'}" in caught.value.advice
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("path", "what", "notice"),
    [
        ("runs", "missing", "runs is missing, which records the starts"),
        ("runs", "zeroed", "runs cannot be read: whether this is an older copy cannot be checked now"),
        ("made/00000004-orders", "missing", "made/00000004-orders was missing, though its log exists"),
        (f"{ORDERS}/lineage", "zeroed", "lineage: at byte 0"),
        ("raft/reserve", "missing", ""),
        ("raft/reserve", "zeroed", ""),
        ("clean-stop", "missing", ""),
        ("clean-stop", "zeroed", ""),
        ("clean-stop", "older", ""),
        ("listened", "missing", ""),
        ("listened", "zeroed", "gaps that began while this broker was down are reported longer"),
        ("listened", "older", ""),
        ("gaps.jsonl", "missing", ""),
        ("gaps.jsonl", "zeroed", ""),
        ("gaps.jsonl", "older", ""),
        (f"{ORDERS}/checkpoint", "older", ""),
        (f"{ORDERS}/lineage", "missing", ""),
        (f"{ORDERS}/lineage", "older", ""),
        (f"{ORDERS}/{0:020d}.index", "missing", ""),
        (f"{ORDERS}/{0:020d}.index", "zeroed", ""),
        (f"{ORDERS}/{0:020d}.index", "older", ""),
    ],
)
def test_a_start_goes_on_and_tells_what_an_operator_should_know(path: str, what: str, notice: str) -> None:
    memory = newest()
    HARMS[what](path)(memory)
    broker = starting(memory).start()
    assert not broker.failure
    assert not notice or any(notice in one for one in broker.notices), broker.notices
    assert broker.values("orders") == VALUES
    broker.publish("orders.a", b"5", reply="r")
    assert broker.values("orders") == [*VALUES, b"5"]
    broker.stop()
    again = starting(memory).start()
    assert not notice or not any(notice in one for one in again.notices), "it is told once"


@pytest.mark.parametrize(
    ("path", "what", "reason"),
    [
        (f"{ORDERS}/checkpoint", "missing", "whether its end was cut off is not known"),
        (f"{ORDERS}/checkpoint", "zeroed", "whether its end was cut off is not known"),
        (SEGMENT, "missing", "the segment file is missing"),
        (SEGMENT, "zeroed", "expected"),
        (SEGMENT, "older", "the end of the file"),
    ],
)
def test_a_log_that_may_have_been_cut_takes_nothing(path: str, what: str, reason: str) -> None:
    memory = newest()
    HARMS[what](path)(memory)
    broker = starting(memory).start()
    (partition,) = (one for key, one in broker.node._partitions.items() if key.stream_id == 4)
    assert partition.log.state is LogState.READ_ONLY
    assert any(reason in one.reason for one in partition.log.damage), partition.log.damage
    assert any(READ_ONLY in one for one in broker.notices)


def test_a_folder_that_is_gone_is_not_begun_anew() -> None:
    memory = newest()
    memory.remove(ORDERS)
    broker = starting(memory).start()
    assert any("cannot open the log" in one and "bring it back" in one for one in broker.notices)


def test_an_older_note_of_the_starts_is_an_older_copy() -> None:
    memory = newest()
    older("runs")(memory)
    broker = starting(memory)
    broker.start()
    assert "older copy" in broker.failure


def test_without_its_mark_a_folder_that_is_gone_is_begun_anew() -> None:
    """What one broker cannot find out: see the page. Where others have the messages, they come from there."""
    memory = newest()
    memory.remove(ORDERS)
    memory.remove("made/00000004-orders")
    broker = starting(memory).start()
    assert broker.values("orders") == []


def test_a_made_folder_that_an_operator_made_anew_lets_the_broker_start() -> None:
    memory = newest()
    memory.remove("made")
    memory.open("made/.keep", create=True)
    broker = starting(memory).start()
    assert broker.values("orders") == VALUES
    assert "made/00000004-orders" in memory.files()


def test_a_directory_of_which_nothing_is_noted_starts_without_its_guards() -> None:
    """As one that an earlier version has left."""
    memory = newest()
    for path in ("runs", "made"):
        memory.remove(path)
    broker = Broker(memory, clock=directories()[2]).start()
    assert broker.values("orders") == VALUES
    assert not any("is missing" in one for one in broker.notices)


def test_a_flipped_bit_in_what_was_agreed_on_is_refused_and_says_what_to_do() -> None:
    size = len(content(newest(), "raft/log"))
    for position in range(0, size, 13):
        memory = newest()
        flip(memory, "raft/log", position)
        with pytest.raises(CorruptionError, match=r"raft/log: at byte \d+: .*start with an empty one and restore"):
            starting(memory).start()


def test_the_way_out_for_a_broker_that_is_alone_and_has_lost_a_checkpoint() -> None:
    memory = newest()
    memory.remove(f"{ORDERS}/checkpoint")
    memory.remove("made/00000004-orders")
    broker = starting(memory).start()
    broker.publish("orders.a", b"5", reply="r")
    assert broker.values("orders") == [*VALUES, b"5"]


@each_change
def test_a_replica_that_has_lost_its_checkpoint_and_its_end_gets_both_from_the_others() -> None:
    """It may not stay in sync: what it acknowledged was cut off, between two batches, where nothing shows it."""
    brokers = grown()
    member = others(brokers, brokers.led("s"))[0]
    disk = brokers.stop(member.broker_id)
    (folder,) = {path.rpartition("/")[0] for path in disk.files() if path.endswith("checkpoint")}
    last = sorted(path for path in disk.files() if path.startswith(folder) and path.endswith(".arrows"))[-1]
    file = disk.open(last)
    batches = list(Walk(file, position=SCHEMA_BYTES, end_position=file.size(), offset=int(last[-27:-7])))
    file.truncate(batches[-1][0])
    disk.remove(f"{folder}/checkpoint")
    again = brokers.start(member.broker_id, disk)
    brokers.run(60_000)
    assert any("whether its end was cut off is not known" in one for one in again.notices)
    assert replica(again).log.state is LogState.WRITABLE
    assert values(again) == tuple(range(ROWS))
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
