"""One broker of a model cluster: its log, and what a node would compose of the cores of replication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId, PartitionKey
from penstock.replication.catch_up import CatchUpBudget
from penstock.replication.fetcher import Delivery, Fetcher
from penstock.replication.follower import Following
from penstock.replication.isr_proposals import IsrProposer
from penstock.replication.leader import Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from penstock.replication.lease import GivenPromises, HeldPromises
from penstock.replication.sessions import Sessions
from tests.unit.replication.model_log import Batch, ModelLog, OverlapError
from tests.unit.replication.model_metadata import Image, Partition

if TYPE_CHECKING:
    from tests.unit.replication.model import Cluster

KEY = PartitionKey(7, 0)
METADATA = 0
LEASE_US = limits.LEADER_LEASE_MS * 1_000


class Registered(NamedTuple):
    """A broker in an image."""

    is_live: bool
    clean_stop: bool = False


class Broker:
    """Its disk outlives it; all else begins anew with `start`."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        self.number = number
        self.cluster = cluster
        self.log = ModelLog()
        self.is_up = False
        self.is_deaf = False  # hears of no image
        self.has_lost = False  # of what was written, since it was last registered
        self.committed_end = 0
        self.shown_end = 0  # the largest that it was, in this run
        self.leadership: Leadership | None = None
        self.following: Following | None = None
        self.cutting: tuple[str, int] | None = None  # what a disk thread is to do
        self.refill: list[Batch] = []  # what it is to put back then

    def start(self, *, clean: bool) -> None:
        assert not self.is_up
        self.is_up = True
        self.incarnation = self.cluster.metadata.register(self.number, clean=clean)
        self.has_lost = False
        self.heard = 0  # images
        self.agenda: LeadershipTimers[Leadership] = LeadershipTimers()
        self.proposer = IsrProposer(self.agenda)
        self.sessions = Sessions()
        self.fetchers: dict[int, Fetcher] = {}
        self.looking: list[Any] = []
        self.given = GivenPromises(self.cluster.now_us)
        self.held = HeldPromises()
        self.rate = CatchUpBudget(self.cluster.catch_up_bytes_per_s)
        self.committed_end = self.shown_end = min(self.log.noted_committed_end, self.log.log_end)
        while self.hear():
            pass

    def stop(self, *, lose_power: bool) -> None:
        self.is_up = False
        self.leadership = self.following = None
        if lose_power:
            self.has_lost = True
            self.log.lose_power()
            self.cutting = None
        elif self.cutting is not None:
            self.cut()

    # What the metadata says

    @property
    def image(self) -> Image:
        return self.cluster.metadata.history[self.heard - 1]

    def hear(self) -> bool:
        """The next image, if there is one."""
        if self.is_deaf or self.heard >= len(self.cluster.metadata.history):
            return False
        self.heard += 1
        image = self.image
        if image.index < self.incarnation:
            return True  # of before it was registered
        if self.number not in image.live:  # fenced, though alive: nothing of its log is lost
            self._resign()
            self._unfollow()
            if self.number not in self.cluster.metadata.now.live:
                self.incarnation = self.cluster.metadata.register(self.number, clean=True)
                self.held.clear()
            return True
        for fetcher in self.fetchers.values():
            fetcher.registered(self.incarnation, self.cluster.now_us)
        for other, session in list(self.sessions._sessions.items()):
            if image.live.get(other) != session.incarnation:
                for caller, error in self.sessions.ended(other):
                    self.cluster.send(self.number, other, ("answer", cast(Any, caller)[1], error, ()))
        self._assigned(image)
        return True

    def _assigned(self, image: Image) -> None:
        partition = image.partition
        if partition.leader == self.number:
            if self.leadership is not None and self.leadership.leader_epoch == partition.leader_epoch:
                if self.leadership.image(partition, image.live, self.cluster.now_us):
                    self.moved(self.leadership)
            else:
                self._lead(image)
            return
        self._resign()
        if partition.leader is None:
            self._unfollow()
        else:
            self._follow(partition)

    def _lead(self, image: Image) -> None:
        self._resign()
        self._unfollow()
        if self.cutting is not None:
            self.cut()  # a node would wait for its disk
        log = self.log
        ends = LogEndsAtStart(log.log_start, min(self.committed_end, log.log_end), log.flushed_end, log.log_end)
        others = [BrokerId(one) for one in image.partition.replicas if one != self.number]
        promised = self.given.binding(others, self._registered(), self.cluster.now_us)
        self.leadership = Leadership(
            KEY, self.number, image.partition, image.live, ends, self.cluster.terms, self.agenda, self.cluster.now_us,
            promised=promised,
        )  # fmt: skip
        self.sessions.lead(self.leadership, log)
        self.cluster.check_new_leader(self)
        self.moved(self.leadership)

    def _resign(self) -> None:
        if self.leadership is not None:
            self.agenda.drop(self.leadership)
            self.sessions.resign(KEY)
            self.leadership = None

    def _unfollow(self) -> None:
        if self.following is not None:
            self.fetchers[self.following.leader].forget(KEY)
            self.following = None

    def _follow(self, partition: Partition) -> None:
        leader, epoch = partition.leader, partition.leader_epoch
        assert leader is not None
        is_in_sync = self.number in partition.isr
        if self.following is not None and self.following.leader_epoch == epoch:
            self.fetchers[leader].in_sync(self.following, is_in_sync)
            return
        if self.following is None:
            if self.cutting is not None:
                self.cut()
            self.following = Following(KEY, self.log, leader, epoch, committed_end=self.committed_end)
            self.following.tells_flushes = self.cluster.terms.durability is Durability.FSYNC
        else:
            self.fetchers[self.following.leader].forget(KEY)
            self.following.follow(leader, epoch)
        if leader not in self.fetchers:
            chance = self.cluster.chance.random
            self.fetchers[leader] = Fetcher(self.number, self.incarnation, chance, self.rate)
        self.following.is_in_sync = is_in_sync
        self.fetchers[leader].follow(self.following)

    # Its lease

    def _registered(self) -> dict[BrokerId, Registered]:
        """The brokers that its images have had."""
        known = {one for image in self.cluster.metadata.history[: self.heard] for one in image.live}
        return {BrokerId(one): Registered(is_live=one in self.image.live) for one in known}

    def query(self) -> bool:
        """A look-up; True if it is answered. The lease is asked for if it is needed."""
        leadership, now_us = self.leadership, self.cluster.now_us
        if leadership is None:
            return False
        successors = leadership.successors
        for other in self.held.to_ask(successors, now_us):
            self.held.asked(other, now_us)
            self.cluster.send(self.number, other, ("lease", now_us, None, ()))
        if not (leadership.knows_latest and self.held.cover(successors, self.image.index, now_us)):
            return False
        self.cluster.check_query(self)
        return True

    # Its log

    def append(self, count: int, size: int = 100) -> bool:
        """One batch from a publisher; False: refused."""
        leadership = self.leadership
        if leadership is None or not leadership.accepts:
            return False
        self.cluster.values += 1
        end = self.log.log_end
        self.log.append(Batch(leadership.leader_epoch, end, end + count, size, (self.cluster.values,) * count))
        if leadership.appended(self.log.log_end, self.cluster.now_us):
            self.moved(leadership)
        self.sessions.appended(leadership)
        return True

    def flush(self) -> None:
        if self.cutting is not None:
            return
        self.log.flush(self.committed_end)
        if self.leadership is not None and self.leadership.flushed(self.log.flushed_end):
            self.moved(self.leadership)
        if self.following is not None:
            self.fetchers[self.following.leader].flushed(self.following)

    def retain(self, log_start: int) -> None:
        assert self.leadership is not None
        self.log.start_at(log_start)
        self.leadership.log_start_raised(log_start)
        self.sessions.ends_moved(self.leadership, self.cluster.now_us)

    def cut(self) -> None:
        """A disk thread truncates or resets the log."""
        assert self.cutting is not None
        kind, offset = self.cutting
        self.cutting = None
        getattr(self.log, kind)(offset)
        if self.following is not None:
            self.following.cut()
        self.log.append_fetched(self.refill)
        if self.following is not None:
            if self.refill:
                self._start_at(self.following.refilled().log_start)
            self.committed_end = self.following.committed_end
            self.fetchers[self.following.leader].proceed(self.following)

    def moved(self, leadership: Leadership) -> None:
        self.committed_end = leadership.committed_end
        self.sessions.ends_moved(leadership, self.cluster.now_us)
        self.cluster.check_commit(self)

    # Its messages

    def receive(self, sender: int, message: tuple[str, int, Any, tuple[Batch, ...]]) -> None:
        kind, number, body, raw = message
        now_us = self.cluster.now_us
        if kind in ("fetch", "progress"):
            self._serve(sender, kind, number, body)
        elif kind == "lease":
            self.given.give(BrokerId(sender), now_us)
            self.cluster.send(self.number, sender, ("promise", number, self.image.index, ()))
        elif kind == "promise":
            self.held.promised(BrokerId(sender), number, LEASE_US, body)
        elif kind == "told":
            self.fetchers[sender].progress_answered(number)
        elif kind == "changed":
            for leadership in self.proposer.answered(number, body, now_us):
                if leadership is self.leadership:
                    self.moved(leadership)
        elif sender in self.fetchers:
            if isinstance(body, RemoteError):
                self.fetchers[sender].failed(number, body, now_us)
                return
            raw_bytes = sum(batch.size for batch in raw)
            for delivery in self.fetchers[sender].answered(number, body, raw_bytes, now_us):
                self._deliver(sender, delivery, raw)

    def _serve(self, sender: int, kind: str, number: int, body: Any) -> None:
        known, now_us = self.image.live.get(body.broker_id), self.cluster.now_us
        try:
            if kind == "fetch":
                moved = self.sessions.fetch((sender, number), body, known, now_us)
            else:
                moved = self.sessions.progress(body, known, now_us)
                self.cluster.send(self.number, sender, ("told", number, None, ()))
        except RemoteError as error:
            self.cluster.send(self.number, sender, ("answer", number, error, ()))
            return
        for leadership in moved:
            self.moved(leadership)

    def _deliver(self, sender: int, delivery: Delivery, raw: tuple[Batch, ...]) -> None:
        following, orders, refill = delivery.following, delivery.orders, list[Batch]()
        if orders.append:
            position, batches = 0, []
            for batch in raw:
                if delivery.position <= position < delivery.position_end:
                    batches.append(batch)
                position += batch.size
            try:
                self.log.append_fetched(batches)
            except OverlapError as error:
                orders = following.overlaps(error.base)
                refill = batches
        if orders.truncate is not None:
            self.cutting = "truncate", orders.truncate
        elif orders.reset is not None:
            self.cutting = "reset", orders.reset
        if orders.truncate is not None or orders.reset is not None:
            self.refill = refill
        if orders.cuts_committed:
            self.cluster.note_unclean_cut(self)
        ends = following.ends()
        if self.cutting is None:  # else readers see what they saw, until it is done
            self.committed_end = following.committed_end
        self._start_at(ends.log_start)
        if orders.append:
            self.fetchers[sender].proceed(following)

    def _start_at(self, log_start: int | None) -> None:
        if log_start is not None:
            self.log.start_at(log_start)

    def tick(self) -> None:
        now_us = self.cluster.now_us
        for leader, fetcher in self.fetchers.items():
            if fetcher.tick(now_us):
                self.cluster.disconnect(self.number, leader)
        for leadership in self.agenda.due(now_us):
            if leadership.tick(now_us):
                self.moved(leadership)
        self.proposer.tick(now_us)

    def look(self) -> None:
        """A disk thread has found what was asked for."""
        looking, self.looking = self.looking, []
        for look in looking:
            if self.leadership is not None:
                try:
                    found: Any = self.log.range(look.offset, look.bytes_max)
                except RemoteError as error:
                    found = error
                self.sessions.found(look, found)

    def pump(self) -> None:
        """Send what is to be sent."""
        now_us, send = self.cluster.now_us, self.cluster.send
        for answer in self.sessions.answers(now_us):
            raw = tuple(batch for found in cast(Any, answer.found) for batch in found.batches)
            receiver, number = cast(Any, answer.caller)
            send(self.number, receiver, ("answer", number, answer.response, raw))
        self.looking += self.sessions.lookups()
        if (batch := self.proposer.request(now_us)) is not None:
            send(self.number, METADATA, ("change", batch.number, (self.incarnation, batch.changes), ()))
        for leader, fetcher in self.fetchers.items():
            while (sent := fetcher.request(now_us)) is not None:
                send(self.number, leader, ("fetch", sent.number, sent.request, ()))
            if (told := fetcher.progress()) is not None:
                send(self.number, leader, ("progress", told[0], told[1], ()))

    @property
    def next_deadline_us(self) -> int | None:
        times = [self.agenda.next_deadline_us, self.proposer.next_deadline_us, self.sessions.next_deadline_us]
        times += [fetcher.next_deadline_us(self.cluster.now_us) for fetcher in self.fetchers.values()]
        return min((at for at in times if at is not None), default=None)
