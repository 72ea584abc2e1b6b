"""The cores between two logs as they really are: whoever leads, and whatever the other wrote, both end up the same."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.base.config import Durability
from penstock.base.ids import PartitionKey
from penstock.commitlog import Log, RangeRefusedError, Slice
from penstock.metadata.image import PartitionState
from penstock.replication.catch_up import CatchUpBudget
from penstock.replication.fetcher import Fetcher
from penstock.replication.follower import Following, LogOrders
from penstock.replication.leader import CommitTerms, Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from penstock.replication.sessions import Sessions
from penstock.vfs.memory import MemoryVfs
from tests.logs import append, flush, open_log, run

KEY = PartitionKey(7, 0)
LIVE: Any = {1: 1, 2: 2}
NOTHING_FOR_MS = 600


class Led:
    """A leader's log, as `Sessions` asks it."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        return self.log.epoch_end(leader_epoch)

    def find(self, offset: int, bytes_max: int) -> Slice | None:
        return self.log.view().replica_range(offset, bytes_max=bytes_max)


class Pair:
    """Brokers 1 and 2; whoever is told to leads, whatever it has."""

    def __init__(self) -> None:
        self.disks = {1: MemoryVfs(), 2: MemoryVfs()}
        self.logs = {number: open_log(disk) for number, disk in self.disks.items()}
        self.epoch = 0
        self.now_us = 0
        self.cuts = 0

    def lead(self, leader: int) -> None:
        self.epoch += 1
        self.leader, self.follower = leader, 3 - leader
        log = self.logs[leader]
        log.start_epoch(self.epoch)
        state = PartitionState((1, 2), (1, 2), (), leader, self.epoch, self.epoch)
        ends = LogEndsAtStart(log.log_start, log.log_start, log.flushed_end, log.log_end)
        terms: CommitTerms = CommitTerms(Durability.OS, 1)
        self.leadership = Leadership(KEY, leader, state, LIVE, ends, terms, LeadershipTimers(), self.now_us)
        self.sessions = Sessions()
        self.sessions.lead(self.leadership, Led(log))
        self.following = Following(KEY, self.logs[self.follower], leader, self.epoch)
        self.following.is_in_sync = True
        self.fetcher = Fetcher(self.follower, self.follower, lambda: 0.5, CatchUpBudget(10**9))
        self.fetcher.follow(self.following)

    def append(self, rows: int, size_bytes: int) -> None:
        append(self.logs[self.leader], rows, size_bytes=size_bytes)
        self.leadership.appended(self.logs[self.leader].log_end, self.now_us)
        self.sessions.appended(self.leadership)

    def retain(self, log_start: int) -> None:
        flush(self.logs[self.leader])
        self.logs[self.leader].raise_start(log_start)
        self.leadership.log_start_raised(log_start)
        self.sessions.ends_moved(self.leadership, self.now_us)

    def fetch(self) -> int:
        """One round; the bytes that came."""
        sent = self.fetcher.request(self.now_us)
        assert sent is not None
        self.sessions.fetch("c", sent.request, self.follower, self.now_us)
        self.now_us += NOTHING_FOR_MS * 1_000
        (answer,) = self.sessions.answers(self.now_us)
        raw = b""
        for found in answer.found:
            assert isinstance(found, Slice)
            raw += self.disks[self.leader].open(found.path).read_at(found.position, found.length)
        log = self.logs[self.follower]
        for delivery in self.fetcher.answered(sent.number, answer.response, len(raw), self.now_us):
            orders = delivery.orders
            if orders.append:
                orders = self._append(log, raw[delivery.position : delivery.position_end])
            if orders.truncate is not None or orders.reset is not None:
                self.cuts += 1
                flush(log)
                run(log, log.truncate(orders.truncate) if orders.truncate is not None else log.reset(orders.reset))
                self.following.cut()
            if (log_start := self.following.ends().log_start) is not None:
                flush(log)  # a log starts anew only where it is on the disk
                log.raise_start(log_start)
            if orders != LogOrders():
                self.fetcher.proceed(self.following)
        return len(raw)

    def _append(self, log: Log, data: bytes) -> LogOrders:
        try:
            log.append_fetched(data)
        except RangeRefusedError as error:
            if error.truncate_to is None:
                raise
            return self.following.overlaps(error.truncate_to)
        return LogOrders(append=True)

    def content(self, number: int) -> bytes:
        log, disk, found = self.logs[number], self.disks[number], b""
        view, offset = log.view(), log.log_start
        while (piece := view.slice(offset, end=view.log_end, bytes_max=1)) is not None:
            found += disk.open(piece.path).read_at(piece.position, piece.length)
            offset = piece.end_offset
        return found


@pytest.mark.parametrize("seed", range(12))
def test_both_logs_are_the_same_in_the_end(seed: int) -> None:
    chance = Random(seed)
    pair = Pair()
    pair.lead(1)
    for _ in range(60):
        match chance.choice(("append", "append", "append", "fetch", "fetch", "lead")):
            case "append":
                pair.append(chance.randint(1, 4), chance.choice((10, 700, 3_000)) + pair.epoch)
            case "fetch":
                pair.fetch()
            case _:
                pair.lead(chance.choice((1, 2)))
    for _ in range(200):
        if pair.logs[1].log_end == pair.logs[2].log_end == pair.leadership.committed_end:
            break
        pair.fetch()
    assert pair.content(1) == pair.content(2)
    assert pair.logs[1].log_end == pair.logs[2].log_end == pair.leadership.committed_end > 0
    assert pair.cuts > 0
    pair.fetch()
    assert pair.following.committed_end == pair.leadership.committed_end


@pytest.mark.parametrize("had", [0, 3, 5])
@pytest.mark.parametrize("log_start", [8, 9, 12])
def test_who_was_away_while_the_leader_removed_half_a_batch_begins_with_all_of_it(had: int, log_start: int) -> None:
    pair = Pair()
    pair.lead(1)
    for rows in (3, 2, 5, 2):  # [0, 3) [3, 5) [5, 10) [10, 12)
        if pair.logs[1].log_end <= had:
            pair.fetch()
        pair.append(rows, 100)
    while pair.logs[2].log_end < had:
        pair.fetch()
    kept = pair.logs[2].log_end
    pair.leadership.committed_end = 12  # the follower has left the ISR
    pair.retain(log_start)
    pair.append(1, 100)
    rounds = 0
    while pair.logs[2].log_end < 13:
        pair.fetch()
        rounds += 1
        assert rounds < 8, "for ever"
    pair.fetch()
    begins = {8: 5, 9: 5, 12: 12}[log_start]
    assert pair.cuts == (kept < begins)
    assert pair.logs[2].log_start == log_start
    assert pair.content(1) == pair.content(2)


def test_a_history_that_ends_where_the_leader_begins_is_not_appended_to() -> None:
    pair = Pair()
    pair.lead(1)
    pair.append(4, 100)
    pair.fetch()
    pair.lead(2)
    for _ in range(2):
        pair.append(2, 100)  # of epoch 2, from 4 on
    pair.lead(1)
    pair.append(2, 200)  # of epoch 3, from 4 on: what comes at 6 is older
    pair.lead(2)
    pair.leadership.committed_end = 8  # by others
    pair.retain(6)
    for _ in range(6):
        pair.fetch()
    assert pair.content(1) == pair.content(2)
    assert pair.logs[1].log_end == pair.logs[2].log_end == 8
