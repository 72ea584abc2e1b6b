"""The cluster image: the immutable value that the metadata commands fold to.

Rules: an image is never changed; a later one shares unchanged parts with it. Only `effects.apply` derives one from
another, as a function of image, index and command, so every broker with the same commands has the same image. Equal
images have equal bytes (`persistence.snapshot`).

Invariants of every partition, after any command:

    leader ∈ isr ⊆ replicas      and the leader is live
    isr is never empty           its last member stays in it, though away: no other broker has every acked message
    eligible ∩ isr = ∅           and only while nothing is acked: its leader waits until it reported that it commits
    unsure ∩ eligible = ∅        the same; in the ISR only its last member can be unsure, and only without a leader
    observers ∩ replicas = ∅     so they are in none of the sets above, and affect no decision
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
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.base.partitioning import PartitionBy
from penstock.metadata.api_decisions import ApiDecision
from penstock.metadata.commands import PartitionRecovery
from penstock.metadata.feature_levels import FIRST_LEVEL, Feature, FeatureLevel
from penstock.metadata.persistent_map import PersistentMap
from penstock.metadata.subject_heads import SubjectHeads


class PartitionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The replicas and the leader of a partition. Partitions with equal state may share one object."""

    replicas: tuple[BrokerId, ...]  # the preferred leader first
    isr: tuple[BrokerId, ...]  # in-sync replicas, in the order of `replicas`; never empty
    eligible: tuple[BrokerId, ...]  # left the ISR with every acked message: may lead until commits resume
    leader: BrokerId | None  # None: no replica may lead now
    leader_epoch: LeaderEpoch  # raised at each start of a leadership, also of the same broker
    version: int  # raised with every change; ISR changes compare with it
    # The last member of the ISR returned without this disk; only with it may it lead. There is no leader meanwhile.
    awaited_data_dir_id: str | None = None
    # Had every acked message, and returned from an unclean stop: may have lost messages; see `elections`.
    unsure: tuple[BrokerId, ...] = ()
    observers: tuple[BrokerId, ...] = ()  # read replicas: serve readers, affect nothing else

    @classmethod
    def made(
        cls,
        replicas: tuple[BrokerId, ...],
        isr: tuple[BrokerId, ...] | None = None,
        observers: tuple[BrokerId, ...] = (),
    ) -> PartitionState:
        """Return the initial state: all live replicas are in sync, because there is no data yet."""
        isr = replicas if isr is None else isr
        return cls(replicas, isr, (), isr[0], LeaderEpoch(1), 1, observers=observers)

    @property
    def holders(self) -> tuple[BrokerId, ...]:
        """All brokers with a copy: the replicas, then the observers."""
        return (*self.replicas, *self.observers) if self.observers else self.replicas


class TruncatedEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition was truncated up to an offset, by request; see `penstock.node.partition.partition`."""

    partition: PartitionId
    before: Offset
    leader_epoch: LeaderEpoch  # in which `before` was committed; applies only to messages written up to then


class ArchivedEnd(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An archive has everything before an offset of a partition; see `penstock.node.replicas.archives`."""

    partition: PartitionId
    archive: str  # its name
    end_offset: Offset
    leader_epoch: LeaderEpoch  # in which everything before was committed; applies only to messages written up to then


class KeyBoundary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """End of a partition's messages with keys that moved to added partitions; see
    `penstock.node.replicas.key_migration`.
    """

    partitions: int  # number of partitions after that addition
    partition: PartitionId  # the partition that the keys left
    end_offset: Offset  # its messages with these keys lie before it
    leader_epoch: LeaderEpoch  # in which everything before was committed
    marked_us: int  # by the leader's clock, at least the timestamps before it


_COMPANIONS = {
    (False, False): (),
    (True, False): (CompanionKind.MARKS,),
    (False, True): (CompanionKind.CONSUMERS,),
    (True, True): (CompanionKind.MARKS, CompanionKind.CONSUMERS),
}


