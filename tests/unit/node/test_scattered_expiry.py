"""Times to live that are scattered over a log: each message goes in its second, and no block is read again for it."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.base import limits
from penstock.messages import AppendRequest, PurgeSubjectRequest
from penstock.node.partition.expiry import FindExpired
from penstock.node.partition.expiry_blocks import ExpiryBlocks, Nearest, NextRowsBudget
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.test_delete_markers import BUCKET, MARKER, TTL, go_on, started

S_US = 1_000_000


def append(broker: Broker, *messages: tuple[str, int]) -> None:
    """Subjects and times to live, in seconds, as one batch."""
    rows = [(f"orders.{name}", None, b"v", b"NATS/1.0\r\nNats-TTL: %d\r\n\r\n" % ttl_s) for name, ttl_s in messages]
    broker.request(AppendRequest(stream_id=broker.stream_id("orders")), bytes(batch_of(rows)))
    broker.settle()


def left(broker: Broker) -> set[str]:
    return {row.subject.removeprefix("orders.") for row in broker.read("orders") if row.headers != MARKER}


@pytest.mark.parametrize("config", [TTL, BUCKET])
@pytest.mark.parametrize("seed", range(2))
def test_each_message_goes_in_its_second(monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], seed: int) -> None:
    random = Random(seed)
    for name, value in {"BLOCK_ROWS": 8, "BLOCKS_MAX": 6, "NEXT_ROWS_MAX": 40, "NEXT_ROWS_MIN": 2}.items():
        monkeypatch.setattr(limits, f"EXPIRY_{name}", value)
    monkeypatch.setattr(limits, "EXPIRY_PICKED_ROWS_MAX", 3)
    monkeypatch.setattr(limits, "EXPIRED_SUBJECT_ROWS_AT_ONCE", 5)
    broker = started(**config)
    ends_s: dict[str, int] = {}
    for second in range(70):
        if second % 4 == 0 and second < 40:
            many = [(f"{second}-{number}", random.randrange(2, 30)) for number in range(random.randrange(1, 12))]
            ends_s.update({name: second + ttl_s for name, ttl_s in many})
            append(broker, *many)
        if second % 7 == 3 and ends_s:
            gone = random.choice(sorted(ends_s))
            broker.request(PurgeSubjectRequest(stream_id=broker.stream_id("orders"), subject=f"orders.{gone}"))
            broker.settle()
            ends_s.pop(gone)
        go_on(broker, 1_000)
        shown = left(broker)
        assert {name for name, end_s in ends_s.items() if end_s > second + 1} <= shown, second
        assert not shown & {name for name, end_s in ends_s.items() if end_s < second}, second
    assert left(broker) == set()
    assert broker.notices == []


@pytest.mark.parametrize("config", [TTL, BUCKET])
def test_a_block_is_not_read_again_for_each_row(config: dict[str, Any]) -> None:
    broker = started(**config)
    for batch in range(50):
        append(broker, *((f"{batch}-{number}", 5 + batch % 17) for number in range(20)))
    read: list[int] = []

    class Told(FindExpired):
        def run(self) -> None:
            super().run()
            if self.found:
                read.append(self.looked_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.node.api.expiries.FindExpired", Told)
        go_on(broker, 24_000)
    assert 15 <= len(read) <= 60
    assert sum(read) <= 4 * max(read), "all is read once or twice, and then only what is asked for"


def blocks_of(*dues_s: int) -> ExpiryBlocks:
    blocks = ExpiryBlocks(0, NextRowsBudget())
    for number, due_s in enumerate(dues_s):
        blocks.add(number, number + 1, due_s * S_US, limits.EXPIRY_BLOCK_BYTES)
    return blocks


def nearest(most: int, dues_s: list[int], begin: int = 0) -> Any:
    import pyarrow as pa

    found = Nearest(most)
    for number, due_s in enumerate(dues_s):
        found.add(pa.array([due_s * S_US], pa.int64()), pa.array([begin + number], pa.int64()))
    return found.finish()


def test_the_rows_that_expire_first_are_noted_and_when_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRY_BLOCK_ROWS", 4)  # they are sorted as they come
    found = nearest(3, [9, 4, 8, 1, 7, 7, 2, 6])
    assert (list(found.dues_us), list(found.offsets)) == ([1 * S_US, 2 * S_US, 4 * S_US], [3, 6, 1])
    assert found.later_us == 6 * S_US
    assert found.over(2 * S_US) == [3, 6]
    assert found.after(2 * S_US).due_us == 4 * S_US
    assert found.after(4 * S_US).due_us == 6 * S_US
    assert found.over(6 * S_US) is None
    assert found.before(3 * S_US).later_us == 3 * S_US
    assert nearest(3, []).due_us is None


def test_notes_take_room_of_the_budget_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRY_NEXT_ROWS_MAX", 80)
    monkeypatch.setattr(limits, "EXPIRY_NEXT_ROWS_MIN", 3)
    budget = NextRowsBudget()
    blocks = ExpiryBlocks(0, budget)
    for number in range(2):
        blocks.add(number, number + 1, S_US, limits.EXPIRY_BLOCK_BYTES)
    assert blocks.next_rows_max == 10
    blocks.looked(0, nearest(10, [2] * 20))
    blocks.looked(1, nearest(10, [2] * 20))
    blocks.settle()
    assert budget.left == 60
    blocks.looked(0, nearest(10, []))
    blocks.settle()
    assert (len(blocks), budget.left) == (1, 70)
    blocks.due(0, 2)
    blocks.settle()
    assert (len(blocks), budget.left) == (0, 80)
    blocks.add(2, 3, S_US, 1)
    blocks.looked(2, nearest(90, [2] * 80))
    blocks.settle()
    assert (budget.left, blocks.next_rows_max) == (0, 3)
    blocks.close()
    assert budget.left == 80


def test_beyond_the_limit_neighbours_become_one_and_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRY_BLOCKS_MAX", 4)
    blocks = blocks_of(5, 3, 9, 7)
    blocks.looked(1, nearest(5, [4, 6], begin=1))
    blocks.add(4, 5, 1 * S_US, limits.EXPIRY_BLOCK_BYTES)
    assert [(one.begin, one.end, one.due_us // S_US) for one in blocks.due(99 * S_US, 0)] == [
        (0, 2, 4),
        (2, 4, 7),
        (4, 5, 1),
    ]
    assert all(one.next_rows is None for one in blocks.due(99 * S_US, 0))
    assert blocks.next_us == 1 * S_US
