"""Snapshot encoding of an image: sent to, or kept by, a broker instead of all earlier commands.

Rules: equal images have equal bytes, however they came about, so that brokers can compare a digest. Derived fields
(names, loads, owned) are not stored. Bytes may come from a network: no image is built that breaks the image's
invariants (metadata/image.py). Limits that a later version may tighten are not checked: existing state stays valid.

    MessagePack, one array:   version | index | cluster id | brokers by id | streams by id
    broker                    the fields of BrokerState in their order
    stream                    id | config, a map | created_us | partitions: the fields of PartitionState in their order
                              | truncated: the fields of Truncated in their order | intake | intake_us
                              | archived: the fields of Archived in their order
                              | counts | marks: the fields of Mark in their order | owner
                              | has_marks (version 4, only of streams that have companion logs)
                              | has_consumers (the same, only of streams that have logs of consumers)

    users (version 3)         the fields of User in their order, by name | the index of the last act | the key of decoys
    level (version 4)         the cluster's feature level: major, minor | if there are any, the decisions on JetStream's
                              API: the fields of ApiDecision in their order, by prefix

With added partitions the version is 2: a reader that does not know them would look for keys in the wrong place. With
users it is 3: a reader that does not know them would let every client in. Above the first feature level it is 4, so
that 0.3 refuses it; below, everything is written as 0.3 did.

A field that a later version adds stands at the end of its array. From version 4 on the level signals changed meanings:
a reader refuses a level that it does not know before it decodes the rest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from penstock.access import User
from penstock.access.users import EVERYBODY
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages.fields import INT64_MAX
from penstock.metadata.api_decisions import PREFIXES_MAX, WHY_CHARS_MAX, ApiDecision, ApiState
from penstock.metadata.feature_levels import FIRST_LEVEL, NEWEST_LEVEL, FeatureLevel, level_of, level_text
from penstock.metadata.image import BrokerState, ClusterImage, PartitionState, StreamState, loads_of, owned_by
from penstock.metadata.persistent_map import PersistentMap
from penstock.metadata.subject_heads import SubjectHeads

SNAPSHOT_VERSION = 4
_WITHOUT_LEVEL = 3
_WITHOUT_USERS = 2
_FIRST_VERSION = 1  # readable by all versions; for images without newer features

_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
_EPOCH_END = 2**32
_BROKER_ID_END = 2**31


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    cluster_id: str
    brokers: tuple[BrokerState, ...]
    streams: tuple[StreamState, ...]
    users: tuple[User, ...] = ()
    acted: int = 0
    decoy_key: bytes = b""
    feature_level: FeatureLevel = FIRST_LEVEL
    apis: tuple[ApiDecision, ...] = ()


class _WithoutLevel(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    cluster_id: str
    brokers: tuple[BrokerState, ...]
    streams: tuple[StreamState, ...]
    users: tuple[User, ...]
    acted: int
    decoy_key: bytes


class _WithoutUsers(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    cluster_id: str
    brokers: tuple[BrokerState, ...]
    streams: tuple[StreamState, ...]


class _Brokers(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: int
    cluster_id: str
    brokers: tuple[BrokerState, ...]


class _Version(msgspec.Struct, frozen=True, array_like=True):
    version: int


class _Level(msgspec.Struct, frozen=True, array_like=True):
    version: int
    index: msgspec.Raw
    cluster_id: msgspec.Raw
    brokers: msgspec.Raw
    streams: msgspec.Raw
    users: msgspec.Raw
    acted: msgspec.Raw
    decoy_key: msgspec.Raw
    feature_level: FeatureLevel


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Snapshot)
_brokers_decoder = msgspec.msgpack.Decoder(_Brokers)
_version_decoder = msgspec.msgpack.Decoder(_Version)
_level_decoder = msgspec.msgpack.Decoder(_Level)


def encode_image(image: ClusterImage) -> bytes:
    brokers = tuple(broker for _, broker in sorted(image.brokers.items()))
    streams = _stored(state for _, state in sorted(image.streams.items()))
    users = tuple(user for _, user in sorted(image.users.items()))
    of_users = (users, image.acted, image.decoy_key)
    if image.feature_level > FIRST_LEVEL:
        before = (SNAPSHOT_VERSION, image.index, image.cluster_id, brokers, streams)
        apis = (image.apis,) if image.apis else ()
        return _encoder.encode((*before, *of_users, image.feature_level, *apis))
    if image.users:
        before = (_WITHOUT_LEVEL, image.index, image.cluster_id, brokers, streams)
        return _encoder.encode(_WithoutLevel(*before, *of_users))
    version = _WITHOUT_USERS if any(state.counts for state in image.streams.values()) else _FIRST_VERSION
    return _encoder.encode(_WithoutUsers(version, image.index, image.cluster_id, brokers, streams))


def _stored(streams: Iterable[StreamState]) -> Any:
    """Return the streams as they are encoded: those without companion logs as before there were any."""
    return tuple(map(_fields, streams))


def _fields(state: StreamState) -> Any:
    if state.has_consumers:
        return state
    fields = msgspec.structs.astuple(state)
    return fields[:-1] if state.has_marks else fields[:-2]


def image_digest(image: ClusterImage) -> bytes:
    """Return 32 bytes that are equal for equal images only."""
    return hashlib.sha256(encode_image(image)).digest()


def decode_image(data: bytes) -> ClusterImage:
    """Decode an image. Raise RemoteError (unsupported_version for a later version, bad_frame if invalid)."""
    try:
        version = _version_decoder.decode(data).version
        if version > SNAPSHOT_VERSION:
            text = f"a snapshot of version {version}; this Penstock reads up to {SNAPSHOT_VERSION}: upgrade it"
            raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text)
        _expect(version >= 1, f"version {version}")
        _check_level(data, version)
        snapshot = _decoder.decode(data)
    except _MALFORMED as error:
        raise RemoteError(ErrorCode.BAD_FRAME, f"not a snapshot of a cluster image: {error}") from None
    _expect(0 <= snapshot.index <= INT64_MAX, f"index {snapshot.index}")
    _check_brokers(snapshot)
    _check_streams(snapshot)
    _check_users(snapshot)
    _check_apis(snapshot)
    has_level = snapshot.feature_level > FIRST_LEVEL
    _expect(has_level is (snapshot.version > _WITHOUT_LEVEL), f"level {snapshot.feature_level} in version {version}")
    alike: dict[PartitionState, PartitionState] = {}
    users = PersistentMap({user.name: user for user in snapshot.users})
    return ClusterImage(
        snapshot.index,
        PersistentMap({state.stream_id: _shared(state, alike) for state in snapshot.streams}),
        PersistentMap({state.name: state.stream_id for state in snapshot.streams}),
        PersistentMap({broker.broker_id: broker for broker in snapshot.brokers}),
        loads_of(snapshot.streams),
        snapshot.cluster_id,
        users,
        snapshot.decoy_key,
        snapshot.acted,
        owned_by(snapshot.streams, users),
        snapshot.feature_level,
        snapshot.apis,
        SubjectHeads.of((state.stream_id, state.config) for state in snapshot.streams),
        frozenset(state.stream_id for state in snapshot.streams if state.config.named_consumers),
    )


def decode_brokers(data: bytes) -> tuple[BrokerState, ...]:
    """Return only the brokers of an image, unchecked, in a fraction of the time. Raise RemoteError (bad_frame)."""
    try:
        return _brokers_decoder.decode(data).brokers
    except _MALFORMED as error:
        raise RemoteError(ErrorCode.BAD_FRAME, f"not a snapshot of a cluster image: {error}") from None


def _shared(state: StreamState, alike: dict[PartitionState, PartitionState]) -> StreamState:
    partitions = tuple(alike.setdefault(partition, partition) for partition in state.partitions)
    return state.with_partitions(partitions)


def _expect(is_so: bool, found: str) -> None:
    if not is_so:
        raise RemoteError(ErrorCode.BAD_FRAME, f"invalid snapshot of a cluster image: {found}")


def _check_level(data: bytes, version: int) -> None:
    """Check the level before anything is decoded that a later version may have changed."""
    if version <= _WITHOUT_LEVEL:
        return
    level = _level_decoder.decode(data).feature_level
    if level > NEWEST_LEVEL:
        text = f"a cluster at feature level {level_text(level)}; this Penstock knows up to {level_text(NEWEST_LEVEL)}"
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, f"{text}: upgrade it")


def _check_brokers(snapshot: _Snapshot) -> None:
    last: int = 0
    for broker in snapshot.brokers:
        _expect(last < broker.broker_id < _BROKER_ID_END, f"broker {broker.broker_id} behind broker {last}")
        last = broker.broker_id
        _expect(1 <= broker.incarnation <= snapshot.index, f"run {broker.incarnation} of broker {last}")
        is_allowed = level_of(broker.broker_version) >= snapshot.feature_level
        _expect(is_allowed, f"broker {last} of version {broker.broker_version} at level {snapshot.feature_level}")


def _check_streams(snapshot: _Snapshot) -> None:
    live = {broker.broker_id for broker in snapshot.brokers if broker.is_live}
    is_allowed = snapshot.version > _WITHOUT_LEVEL or not any(state.companions for state in snapshot.streams)
    _expect(is_allowed, f"companions in version {snapshot.version}")
    names = set()
    last: int = 0
    for state in snapshot.streams:
        _expect(last < state.stream_id <= snapshot.index, f"stream {state.stream_id} behind stream {last}")
        last = state.stream_id
        _expect(state.name not in names, f"two streams {state.name!r}")
        names.add(state.name)
        _check_config(state)
        _check_truncated(state)
        _check_archived(state)
        _check_grown(state)
        for partition in state.partitions:
            if not _is_sound(partition, live if snapshot.brokers else partition.replicas):
                _expect(False, f"stream {last} with {partition}")


def _check_users(snapshot: _Snapshot) -> None:
    last = ""
    for user in snapshot.users:
        _expect(last < user.name and 0 < user.made_index <= snapshot.index, f"user {user.name!r} behind {last!r}")
        last = user.name
        is_sound = user.rules == tuple(sorted(set(user.rules)))
        ids = [one.credential_id for one in user.credentials]
        is_sound &= len(set(ids)) == len(ids) and bool(ids) is (user.name != EVERYBODY)
        _expect(is_sound, f"user {user.name!r} with {len(ids)} credentials and {len(user.rules)} rules")
    rulers = [user.name for user in snapshot.users if user.is_admin and user.name != EVERYBODY]
    _expect(bool(rulers) is bool(snapshot.users), "users, and no administrator among them")
    _expect(0 <= snapshot.acted <= snapshot.index, f"an act at {snapshot.acted}")
    is_allowed = bool(snapshot.users) is (snapshot.version >= _WITHOUT_LEVEL) or snapshot.version > _WITHOUT_LEVEL
    _expect(is_allowed, f"users in version {snapshot.version}")


def _check_apis(snapshot: _Snapshot) -> None:
    last = ""
    for one in snapshot.apis:
        is_sound = last < one.prefix and 0 < one.since <= one.index <= snapshot.index
        is_sound &= one.state is not ApiState.FORGOTTEN and len(one.why) <= WHY_CHARS_MAX
        _expect(is_sound and 0 <= one.broker_id < _BROKER_ID_END, f"API {one.prefix!r} behind {last!r}")
        last = one.prefix
    is_allowed = len(snapshot.apis) <= (PREFIXES_MAX if snapshot.version > _WITHOUT_LEVEL else 0)
    _expect(is_allowed, f"{len(snapshot.apis)} APIs in version {snapshot.version}")


def _check_config(state: StreamState) -> None:
    config = state.config
    _expect(
        len(state.partitions) == config.partitions, f"stream {state.stream_id} with {len(state.partitions)} partitions"
    )
    _expect(config.replicas is not None and config.min_isr is not None, f"stream {state.stream_id} without its numbers")


def _check_truncated(state: StreamState) -> None:
    _expect(0 <= state.intake_us <= INT64_MAX, f"stream {state.stream_id} with {state.intake_us}")
    last = -1
    for one in state.truncated:
        is_sound = last < one.partition < len(state.partitions) and 0 < one.before <= INT64_MAX
        _expect(is_sound and 0 < one.leader_epoch < _EPOCH_END, f"stream {state.stream_id} with {one}")
        last = one.partition


def _check_archived(state: StreamState) -> None:
    last: tuple[int, str] = (-1, "")
    for one in state.archived:
        is_sound = last < (one.partition, one.archive) and 0 <= one.partition < len(state.partitions)
        is_sound &= 0 <= one.end_offset <= INT64_MAX and 0 < one.leader_epoch < _EPOCH_END
        _expect(is_sound, f"stream {state.stream_id} with {one}")
        last = one.partition, one.archive


def _check_grown(state: StreamState) -> None:
    counts = state.counts
    rises = all(0 < earlier < later for earlier, later in pairwise(counts))
    is_sound = rises and len(counts) != 1 and counts[-1:] in ((), (len(state.partitions),))
    _expect(is_sound and len(counts) <= limits.KEY_MAP_VERSIONS_MAX, f"stream {state.stream_id} with {counts}")
    donors = dict(zip(counts[1:], counts[:-1], strict=True))
    last = (-1, -1)
    for one in state.marks:
        is_sound = last < (one.partitions, one.partition) and 0 <= one.partition < donors.get(one.partitions, 0)
        is_sound &= 0 <= one.end_offset <= INT64_MAX and 0 < one.leader_epoch < _EPOCH_END
        is_sound &= 0 <= one.marked_us <= INT64_MAX
        _expect(is_sound, f"stream {state.stream_id} with {one}")
        last = one.partitions, one.partition


def _is_sound(partition: PartitionState, live: Iterable[BrokerId]) -> bool:
    replicas = partition.replicas
    return (
        all(0 < broker_id < _BROKER_ID_END for broker_id in partition.holders)
        and len(set(partition.holders)) == len(partition.holders)
        and len(partition.isr) > 0
        and partition.isr == tuple(broker_id for broker_id in replicas if broker_id in partition.isr)
        and set(partition.eligible) <= set(replicas) - set(partition.isr)
        and set(partition.unsure) <= set(replicas) - set(partition.eligible)
        and (partition.leader is None or set(partition.unsure).isdisjoint(partition.isr))
        and (len(partition.isr) == 1 or set(partition.unsure).isdisjoint(partition.isr))
        and (partition.leader is None or (partition.leader in partition.isr and partition.leader in live))
        and 0 < partition.leader_epoch < _EPOCH_END
        and 0 < partition.version <= INT64_MAX
    )
