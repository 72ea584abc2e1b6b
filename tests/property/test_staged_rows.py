"""Staged rows of several queries, on a broker that loses its power: what a model needs is there, and the rest goes."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import CreateStreamResponse, PublishStagedResponse
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.unit.node.harness import Broker
from tests.unit.node.staging import plan, publishing, staged, staged_stream

KEEP_MS = 1_000
QUERIES = (b"a" * 16, b"b" * 16, None)  # None: rows that do not say for what they are staged
VALUE = b"." * 3_000  # a segment has one batch of it


class Row(NamedTuple):
    """What was staged, and for which batch."""

    offset: int
    query: int
    batch_id: int


class World:
    """A broker, what was staged, and which batch each query has published last."""

    def __init__(self) -> None:
        self.broker = Broker(staged_keep_ms=KEEP_MS).start()
        self.broker.answer(self.broker.create("orders", segment_bytes=4096), CreateStreamResponse)
        staged_stream(self.broker)
        self.rows: list[Row] = []
        self.last: dict[int, tuple[int, bool]] = {}
        self.plans: dict[int, int] = {}  # of runs that are not complete

    def crash(self, keep: Keep) -> None:
        self.broker = self.broker.crash(keep).start()

    def wait(self, count: int) -> None:
        for _ in range(count):
            self.broker.tick(KEEP_MS)

    def stage(self, query: int, batch_id: int) -> None:
        found = staged(self.broker, VALUE, query_id=QUERIES[query], batch_id=batch_id)
        self.rows.append(Row(found.base_offset, query, batch_id))

    def publish(self, query: int, batch_id: int, *, is_last: bool) -> None:
        """The next piece of a query's batch."""
        query_id = QUERIES[query] or b"c" * 16
        before, was_complete = self.last.get(query, (-1, True))
        piece, mark = 0, None
        if before == batch_id and not was_complete:
            piece, mark = 1, self.plans[query]
            is_last = True
        elif not is_last:
            mark = plan(self.broker, query_id=QUERIES[query], batch_id=batch_id)
            self.rows.append(Row(mark & 2**48 - 1, query, batch_id))
        self.stage(query, batch_id)
        rows = staged(self.broker, VALUE, query_id=QUERIES[query], batch_id=batch_id)
        self.rows.append(Row(rows.base_offset, query, batch_id))
        caller = publishing(self.broker, batch_id, rows, query_id=query_id, piece=piece, is_last=is_last, plan=mark)
        response = self.broker.replies[caller].response
        if isinstance(response, RemoteError):
            assert response.code == ErrorCode.RUN_UNFINISHED, response
        elif isinstance(response, PublishStagedResponse) and not response.duplicate:
            self.last[query] = batch_id, is_last
            if mark is not None:
                self.plans[query] = mark

    def is_needed(self, row: Row) -> bool:
        batch_id, is_complete = self.last.get(row.query, (-1, True))
        is_over = row.batch_id < batch_id or (row.batch_id == batch_id and is_complete)
        return QUERIES[row.query] is None or not is_over

    def check(self) -> None:
        start = int(staged_stream(self.broker).partitions[0].log_start or 0)
        needed = [row for row in self.rows if row.offset < start and self.is_needed(row)]
        assert not needed, f"the log begins at {start}: {needed}"

    def check_end(self) -> None:
        """All queries come to an end, and nothing but the last segment, and what waits for it, is left."""
        for query, (batch_id, is_complete) in list(self.last.items()):
            if not is_complete:
                self.publish(query, batch_id, is_last=True)
        for query in (0, 1):
            batch_id = self.last.get(query, (0, True))[0] + 4
            self.publish(query, batch_id, is_last=True)
        self.wait(4)
        self.check()
        start = int(staged_stream(self.broker).partitions[0].log_start or 0)
        first = next((row.offset for row in self.rows if self.is_needed(row)), self.rows[-1].offset)
        assert start >= first - 2, f"{first} is the first that is needed or written"


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), st.sampled_from([0, 1, 0, 1, 0, 1, 2]), st.integers(0, 3)),
        st.tuples(st.just("publish"), st.sampled_from([0, 1, 0, 1, 0, 1, 2]), st.integers(0, 3)),
        st.tuples(st.just("begin"), st.integers(0, 1), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("crash"), st.sampled_from([0, 1]), st.just(0)),
    ),
    max_size=25,
)


@given(ACTS)
@settings(max_examples=examples(150), deadline=None)
def test_what_may_be_published_stays_and_the_rest_goes(acts: list[tuple[str, int, int]]) -> None:
    world = World()
    for what, which, number in acts:
        if what == "stage":
            world.stage(which, number)
        elif what in ("publish", "begin"):
            world.publish(which, number, is_last=what == "publish")
        elif what == "wait":
            world.wait(number)
        else:
            world.crash((Keep.SYNCED, Keep.ALL)[which])
        world.check()
    world.check_end()
