"""A durable source over a consumer group: several members share the partitions of a stream, and commit offsets.

Rules: one task looks at the group and steps the redelivery core; reading, dead letters and commits run beside it, and
each ends in an event that wakes it. When a handler has ended, the core is stepped at once instead, so that the next
message is there without a turn of the event loop; after `GIVEN_AT_ONCE` messages the loop gets its turn. A partition is
begun from the group's committed offset, and is given back when its handler has ended and what was settled is committed.
While the coordinator or a leader does not answer, handlers go on with what was read, and commits are tried again; a
member that is fenced forgets its partitions and joins again.
Retries, back-off and dead letters: see `redelivery`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.ids import LeaderEpoch, PartitionId
from penstock.client.aio import Client
from penstock.client.consume.members import Member
from penstock.client.consume.positions import mark_of, start_of
from penstock.client.consume.progress import ReadMark
from penstock.client.errors import MemberFenced, TimedOut
from penstock.client.read.reading import plan
from penstock.client.values import EARLIEST, Message, Start
from penstock.frugal.complaints import Complaints
from penstock.frugal.scopes.dead_letters import DeadLetters
from penstock.frugal.scopes.durable import Delivery
from penstock.frugal.scopes.partition_feed import PartitionFeed, is_lasting
from penstock.frugal.scopes.redelivery import (
    Lease,
    LetterBatch,
    Mark,
    Phase,
    Redelivery,
    RetryPolicy,
    Row,
    Step,
)
from penstock.messages import StreamInfo

_LOG = logging.getLogger(__name__)

COUNTS: Final = (
    "commits",
    "commits_failed",
    "dead_letters",  # written
    "dead_letters_failed",  # tries to write one
    "passed_over",  # messages of the stream that the subscription does not want
    "fenced",  # times that the member lost its partitions
    "troubles",  # answers that did not come
)
GIVEN_AT_ONCE: Final = 16
"""Messages given to handlers that do not wait, before others get their turn of the event loop."""
ROOM_SHARE: Final = 0.5
"""Share of a partition's room that is free when it is read on: not a turn of the event loop for each message."""
BEGIN_AGAIN_S: Final = 0.5
"""After partitions could not be begun because a broker did not answer."""
_CLOSE_S: Final = 5.0  # for the last commit of a source that stops at once


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Stream, group, and limits of a source."""

    stream: str
    group: str
    start: Start = EARLIEST
    handlers_max: int = 1
    session_s: float = 10.0
    timeout_s: float = 10.0
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009 (immutable)


class GroupSource:
    """A member of a consumer group that gives out the messages of its partitions, several partitions at once."""

    def __init__(
        self,
        client: Client,
        wanted: GroupSettings,
        dead_letters: DeadLetters,
        *,
        is_wanted: Callable[[StreamInfo, Message], bool],
        random: Callable[[], float],
    ) -> None:
        """`is_wanted`: whether a handler gets the message; the others are passed over."""
        self._client = client
        self._positions = client.groups.positions
        self._wanted = wanted
        self._dead_letters = dead_letters
        self._is_wanted = is_wanted
        self._core: Redelivery[Message] = Redelivery(wanted.retry, handlers_max=wanted.handlers_max, random=random)
        self._complaints = Complaints(_LOG, _now_s)
        self._counts: Counter[str] = Counter()
        self._info: StreamInfo | None = None
        self._member: Member | None = None
        self._joined = ("", 0)  # member id and era of the core's partitions
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()  # at most `handlers_max`
        self._given = 0  # since the last turn of the event loop
        self._feeds: dict[Lease, asyncio.Task[None]] = {}
        self._room: dict[Lease, asyncio.Event] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._begin_after_s = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._is_draining = False
        self._failure: Exception | None = None
        self._ended = asyncio.Event()

    @property
    def counts(self) -> Mapping[str, int]:
        """Counters so far, by the names in `COUNTS`."""
        return {name: self._counts[name] for name in COUNTS}

    @property
    def positions(self) -> dict[int, int]:
        """By partition of this member, the offset up to which all messages are settled."""
        return self._core.positions

    @property
    def phases(self) -> dict[int, Phase]:
        """By partition of this member, the state of the message in hand."""
        return self._core.phases

    async def open(self) -> None:
        """Join the group. StreamNotFound, NotAuthorized, TimedOut, Unavailable; what creating dead letters raises."""
        wanted = self._wanted
        info = await self._client.stream(wanted.stream, timeout=wanted.timeout_s)
        await self._dead_letters.open(info)
        self._info = info
        self._member = member = Member(self._positions, wanted.group, info.stream_id, wanted.session_s)
        member.start()
        try:
            async with asyncio.timeout(wanted.timeout_s):
                await member.heard.wait()
            if member.failure is not None:
                raise member.failure
        except BaseException as error:
            await member.leave()
            if isinstance(error, TimeoutError):
                raise TimedOut(f"the coordinator of group {wanted.group!r} did not answer in time") from None
            raise
        self._joined = member.member_id, member.era
        self._spawn(self._watch(member))
        self._running = asyncio.get_running_loop().create_task(self._run(member, info))

    # The side of the handlers

    async def next(self) -> Delivery | None:
        """Wait for the next message; None: the source has ended. Raises what ended it, if something went wrong."""
        while self._given >= GIVEN_AT_ONCE:  # noqa: ASYNC110 (the next turn of the loop sets it to 0)
            await asyncio.sleep(0)
        if not self._given:
            asyncio.get_running_loop().call_soon(self._turned)
        self._given += 1
        found = await self._deliveries.get()
        if found is None:
            self._deliveries.put_nowait(None)  # for the other handlers
            if self._failure is not None:
                raise self._failure
        return found

    def handled(self, delivery: Delivery) -> None:
        """The handler has returned."""
        now_s = _now_s()
        self._core.handled(delivery.receipt, now_s)
        self._go_on(now_s)

    def failed(self, delivery: Delivery, reason: str, *, is_final: bool = False) -> None:
        """The handler has raised."""
        now_s = _now_s()
        self._core.failed(delivery.receipt, reason, now_s, is_final=is_final)
        self._go_on(now_s)

    def abandoned(self, delivery: Delivery) -> None:
        """The handler was cancelled."""
        self._core.abandoned(delivery.receipt)
        self._wake.set()

    def _turned(self) -> None:
        self._given = 0

    def _go_on(self, now_s: float) -> None:
        """Carry out what follows from the end of a handler; leave it to the task if there is more to look at."""
        member, info = self._member, self._info
        is_calm = not (self._is_draining or self._failure or self._wake.is_set())
        if is_calm and member is not None and info is not None and self._joined == (member.member_id, member.era):
            step = self._core.step(now_s)
            self._carry_out(step, member, info)
            self._wake_at(step.wake_s)
        else:
            self._wake.set()

    async def drain(self) -> None:
        """Give out nothing more; return once handlers have ended, their work is committed, and the group is left."""
        self._is_draining = True
        self._wake.set()
        await self._ended.wait()

    async def close(self) -> None:
        """Stop at once: commit what is settled if a broker answers soon, and leave the group. May be called twice."""
        running, self._running = self._running, None
        if running is None:
            return
        if not running.done():
            self._is_draining = True
            while not self._deliveries.empty():
                if (waiting := self._deliveries.get_nowait()) is not None:
                    self.abandoned(waiting)
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._ended.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    # The task that owns the core

    async def _run(self, member: Member, info: StreamInfo) -> None:
        try:
            while True:
                self._wake.clear()
                self._look_at_group(member, info)
                step = self._core.step(_now_s())
                self._carry_out(step, member, info)
                if self._is_draining and self._core.is_idle and self._beginning is None:
                    break
                wake_s = min(step.wake_s, self._begin_after_s if self._begin_after_s > _now_s() else math.inf)
                self._wake_at(wake_s)
                await self._wake.wait()
                if self._failure is not None:
                    break
        except Exception as error:  # noqa: BLE001 (the caller that waits for the next message gets it)
            self._failure = error
        finally:
            if self._failure is not None:
                said = f"{type(self._failure).__name__}: {self._failure}"
                _LOG.error("%s: the subscription has ended: %s", self._label, said)
            self._deliveries.put_nowait(None)
            with contextlib.suppress(Exception):
                await self._stop(member)
            self._ended.set()

    def _wake_at(self, when_s: float) -> None:
        """Wake the task then, or before: a timer that is set already is not moved, as one a message costs too much."""
        if when_s < self._timer_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = asyncio.get_running_loop().call_at(when_s, self._on_timer), when_s

    def _on_timer(self) -> None:
        self._timer, self._timer_s = None, math.inf
        self._wake.set()

    async def _stop(self, member: Member) -> None:
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._feeds.values(), *self._tasks, *([self._beginning] if self._beginning else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._core.lose()
        await member.leave()

    async def _watch(self, member: Member) -> None:
        """Wake the task when the member's partitions change."""
        while True:
            await member.changed.wait()
            member.changed.clear()
            self._wake.set()

    def _look_at_group(self, member: Member, info: StreamInfo) -> None:
        """Give back what the group wants back, and begin what it gives."""
        if member.failure is not None:
            raise member.failure
        joined = member.member_id, member.era
        if joined != self._joined:
            self._joined = joined
            self._counts["fenced"] += 1
            self._complaints.tell("fenced", f"{self._label}: lost its partitions, and joins the group again")
            self._core.lose()
            for lease in list(self._feeds):
                self._end_feed(lease)
        for lease in list(self._feeds):
            if self._is_draining or lease.partition not in member.assigned:
                self._core.revoke(lease.partition)
                self._end_feed(lease)
        fresh = member.assigned - member.owned
        if fresh and not self._is_draining and self._beginning is None and _now_s() >= self._begin_after_s:
            self._beginning = asyncio.get_running_loop().create_task(self._begin(member, info, fresh))

    def _carry_out(self, step: Step[Message], member: Member, info: StreamInfo) -> None:
        for batch in step.write:
            self._spawn(self._write(batch, info))
        if step.commit is not None:
            self._spawn(self._commit(member, info, step.commit))
        for lease in step.release:
            member.owned -= {lease.partition}
            member.send_heartbeat_now()
        for attempt in step.deliver:
            self._deliveries.put_nowait(Delivery(info.name, attempt.item, attempt.deliveries, attempt))
        for lease, room in self._room.items():
            if not room.is_set() and self._core.has_room(lease, share=ROOM_SHARE):
                room.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Partitions

    async def _begin(self, member: Member, info: StreamInfo, fresh: frozenset[int]) -> None:
        """Begin to read partitions, each where the group has committed, or where a new group begins."""
        joined = member.member_id, member.era
        try:
            marks = await self._marks(member, info, fresh)
        except Exception as error:  # noqa: BLE001 (it ends the subscription, or is tried again)
            self._trouble(error, "cannot begin to read")
            self._begin_after_s = _now_s() + BEGIN_AGAIN_S
            marks = {}
        for number, (mark, is_committed) in marks.items():
            is_ours = joined == self._joined == (member.member_id, member.era) and number in member.assigned
            if is_ours and not self._is_draining and number not in self._core.partitions:
                lease = self._core.assign(number, mark, is_committed=is_committed)
                member.owned |= {number}
                self._begin_feed(lease, mark, info)
        self._beginning = None
        member.send_heartbeat_now()
        self._wake.set()

    async def _marks(self, member: Member, info: StreamInfo, fresh: frozenset[int]) -> dict[int, tuple[Mark, bool]]:
        """Return where each partition begins, and whether that is committed."""
        wanted = self._wanted
        committed = await self._positions.fetch(wanted.group, info.stream_id, wanted.timeout_s)
        if any(number >= len(info.partitions) for number in fresh):  # partitions were added
            info = self._info = await self._client.stream(info.name, timeout=wanted.timeout_s)
        if not committed:
            await self._begin_beside(member, info, fresh)
        marks = {}
        for number in sorted(fresh):
            if (known := committed.get(number)) is not None:
                begin = mark_of(known)
                marks[number] = Mark(int(begin.offset), begin.leader_epoch), True
            else:
                start = start_of(info, number, committed, wanted.start)
                marks[number] = await self._place(info, number, start), False
        return marks

    async def _begin_beside(self, member: Member, info: StreamInfo, fresh: frozenset[int]) -> None:
        """Commit for a new group where it begins in added partitions that it does not have yet, as a consumer does."""
        added = range(info.counts[0], len(info.partitions)) if info.counts else ()
        begins = {one: await self._place(info, one, self._wanted.start) for one in added if one not in fresh}
        if begins:
            await self._positions.commit(
                self._wanted.group,
                info.stream_id,
                {number: _read_mark(mark) for number, mark in begins.items()},
                self._wanted.timeout_s,
                member_id=self._joined[0],
                generation=member.generation,
                is_begin=True,
            )

    async def _place(self, info: StreamInfo, number: int, start: Start) -> Mark:
        link, timeout_s = self._positions.link, self._wanted.timeout_s
        what = await plan(link, info, PartitionId(number), start, None, follow=True, timeout_s=timeout_s)
        return Mark(what.range.start, int(what.leader_epoch))

    def _begin_feed(self, lease: Lease, start: Mark, info: StreamInfo) -> None:
        room = self._room[lease] = asyncio.Event()

        async def give(message: Message, mark: Mark) -> None:
            while not self._core.has_room(lease):
                room.clear()
                self._wake.set()
                await room.wait()
            is_wanted = self._is_wanted(info, message)
            if not is_wanted:
                self._counts["passed_over"] += 1
            size = len(message.value or b"") + len(message.header_block or b"")
            self._core.fetched(lease, (Row(mark, message, size, is_wanted),))
            self._wake.set()

        feed = PartitionFeed(
            self._positions.link,
            info,
            lease.partition,
            start,
            timeout_s=self._wanted.timeout_s,
            give=give,
            troubled=lambda error: self._trouble(error, f"cannot read partition {lease.partition}"),
        )
        self._feeds[lease] = asyncio.get_running_loop().create_task(self._feed(feed))

    async def _feed(self, feed: PartitionFeed) -> None:
        try:
            await feed.run()
        except Exception as error:  # noqa: BLE001 (it ends the subscription)
            self._fail(error)

    def _end_feed(self, lease: Lease) -> None:
        feed = self._feeds.pop(lease)
        self._room.pop(lease, None)
        feed.cancel()
        self._tasks.add(feed)  # it is waited for at the end
        feed.add_done_callback(self._tasks.discard)

    # Dead letters and commits

    async def _write(self, batch: LetterBatch[Message], info: StreamInfo) -> None:
        first, partition = batch.letters[0].item.offset, batch.lease.partition
        rows = [(Delivery(info.name, one.item, one.deliveries), one.reason) for one in batch.letters]
        try:
            await self._dead_letters.write(rows)
        except Exception as error:  # noqa: BLE001 (it is told and tried again, whatever it is)
            self._counts["dead_letters_failed"] += 1
            text = f"{self._label}: offset {first} of partition {partition} cannot be written to stream"
            text = f"{text} {self._dead_letters.stream}, and its partition waits: {type(error).__name__}: {error}"
            self._complaints.tell("unwritten", text, level=logging.ERROR)
            self._core.not_written(batch, _now_s())
        else:
            self._counts["dead_letters"] += len(batch.letters)
            for one in batch.letters:
                where = f"{self._label}: offset {one.item.offset} of partition {partition}"
                text = f"{where} is a dead letter after {one.deliveries} deliveries: {one.reason}"
                self._complaints.tell("dead", text, level=logging.ERROR)
            self._core.written(batch, _now_s())
        self._wake.set()

    async def _commit(self, member: Member, info: StreamInfo, marks: Mapping[int, Mark]) -> None:
        member_id, era = self._joined
        try:
            await self._positions.commit(
                self._wanted.group,
                info.stream_id,
                {number: _read_mark(mark) for number, mark in marks.items()},
                self._wanted.timeout_s,
                member_id=member_id,
                generation=member.generation,
            )
        except MemberFenced:
            if (member.member_id, member.era) == (member_id, era):
                member.lose()
            self._core.not_committed(_now_s())
        except Exception as error:  # noqa: BLE001 (it ends the subscription, or is tried again)
            self._counts["commits_failed"] += 1
            self._core.not_committed(_now_s())
            self._trouble(error, "cannot commit")
        else:
            self._counts["commits"] += 1
            self._core.committed(marks)
        self._wake.set()

    # Trouble

    @property
    def _label(self) -> str:
        return f"group {self._wanted.group} on stream {self._wanted.stream}"

    def _trouble(self, error: Exception, what: str) -> None:
        if is_lasting(error):
            self._fail(error)
            return
        self._counts["troubles"] += 1
        self._complaints.tell("trouble", f"{self._label} {what}, and tries again: {type(error).__name__}: {error}")

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake.set()


def _read_mark(mark: Mark) -> ReadMark:
    return ReadMark(mark.offset, None if mark.epoch is None else LeaderEpoch(mark.epoch))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
