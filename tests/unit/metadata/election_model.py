"""One partition, its metadata, its leaders and its logs, as small as they can be, to be walked through exhaustively.

Rules: what decides is the real thing: `metadata.elections`, how changes of an ISR are applied, `Leadership`, and how
logs are reconciled. The rest is abstract. A log is the epoch of each of its messages, of which the first `flushed` are
on the disk. A state is a value, and a step makes another of it. Everybody who is up hears at once what the metadata
says, and no request is lost: what comes of that is looked for elsewhere (tests/unit/replication/test_model.py, the
simulator). So leader epochs, versions and runs mean only who is older, and get the least numbers that say so
(`_plain`): states that differ in nothing else are one.

| step    | what happens                                                                                        |
|---------|-----------------------------------------------------------------------------------------------------|
| append  | a leader takes a message                                                                            |
| fetch   | a follower says what it has, cut to agree with its leader, and gets all there is                    |
| flush   | a disk gets all that was written                                                                    |
| propose | a leader wants another ISR, and the metadata takes it or not                                        |
| fence   | the metadata takes a broker for dead, which may live; one that is dead at some time                 |
| kill    | a process ends; its log stays as it is                                                              |
| power   | the same, and what is not on the disk is gone                                                       |
| wipe    | a broker that is down gets an empty disk                                                            |
| fail    | a log takes nothing any more; its leader resigns                                                    |
| start   | a process begins, syncs what it has, and is registered; one that was fenced is registered again     |
| recover | the longest log leads, as far as all tell of theirs, or those who must                              |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from msgspec.structs import replace as with_fields

from penstock.base.config import Durability
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionKey
from penstock.messages import IsrChange
from penstock.metadata import elections
from penstock.metadata.commands import ReplicaEnd
from penstock.metadata.effects import leaderships
from penstock.metadata.elections import BrokerReturn, Elected, ElectionRules
from penstock.metadata.image import PartitionState
from penstock.replication import rules
from penstock.replication.leader import CommitTerms, FollowerProgress, Leadership, LogEndsAtStart

KEY = PartitionKey(1, 0)
RUN = Incarnation(1)  # the present run of each broker that is live
FAULTS = ("append", "fence", "kill", "power", "wipe", "fail")

Log = tuple[int, ...]


class ViolationError(AssertionError):
    """What was acked is lost, though it need not be."""


class Broker(NamedTuple):
    """One of those who hold the partition."""

    log: Log = ()
    flushed: int = 0
    is_up: bool = True
    is_registered: bool = True  # the run that the metadata takes for live is this process
    has_failed: bool = False
    disk: int = 1
    leads: tuple[Any, ...] | None = None  # its Leadership, frozen

    @property
    def on_disk(self) -> Log:
        return self.log[: self.flushed]


class State(NamedTuple):
    """All there is."""

    partition: PartitionState
    live: frozenset[int]  # as the metadata takes them
    disks: tuple[int, ...]  # with which they were registered
    brokers: tuple[Broker, ...]  # of the ids from 1
    acked: Log
    left: tuple[int, ...]  # how often each of FAULTS may happen yet

    def broker(self, number: int) -> Broker:
        return self.brokers[number - 1]

    def with_broker(self, number: int, **fields: Any) -> State:
        brokers = list(self.brokers)
        brokers[number - 1] = brokers[number - 1]._replace(**fields)
        return self._replace(brokers=tuple(brokers))

    def may(self, fault: str) -> bool:
        return self.left[FAULTS.index(fault)] > 0

    def spent(self, fault: str) -> State:
        number = FAULTS.index(fault)
        return self._replace(left=(*self.left[:number], self.left[number] - 1, *self.left[number + 1 :]))


Step = Callable[[], State]


class _NoAgenda:
    """Time does not pass here, and whoever may wish for something is asked."""

    def plan(self, item: Any, at_us: int) -> None:
        pass

    def wish(self, item: Any) -> None:
        pass


class _Lineage:
    def __init__(self, log: Log) -> None:
        self._log = log

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        if not leader_epoch:
            return 0, len(self._log)
        known = [epoch for epoch in self._log if epoch <= leader_epoch]
        return known[-1] if known else 0, len(known)


_AGENDA: Any = _NoAgenda()
_KEPT = tuple(
    name for name in Leadership.__slots__ if name not in ("_agenda", "_followers", "_retry_us", "key", "log_start")
)
_KEPT_OF_FOLLOWERS = ("broker_id", "flushed_end", "incarnation", "is_impeded", "joins_at", "log_end")
_EPOCH, _VERSION, _AWAITED = (_KEPT.index(name) for name in ("leader_epoch", "version", "_awaited_version"))


def _frozen(leadership: Leadership) -> tuple[Any, ...]:
    followers = tuple(
        tuple(getattr(follower, name) for name in _KEPT_OF_FOLLOWERS) for follower in leadership._followers
    )
    assert leadership._unsettled is None or leadership._under_way is None
    return (followers, *(getattr(leadership, name) for name in _KEPT))


def _thawed(frozen: tuple[Any, ...]) -> Leadership:
    leadership = Leadership.__new__(Leadership)
    leadership._agenda, leadership._retry_us, leadership.key, leadership.log_start = _AGENDA, 0, KEY, 0
    followers, *values = frozen
    for name, value in zip(_KEPT, values, strict=True):
        setattr(leadership, name, value)
    leadership._followers = tuple(map(_thawed_follower, followers))
    return leadership


def _thawed_follower(values: tuple[Any, ...]) -> FollowerProgress:
    follower = FollowerProgress.__new__(FollowerProgress)
    follower._awaited_us = follower._kept_up_us = None
    follower._mark, follower.caught_up_us, follower.is_awaited = (0, 0), 0, False
    for name, value in zip(_KEPT_OF_FOLLOWERS, values, strict=True):
        setattr(follower, name, value)
    return follower


def agreed(one: Log, other: Log) -> int:
    """Up to where two logs are the same."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


