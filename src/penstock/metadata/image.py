"""The cluster image: the immutable value that the metadata commands fold to.

Rules: an image is never changed; a later one shares with it what stayed. Only `apply` (metadata/apply.py) makes one of
another, and what it makes is a function of image, index and command, so every broker that has the same commands has the
same image. Equal images have equal bytes (metadata/snapshot.py).

What holds of every partition, whatever commands come:

    leader ∈ isr ⊆ replicas      and the leader is live
    isr is never empty           its last member stays in it, though away: nobody else has all that was acked
    eligible ∩ isr = ∅           and only while nothing is acked: its leader waits until it has told that it goes on
    unsure ∩ eligible = ∅        the same; in the ISR only its last member can be unsure, and only while nobody leads
    observers ∩ replicas = ∅     so they are in none of the sets above, and decide nothing
    leader_epoch, version        only rise
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from penstock.access import User
from penstock.access.users import EVERYBODY
from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.base.partitioning import PartitionBy
from penstock.metadata.commands import Recovery
from penstock.metadata.persistent import PersistentMap


class PartitionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who holds a partition and who leads it. Partitions that agree in all of it may share one."""

    replicas: tuple[BrokerId, ...]  # the preferred leader first
    isr: tuple[BrokerId, ...]  # in-sync replicas, in the order of `replicas`; never empty
    eligible: tuple[BrokerId, ...]  # left the ISR with all that was acked: may lead until commits resume
    leader: BrokerId | None  # None: nobody may lead now
    leader_epoch: LeaderEpoch  # raised whenever a leadership starts, also by the same broker
    version: int  # raised with every change: what a change of the ISR compares with
    # The last member of the ISR came back without its disk, and leads only with this one. Nobody leads meanwhile.
    awaited_data_dir_id: str | None = None
    # Had all that was acked, and came back from an unclean stop: may have lost something; see `elections`.
    unsure: tuple[BrokerId, ...] = ()
    observers: tuple[BrokerId, ...] = ()  # have a copy for readers, and nothing to say

    @classmethod
    def made(
        cls,
        replicas: tuple[BrokerId, ...],
        isr: tuple[BrokerId, ...] | None = None,
        observers: tuple[BrokerId, ...] = (),
    ) -> PartitionState:
        """As it is when it is made: all replicas that are there are in sync, for there is nothing yet."""
        isr = replicas if isr is None else isr
        return cls(replicas, isr, (), isr[0], LeaderEpoch(1), 1, observers=observers)

    @property
    def holders(self) -> tuple[BrokerId, ...]:
        """Who has a copy: the replicas, then the observers."""
        return (*self.replicas, *self.observers) if self.observers else self.replicas


