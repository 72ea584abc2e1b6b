"""What a file no longer holds is answered to nobody: the connection breaks, the log hears of it, the next one is told.

With an answer that stops at the end of a batch, a reader would take what is lost for something that never was there.
"""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch.schema import SCHEMA_BYTES
from penstock.messages import FetchRequest, FetchResponse, Response
from penstock.node.step import FileRange
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.payloads import CutShortError, bytes_of
from penstock.vfs.memory import MemoryVfs
from tests.sim.models.clients import SLOTS
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

SUBJECT = "s0.g1.>"
QUIET = make_plan(2, 1, SLOTS)._replace(operations=(), faults=(), end_us=6_000_000)
BUSY = QUIET._replace(operations=tuple(PlannedOperation(5_000_000 + n, Act.PUBLISH, 0, 4) for n in range(3)))


def test_a_payload_is_its_pieces() -> None:
    vfs = MemoryVfs()
    write(vfs, "log", b"0123456789")
    whole = FileRange(vfs, "log", 2, 8, fails)
    assert bytes_of((b"ab", whole)) == b"ab23456789"
    assert bytes_of(b"ab") == b"ab"
    assert bytes_of(None) == b""


@pytest.mark.parametrize(("position", "end"), [(2, 10), (10, 10)])
def test_a_file_that_ends_too_early(position: int, end: int) -> None:
    vfs = MemoryVfs()
    write(vfs, "log", b"0123456789")
    heard: list[tuple[str, int]] = []
    extent = FileRange(vfs, "log", position, 9, lambda path, at, _reason: heard.append((path, at)))
    with pytest.raises(CutShortError, match=f"log ends at byte {end}"):
        bytes_of((b"ab", extent))
    assert heard == [("log", end)]


def test_a_reader_of_what_was_cut_off_gets_no_answer_and_the_next_one_is_told() -> None:
    world = World(BUSY)
    assert world.run().error == ""
    broker = world.brokers[1]
    assert broker.node is not None
    look = next(one for one in inspector.partitions(broker.node) if one.subject == SUBJECT)
    file = broker.disk.memory.open(f"streams/{look.stream_id:08}-s0/0/{0:020}.arrows")
    file.truncate(SCHEMA_BYTES)
    file.close()
    answers = [fetched(world, look.stream_id) for _ in range(2)]
    assert answers[0] == (None, b"")
    error, _ = answers[1]
    assert isinstance(error, RemoteError)
    assert error.code == ErrorCode.CORRUPT_RANGE


def fetched(world: World, stream_id: int) -> tuple[Response | RemoteError | None, bytes]:
    """What a program is told that reads the first messages."""
    scheduler, network = world._scheduler, world._network
    program = SimClient("test", network, world.brokers, world._random("test"))
    answers: list[tuple[Response | RemoteError | None, bytes]] = []
    request = FetchRequest(
        stream_id=StreamId(stream_id), partition=PartitionId(0), offset=Offset(0), bytes_max=1_000, wait_ms_max=0
    )
    program.ask(request, lambda *answer: answers.append(answer))
    scheduler.run_until(scheduler.now_us + 5_000_000, lambda: bool(answers))
    (answer,) = answers
    assert not isinstance(answer[0], FetchResponse), "what is not there was answered"
    return answer


def write(vfs: MemoryVfs, path: str, data: bytes) -> None:
    file = vfs.open(path, create=True)
    file.write_at(0, data)
    file.close()


def fails(path: str, position: int, reason: str) -> None:
    raise AssertionError(path, position, reason)
