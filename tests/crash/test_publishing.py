"""Power losses between any two steps of staging and publishing: another driver, with other rows, comes to the end."""

from __future__ import annotations

from random import Random

import pytest

from penstock.messages import CreateStreamResponse, PublishStagedResponse, StagedRange, StageResponse
from penstock.vfs.faulty import CHANGES, FileOperation
from penstock.vfs.memory import Keep
from tests.extent import HAS_TIME
from tests.unit.node.harness import Broker
from tests.unit.node.staging import mark_of, planning, publishing, range_of, staged_stream, staging

PIECES = 3

Plans = dict[int, list[StagedRange]]


def rows_of(name: bytes, piece: int) -> list[bytes]:
    """What an attempt has in a piece."""
    return [b"%b.%d.%d" % (name, piece, row) for row in range(2)]


def attempt(broker: Broker, name: bytes, plans: Plans, *, whole: bool = False) -> None:
    """What a driver does: it stages, writes its plan, publishes, and goes on by the plan of who was there before."""
    count = 1 if whole else PIECES
    staged = [staging(broker, *rows_of(name, piece)) for piece in range(count)]
    ranges = [range_of(broker.answer(caller, StageResponse)) for caller in staged]
    plan: int | None = None
    if count > 1:
        plan = mark_of(broker.answer(planning(broker), StageResponse))
        plans[plan] = ranges
    piece = 0
    while True:
        is_last = piece == len(ranges) - 1
        caller = publishing(broker, 0, ranges[piece], piece=piece, is_last=is_last, plan=plan)
        answer = broker.answer(caller, PublishStagedResponse)
        if answer.is_complete:
            return
        assert answer.plan is not None
        assert answer.pieces is not None
        if answer.plan != plan:
            plan, ranges = int(answer.plan), plans[int(answer.plan)]
        piece = answer.pieces


def check(broker: Broker) -> bytes:
    """The batch is there once, whole, of one attempt; whose."""
    values = [value or b"" for value in broker.values("orders")]
    names = {value[:1] for value in values}
    assert len(names) == 1, values
    (name,) = names
    assert values in ([row for piece in range(PIECES) for row in rows_of(name, piece)], rows_of(name, 0))
    return name


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.SUBSET, Keep.ALL])
def test_power_loss_at_every_write_boundary(keep: Keep, whole: bool) -> None:
    random = Random(7)
    broker = Broker().start()
    broker.answer(broker.create("orders"), CreateStreamResponse)
    staged_stream(broker)
    plans: Plans = {}
    of: set[bytes] = set()
    crashes = 0

    def cut_the_power(operation: FileOperation) -> None:
        nonlocal crashes
        if operation.kind not in CHANGES:
            return
        crashes += 1
        if not HAS_TIME and crashes % 3:
            return
        after = broker.crash(keep, random if keep is Keep.SUBSET else None).start()
        parts = [value for value in after.values("orders") if value is not None]
        assert len(parts) % 2 == 0, parts
        attempt(after, b"2", dict(plans), whole=whole)
        of.add(check(after))
        again = after.crash().start()
        attempt(again, b"3", dict(plans), whole=whole)
        assert again.values("orders") == after.values("orders")

    broker.vfs.watcher = cut_the_power
    attempt(broker, b"1", plans)
    broker.vfs.watcher = None
    assert check(broker) == b"1"
    assert crashes > 10
    assert of == {b"1", b"2"}
