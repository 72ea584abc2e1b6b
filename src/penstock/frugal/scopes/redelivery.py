"""Redelivery: which stored message a handler gets next, when a failed one comes again, and what may be committed.

Rules: no IO, no clock, no randomness of its own: events and times come in, a `Step` goes out. In each partition one
message is in hand at a time, in the order of the log. While it waits for its retry, those behind it wait, too, so the
order of each key is kept; other partitions go on. A message is settled when its handler has returned, when no handler
wants it, or when the dead-letter stream has acked it. Dead letters are written in batches, while those behind them are
handled: up to `LETTERS_MAX`, and only while the stream takes them. Nothing at or behind a dead letter that is not
acked is committed: each message comes at least once.
A partition that is given back begins nothing more; it is released when what was settled is committed. A partition that
is lost is forgotten at once: another member reads it. Handlers that still run then change nothing, but until they end
no message of that partition is given to another handler of this process.

| the message in hand | event                         | then                                                       |
|---------------------|-------------------------------|------------------------------------------------------------|
| READY               | a handler is free             | RUNNING                                                    |
| RUNNING             | handled                       | settled; the next one is READY                             |
| RUNNING             | failed, attempts are left     | WAITING, for an exponential back-off with jitter           |
| RUNNING             | failed for good, or too often | a dead letter; the next one is READY                       |
| WAITING             | its time has come             | READY                                                      |

| the dead letters of a partition | event            | then                                                       |
|---------------------------------|------------------|------------------------------------------------------------|
| there are some, none is written | now              | a batch of all is written                                  |
| a batch is written              | written          | settled; a batch of those that came meanwhile is written   |
| a batch is written              | not written      | after a back-off the first alone; handlers wait until then |
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T")

COMMIT_MESSAGES_MAX: Final = 1_000
"""Settled messages after which offsets are committed at once; fewer wait for the interval."""
COMMIT_INTERVAL_S: Final = 1.0
COMMIT_RETRY_S: Final = 0.5
"""After a commit that failed. The messages are settled; only a restart in between makes them come again."""
PENDING_MESSAGES_MAX: Final = 512
"""Messages of one partition that were read and wait for a handler."""
PENDING_BYTES_MAX: Final = 4 * 1024 * 1024
"""Their bytes; one larger message is taken alone."""
LETTERS_MAX: Final = 512
"""Dead letters of one partition that are not acked; more messages are not begun."""
LETTERS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Their bytes, at which no more messages are begun."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a message whose handler failed is given to it again, and when it becomes a dead letter.

    The n-th wait is `wait_s * factor ** (n - 1)`, at most `wait_s_max`, less a random share of up to `jitter`. The
    message is a dead letter after `attempts_max` deliveries, or if the next would begin more than `total_s_max` after
    the first began. Both count from when this subscriber got the message: after a restart or a rebalance they begin
    anew. ValueError: a number that makes no sense.
    """

    attempts_max: int = 10
    wait_s: float = 0.1
    factor: float = 2.0
    wait_s_max: float = 30.0
    total_s_max: float = 300.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if type(self.attempts_max) is not int or self.attempts_max < 1:
            raise ValueError(f"attempts_max is {self.attempts_max!r}; give a whole number, from 1 on")
        for name, least in (("wait_s", 0.0), ("factor", 1.0), ("wait_s_max", 0.0), ("total_s_max", 0.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
                raise ValueError(f"{name} is {value!r}; give a number from {least:g} on")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is {self.jitter!r}; it is a share from 0 to 1")

    def pause_s(self, attempts: int, random: Callable[[], float]) -> float:
        """Return the wait after that many deliveries; `random` returns numbers from 0 to 1."""
        longest = self.wait_s_max
        wait = self.wait_s
        for _ in range(attempts - 1):  # not a power: it would overflow
            if wait >= longest or self.factor == 1:
                break
            wait *= self.factor
        return min(wait, longest) * (1 - self.jitter * random())


class Mark(NamedTuple):
    """A position in a partition: everything before `offset`. `epoch`: the leader epoch whose log holds that."""

    offset: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Row(Generic[T]):
    """A message that was read. One that is not `wanted` is settled unseen: a stream may hold more than a scope."""

    mark: Mark  # behind the message
    item: T
    size_bytes: int
    wanted: bool = True


class Phase(Enum):
    """The state of the message in hand; see the table above."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"


class Lease(NamedTuple):
    """A partition, from when it was assigned until it was released or lost."""

    partition: int
    number: int


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """Give the message to a handler. `deliveries`: how often that was done, this time included."""

    lease: Lease
    item: T
    deliveries: int


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """A message that no handler could take, after so many deliveries."""

    item: T
    reason: str
    deliveries: int


@dataclass(frozen=True, slots=True)
class LetterBatch(Generic[T]):
    """Write the messages to the dead-letter stream, in order. `failures`: how often that failed before."""

    lease: Lease
    letters: tuple[DeadLetter[T], ...]
    failures: int


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """Work of the driver, top to bottom."""

    write: tuple[LetterBatch[T], ...] = ()  # acked before it is settled; then `written` or `not_written`
    commit: Mapping[int, Mark] | None = None  # one at a time; then `committed` or `not_committed`
    release: tuple[Lease, ...] = ()  # nothing more comes for these
    deliver: tuple[Attempt[T], ...] = ()  # then `handled` or `failed`
    wake_s: float = math.inf  # when to ask for a step at the latest


@dataclass(frozen=True, slots=True)
class _Unacked(Generic[T]):
    """A dead letter that the stream has not acked."""

    letter: DeadLetter[T]
    before: Mark  # where its message begins: what may be committed until it is acked
    size_bytes: int


@dataclass(slots=True)
class _Partition(Generic[T]):
    lease: Lease
    reached: Mark  # behind the last message that needs no handler any more
    committed: Mark
    rows: deque[Row[T]] = field(default_factory=deque)  # the first is in hand
    pending_bytes: int = 0
    phase: Phase = Phase.READY
    deliveries: int = 0  # of the message in hand
    begun_s: float = 0.0  # when its first one began
    due_s: float = 0.0
    letters: deque[_Unacked[T]] = field(default_factory=deque)
    letters_bytes: int = 0
    writing: int = 0  # the first so many are at work
    write_due_s: float = -math.inf
    failures: int = 0  # to write the first, in a row
    is_revoked: bool = False
    is_given_up: bool = False  # what still runs is not settled: dead letters before it were not written
    is_queued: bool = False  # for a handler

    @property
    def settled(self) -> Mark:
        """Positions that may be committed."""
        return self.letters[0].before if self.letters else self.reached

    @property
    def is_busy(self) -> bool:
        """True while a handler is at work, or dead letters are not acked."""
        return self.phase is Phase.RUNNING or bool(self.letters)

    @property
    def may_begin(self) -> bool:
        """True if a handler may get the message in hand."""
        return (
            self.phase is Phase.READY
            and bool(self.rows)
            and not self.failures
            and len(self.letters) < LETTERS_MAX
            and self.letters_bytes < LETTERS_BYTES_MAX
        )

    def forget_letters(self) -> None:
        """Leave the dead letters, and all behind them, to the partition's next reader."""
        self.is_given_up = True
        self.reached = self.settled
        self.letters.clear()
        self.letters_bytes = self.writing = self.failures = 0


class Redelivery(Generic[T]):
    """The partitions of one member. Times are seconds of one monotonic clock; an event of an old lease is ignored."""

    def __init__(self, policy: RetryPolicy, *, handlers_max: int, random: Callable[[], float]) -> None:
        """`handlers_max`: messages with handlers at once, each of another partition."""
        assert handlers_max > 0
        self._policy = policy
        self._handlers_max = handlers_max
        self._random = random
        self._partitions: dict[int, _Partition[T]] = {}
        self._leases = 0
        self._handling: dict[int, Lease] = {}  # by partition, also of leases that are lost
        self._ready: deque[_Partition[T]] = deque()  # in the order in which they get a handler
        self._settled = 0  # messages since the last commit was sent
        self._commit_due_s = math.inf
        self._commit_not_before_s = -math.inf  # after one that failed
        self._committing: Mapping[int, Lease] | None = None

    # What happens

    def assign(self, partition: int, start: Mark, *, is_committed: bool = True) -> Lease:
        """A partition is ours from `start` on, which is committed unless said otherwise."""
        assert partition not in self._partitions, partition
        self._leases += 1
        lease = Lease(partition, self._leases)
        self._partitions[partition] = _Partition(lease, start, start if is_committed else Mark(-1, None))
        if not is_committed:
            self._commit_due_s = -math.inf
        return lease

    def revoke(self, partition: int) -> None:
        """The group wants the partition back: begin nothing more; release it when what is settled is committed."""
        if (part := self._partitions.get(partition)) is None:
            return
        part.is_revoked = True
        if part.phase is not Phase.RUNNING:
            _drop_rows(part)
        if part.failures and not part.writing:
            part.forget_letters()

    def lose(self) -> None:
        """All partitions are lost: other members read them from their committed offsets on."""
        self._partitions.clear()
        self._ready.clear()
        self._settled = 0
        self._commit_due_s = math.inf

    def fetched(self, lease: Lease, rows: Iterable[Row[T]]) -> None:
        """Messages were read, in order."""
        if (part := self._of(lease)) is None or part.is_revoked:
            return
        for row in rows:
            assert row.mark.offset > (part.rows[-1].mark if part.rows else part.reached).offset, row
            part.rows.append(row)
            part.pending_bytes += row.size_bytes

    def handled(self, attempt: Attempt[T], now_s: float) -> None:
        """The handler has returned."""
        if (part := self._ended(attempt)) is not None:
            if part.is_given_up:
                part.phase = Phase.READY
                _drop_rows(part)
                return
            self._settled += 1
            self._go_on(part, now_s)

    def failed(self, attempt: Attempt[T], reason: str, now_s: float, *, is_final: bool = False) -> None:
        """The handler has raised; `is_final`: another attempt would, too."""
        if (part := self._ended(attempt)) is None:
            return
        pause_s = self._policy.pause_s(part.deliveries, self._random)
        is_over = (
            part.deliveries >= self._policy.attempts_max or now_s + pause_s - part.begun_s > self._policy.total_s_max
        )
        if part.is_revoked:  # its next reader tries it
            part.phase = Phase.READY
            _drop_rows(part)
        elif is_final or is_over:
            row = part.rows[0]
            part.letters.append(_Unacked(DeadLetter(row.item, reason, part.deliveries), part.reached, row.size_bytes))
            part.letters_bytes += row.size_bytes
            self._go_on(part, now_s)
        else:
            part.phase, part.due_s = Phase.WAITING, now_s + pause_s

    def abandoned(self, attempt: Attempt[T]) -> None:
        """The handler was cancelled by a stop: the message is not settled, and comes again to whom reads it next."""
        if (part := self._ended(attempt)) is not None:
            part.phase = Phase.READY
            self.revoke(attempt.lease.partition)

    def written(self, batch: LetterBatch[T], now_s: float) -> None:
        """The dead-letter stream has acked the messages."""
        if (part := self._of(batch.lease)) is None:
            return
        assert part.writing == len(batch.letters), batch
        for _ in batch.letters:
            part.letters_bytes -= part.letters.popleft().size_bytes
        part.writing = part.failures = 0
        self._settled += len(batch.letters)
        self._commit_due_s = min(self._commit_due_s, now_s + COMMIT_INTERVAL_S)

    def not_written(self, batch: LetterBatch[T], now_s: float) -> None:
        """It has not. The partition waits until it does."""
        if (part := self._of(batch.lease)) is None:
            return
        part.writing = 0
        part.failures += 1
        part.write_due_s = now_s + self._policy.pause_s(part.failures, self._random)
        if part.is_revoked:
            part.forget_letters()

    def committed(self, marks: Mapping[int, Mark]) -> None:
        """The commit of a step has succeeded."""
        for lease in (self._committing or {}).values():
            if (part := self._of(lease)) is not None:
                part.committed = marks[lease.partition]
        self._committing = None

    def not_committed(self, now_s: float) -> None:
        """The commit of a step has failed, or its outcome is unknown."""
        self._committing = None
        self._commit_due_s = self._commit_not_before_s = now_s + COMMIT_RETRY_S

    # What there is

    def has_room(self, lease: Lease, *, share: float = 0.0) -> bool:
        """True if more messages of the partition may be read, with this share of its room to spare."""
        if (part := self._of(lease)) is None or part.is_revoked:
            return False
        used = 1 - share
        is_light = part.pending_bytes < PENDING_BYTES_MAX * used or not part.rows
        return is_light and len(part.rows) < PENDING_MESSAGES_MAX * used

    @property
    def partitions(self) -> frozenset[int]:
        """Partitions that are assigned and not released."""
        return frozenset(self._partitions)

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset up to which all messages are settled."""
        return {number: part.settled.offset for number, part in sorted(self._partitions.items())}

    @property
    def phases(self) -> dict[int, Phase]:
        """By partition, the state of the message in hand."""
        return {number: part.phase for number, part in sorted(self._partitions.items())}

    @property
    def is_idle(self) -> bool:
        """True if there is no partition, and no handler and no commit is at work."""
        return not (self._partitions or self._handling or self._committing)

    # What to do

    def step(self, now_s: float) -> Step[T]:
        """Return what is to be done now."""
        write: list[LetterBatch[T]] = []
        wake_s = math.inf
        for number, part in self._partitions.items():
            self._pass_over(part, now_s)
            if part.phase is Phase.WAITING and part.due_s <= now_s:
                part.phase = Phase.READY
            if part.phase is Phase.WAITING:
                wake_s = min(wake_s, part.due_s)
            elif part.may_begin and not part.is_queued and number not in self._handling:
                part.is_queued = True
                self._ready.append(part)
            if part.letters and not part.writing:
                if part.failures and part.write_due_s > now_s:
                    wake_s = min(wake_s, part.write_due_s)
                else:
                    write.append(self._batch(part))
        commit, commit_s = self._commit(now_s)
        release = self._released()
        deliver = self._deliveries(now_s)
        return Step(tuple(write), commit, release, deliver, min(wake_s, commit_s))

    def _batch(self, part: _Partition[T]) -> LetterBatch[T]:
        """Return the dead letters to write next. After a failure the first alone, which may be what fails."""
        part.writing = 1 if part.failures else len(part.letters)
        letters = tuple(one.letter for one in itertools.islice(part.letters, part.writing))
        return LetterBatch(part.lease, letters, part.failures)

    def _pass_over(self, part: _Partition[T], now_s: float) -> None:
        """Settle the messages at the front that no handler wants."""
        while part.phase is Phase.READY and part.rows and not part.rows[0].wanted:
            self._settled += 1
            self._go_on(part, now_s)

    def _deliveries(self, now_s: float) -> tuple[Attempt[T], ...]:
        found: list[Attempt[T]] = []
        while self._ready and len(self._handling) < self._handlers_max:
            part = self._ready.popleft()
            part.is_queued = False
            if not part.may_begin:  # it was revoked meanwhile, or waits for its dead letters
                continue
            part.phase = Phase.RUNNING
            part.deliveries += 1
            if part.deliveries == 1:
                part.begun_s = now_s
            self._handling[part.lease.partition] = part.lease
            found.append(Attempt(part.lease, part.rows[0].item, part.deliveries))
        return tuple(found)

    def _commit(self, now_s: float) -> tuple[Mapping[int, Mark] | None, float]:
        """Return what to commit now, or when to look again.

        It is all that is settled, once there is enough of it, its time has come, or a partition waits for its release.
        """
        if self._committing is not None:
            return None, math.inf
        parts = [part for part in self._partitions.values() if part.settled != part.committed]
        if not parts:
            self._commit_due_s = math.inf
            return None, math.inf
        is_waited_for = any(part.is_revoked and not part.is_busy for part in parts)
        is_enough = self._settled >= COMMIT_MESSAGES_MAX or is_waited_for
        due_s = max(now_s if is_enough else self._commit_due_s, self._commit_not_before_s)
        if due_s > now_s:
            return None, due_s
        self._settled = 0
        self._commit_due_s = math.inf
        self._committing = {part.lease.partition: part.lease for part in parts}
        return {part.lease.partition: part.settled for part in parts}, math.inf

    def _released(self) -> tuple[Lease, ...]:
        found = [
            part.lease
            for part in self._partitions.values()
            if part.is_revoked and not part.is_busy and part.settled == part.committed
        ]
        for lease in found:
            del self._partitions[lease.partition]
        return tuple(found)

    # Parts of these

    def _of(self, lease: Lease) -> _Partition[T] | None:
        part = self._partitions.get(lease.partition)
        return part if part is not None and part.lease == lease else None

    def _ended(self, attempt: Attempt[T]) -> _Partition[T] | None:
        """A handler has ended; return its partition, unless that is not ours any more."""
        lease = attempt.lease
        assert self._handling.get(lease.partition) == lease, attempt
        del self._handling[lease.partition]
        return self._of(lease)

    def _go_on(self, part: _Partition[T], now_s: float) -> None:
        """No handler needs the message in hand any more: the next one is."""
        row = part.rows.popleft()
        part.pending_bytes -= row.size_bytes
        part.reached = row.mark
        part.phase, part.deliveries = Phase.READY, 0
        self._commit_due_s = min(self._commit_due_s, now_s + COMMIT_INTERVAL_S)
        if part.is_revoked:
            _drop_rows(part)


def _drop_rows(part: _Partition[T]) -> None:
    """Forget what is not settled; the partition's next reader gets it."""
    part.rows.clear()
    part.pending_bytes = 0
    part.phase = Phase.READY
