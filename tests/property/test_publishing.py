"""Attempts at publishing, some of them killed, some at once, on a broker that loses its power: no batch is there twice,
none is made of two attempts, what was answered is there whole, and no staged row goes that may be published.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import CreateStreamResponse, PublishStagedResponse, StagedRange, StageResponse
from penstock.vfs.memory import Keep
from tests.extent import each_change, examples
from tests.unit.node.harness import Broker
from tests.unit.node.staging import QUERY, mark_of, planning, publishing, range_of, staged_stream, staging

BATCHES = 3
KEEP_MS = 1_000


class Plan(NamedTuple):
    """What an attempt has staged, and how it has cut that."""

    values: tuple[tuple[bytes, ...], ...]  # of each piece
    ranges: tuple[StagedRange, ...]


class World:
    """One broker, the plans that were written, and what was answered."""

    def __init__(self) -> None:
        self.broker = Broker(staged_keep_ms=KEEP_MS).start()
        self.broker.answer(self.broker.create("orders", segment_bytes=4096), CreateStreamResponse)
        staged_stream(self.broker)
        self.plans: dict[int, Plan] = {}
        self.complete: set[int] = set()  # batches of which somebody was told so
        self.attempts = 0

    def crash(self, keep: Keep) -> None:
        self.broker = self.broker.crash(keep).start()

    def attempt(self, batch_id: int, pieces: int) -> Iterator[None]:
        """What a driver does, step by step; it may be left anywhere."""
        self.attempts += 1
        attempt = self.attempts  # others begin while this one stages
        values, ranges = [], []
        for number in range(pieces):
            own = tuple(b"%d.%d.%d.%d" % (batch_id, attempt, number, row) for row in range(2))
            caller = staging(self.broker, *own, query_id=QUERY, batch_id=batch_id)
            broker = self.broker
            yield
            if broker is not self.broker or caller not in broker.replies:
                return
            values.append(own)
            ranges.append(range_of(broker.answer(caller, StageResponse)))
        mine: int | None = None
        if pieces > 1:
            broker = self.broker
            caller = planning(broker, query_id=QUERY, batch_id=batch_id)
            yield
            if broker is not self.broker or caller not in broker.replies:
                return
            mine = mark_of(broker.answer(caller, StageResponse))
            self.plans[mine] = Plan(tuple(values), tuple(ranges))
        used = Plan(tuple(values), tuple(ranges))
        number = 0
        while True:
            answer = yield from self._publish(batch_id, number, mine, used)
            if answer is None:
                return
            if answer.is_complete:
                self.complete.add(batch_id)
                return
            assert answer.plan is not None
            assert answer.pieces is not None
            if answer.plan != mine:
                mine, used = int(answer.plan), self.plans[int(answer.plan)]
            number = answer.pieces

    def _publish(
        self, batch_id: int, number: int, mine: int | None, used: Plan
    ) -> Generator[None, None, PublishStagedResponse | None]:
        is_last = number == len(used.ranges) - 1
        broker = self.broker
        caller = publishing(broker, batch_id, used.ranges[number], piece=number, is_last=is_last, plan=mine)
        yield
        if broker is not self.broker or caller not in broker.replies:
            return None
        response = broker.replies[caller].response
        if isinstance(response, RemoteError):
            assert response.code in (ErrorCode.RUN_UNFINISHED, ErrorCode.OUT_OF_SEQUENCE), response  # never staged_lost
            return None
        assert isinstance(response, PublishStagedResponse)
        return response

    def check(self) -> None:
        """What the log says of the batches."""
        found: dict[int, list[tuple[int, int, bytes]]] = {}
        for value in self.broker.values("orders"):
            assert value is not None
            batch_id, attempt, piece, _ = (int(part) for part in value.split(b"."))
            found.setdefault(batch_id, []).append((attempt, piece, value))
        assert list(found) == sorted(found), "batches follow each other"
        # One that comes behind a later one counts as published: a query's batches rise.
        assert all(one in found or one < max(found) for one in self.complete)
        for batch_id, rows in found.items():
            assert len({attempt for attempt, _, _ in rows}) == 1, f"batch {batch_id} is of two attempts: {rows}"
            attempt = rows[0][0]
            (whole,) = {plan.values for plan in self._plans_of(batch_id, attempt, len(rows))}
            stored = [value for _, _, value in rows]
            expected = [value for piece in whole for value in piece]
            assert stored == expected[: len(stored)]
            assert len(stored) % 2 == 0, "a piece is there whole"
            if batch_id in self.complete or batch_id != max(found):
                assert stored == expected

    def _plans_of(self, batch_id: int, attempt: int, rows: int) -> list[Plan]:
        begins = b"%d.%d." % (batch_id, attempt)
        planned = [one for one in self.plans.values() if one.values[0][0].startswith(begins)]
        return planned or [Plan((tuple(begins + b"0.%d" % row for row in range(rows)),), ())]


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, BATCHES - 1), st.integers(1, 3)),
        st.tuples(st.just("step"), st.integers(0, 5), st.integers(1, 6)),
        st.tuples(st.just("kill"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("crash"), st.sampled_from([Keep.SYNCED, Keep.ALL]), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("hang"), st.just(0), st.just(0)),
        st.tuples(st.just("come back"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@each_change
@given(ACTS)
@settings(max_examples=examples(150), deadline=None)
def test_no_batch_is_there_twice_or_of_two_attempts(acts: list[tuple[str, int | Keep, int]]) -> None:
    world = World()
    drivers: list[Iterator[None]] = []
    for what, which, count in acts:
        if what == "begin" and isinstance(which, int):
            drivers.append(world.attempt(which, count))
        elif what == "step" and drivers and isinstance(which, int) and not world.broker.syncs_hang:
            for _ in range(count):
                next(drivers[which % len(drivers)], None)
        elif what == "step" and drivers and isinstance(which, int):
            next(drivers[which % len(drivers)], None)
        elif what == "kill" and drivers and isinstance(which, int):
            del drivers[which % len(drivers)]
        elif what == "crash" and isinstance(which, Keep):
            world.crash(which)
        elif what == "wait":
            for _ in range(count):
                world.broker.tick(KEEP_MS)
        elif what == "hang":
            world.broker.syncs_hang = True
        elif what == "come back":
            world.broker.syncs_hang = False
            world.broker.settle()
    world.broker.syncs_hang = False
    world.broker.settle()
    world.check()
    for batch_id in range(BATCHES):  # whoever publishes all of them again comes to an end
        for _ in world.attempt(batch_id, 2):
            pass
    world.check()
    assert world.complete == set(range(BATCHES))