class Truncated(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What comes before an offset of a partition was given up, by request; see `penstock.node.partition`."""

    partition: PartitionId
    before: Offset
    leader_epoch: LeaderEpoch  # in which `before` was committed: only what was written up to then is meant


class Archived(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An archive has what comes before an offset of a partition; see `penstock.node.archives`."""

    partition: PartitionId
    archive: str  # its name
    end_offset: Offset
    leader_epoch: LeaderEpoch  # in which all before was committed: only what was written up to then is meant


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where in a partition the keys end that left it for partitions that were added; see `penstock.node.moving`."""

    partitions: int  # how many there were once these were added
    partition: PartitionId  # that they left
    end_offset: Offset  # what it has of them comes before
    leader_epoch: LeaderEpoch  # in which all before that was committed
    marked_us: int  # by the clock of the broker that led it, and no earlier than what it has


class StreamState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stream as the cluster agreed on it."""

    stream_id: StreamId
    config: StreamConfig  # `replicas` and `min_isr` are numbers
    created_us: int
    partitions: tuple[PartitionState, ...]  # by their number
    truncated: tuple[Truncated, ...] = ()  # by partition; of most streams none ever is
    intake: Intake = Intake.OPEN
    intake_us: int = 0  # when that began; rises with every change. 0: it was never another one
    archived: tuple[Archived, ...] = ()  # by partition, then by archive
    counts: tuple[int, ...] = ()  # how many partitions it had, one after the other; none: it always had as many
    marks: tuple[Mark, ...] = ()  # by number of partitions, then by partition
    owner: str = ""  # the user who made it; "": nobody had to log in then, or it is Penstock's own

    @property
    def name(self) -> str:
        """The stream's name, unique in the cluster."""
        return self.config.name

    @property
    def takes(self) -> bool:
        """Whether it takes messages at all."""
        return self.intake is Intake.OPEN

    @property
    def may_grow(self) -> bool:
        """Whether anything can be appended to it: messages, or while it is paused what has an offset of its own."""
        return self.intake in (Intake.OPEN, Intake.PAUSED)

    @property
    def queue(self) -> str | None:
        """The queue group of NATS in which its leaders listen: of a group of streams, or its own; None: in none."""
        if not self.config.competes:
            return None
        return self.config.group or f"_penstock.{self.stream_id}.{self.created_us}"

    def with_partitions(self, partitions: tuple[PartitionState, ...]) -> StreamState:
        """This stream with its partitions in another state."""
        return StreamState(
            self.stream_id,
            self.config,
            self.created_us,
            partitions,
            self.truncated,
            self.intake,
            self.intake_us,
            self.archived,
            self.counts,
            self.marks,
            self.owner,
        )

    def truncated_at(self, number: int) -> Truncated | None:
        """What was given up of a partition by request."""
        return next((one for one in self.truncated if one.partition == number), None) if self.truncated else None

    def archived_at(self, number: int) -> tuple[Archived, ...]:
        """What each archive of the stream has of a partition; none where one of them has not told of it."""
        found = tuple(one for one in self.archived if one.partition == number)
        return found if len(found) == len({one.archive for one in self.archived}) else ()

    @property
    def moves_keys(self) -> bool:
        """Whether partitions were added to it, and a key has one place among them."""
        by_keys = self.config.split.how is not PartitionBy.GROUP and not self.config.is_internal
        return bool(self.counts) and by_keys

    def marked(self, partitions: int) -> dict[int, Mark]:
        """The marks of when it got so many partitions, by the partition that keys left."""
        return {one.partition: one for one in self.marks if one.partitions == partitions}

    @property
    def is_moving(self) -> bool:
        """Whether keys are on their way to partitions that were added last."""
        return self.moves_keys and len(self.marked(self.counts[-1])) < self.counts[-2]

    def partition_keys(self) -> tuple[PartitionKey, ...]:
        """What its partitions are kept under."""
        return tuple(PartitionKey(self.stream_id, PartitionId(number)) for number in range(len(self.partitions)))


class BrokerState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One broker that was ever registered."""

    broker_id: BrokerId
    address: str  # HOST:PORT of its socket API
    rack: str | None
    data_dir_id: str  # of the disk with which it registered last
    incarnation: Incarnation  # of its present run, or its last
    is_live: bool  # registered, and neither fenced nor stopped since
    clean_stop: bool  # whether its last stop lost nothing that was written, as far as is known
    broker_version: str
    process: str = ""  # that registered it last


class BrokerLoad(NamedTuple):
    """How much of the cluster's work is meant for a broker."""

    preferred: int = 0  # partitions that it leads when all are well
    replicas: int = 0  # those that only observe, too


class Owned(NamedTuple):
    """What the streams come to that a user has made."""

    streams: int = 0
    partitions: int = 0
    message_ids: int = 0  # that leaders may keep of all these partitions

    @classmethod
    def of(cls, state: StreamState, by: int = 1) -> Owned:
        """What one stream comes to; `by`: how many times."""
        return cls(1, len(state.partitions), message_ids_of(state.config)).times(by)

    @classmethod
    def needed(cls, config: StreamConfig) -> Owned:
        """What a stream of that config comes to."""
        return cls(1, config.partitions, message_ids_of(config))

    def beyond(self, other: Owned) -> Owned:
        """How much more of each this is; of what is less, nothing."""
        return Owned(*(max(0, one - less) for one, less in zip(self, other, strict=True)))

    def times(self, by: int) -> Owned:
        """As many times of everything."""
        return Owned(*(by * one for one in self))

    def plus(self, other: Owned) -> Owned:
        """Both together."""
        return Owned(*(one + more for one, more in zip(self, other, strict=True)))


def message_ids_of(config: StreamConfig) -> int:
    """How many message ids leaders may keep of all partitions of a stream."""
    return 0 if config.dedup_window_ms is None else config.partitions * config.dedup_ids_max


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to. `stream` is the stream it was about, as it is now (or was, when deleted)."""

    stream: StreamState | None = None
    changed: bool = False
    deleted: bool = False
    partitions: tuple[PartitionKey, ...] = ()  # whose state changed, or that are new, or gone
    unclean: tuple[PartitionKey, ...] = ()  # those that got a leader which may lack what was acked
    results: tuple[int | RemoteError, ...] = ()  # of each ISR change or election: the partition's version, or why not
    recovered: tuple[Recovery, ...] = ()  # of those that the longest log leads now: which logs were compared


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All that the commands up to `index` add up to."""

    index: int = 0
    streams: PersistentMap[StreamId, StreamState] = field(default_factory=PersistentMap)
    names: PersistentMap[str, StreamId] = field(default_factory=PersistentMap)
    brokers: PersistentMap[BrokerId, BrokerState] = field(default_factory=PersistentMap)
    loads: Mapping[BrokerId, BrokerLoad] = field(default_factory=dict)  # follows from `streams`; never changed in place
    cluster_id: str = ""
    users: PersistentMap[str, User] = field(default_factory=PersistentMap)  # by name; EVERYBODY among them
    decoy_key: bytes = b""  # drawn with the first user: what those are shown is made of it who are no users
    acted: int = 0  # the index of the last command that somebody is answerable for; see `acts`
    owned: Mapping[str, Owned] = field(default_factory=dict)  # by owner, as `owned_by`; as `loads`

    @property
    def is_guarded(self) -> bool:
        """Whether everybody has to log in: since there was a first user, who cannot be the last to go."""
        return bool(self.users)

    def user(self, name: str) -> User:
        """The user of that name, or EVERYBODY; RemoteError user_not_found."""
        found = self.users.get(name)
        if found is None:
            raise RemoteError(ErrorCode.USER_NOT_FOUND, f"there is no user {name!r}", user=name)
        return found

    def administrators(self) -> list[str]:
        """Who may do everything, by name."""
        return sorted(name for name, user in self.users.items() if user.is_admin and name != EVERYBODY)

    def by_name(self, name: str) -> StreamState:
        """The stream of that name; RemoteError stream_not_found."""
        stream_id = self.names.get(name)
        if stream_id is None:
            raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}", name=name)
        return self.streams[stream_id]

    def by_id(self, stream_id: int) -> StreamState:
        """The stream with that id; RemoteError stream_changed if it was deleted, stream_not_found if it never was."""
        state = self.streams.get(StreamId(stream_id))
        if state is not None:
            return state
        if 0 < stream_id <= self.index:
            text = f"stream {stream_id} was deleted; a stream that was created again under its name is another one"
            raise RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=stream_id)
        raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream with id {stream_id}", stream_id=stream_id)

    def partition(self, stream_id: int, number: int) -> PartitionState:
        """One partition; RemoteError as `by_id`, bad_request if the stream has no such partition."""
        state = self.by_id(stream_id)
        if not 0 <= number < len(state.partitions):
            text = f"stream {state.name!r} has {len(state.partitions)} partitions; there is no partition {number}"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return state.partitions[number]

    def live_brokers(self) -> frozenset[BrokerId]:
        """Who is there now."""
        return frozenset(broker_id for broker_id, broker in self.brokers.items() if broker.is_live)

    def live_run(self, broker_id: int, incarnation: int) -> BrokerState:
        """That broker, which is live in that run; RemoteError stale_incarnation."""
        broker = self.brokers.get(BrokerId(broker_id))
        if broker is not None and broker.is_live and broker.incarnation == incarnation:
            return broker
        if broker is None:
            reason = f"broker {broker_id} is not registered"
        elif broker.incarnation != incarnation:
            reason = f"broker {broker_id} is registered as run {broker.incarnation}, not {incarnation}"
        else:
            reason = f"run {incarnation} of broker {broker_id} was fenced, or has stopped"
        raise RemoteError(ErrorCode.STALE_INCARNATION, f"{reason}; it has to register again", broker_id=broker_id)

    def with_stream(self, state: StreamState) -> ClusterImage:
        """This image with a new stream."""
        return replace(
            self,
            streams=self.streams.with_item(state.stream_id, state),
            names=self.names.with_item(state.name, state.stream_id),
            loads=_shifted(self.loads, state.partitions, +1),
            owned=self._owning(state, +1),
        )

    def with_placed(self, state: StreamState) -> ClusterImage:
        """This image with a stream of it on other brokers."""
        loads = _shifted(self.loads, self.streams[state.stream_id].partitions, -1)
        return replace(self.with_changed(state), loads=_shifted(loads, state.partitions, +1))

    def with_changed(self, state: StreamState) -> ClusterImage:
        """This image with a stream of it changed, on the same brokers."""
        before = self.streams[state.stream_id]
        streams = self.streams.with_item(state.stream_id, state)
        if Owned.of(before) == Owned.of(state):
            return replace(self, streams=streams)
        owned = dict(self.owned)
        if _is_owned(state, self.users):
            owned[state.owner] = owned[state.owner].plus(Owned.of(before, -1)).plus(Owned.of(state))
        return replace(self, streams=streams, owned=owned)

    def without_stream(self, state: StreamState) -> ClusterImage:
        """This image without it."""
        return replace(
            self,
            streams=self.streams.without(state.stream_id),
            names=self.names.without(state.name),
            loads=_shifted(self.loads, state.partitions, -1),
            owned=self._owning(state, -1),
        )

    def without_user(self, name: str) -> ClusterImage:
        """This image without it. Its streams stay, and are nobody's: one that is made later is another user."""
        owned = {owner: count for owner, count in self.owned.items() if owner != name}
        return replace(self, users=self.users.without(name), owned=owned)

    def _owning(self, state: StreamState, by: int) -> Mapping[str, Owned]:
        if not _is_owned(state, self.users):
            return self.owned
        owned = dict(self.owned)
        now = owned.pop(state.owner, Owned()).plus(Owned.of(state, by))
        if now.streams:  # who has none has no entry, as with loads
            owned[state.owner] = now
        return owned