class Model:
    """What can happen to a partition of so many replicas, and how often each of FAULTS may; the rest at any time.

    Where the power may go and `durability` is not `fsync`, that may be lost which no disk and no memory has any more.
    """

    def __init__(
        self, *, replicas: int = 2, min_isr: int = 1, durability: Durability = Durability.AUTO, **faults: int
    ) -> None:
        self._rules = ElectionRules(min_isr, allow_unclean_election=False)
        self._terms = CommitTerms(durability, min_isr)
        self._may_lose = durability is not Durability.FSYNC and bool(faults.get("power"))
        ids = tuple(range(1, replicas + 1))
        state = State(
            PartitionState.made(ids),
            frozenset(ids),
            tuple(1 for _ in ids),
            tuple(Broker() for _ in ids),
            (),
            tuple(faults.get(fault, 0) for fault in FAULTS),
        )
        self.beginning = self._heard(state)

    def steps(self, state: State) -> Iterator[tuple[str, Step]]:
        """What can happen next."""
        for number, broker in enumerate(state.brokers, start=1):
            if broker.is_up:
                yield from self._own_steps(state, number, broker)
            else:
                yield f"start {number}", partial(self._start, state, number, is_clean=False)
                if state.may("wipe"):
                    yield f"wipe {number}", partial(self._wipe, state, number)
            if number in state.live and (state.may("fence") or not broker.is_up):
                yield f"fence {number}", partial(self._fence, state, number)
        if elections.recovers(state.partition, state.live):
            yield from self._recoveries(state)

    def _own_steps(self, state: State, number: int, broker: Broker) -> Iterator[tuple[str, Step]]:
        leader = state.partition.leader
        if broker.flushed < len(broker.log) and not broker.has_failed:
            yield f"flush {number}", partial(self._flush, state, number)
        if broker.leads is not None:
            if state.may("append") and not broker.has_failed:
                yield f"append {number}", partial(self._append, state, number)
            yield f"propose {number}", partial(self._propose, state, number)
            if broker.has_failed:
                yield f"resign {number}", partial(self._resign, state)
        elif broker.is_registered and leader is not None and state.broker(leader).leads is not None:
            yield f"fetch {number}", partial(self._fetch, state, number, leader)
        if not broker.is_registered:
            yield f"start {number}", partial(self._start, state, number, is_clean=True)
        if state.may("fail") and not broker.has_failed:
            yield f"fail {number}", partial(self._fail, state, number)
        for fault in ("kill", "power"):
            if state.may(fault):
                yield f"{fault} {number}", partial(self._kill, state.spent(fault), number, fault == "power")

    # Messages

    def _append(self, state: State, number: int) -> State:
        log, leadership = state.broker(number).log, _thawed(state.broker(number).leads)
        if not leadership.accepts:
            return state
        log = (*log, leadership.leader_epoch)
        leadership.appended(len(log), 0)
        return self._led(state.spent("append").with_broker(number, log=log), number, leadership)

    def _flush(self, state: State, number: int) -> State:
        broker = state.broker(number)
        state = state.with_broker(number, flushed=len(broker.log))
        if broker.leads is None:
            return state
        leadership = _thawed(broker.leads)
        leadership.flushed(len(broker.log))
        return self._led(state, number, leadership)

    def _fetch(self, state: State, number: int, leader: int) -> State:
        broker, led = state.broker(number), state.broker(leader).log
        log, flushed = broker.log, broker.flushed
        while (where := rules.divergence(log[-1] if log else 0, len(log), _Lineage(led), 0, len(led))) is not None:
            end = rules.truncation_end(where, _Lineage(log))
            assert end < len(log), (log, led)
            log, flushed = log[:end], end  # a cut syncs what it leaves
        assert log == led[: len(log)], (log, led)
        leadership = _thawed(state.broker(leader).leads)
        leadership.fetched(number, RUN, len(log), flushed, 0, is_impeded=broker.has_failed)
        state = state.with_broker(number, log=log if broker.has_failed else led, flushed=flushed)
        return self._led(state, leader, leadership)

    def _fail(self, state: State, number: int) -> State:
        state = state.spent("fail").with_broker(number, has_failed=True)
        if (frozen := state.broker(number).leads) is None:
            return state
        leadership = _thawed(frozen)
        leadership.failed()
        return self._led(state, number, leadership)

    def _led(self, state: State, number: int, leadership: Leadership) -> State:
        """Something has happened to a leadership, which may have committed more."""
        for follower in leadership._followers:
            follower.is_awaited = False  # a moment later
        leadership._advance_high_watermark()
        state = state.with_broker(number, leads=_frozen(leadership))
        committed = state.broker(number).log[: leadership.committed_end]
        if agreed(committed, state.acked) < min(len(committed), len(state.acked)):
            raise ViolationError(f"broker {number} commits {committed} where {state.acked} was acked")
        return state if len(committed) <= len(state.acked) else state._replace(acked=committed)

    # Brokers

    def _start(self, state: State, number: int, *, is_clean: bool) -> State:
        disks, disk = list(state.disks), state.broker(number).disk
        known, disks[number - 1] = disks[number - 1], disk
        back = BrokerReturn(number, is_clean, str(disk), str(known))
        state = state._replace(live=state.live | {number}, disks=tuple(disks))
        if not is_clean:
            state = state.with_broker(number, flushed=len(state.broker(number).log))
        state = state.with_broker(number, is_up=True, is_registered=True, leads=None)
        for other in self._leaders(state):  # what it said before counts no more
            leadership = _thawed(state.broker(other).leads)
            for follower in leadership._followers:
                if follower.broker_id == number:
                    follower.begin(RUN, 0)
            state = state.with_broker(other, leads=_frozen(leadership))
        return self._decided(state, elections.returned(state.partition, back, state.live, self._rules))

    @staticmethod
    def _leaders(state: State) -> list[int]:
        return [number for number, broker in enumerate(state.brokers, start=1) if broker.leads is not None]

    def _kill(self, state: State, number: int, has_power_lost: bool) -> State:
        broker = state.broker(number)
        log = broker.on_disk if has_power_lost or broker.has_failed else broker.log
        gone = Broker(log, broker.flushed, is_up=False, is_registered=False, disk=broker.disk)
        return state.with_broker(number, **gone._asdict())

    def _wipe(self, state: State, number: int) -> State:
        disk = state.broker(number).disk + 1
        return state.spent("wipe").with_broker(number, log=(), flushed=0, disk=disk)

    def _fence(self, state: State, number: int) -> State:
        if state.broker(number).is_up:
            state = state.spent("fence")
        state = state._replace(live=state.live - {number}).with_broker(number, is_registered=False, leads=None)
        return self._decided(state, elections.gone(state.partition, number, state.live, self._rules))

    # The metadata

    def _propose(self, state: State, number: int) -> State:
        leadership = _thawed(state.broker(number).leads)
        change = leadership.proposal(0)
        if change is None:
            return state
        partition = self._changed(state, change)
        return state if partition is None else self._decided(state, Elected(partition))

    def _changed(self, state: State, change: IsrChange) -> PartitionState | None:
        def live_run(broker_id: BrokerId, incarnation: Incarnation) -> None:
            if broker_id not in state.live or incarnation != RUN:
                raise RemoteError(ErrorCode.STALE_INCARNATION, "")

        image: Any = SimpleNamespace(live_run=live_run)
        try:
            return leaderships._with_isr(image, state.partition, self._rules, change)
        except RemoteError:
            return None

    def _resign(self, state: State) -> State:
        changed = elections.leader_changed(state.partition, state.live, self._rules, resigned=True)
        return state if changed is None else self._decided(state, Elected(changed))

    def _recoveries(self, state: State) -> Iterator[tuple[str, Step]]:
        telling = {number for number in state.live if state.broker(number).is_registered}
        having = elections.holders(state.partition)
        if having <= telling:
            yield "recover, as all tell", partial(self._recover, state, telling)
            yield "recover, as some tell", partial(self._recover, state, set(having))

    def _recover(self, state: State, telling: set[int]) -> State:
        ends = {}
        for number in telling:
            log, has_failed = state.broker(number).log, state.broker(number).has_failed
            ends[number] = ReplicaEnd(number, RUN, log[-1] if log else 0, len(log), has_failed)
        elected = elections.recovered(state.partition, ends, state.live, self._rules)
        return state if elected is None else self._decided(state, elected)

    def _decided(self, state: State, elected: Elected) -> State:
        """The metadata has come to something, and all hear of it."""
        assert not elected.is_unclean
        before = state.partition
        after = state._replace(partition=elections.after(before, elected.partition))
        _check_image(after)
        _check_who_counts(before, after)
        return _plain(self._heard(after))

    def _heard(self, state: State) -> State:
        partition = state.partition
        for number, broker in enumerate(state.brokers, start=1):
            if not (broker.is_up and broker.is_registered and partition.leader == number):
                if broker.leads is not None:
                    state = state.with_broker(number, leads=None)
                continue
            live = dict.fromkeys(state.live, RUN)
            if broker.leads is not None and broker.leads[1 + _EPOCH] == partition.leader_epoch:
                leadership = _thawed(broker.leads)
                leadership.image(partition, live, 0)
            else:
                state = self._begins(state, number)
                ends = LogEndsAtStart(0, 0, broker.flushed, len(broker.log))
                leadership = Leadership(KEY, number, partition, live, ends, self._terms, _AGENDA, 0)
                if broker.has_failed:
                    leadership.failed()
            state = self._led(state, number, leadership)
        return state

    def _begins(self, state: State, number: int) -> State:
        """Who leads has all that was acked; or, where that may be, there is nobody who has more of it."""
        log, acked = state.broker(number).log, state.acked
        end = agreed(log, acked)
        if end == len(acked):
            return state
        more = [other for other, broker in enumerate(state.brokers, start=1) if agreed(broker.log, acked) > end]
        if more or not self._may_lose:
            raise ViolationError(f"broker {number} leads with {log} where {acked} was acked, which {more} have")
        return state._replace(acked=acked[:end])