class StreamState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stream as the cluster agreed on it."""

    stream_id: StreamId
    config: StreamConfig  # `replicas` and `min_isr` are numbers
    created_us: int
    partitions: tuple[PartitionState, ...]  # by their number
    truncated: tuple[TruncatedEnd, ...] = ()  # by partition; empty for most streams
    intake: Intake = Intake.OPEN
    intake_us: int = 0  # when it began; rises with every change; 0: never changed
    archived: tuple[ArchivedEnd, ...] = ()  # by partition, then by archive
    counts: tuple[int, ...] = ()  # its partition counts, in order; empty: never changed
    marks: tuple[KeyBoundary, ...] = ()  # by number of partitions, then by partition
    owner: str = ""  # the user who created it; "": authentication was off, or it is an internal stream
    has_marks: bool = False  # each partition has a log of marks: see `penstock.metadata.companions`
    has_consumers: bool = False  # … and a log of consumers

    @property
    def name(self) -> str:
        """The stream's name, unique in the cluster."""
        return self.config.name

    @property
    def takes(self) -> bool:
        """True if it accepts messages."""
        return self.intake is Intake.OPEN

    @property
    def may_grow(self) -> bool:
        """True if data can be appended: messages, or while paused rows that carry their own offsets."""
        return self.intake in (Intake.OPEN, Intake.PAUSED)

    @property
    def queue(self) -> str | None:
        """The NATS queue group of its leaders' subscriptions: a group of streams', or its own; None without one."""
        if not self.config.competes:
            return None
        return self.config.group or f"_penstock.{self.stream_id}.{self.created_us}"

    def with_partitions(self, partitions: tuple[PartitionState, ...]) -> StreamState:
        """Return this stream with these partitions."""
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
            self.has_marks,
            self.has_consumers,
        )

    @property
    def companions(self) -> tuple[CompanionKind, ...]:
        """The kinds of its companion logs: each partition has one of each."""
        return _COMPANIONS[self.has_marks, self.has_consumers]

    def truncated_at(self, number: int) -> TruncatedEnd | None:
        """The last requested truncation of a partition."""
        return next((one for one in self.truncated if one.partition == number), None) if self.truncated else None

    def archived_at(self, number: int) -> tuple[ArchivedEnd, ...]:
        """Each archive's state for a partition; empty if one of the stream's archives has not reported it."""
        found = tuple(one for one in self.archived if one.partition == number)
        return found if len(found) == len({one.archive for one in self.archived}) else ()

    @property
    def decides_rollups(self) -> bool:
        """True if leaders decide what its rollups hide (ADR 90); below feature level 0.4 each cleaner applies them."""
        return self.config.allow_rollup and self.has_marks

    @property
    def moves_keys(self) -> bool:
        """True if partitions were added and keys are bound to partitions."""
        by_keys = self.config.split.how is not PartitionBy.GROUP and not self.config.is_internal
        return bool(self.counts) and by_keys

    def marked(self, partitions: int) -> dict[int, KeyBoundary]:
        """The marks of the growth to that number of partitions, by the partition that keys left."""
        return {one.partition: one for one in self.marks if one.partitions == partitions}

    @property
    def is_moving(self) -> bool:
        """True while keys move to the partitions that were added last."""
        return self.moves_keys and len(self.marked(self.counts[-1])) < self.counts[-2]

    def partition_keys(self) -> tuple[PartitionKey, ...]:
        """The keys of its partitions."""
        return tuple(PartitionKey(self.stream_id, PartitionId(number)) for number in range(len(self.partitions)))


