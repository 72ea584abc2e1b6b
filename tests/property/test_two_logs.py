"""A follower that is fed with ranges of its leader's log has the same messages, whatever happens between; and the same
batches, byte for byte, unless one of the two has merged some of its own.

Both lead in turn; either may crash and lose what was not flushed. Where the two part, and what is cut, brokers' own
rules say (`replication.rules`, `replication.follower`); that the logs are the same afterwards is compared byte by byte.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionKey
from penstock.commitlog import Log, LogConfig, LogState
from penstock.messages import Divergence, ReplicaNews
from penstock.replication import rules
from penstock.replication.follower import Following, LogOrders
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import examples
from tests.logs import (
    append,
    as_logs_see,
    clean_all,
    encrypted_logs,
    flush,
    flush_and_note,
    give_up_before,
    messages_in,
    open_log,
    retain,
    run,
)

KEY = PartitionKey(7, 0)
CONFIGS = st.builds(LogConfig, segment_bytes=st.sampled_from([4096, 7000, 50_000]), segment_age_us=st.just(None))


Message = tuple[int, int, int, bytes]
"""Offset, timestamp, leader epoch, value."""


def messages(log: Log, start: int) -> list[Message]:
    """The messages from `start` on."""
    batches = log.view().batches(start, log.log_end)
    found = [(row[0], row[1], header.leader_epoch, row[2]) for header, data in batches for row in messages_in(data)]
    return [row for row in found if row[0] >= start]


def content(disk: MemoryVfs, log: Log, start: int) -> bytes:
    """The bytes of the batches from `start` on."""
    view, offset, found = log.view(), start, b""
    while (piece := view.slice(offset, end=view.log_end, bytes_max=1)) is not None:
        found += as_logs_see(disk).open(piece.path).read_at(piece.position, piece.length)
        offset = piece.end_offset
    return found


class TwoLogs(RuleBasedStateMachine):
    """`logs[leader]` is written, the other one follows."""

    @initialize(first=CONFIGS, second=CONFIGS)
    def start(self, first: LogConfig, second: LogConfig) -> None:
        self.configs = [first, second]
        self.disks = [MemoryVfs(), MemoryVfs()]
        self.logs = [open_log(disk, config) for disk, config in zip(self.disks, self.configs, strict=True)]
        self.epoch = 0
        self.now_us = 0
        self.has_merged = False
        self.lead(0)

    @rule(leader=st.integers(0, 1))
    def lead(self, leader: int) -> None:
        self.leader = leader
        self.epoch += 1
        self.logs[leader].start_epoch(self.epoch)

    @rule(rows=st.integers(1, 4), size_bytes=st.sampled_from([10, 300, 2000]))
    def append(self, rows: int, size_bytes: int) -> None:
        self.now_us += 1
        append(self.logs[self.leader], rows, self.now_us, size_bytes=size_bytes + self.epoch)

    @rule(bytes_max=st.integers(1, 9000), times=st.integers(1, 4))
    def fetch(self, bytes_max: int, times: int) -> None:
        for _ in range(times):
            self.fetch_once(bytes_max)

    def fetch_once(self, bytes_max: int) -> None:
        """One answer of the leader, and what the follower does about it: both by the rules that brokers have."""
        leader, follower = self.logs[self.leader], self.logs[1 - self.leader]
        following = Following(KEY, follower, BrokerId(self.leader), LeaderEpoch(self.epoch))
        named = following.position()
        diverging = rules.divergence(named.last_epoch, named.log_end, leader, leader.log_start, leader.log_end)
        if diverging is not None:
            self.obey(following.news(self.news(diverging=Divergence(*diverging))))  # type: ignore[arg-type]
            return
        try:
            piece = leader.view().replica_range(named.log_end, bytes_max=bytes_max)
        except RemoteError as error:
            self.obey(following.news(self.news(replica_start=error.details["replica_start"])))
            return
        if piece is None:
            assert following.news(self.news()) == LogOrders()
        else:
            assert following.news(self.news(size_bytes=piece.length)) == LogOrders(append=True)
            data = as_logs_see(self.disks[self.leader]).open(piece.path).read_at(piece.position, piece.length)
            overlaps = piece.base_offset < named.log_end
            self.has_merged = self.has_merged or overlaps  # the rest of that batch is another one
            appended = follower.append_fetched(data)
            assert appended.log_end == piece.end_offset
            assert overlaps or appended.size_bytes == piece.length
        if (log_start := following.ends().log_start) is not None:
            follower.raise_start(log_start)

    def news(self, **said: Any) -> ReplicaNews:
        leader = self.logs[self.leader]
        said.setdefault("committed_end", leader.log_end)
        return ReplicaNews(*KEY, LeaderEpoch(self.epoch), log_start=Offset(leader.log_start), **said)

    def obey(self, orders: LogOrders) -> None:
        follower = self.logs[1 - self.leader]
        assert not orders.error, "the leader contradicts itself"
        if orders.reset is not None:
            run(follower, follower.reset(orders.reset))
        else:
            assert orders.truncate is not None
            run(follower, follower.truncate(orders.truncate))

    @rule(which=st.integers(0, 1))
    def clean(self, which: int) -> None:
        leader, follower = self.logs[self.leader], self.logs[1 - self.leader]
        flush(leader)
        flush(follower)
        parted = rules.divergence(follower.last_epoch, follower.log_end, leader, leader.log_start, leader.log_end)
        if parted is None:
            self.logs[which].note_committed(min(leader.log_end, follower.log_end))
            self.has_merged = bool(clean_all(self.logs[which])) or self.has_merged

    @rule(which=st.integers(0, 1), noted=st.booleans())
    def flush(self, which: int, noted: bool) -> None:
        (flush_and_note if noted else flush)(self.logs[which])

    @rule(part=st.floats(0, 1))
    def retain(self, part: float) -> None:
        log = self.logs[self.leader]
        flush(log)
        if (removal := give_up_before(log, int(log.log_end * part))) is not None:
            removal.run()

    @rule(which=st.integers(0, 1))
    def tick(self, which: int) -> None:
        if (removal := retain(self.logs[which], 10**16 + self.now_us)) is not None:
            removal.run()

    @rule(which=st.integers(0, 1), keep=st.sampled_from(Keep), seed=st.integers(0, 2**32))
    def crash(self, which: int, keep: Keep, seed: int) -> None:
        self.disks[which] = self.disks[which].crash_clone(keep, Random(seed) if keep is Keep.SUBSET else None)
        self.logs[which] = open_log(self.disks[which], self.configs[which])
        if which == self.leader:
            self.lead(which)

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.logs[which].close()
        self.logs[which] = open_log(self.disks[which], self.configs[which])
        if which == self.leader:
            self.lead(which)

    @invariant()
    def they_agree_once_the_follower_has_caught_up(self) -> None:
        leader, follower = self.logs[self.leader], self.logs[1 - self.leader]
        assert leader.state is follower.state is LogState.WRITABLE, (leader.damage, follower.damage)

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        leader, follower = self.logs[self.leader], self.logs[1 - self.leader]
        for _ in range(200):  # a segment or a truncation each
            self.fetch_once(10**6)
            agrees = rules.divergence(follower.last_epoch, follower.log_end, leader, leader.log_start, leader.log_end)
            if follower.log_end == leader.log_end and agrees is None:
                break
        self.fetch_once(10**6)
        assert follower.log_end == leader.log_end
        is_new = follower.last_epoch == 0 and follower.log_start == follower.log_end  # it never got a batch
        assert is_new or follower.last_epoch == leader.last_epoch
        start = max(leader.log_start, follower.log_start)
        disks = self.disks[self.leader], self.disks[1 - self.leader]
        assert messages(follower, start) == messages(leader, start)
        assert self.has_merged or content(disks[1], follower, start) == content(disks[0], leader, start)
        data = [
            tuple(entry for entry in log.lineage if start < entry.start_offset < log.log_end)
            for log in (leader, follower)
        ]
        assert data[0] == data[1]


TwoLogs.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
TestTwoLogs = TwoLogs.TestCase


class TestTwoEncryptedLogs(TwoLogs.TestCase):  # type: ignore[misc, valid-type]
    def runTest(self) -> None:
        with encrypted_logs():
            super().runTest()