def owned_by(streams: Iterable[StreamState], users: Mapping[str, User]) -> Mapping[str, Owned]:
    """What each of these users has made of these streams."""
    owned: dict[str, Owned] = {}
    for state in streams:
        if _is_owned(state, users):
            owned[state.owner] = owned.get(state.owner, Owned()).plus(Owned.of(state))
    return owned


def _is_owned(state: StreamState, users: Mapping[str, User]) -> bool:
    """Whether its owner is there; one who was made since has only the same name."""
    owner = users.get(state.owner) if state.owner else None
    return owner is not None and owner.made_index < state.stream_id


def loads_of(streams: Iterable[StreamState]) -> Mapping[BrokerId, BrokerLoad]:
    """How the partitions of these streams are spread over brokers."""
    return _shifted({}, (partition for state in streams for partition in state.partitions), +1)


def _shifted(
    loads: Mapping[BrokerId, BrokerLoad], partitions: Iterable[PartitionState], by: int
) -> Mapping[BrokerId, BrokerLoad]:
    preferred: Counter[BrokerId] = Counter()
    held: Counter[BrokerId] = Counter()
    for partition in partitions:
        preferred[partition.replicas[0]] += by
        for broker_id in partition.holders:
            held[broker_id] += by
    shifted = dict(loads)
    for broker_id, count in held.items():
        load = shifted.pop(broker_id, BrokerLoad())
        if load.replicas + count:  # who holds nothing has no entry, so that equal images are equal
            shifted[broker_id] = BrokerLoad(load.preferred + preferred[broker_id], load.replicas + count)
    return shifted