def _check_image(state: State) -> None:
    one = state.partition
    assert one.leader is None or (one.leader in one.isr and one.leader in state.live), one
    assert one.isr, one
    assert not set(one.eligible) & {*one.isr, *one.unsure}, one
    assert not set(one.isr) & set(one.unsure) or (len(one.isr) == 1 and one.leader is None), one


def _check_who_counts(before: PartitionState, state: State) -> None:
    """Who counts no more, and not by the word of its leader, has nothing on its disk that one who counts has not."""
    counting = elections.holders(state.partition)
    is_led_on = before.leader is not None and state.partition.leader == before.leader
    for number in elections.holders(before) - counting - set(before.isr if is_led_on else ()):
        end = agreed(state.broker(number).on_disk, state.acked)
        others = [agreed(state.broker(one).on_disk, state.acked) for one in counting]
        if end > max(others, default=0):
            raise ViolationError(f"broker {number} counts no more, and has more on its disk than {set(counting)}")


def _plain(state: State) -> State:
    """The same with the least epochs and versions."""
    epochs = sorted({*state.acked, *(epoch for broker in state.brokers for epoch in broker.log)})
    least = {epoch: number for number, epoch in enumerate(epochs, start=1)}
    present = state.partition.leader_epoch
    least.setdefault(present, len(least) + 1)
    brokers = []
    for broker in state.brokers:
        leads = broker.leads
        if leads is not None:
            assert leads[1 + _EPOCH] == present, state
            numbers = {_EPOCH: least[present], _VERSION: 0, _AWAITED: 0}
            leads = (leads[0], *(numbers.get(at, value) for at, value in enumerate(leads[1:])))
        brokers.append(broker._replace(log=tuple(least[epoch] for epoch in broker.log), leads=leads))
    return state._replace(
        partition=with_fields(state.partition, version=0, leader_epoch=least[present]),
        brokers=tuple(brokers),
        acked=tuple(least[epoch] for epoch in state.acked),
    )


def explored(model: Model) -> int:
    """How many states there are, each of which was looked at. ViolationError, with the shortest way to it."""
    ways: dict[State, tuple[State | None, str]] = {model.beginning: (None, "")}
    nearest = [model.beginning]
    while nearest:
        farther = []
        for state in nearest:
            for name, step in model.steps(state):
                try:
                    after = step()
                except AssertionError as error:
                    way = "\n".join((*_way(ways, state), name))
                    raise ViolationError(f"{error}\n{way}") from error
                if after not in ways:
                    ways[after] = (state, name)
                    farther.append(after)
        nearest = farther
    return len(ways)


def _way(ways: dict[State, tuple[State | None, str]], state: State | None) -> list[str]:
    names = []
    while state is not None:
        state, name = ways[state]
        names.append(name)
    return names[-2::-1]
