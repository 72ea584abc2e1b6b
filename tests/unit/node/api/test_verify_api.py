"""A replica verified slice by slice: bounded, one at a time, in a lane of its own; and damage is known from then on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, StreamId
from penstock.commitlog import SubjectQueries
from penstock.commitlog.verify.checksums import RangeSums
from penstock.commitlog.verify.verifying import verify_log
from penstock.messages import CreateStreamResponse, RowSum, VerifyRequest, VerifyResponse
from penstock.node.step import Lane
from tests.damage import content, flip
from tests.unit.node.harness import Broker


class Verified(Broker):
    """A broker with the stream `orders`."""

    def __init__(self, **config: Any) -> None:
        super().__init__(cleaner_bytes_per_s=0)
        self.start()
        self.id: StreamId = self.answer(self.create("orders", **config), CreateStreamResponse).stream.stream_id

    def fill(self, batches: int, value: bytes = b"x" * 200) -> None:
        for _ in range(batches):
            self.append("orders", value, value)

    def verify(self, **fields: Any) -> Hashable:
        return self.request(VerifyRequest(stream_id=self.id, **fields))

    def verified(self, **fields: Any) -> VerifyResponse:
        return self.answer(self.verify(**fields), VerifyResponse)

    def code(self, caller: Hashable) -> str:
        response = self.replies[caller].response
        assert isinstance(response, RemoteError), response
        return response.code

    def all_of_it(self) -> list[VerifyResponse]:
        """As a client asks for it, answer by answer."""
        offset, carried = 0, None
        found: list[VerifyResponse] = []
        while not found or offset < found[-1].committed_end:
            found.append(self.verified(offset=Offset(offset), begin=Offset(0), carried=carried))
            last = found[-1].sums[-1] if found[-1].sums else None
            carried = last if last is not None and found[-1].end_offset < last.end else None
            assert found[-1].end_offset > offset
            offset = found[-1].end_offset
        return found

    def segments(self) -> list[str]:
        return [path for path in self.memory.files() if path.endswith(".arrows") and "-orders/" in path]


def test_without_an_offset_nothing_is_read() -> None:
    broker = Verified()
    broker.fill(3)
    broker.disk_runs_at_once = False
    found = broker.verified()
    assert (found.log_start, found.committed_end, found.rows, found.sums) == (0, 6, 0, ())


def test_a_slice_is_bounded_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Verified()
    broker.fill(30)
    (whole,) = broker.all_of_it()
    assert (whole.rows, whole.end_offset, [one.rows for one in whole.sums]) == (60, 60, [60])
    monkeypatch.setattr(limits, "VERIFY_SLICE_BATCHES", 7)
    slices = broker.all_of_it()
    assert [one.rows for one in slices] == [14, 14, 14, 14, 4]
    assert slices[-1].sums == whole.sums
    monkeypatch.setattr(limits, "VERIFY_SLICE_BYTES", 1)
    slices = broker.all_of_it()
    assert len(slices) == 30
    assert slices[-1].sums == whole.sums


def test_only_a_part_and_nothing_that_is_not_there() -> None:
    broker = Verified()
    broker.fill(5)
    found = broker.verified(offset=3, end=8)
    assert (found.rows, found.end_offset) == (5, 8)
    (one,) = found.sums
    assert (one.begin, one.end, one.first_offset, one.last_offset) == (3, 8, 3, 7)
    for request in (
        VerifyRequest(stream_id=broker.id, offset=Offset(0), end=Offset(11)),
        VerifyRequest(stream_id=broker.id, offset=Offset(11)),
    ):
        assert broker.refusal(request).code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_retention_has_taken_is_out_of_range_and_says_where_it_begins() -> None:
    broker = Verified(segment_bytes=4096, max_messages=20)
    broker.fill(40)
    for _ in range(5):
        broker.clock.advance_ms(2_000)
        broker.tick()
    log_start = broker.verified().log_start
    assert log_start > 0
    error = broker.refusal(VerifyRequest(stream_id=broker.id, offset=Offset(0)))
    assert (error.code, error.details["log_start"]) == (ErrorCode.OFFSET_OUT_OF_RANGE, log_start)


def test_damage_is_told_with_its_place_and_what_is_behind_it_is_verified() -> None:
    broker = Verified(segment_bytes=4096)
    broker.fill(20)
    sound = broker.all_of_it()
    flip(broker.memory, broker.segments()[0], 568 + 800)
    found = broker.all_of_it()
    (damage,) = [one.damage for one in found if one.damage is not None]
    assert (damage.file, damage.position, damage.base_offset, damage.end_offset) == (broker.segments()[0], 568, 0, 2)
    assert damage.expected.startswith("CRC-32C")
    assert sum(one.rows for one in found) == sum(one.rows for one in sound) - 2
    assert broker.stream("orders").partitions[0].damage[0].position == 568
    # Known damage is told again.
    again = broker.all_of_it()
    assert [one.damage for one in again if one.damage is not None] == [damage]
    assert broker.stream("orders").partitions[0].damage == (damage,)
    assert [(one.damage.base_offset, one.damage.end_offset) for one in again if one.damage is not None] == [(0, 2)]


@pytest.mark.parametrize("name", ["index", "subjects", "checkpoint", "lineage"])
def test_what_is_wrong_beside_the_segments_is_told_once_and_mended(name: str) -> None:
    broker = Verified(segment_bytes=4096)
    broker.fill(20)
    wait_for_upkeep(broker)
    partition = next(one for one in broker.node._partitions.values() if one.stream.name == "orders")
    assert SubjectQueries(partition.log.view(), partition.log.log_end).count([">"]) == 40  # writes them
    (path, *_) = [path for path in broker.memory.files() if path.endswith(name) and "-orders/" in path]
    sound = content(broker.memory, path)
    flip(broker.memory, path, 17)
    found = [*broker.all_of_it(), broker.verified(offset=Offset(40), end=Offset(40))]
    assert [one.damage for one in found if one.damage is not None] == []
    (told,) = [told for one in found for told in one.side_files]
    assert (told.file, told.position // 64, told.base_offset, told.end_offset) == (path, 0, None, None)
    wait_for_upkeep(broker)
    assert name == "checkpoint" or content(broker.memory, path) == sound
    assert verify_log(broker.memory, path.rpartition("/")[0], is_made=True).is_sound
    again = [*broker.all_of_it(), broker.verified(offset=Offset(40), end=Offset(40))]
    assert [one.side_files for one in again if one.side_files] == []


def wait_for_upkeep(broker: Broker) -> None:
    """Until the checkpoint was due."""
    for _ in range(4):
        broker.tick(2 * limits.CHECKPOINT_SYNC_INTERVAL_MS)


@pytest.mark.parametrize(
    "fields",
    [
        {"offset": 4, "end": 2},
        {"offset": 4, "begin": 5},
        {"offset": 4, "carried": RowSum(0, 65_536, 4, 0, 4, (0,) * 10)},  # type: ignore[arg-type]
        {"offset": 4, "carried": RowSum(1, 65_536, 4, 1, 3, (0,) * 10)},  # type: ignore[arg-type]
        {"offset": 4, "begin": 0, "carried": RowSum(0, 9, 4, 0, 3, (0,) * 10)},  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    broker = Verified()
    broker.fill(5)
    assert broker.refusal(VerifyRequest(stream_id=broker.id, **fields)).code == ErrorCode.BAD_REQUEST


def test_one_runs_at_a_time_in_a_lane_of_its_own_and_too_many_are_refused() -> None:
    broker = Verified()
    broker.fill(3)
    broker.disk_runs_at_once = False
    callers = [broker.verify(offset=0) for _ in range(limits.VERIFY_WAITING_MAX + 3)]
    assert [work.lane for work in broker.disk] == [Lane.QUERY]
    refused = [caller for caller in callers if caller in broker.replies]
    assert [broker.code(caller) for caller in refused] == [ErrorCode.OVERLOADED] * 2
    broker.settle()
    assert all(broker.answer(caller, VerifyResponse).rows == 6 for caller in callers if caller not in refused)


def test_a_client_that_has_gone_ends_it() -> None:
    broker = Verified()
    broker.fill(3)
    broker.disk_runs_at_once = False
    callers = [broker.verify(offset=0) for _ in range(3)]
    broker.open_requests.difference_update(callers)
    broker.node.callers_disconnected(callers)
    broker.settle()
    assert not broker.replies.keys() & set(callers)
    broker.disk_runs_at_once = True
    assert broker.verified(offset=0).rows == 6


def test_a_broker_that_stops_answers_at_once() -> None:
    broker = Verified()
    broker.fill(3)
    broker.disk_runs_at_once = False
    running, waiting = broker.verify(offset=0), broker.verify(offset=0)
    broker.node.give_up_queries()
    late = broker.verify(offset=0)
    broker.turn()
    assert [broker.code(caller) for caller in (waiting, late)] == [ErrorCode.STOPPING] * 2
    broker.settle()
    assert broker.code(running) == ErrorCode.STOPPING


def test_a_range_that_is_carried_to_the_very_end_is_no_mistake_of_the_program() -> None:
    """`min` of one number is none: any client could fill the broker's log with tracebacks."""
    sums = RangeSums(0, 5)
    assert sums.range_of(5) == (5, limits.VERIFY_RANGE_OFFSETS)
    assert sums.range_of(4) == (0, 5)