class BrokerState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A broker that has ever been registered."""

    broker_id: BrokerId
    address: str  # HOST:PORT of its socket API
    rack: str | None
    data_dir_id: str  # of the disk of its last registration
    incarnation: Incarnation  # broker epoch of its present or last run
    is_live: bool  # registered, and neither fenced nor stopped since
    clean_stop: bool  # True if its last stop lost nothing written, as far as is known
    broker_version: str
    process: str = ""  # the process of its last registration


class BrokerLoad(NamedTuple):
    """A broker's share of the cluster's partitions."""

    preferred: int = 0  # partitions whose preferred leader it is
    replicas: int = 0  # partitions of which it has a copy, observers included


class OwnedStreams(NamedTuple):
    """The resources used by the streams that a user created."""

    streams: int = 0
    partitions: int = 0
    message_ids: int = 0  # the most that leaders may keep for all these partitions

    @classmethod
    def of(cls, state: StreamState, by: int = 1) -> OwnedStreams:
        """The usage of one stream, `by` times."""
        return cls(1, len(state.partitions), message_ids_of(state.config)).times(by)

    @classmethod
    def needed(cls, config: StreamConfig) -> OwnedStreams:
        """The usage of a stream with that config."""
        return cls(1, config.partitions, message_ids_of(config))

    def beyond(self, other: OwnedStreams) -> OwnedStreams:
        """The excess over `other`, 0 where there is none."""
        return OwnedStreams(*(max(0, one - less) for one, less in zip(self, other, strict=True)))

    def times(self, by: int) -> OwnedStreams:
        return OwnedStreams(*(by * one for one in self))

    def plus(self, other: OwnedStreams) -> OwnedStreams:
        return OwnedStreams(*(one + more for one, more in zip(self, other, strict=True)))


def message_ids_of(config: StreamConfig) -> int:
    """The number of message ids that leaders may keep for all partitions of a stream."""
    return 0 if config.dedup_window_ms is None else config.partitions * config.dedup_ids_max


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The result of a command. `stream` is the stream concerned, as it is now (or was before it was deleted)."""

    stream: StreamState | None = None
    changed: bool = False
    deleted: bool = False
    partitions: tuple[PartitionKey, ...] = ()  # changed, new or deleted partitions
    unclean: tuple[PartitionKey, ...] = ()  # partitions whose new leader may lack acked messages
    results: tuple[int | RemoteError, ...] = ()  # of each ISR change or election: the partition's version, or the error
    recovered: tuple[PartitionRecovery, ...] = ()  # successful recoveries, with the compared logs


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The state after all commands up to `index`."""

    index: int = 0
    streams: PersistentMap[StreamId, StreamState] = field(default_factory=PersistentMap)
    # Another object whenever streams were created or deleted, or have other subjects: indexes are made again then.
    names: PersistentMap[str, StreamId] = field(default_factory=PersistentMap)
    brokers: PersistentMap[BrokerId, BrokerState] = field(default_factory=PersistentMap)
    loads: Mapping[BrokerId, BrokerLoad] = field(default_factory=dict)  # derived from `streams`; never changed in place
    cluster_id: str = ""
    users: PersistentMap[str, User] = field(default_factory=PersistentMap)  # by name; EVERYBODY among them
    decoy_key: bytes = b""  # random, set with the first user: source of the decoy challenges for unknown users
    acted: int = 0  # the index of the last audited command; see `audited_commands`
    owned: Mapping[str, OwnedStreams] = field(
        default_factory=dict
    )  # by owner, as `owned_by` gives; derived, as `loads`
    feature_level: FeatureLevel = FIRST_LEVEL  # rises only, by a command; no broker is older
    apis: tuple[ApiDecision, ...] = ()  # who serves JetStream's API, by prefix
    heads: SubjectHeads = field(default_factory=SubjectHeads)  # derived from `streams`
    naming: frozenset[StreamId] = frozenset()  # streams with `named_consumers`; derived from `streams`

    def has_feature(self, feature: Feature) -> bool:
        """True if the cluster's level allows the feature."""
        return self.feature_level >= feature.level

    def api(self, prefix: str) -> ApiDecision | None:
        """Return the decision who serves JetStream's API under a prefix; None: there is none."""
        return next((one for one in self.apis if one.prefix == prefix), None)

    @property
    def is_guarded(self) -> bool:
        """True if clients must log in: since the first user, because the last administrator cannot be deleted."""
        return bool(self.users)

    def user(self, name: str) -> User:
        """Return the user of that name, or EVERYBODY. Raise RemoteError (user_not_found)."""
        found = self.users.get(name)
        if found is None:
            raise RemoteError(ErrorCode.USER_NOT_FOUND, f"there is no user {name!r}", user=name)
        return found

    def administrators(self) -> list[str]:
        """The names of all administrators, sorted."""
        return sorted(name for name, user in self.users.items() if user.is_admin and name != EVERYBODY)

    def by_name(self, name: str) -> StreamState:
        """Return the stream of that name. Raise RemoteError (stream_not_found)."""
        stream_id = self.names.get(name)
        if stream_id is None:
            raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}", name=name)
        return self.streams[stream_id]

    def by_id(self, stream_id: int) -> StreamState:
        """Return the stream with that id. Raise RemoteError (stream_changed if deleted, else stream_not_found)."""
        state = self.streams.get(StreamId(stream_id))
        if state is not None:
            return state
        if 0 < stream_id <= self.index:
            text = f"stream {stream_id} was deleted; a stream that was created again under its name is another one"
            raise RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=stream_id)
        raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream with id {stream_id}", stream_id=stream_id)

    def partition(self, stream_id: int, number: int) -> PartitionState:
        """Return a partition. Raise RemoteError as `by_id`, or bad_request if the stream has no such partition."""
        state = self.by_id(stream_id)
        if not 0 <= number < len(state.partitions):
            text = f"stream {state.name!r} has {len(state.partitions)} partitions; there is no partition {number}"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        return state.partitions[number]

    def live_brokers(self) -> frozenset[BrokerId]:
        """The brokers that are registered and not fenced or stopped."""
        return frozenset(broker_id for broker_id, broker in self.brokers.items() if broker.is_live)

    def live_run(self, broker_id: int, incarnation: int) -> BrokerState:
        """Return the broker if it is live in that incarnation. Raise RemoteError (stale_incarnation)."""
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
        """Return this image with a new stream."""
        return replace(
            self,
            streams=self.streams.with_item(state.stream_id, state),
            names=self.names.with_item(state.name, state.stream_id),
            loads=_shifted(self.loads, state.partitions, +1),
            owned=self._owning(state, +1),
            heads=self.heads.with_config(state.stream_id, state.config),
            naming=_naming(self.naming, state),
        )

    def with_placed(self, state: StreamState) -> ClusterImage:
        """Return this image with one of its streams on other brokers."""
        loads = _shifted(self.loads, self.streams[state.stream_id].partitions, -1)
        return replace(self.with_changed(state), loads=_shifted(loads, state.partitions, +1))

    def with_changed(self, state: StreamState) -> ClusterImage:
        """Return this image with one of its streams changed, on the same brokers."""
        before = self.streams[state.stream_id]
        streams = self.streams.with_item(state.stream_id, state)
        names, heads, naming = self.names, self.heads, _naming(self.naming, state)
        # Not `held_subjects`: these stay the same when the last subject becomes the first former one.
        if (state.config.subjects, state.config.former_subjects) != (
            before.config.subjects,
            before.config.former_subjects,
        ):
            names = names.with_item(state.name, state.stream_id)  # another object: what is derived of subjects is dated
            heads = heads.without_config(state.stream_id, before.config)
            heads = heads.with_config(state.stream_id, state.config)
        if OwnedStreams.of(before) == OwnedStreams.of(state):
            return replace(self, streams=streams, names=names, heads=heads, naming=naming)
        owned = dict(self.owned)
        if owner_of(state, self.users) is not None:
            owned[state.owner] = owned[state.owner].plus(OwnedStreams.of(before, -1)).plus(OwnedStreams.of(state))
        return replace(self, streams=streams, names=names, heads=heads, naming=naming, owned=owned)

    def without_stream(self, state: StreamState) -> ClusterImage:
        """Return this image without the stream."""
        return replace(
            self,
            streams=self.streams.without(state.stream_id),
            names=self.names.without(state.name),
            loads=_shifted(self.loads, state.partitions, -1),
            owned=self._owning(state, -1),
            heads=self.heads.without_config(state.stream_id, state.config),
            naming=self.naming - {state.stream_id},
        )

    def without_user(self, name: str) -> ClusterImage:
        """Return this image without the user; its streams stay without an owner, also if the name is reused."""
        owned = {owner: count for owner, count in self.owned.items() if owner != name}
        return replace(self, users=self.users.without(name), owned=owned)

    def _owning(self, state: StreamState, by: int) -> Mapping[str, OwnedStreams]:
        if owner_of(state, self.users) is None:
            return self.owned
        owned = dict(self.owned)
        now = owned.pop(state.owner, OwnedStreams()).plus(OwnedStreams.of(state, by))
        if now.streams:  # as with loads, no entry without streams
            owned[state.owner] = now
        return owned


def _naming(known: frozenset[StreamId], state: StreamState) -> frozenset[StreamId]:
    if bool(state.config.named_consumers) == (state.stream_id in known):
        return known
    return known ^ {state.stream_id}


def owned_by(streams: Iterable[StreamState], users: Mapping[str, User]) -> Mapping[str, OwnedStreams]:
    """Return the usage of these users, by the streams that they created."""
    owned: dict[str, OwnedStreams] = {}
    for state in streams:
        if owner_of(state, users) is not None:
            owned[state.owner] = owned.get(state.owner, OwnedStreams()).plus(OwnedStreams.of(state))
    return owned


def owner_of(state: StreamState, users: Mapping[str, User]) -> User | None:
    """Return the user who created the stream, if it exists; a user created later has only the same name."""
    owner = users.get(state.owner) if state.owner else None
    return owner if owner is not None and owner.made_index < state.stream_id else None


def loads_of(streams: Iterable[StreamState]) -> Mapping[BrokerId, BrokerLoad]:
    """Return the partitions per broker of these streams."""
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
        if load.replicas + count:  # no entry without partitions, so that equal images compare equal
            shifted[broker_id] = BrokerLoad(load.preferred + preferred[broker_id], load.replicas + count)
    return shifted
