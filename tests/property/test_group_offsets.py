"""Committed offsets against a model, through crashes that keep any part of what was not synced.

What a group is told is what was answered last as committed for a partition, or one of those commits that came later and
had no answer yet; and what was told once never goes back while the broker runs.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.groups.rows import OFFSETS_STREAM
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
)
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.unit.node.harness import Broker

GROUP = "billing"
NUMBER = PartitionId(partition_of(GROUP.encode(), limits.OFFSETS_PARTITIONS))
PARTITIONS = 3

commits = st.dictionaries(st.integers(0, PARTITIONS - 1), st.none() | st.integers(0, 1_000), min_size=1)
actions = st.one_of(
    st.tuples(st.just("commit"), commits),
    st.tuples(st.just("fetch"), st.none()),
    st.tuples(st.just("disk"), st.booleans()),  # whether syncs come back
    st.tuples(st.just("crash"), st.tuples(st.sampled_from(Keep), st.integers(0, 2**32))),
)


class _Model:
    """By partition: what may be told, the oldest first; all but the first are commits without an answer."""

    def __init__(self) -> None:
        self.may: list[list[int | None]] = [[None] for _ in range(PARTITIONS)]

    def sent(self, commit: dict[int, int | None]) -> None:
        for number, offset in commit.items():
            self.may[number].append(offset)

    def answered(self, commit: dict[int, int | None]) -> None:
        """They are answered in the order in which they were sent: nothing older counts any more."""
        for number in commit:
            del self.may[number][0]

    def settled(self, told: dict[int, int]) -> None:
        """After a crash: this is what there is."""
        for number, may in enumerate(self.may):
            assert told.get(number) in may, (number, told, may)
            self.may[number] = [told.get(number)]

    def told(self, told: dict[int, int]) -> None:
        """While it runs only what was answered is told."""
        assert told == {number: may[0] for number, may in enumerate(self.may) if may[0] is not None}


class _Run:
    def __init__(self) -> None:
        self.broker = Broker().start()
        self.broker.create("orders", subject="orders", partitions=PARTITIONS)
        self.broker.fill_partitions("orders", 1_000)
        self.broker.ask(OffsetsStreamRequest(), OffsetsStreamResponse)
        self.model = _Model()
        self.waiting: dict[Hashable, dict[int, int | None]] = {}

    def commit(self, commit: dict[int, int | None]) -> None:
        broker = self.broker
        stream_id = broker.stream_id("orders")
        offsets = tuple(
            OffsetCommit(
                stream_id=stream_id,
                partition=PartitionId(number),
                offset=None if offset is None else Offset(offset),
            )
            for number, offset in commit.items()
        )
        self.told()  # so that the log is read
        request = CommitOffsetsRequest(
            stream_id=broker.stream_id(OFFSETS_STREAM), partition=NUMBER, group=GROUP, offsets=offsets
        )
        self.model.sent(commit)
        self.waiting[broker.request(request)] = commit
        self.look()

    def look(self) -> None:
        """Take over what was answered."""
        for caller in list(self.waiting):
            if caller in self.broker.replies:
                assert isinstance(self.broker.replies[caller].response, CommitOffsetsResponse)
                self.model.answered(self.waiting.pop(caller))

    def told(self) -> dict[int, int]:
        broker = self.broker
        request = FetchOffsetsRequest(
            stream_id=broker.stream_id(OFFSETS_STREAM),
            partition=NUMBER,
            group=GROUP,
            of_stream_id=broker.stream_id("orders"),
        )
        for _ in range(3):
            response = broker.replies[broker.request(request)].response
            if not isinstance(response, RemoteError):
                break
        assert isinstance(response, FetchOffsetsResponse), response
        return {one.partition: one.offset for one in response.offsets}

    def disk(self, comes_back: bool) -> None:
        self.broker.syncs_hang = not comes_back
        self.broker.turn()
        self.look()

    def crash(self, keep: Keep, seed: int) -> None:
        self.look()
        self.broker = self.broker.crash(keep, Random(seed) if keep is Keep.SUBSET else None).start()
        self.waiting.clear()
        self.model.settled(self.told())


@settings(max_examples=examples(60))
@given(todo=st.lists(actions, max_size=25))
def test_what_is_told_is_what_was_committed(todo: list[tuple[str, object]]) -> None:
    run = _Run()
    for action, what in todo:
        match action, what:
            case "commit", dict():
                run.commit(what)
            case "fetch", _:
                run.model.told(run.told())
            case "disk", bool():
                run.disk(what)
            case "crash", (keep, seed):
                run.crash(keep, seed)  # type: ignore[arg-type]
    run.disk(comes_back=True)
    assert not run.waiting
    run.model.told(run.told())
