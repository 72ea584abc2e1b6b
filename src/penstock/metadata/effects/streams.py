"""Stream commands: create, alter, pause or seal, truncate, delete, start.

Rules: the result of a command is decided when it is applied: two creates of one name may be in flight, and the second
finds the stream. Config limits are not checked then, but when the command is proposed (`check_create`,
`altered_config`): a later version with tighter limits must not lose existing streams. A name is free again only when
its stream is deleted. Quotas of users are in the image, not a version's limit, so they are checked again when a create
is applied, because several may be in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import (
    ALTERABLE,
    ALTERABLE_SEALED,
    Intake,
    StreamConfig,
    check_stream_config,
    field_type_mistake,
    irrevocable_mistakes,
    with_altered_subjects,
)
from penstock.base.errors import ConfigError, ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import BrokerId, LeaderEpoch, PartitionKey, StreamId
from penstock.metadata import elections
from penstock.metadata.commands import (
    AddCompanion,
    AlterStream,
    CreateStream,
    DeleteStream,
    FormCluster,
    MarkKeys,
    RecordDeletion,
    ReportArchived,
    SetIntake,
    StartBroker,
    TruncatePartition,
)
from penstock.metadata.elections import ElectionRules
from penstock.metadata.feature_levels import LEADER_DECIDES
from penstock.metadata.feature_versions import common_level
from penstock.metadata.image import (
    ArchivedEnd,
    ClusterImage,
    CommandOutcome,
    OwnedStreams,
    PartitionState,
    StreamState,
    TruncatedEnd,
)
from penstock.metadata.overlaps import check_no_overlap
from penstock.metadata.partition_names import check_names
from penstock.metadata.persistent_map import PersistentMap

_NOTHING: Mapping[str, OwnedStreams] = {}
_ON_FIRST_BROKER = (BrokerId(1),)
# Other parts of the image depend on these fields.
_FIXED = frozenset({"name", "partitions", "range_bounds", "replicas"})


def check_create(
    image: ClusterImage,
    config: StreamConfig,
    *,
    brokers: int,
    ready: int,
    by: str = "",
    under_way: Mapping[str, OwnedStreams] = _NOTHING,
) -> StreamState | None:
    """Return the existing stream if it is as `config` wants it, None if it can be created; else raise RemoteError.

    `brokers`: the cluster's brokers, also absent ones; `ready`: those on which a replica can be placed now; `by`: the
    calling user; `under_way`: as `check_room`.
    """
    try:
        check_stream_config(config)
    except ConfigError as error:
        raise _invalid(error.mistakes) from None
    existing = _existing(image, config)
    if existing is None:
        check_names(image, config)
        check_owned(image, config, by, under_way=under_way)
        logs = config.partitions * (2 if is_decided(image, config) else 1)
        check_room(image, logs, by, under_way=under_way)
        _check_replicas(config, brokers, ready)
    return existing


def _invalid(mistakes: list[str]) -> RemoteError:
    return RemoteError(ErrorCode.INVALID_CONFIG, "; ".join(mistakes), mistakes=mistakes)


def check_room(
    image: ClusterImage,
    partitions: int,
    by: str = "",
    *,
    streams: int = 1,
    under_way: Mapping[str, OwnedStreams] = _NOTHING,
) -> None:
    """Raise RemoteError (too_large) if so many more streams and partitions do not fit, or not into the share of `by`.

    A companion log counts as a partition: it costs as much.

    `by`: the calling user, who may use its share of the limit (`FairShares`), an administrator all of it. `under_way`:
    usage of users' commands that are proposed and not applied yet.
    """
    user = image.users.get(by)
    sharer = "" if user is None or user.is_admin else by
    has = image.owned.get(by, OwnedStreams()).plus(under_way.get(by, OwnedStreams()))
    there = len(image.streams) + sum(one.streams for one in under_way.values())
    shares = FairShares([(sharer, has.streams), ("", there - has.streams)])
    if streams and not shares.fits(sharer, streams, limits.STREAMS_MAX):
        text = f"of streams {shares.refused(sharer, limits.STREAMS_MAX)}; delete some first"
        raise RemoteError(ErrorCode.TOO_LARGE, text)
    if streams and partitions == 1:  # then the limit above is enough
        return
    there = sum(logs_of(state) for state in image.streams.values())
    there += sum(one.partitions for one in under_way.values())
    if there + partitions > limits.PARTITIONS_MAX:
        text = f"all streams have {there} partitions together, companion logs included"
        raise RemoteError(ErrorCode.TOO_LARGE, f"{text}; with {partitions} more they pass {limits.PARTITIONS_MAX}")
    shares = FairShares([(sharer, has.partitions), ("", there - has.partitions)])
    if not shares.fits(sharer, partitions, limits.PARTITIONS_MAX):
        text = f"{partitions} more partitions do not fit: of those of all streams "
        raise RemoteError(ErrorCode.TOO_LARGE, text + shares.refused(sharer, limits.PARTITIONS_MAX))


def logs_of(state: StreamState) -> int:
    """Return the number of a stream's partitions and of their companion logs."""
    return len(state.partitions) * (1 + len(state.companions))


def check_owned(
    image: ClusterImage,
    config: StreamConfig,
    owner: str,
    before: StreamState | None = None,
    under_way: Mapping[str, OwnedStreams] = _NOTHING,
) -> None:
    """Raise RemoteError (quota_exceeded) if the owner's streams would exceed its quotas; administrators have none.

    `config`: of the stream to create or change; `before`: that stream as it is now, if it exists; `under_way`: as
    `check_room`.
    """
    user = None if config.is_internal else image.users.get(owner)
    if user is None or user.is_admin:
        return
    has = image.owned.get(owner, OwnedStreams()).plus(under_way.get(owner, OwnedStreams()))
    gone = OwnedStreams() if before is None else OwnedStreams.of(before)
    now = has.plus(gone.times(-1)).plus(OwnedStreams.needed(config))
    quotas = user.quotas
    for name, most in (
        ("streams", quotas.streams_max),
        ("partitions", quotas.partitions_max),
        ("message_ids", quotas.message_ids_max),
    ):
        count, wanted = getattr(has, name), getattr(now, name)
        if most is not None and wanted > most and wanted > count:
            raise _quota_exceeded(owner, name, count, wanted, most)


def _quota_exceeded(owner: str, name: str, count: int, wanted: int, most: int) -> RemoteError:
    option = name.replace("_", "-")
    if name == "streams":
        text = f"user {owner!r} may make no more streams, for it has made {count} and its limit is {most}: delete one"
        text += " that is not needed"
    elif name == "partitions":
        text = f"the streams of user {owner!r} have {count} partitions, and with this one they would have {wanted}, "
        text += f"but its limit is {most}: give it fewer, or delete a stream that is not needed"
    else:
        text = f"leaders may keep {count} message ids for the streams of user {owner!r} (`dedup_ids_max` of each "
        text += f"partition), and with this one {wanted}, but its limit is {most}: give it a lower `dedup_ids_max`"
    text += f", or have an administrator allow more (`penstock user limit {owner} --{option} N`)"
    return RemoteError(ErrorCode.QUOTA_EXCEEDED, text, user=owner, **{name: count, f"{name}_max": most})


def _check_replicas(config: StreamConfig, brokers: int, ready: int) -> None:
    replicas = replicas_wanted(config, brokers)
    if config.min_isr is not None and config.min_isr > replicas:
        raise _invalid([f"min_isr: {config.min_isr} in-sync replicas are more than {replicas} in all"])
    if replicas > brokers:
        text = f"replicas: {replicas} brokers are to hold a copy each, but the cluster has {brokers}"
        advice = "ask for fewer, or add brokers first"
        raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{text}; {advice}", brokers=brokers)
    if replicas > ready:
        fewer = "" if config.replicas is not None else "; say how many `replicas` to do with fewer"
        text = f"replicas: {replicas} brokers are to hold a copy each, but {ready} of {brokers} are live now{fewer}"
        raise RemoteError(ErrorCode.BROKER_UNAVAILABLE, text, brokers=brokers, ready=ready)
    check_observers(config.observers, replicas, brokers=brokers, ready=ready)


def check_observers(observers: int, replicas: int, *, brokers: int, ready: int) -> None:
    """Raise RemoteError (not_enough_replicas, broker_unavailable) if there are too few brokers for the observers."""
    if not observers:
        return
    wanted = f"observers: {observers} brokers beyond the {replicas} of `replicas` are to hold a copy each"
    if observers + replicas > brokers:
        text = f"{wanted}, but the cluster has {brokers}; ask for fewer, or add brokers first"
        raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, text, brokers=brokers)
    if observers + replicas > ready:
        text = f"{wanted}, but {ready} of {brokers} are live now"
        raise RemoteError(ErrorCode.BROKER_UNAVAILABLE, text, brokers=brokers, ready=ready)


def replicas_wanted(config: StreamConfig, brokers: int) -> int:
    """Return the replicas per partition of a new stream in a cluster of that size, absent brokers included."""
    return max(1, min(limits.REPLICAS_DEFAULT, brokers)) if config.replicas is None else config.replicas


def created_config(config: StreamConfig, replicas: int) -> StreamConfig:
    """Return `config` with the defaults of `replicas` and `min_isr` filled in."""
    if config.replicas is not None and config.min_isr is not None:
        return config
    replicas = replicas if config.replicas is None else config.replicas
    min_isr = (replicas + 1) // 2 if config.min_isr is None else config.min_isr
    return msgspec.structs.replace(config, replicas=replicas, min_isr=min_isr)


def _existing(image: ClusterImage, config: StreamConfig) -> StreamState | None:
    """Return the stream of that name, or None. Raise RemoteError (stream_exists) if it has another config."""
    stream_id = image.names.get(config.name)
    if stream_id is None:
        return None
    existing = image.streams[stream_id]
    assert existing.config.replicas is not None
    config = created_config(config, existing.config.replicas)
    if config.more_subjects is not msgspec.UNSET and {*config.subjects} == {*existing.config.subjects}:
        first, *more = existing.config.subjects  # their order does not matter
        config = msgspec.structs.replace(config, subject=first, more_subjects=tuple(more))
    if config.former_subjects is msgspec.UNSET:  # only a copy or a restore gives any
        config = msgspec.structs.replace(config, former_subjects=existing.config.former_subjects)
    if existing.config == config:
        return existing
    differences = differing_fields(existing.config, config)
    text = ", ".join(f"{name} is {have!r}, not {want!r}" for name, (have, want) in differences.items())
    raise RemoteError(
        ErrorCode.STREAM_EXISTS,
        f"stream {config.name!r} exists with another config: {text}; alter it, delete it or take another name",
        differences={name: [have, want] for name, (have, want) in differences.items()},
    )


def differing_fields(have: StreamConfig, want: StreamConfig) -> dict[str, tuple[Any, Any]]:
    """Return field → (value in `have`, value in `want`), as plain values, for all fields that differ."""
    old, new = msgspec.to_builtins(have), msgspec.to_builtins(want)
    names = dict.fromkeys((*old, *new))
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def no_such_field(name: str) -> str:
    """Return the error text for an unknown field, with a suggestion."""
    near = get_close_matches(name, StreamConfig.__struct_fields__, 1)
    return f"{name}: a stream has no such field" + (f"; did you mean {near[0]}?" if near else "")


def altered_config(
    config: StreamConfig,
    changes: Mapping[str, Any],
    add_subjects: Sequence[str] = (),
    remove_subjects: Sequence[str] = (),
) -> StreamConfig:
    """Return `config` with `changes` and other subjects. Raise RemoteError (invalid_config) with every mistake."""
    mistakes = []
    most = limits.STREAM_SUBJECTS_MAX
    for name, those in (("add_subjects", add_subjects), ("remove_subjects", remove_subjects)):
        if len(those) > most:
            mistakes.append(f"{name}: {len(those)} are given, and a stream has at most {most}")
    for name in changes:
        if name not in StreamConfig.__struct_fields__:
            mistakes.append(no_such_field(name))
        elif name in ("subject", "more_subjects"):
            mistakes.append(
                f"{name}: cannot be changed; add_subjects and remove_subjects say what the stream gets and loses"
            )
        elif name not in ALTERABLE:
            mistakes.append(f"{name}: cannot be changed once the stream exists")
        elif (mistake := field_type_mistake(name, changes[name])) is not None:
            mistakes.append(mistake)
    changed = config
    if not mistakes:
        try:
            changed = check_stream_config(_merged(config, changes, add_subjects, remove_subjects))
        except msgspec.ValidationError as error:
            mistakes.append(str(error))
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise _invalid(mistakes)
    return changed


def _merged(
    config: StreamConfig, changes: Mapping[str, Any], add_subjects: Sequence[str], remove_subjects: Sequence[str]
) -> StreamConfig:
    """Raise ValidationError for unknown fields or values, in a checked command those of a later version.

    Raise ConfigError if the stream cannot have these subjects, or a change takes back what is for ever.
    """
    assert config.replicas is not None
    changed = msgspec.convert({**msgspec.to_builtins(config), **changes}, StreamConfig)
    if add_subjects or remove_subjects:
        changed = with_altered_subjects(changed, add_subjects, remove_subjects)
    if mistakes := irrevocable_mistakes(config, changed):
        raise ConfigError(mistakes)
    return created_config(changed, config.replicas)


def create_stream(image: ClusterImage, index: int, command: CreateStream) -> tuple[ClusterImage, CommandOutcome]:
    """Create or find a stream. Raise RemoteError (stream_exists, quota_exceeded, not_enough_replicas, bad_request,
    subjects_overlap).
    """
    existing = _existing(image, command.config)
    if existing is not None:
        return image, CommandOutcome(stream=existing)
    check_names(image, command.config)
    check_owned(image, command.config, command.by)
    if command.refuse_overlap:
        check_no_overlap(image, command.config)
    made = _made(image, StreamId(index), command)
    return image.with_stream(made), CommandOutcome(stream=made, changed=True, partitions=made.partition_keys())


def _made(image: ClusterImage, stream_id: StreamId, command: CreateStream) -> StreamState:
    assignments = command.assignments or (_ON_FIRST_BROKER,) * command.config.partitions
    if len(assignments) != command.config.partitions:
        text = f"{len(assignments)} assignments for {command.config.partitions} partitions"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    partitions = made_partitions(image, command.config, assignments, command.observers)
    config = created_config(command.config, len(assignments[0]))
    owner = "" if config.is_internal else command.by
    has_marks = is_decided(image, config)
    made = StreamState(stream_id, config, command.created_us, partitions, owner=owner, has_marks=has_marks)
    if command.intake is Intake.OPEN:
        return made
    return msgspec.structs.replace(made, intake=command.intake, intake_us=max(1, command.created_us))


def is_decided(image: ClusterImage, config: StreamConfig) -> bool:
    """True if marks enforce something of this config, so that the stream needs logs of them."""
    needs_marks = config.subject_limit is not None or config.is_consumed
    return needs_marks or (config.allow_rollup and image.has_feature(LEADER_DECIDES))


def made_partitions(
    image: ClusterImage,
    config: StreamConfig,
    assignments: tuple[tuple[BrokerId, ...], ...],
    observers: tuple[tuple[BrokerId, ...], ...],
) -> tuple[PartitionState, ...]:
    """Return new partitions on these brokers. Raise RemoteError (bad_request, not_enough_replicas)."""
    _check_assignments(assignments)
    observers = observers or ((),) * len(assignments)
    _check_observers(observers, assignments, config.observers)
    # A single broker is not registered with itself.
    live = image.live_brokers() if image.brokers else frozenset().union(*assignments)
    made: dict[tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]], PartitionState] = {}
    placed = tuple(zip(assignments, observers, strict=True))
    for replicas, observing in placed:
        if (replicas, observing) not in made:
            isr = tuple(broker_id for broker_id in replicas if broker_id in live)
            if not isr:
                text = f"none of the brokers {replicas} chosen for a partition is live any more; retry"
                raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
            made[replicas, observing] = PartitionState.made(replicas, isr, observing)
    return tuple(made[one] for one in placed)


def _check_assignments(assignments: tuple[tuple[BrokerId, ...], ...]) -> None:
    if not assignments or not all(assignments):
        raise RemoteError(
            ErrorCode.BAD_REQUEST, f"{list(assignments)} are invalid assignments: every partition needs replicas"
        )
    count = len(assignments[0])
    if any(len(replicas) != count or len(set(replicas)) != count for replicas in assignments):
        raise RemoteError(ErrorCode.BAD_REQUEST, "assignments name a broker twice, or differ in length")


def _check_observers(
    observers: tuple[tuple[BrokerId, ...], ...], replicas: tuple[tuple[BrokerId, ...], ...], count: int
) -> None:
    if len(observers) != len(replicas):
        text = f"the observers of {len(observers)} partitions, where there are {len(replicas)}"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    for observing, holding in zip(observers, replicas, strict=True):
        if len(observing) != count or len({*observing, *holding}) != count + len(holding):
            text = f"{list(observing)} cannot be the {count} observers beside the replicas {list(holding)}"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)


def alter_stream(image: ClusterImage, index: int, command: AlterStream) -> tuple[ClusterImage, CommandOutcome]:
    """Change a config; elect leaders.

    Raise RemoteError (stream_not_found, stream_changed, invalid_config, subjects_overlap).
    """
    state = image.by_id(command.stream_id)
    if fixed := sorted(_FIXED.intersection(command.changes)):
        raise _invalid([f"{name}: cannot be changed once the stream exists" for name in fixed])
    if state.intake is Intake.SEALED and (kept := sorted(command.changes.keys() - ALTERABLE_SEALED)):
        raise _invalid([f"{name}: cannot be changed, because the stream is sealed" for name in kept])
    if state.intake is Intake.SEALED and (command.add_subjects or command.remove_subjects):
        raise _invalid(["add_subjects, remove_subjects: the stream is sealed, and stores nothing any more"])
    try:
        changes = command.changes_to(state.config)
        config = _merged(state.config, changes, command.add_subjects, command.remove_subjects)
    except ConfigError as error:  # another request has changed the subjects meanwhile
        raise _invalid(error.mistakes) from None
    if command.refuse_overlap:
        check_no_overlap(image, config)
    has_marks = state.has_marks or is_decided(image, config)
    changed = msgspec.structs.replace(state, config=config, has_marks=has_marks)
    changed = _observed(changed, command.observers)
    rules, live = ElectionRules.of(changed), image.live_brokers()
    if rules == ElectionRules.of(state) and changed.partitions == state.partitions:
        return _with_altered(image, state, changed, ())
    elected = [elections.altered(partition, live, rules) for partition in changed.partitions]
    partitions = tuple(
        elections.after(before, one.partition) for before, one in zip(state.partitions, elected, strict=True)
    )
    unclean = tuple(key for key, one in zip(state.partition_keys(), elected, strict=True) if one.is_unclean)
    return _with_altered(image, state, changed.with_partitions(partitions), unclean)


def _observed(changed: StreamState, observers: tuple[tuple[BrokerId, ...], ...] | None) -> StreamState:
    """Set these observers. Raise RemoteError (bad_request) if their number is not the config's."""
    if observers is None:
        observers = tuple(one.observers for one in changed.partitions)
    _check_observers(observers, tuple(one.replicas for one in changed.partitions), changed.config.observers)
    return changed.with_partitions(
        tuple(
            msgspec.structs.replace(one, observers=observing)
            for one, observing in zip(changed.partitions, observers, strict=True)
        )
    )


def _with_altered(
    image: ClusterImage, state: StreamState, changed: StreamState, unclean: tuple[PartitionKey, ...]
) -> tuple[ClusterImage, CommandOutcome]:
    pairs = zip(state.partition_keys(), state.partitions, changed.partitions, strict=True)
    keys = tuple(key for key, before, now in pairs if now != before)
    outcome = CommandOutcome(stream=changed, changed=changed != state, partitions=keys, unclean=unclean)
    if changed.config.observers != state.config.observers:
        return image.with_placed(changed), outcome
    return image.with_changed(changed), outcome


def purge_denied_text(name: str) -> str:
    """Return why nothing of a stream can be purged or truncated."""
    return f"nothing of stream {name!r} can be purged: deny_purge is set, for ever; limits still delete"


def truncate_partition(
    image: ClusterImage, index: int, command: TruncatePartition
) -> tuple[ClusterImage, CommandOutcome]:
    """Truncate the beginning of a partition. Raise RemoteError as `check_epoch`, or read_only.

    The leader has committed everything before `before` in this very epoch: every later leader has it, or an unclean
    election has lost it. So an offset is compared only with one of the same epoch.
    """
    check_epoch(image, command)
    state = image.by_id(command.stream_id)
    if state.intake is Intake.SEALED:
        text = f"stream {state.name!r} is sealed: nothing of it goes, unless it is deleted as a whole"
        raise RemoteError(ErrorCode.READ_ONLY, text)
    if state.config.denies_purge:
        raise RemoteError(ErrorCode.READ_ONLY, purge_denied_text(state.name))
    known = state.truncated_at(command.partition)
    if known is not None and known.leader_epoch == command.leader_epoch and known.before >= command.before:
        return image, CommandOutcome(stream=state)  # a duplicate, or a later truncation came first
    others = [one for one in state.truncated if one is not known]
    now = TruncatedEnd(command.partition, command.before, command.leader_epoch)
    truncated = tuple(sorted((*others, now), key=lambda one: one.partition))
    return _with_altered(image, state, msgspec.structs.replace(state, truncated=truncated), ())


def report_archived(image: ClusterImage, index: int, command: ReportArchived) -> tuple[ClusterImage, CommandOutcome]:
    """Record or forget an archive's progress. Raise RemoteError as `check_epoch`, or bad_request (too many).

    Within a leader epoch the highest offset counts, as with truncations.
    """
    check_epoch(image, command)
    state = image.by_id(command.stream_id)
    if command.end_offset is None:
        archived = tuple(one for one in state.archived if one.archive != command.archive)
    else:
        now = ArchivedEnd(command.partition, command.archive, command.end_offset, command.leader_epoch)
        here = [one for one in state.archived if one.partition == now.partition]
        known = next((one for one in here if one.archive == now.archive), None)
        if known is not None and known.leader_epoch == now.leader_epoch and known.end_offset >= now.end_offset:
            return image, CommandOutcome(stream=state)
        if len({now.archive, *(one.archive for one in state.archived)}) > limits.ARCHIVES_MAX:
            text = f"stream {state.name!r} has {limits.ARCHIVES_MAX} archives, and can have no more"
            text += ": forget one with `penstock stream forget-archive`"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        others = (one for one in state.archived if one is not known)
        archived = tuple(sorted((*others, now), key=lambda one: (one.partition, one.archive)))
    if archived == state.archived:
        return image, CommandOutcome(stream=state)
    return _with_altered(image, state, msgspec.structs.replace(state, archived=archived), ())


def check_epoch(image: ClusterImage, command: TruncatePartition | ReportArchived | MarkKeys) -> None:
    """Raise RemoteError as `ClusterImage.partition`, or fenced_epoch, unknown_epoch."""
    partition = image.partition(command.stream_id, command.partition)
    if command.leader_epoch != partition.leader_epoch:
        code = ErrorCode.FENCED_EPOCH if command.leader_epoch < partition.leader_epoch else ErrorCode.UNKNOWN_EPOCH
        text = f"the leader epoch is {partition.leader_epoch}, not {command.leader_epoch}"
        raise RemoteError(code, text, leader_epoch=partition.leader_epoch)


def set_intake(image: ClusterImage, index: int, command: SetIntake) -> tuple[ClusterImage, CommandOutcome]:
    """Pause, resume, seal …; no change if it is so already. Raise RemoteError (read_only): sealed is final."""
    state = image.by_id(command.stream_id)
    if state.intake is command.intake:
        return image, CommandOutcome(stream=state)
    if state.intake is Intake.SEALED:
        text = f"stream {state.name!r} is sealed, for good: it takes no messages again; make another one"
        raise RemoteError(ErrorCode.READ_ONLY, text)
    since_us = max(command.since_us, state.intake_us + 1)  # also if a clock was set back
    changed = msgspec.structs.replace(state, intake=command.intake, intake_us=since_us)
    return _with_altered(image, state, changed, ())


def add_companion(image: ClusterImage, index: int, command: AddCompanion) -> tuple[ClusterImage, CommandOutcome]:
    """Give a stream companion logs; no change if it has them. Raise RemoteError (stream_not_found, stream_changed)."""
    state = image.by_id(command.stream_id)
    is_marks = command.kind is CompanionKind.MARKS
    changed = msgspec.structs.replace(state, **{"has_marks" if is_marks else "has_consumers": True})
    return _with_altered(image, state, changed, ())


def record_deletion(image: ClusterImage, index: int, command: RecordDeletion) -> tuple[ClusterImage, CommandOutcome]:
    """Apply `RecordDeletion`. It changes nothing, but counts as a change, because it is audited.

    Raise RemoteError (stream_not_found, stream_changed).
    """
    return image, CommandOutcome(stream=image.by_id(command.stream_id), changed=True)


def delete_stream(image: ClusterImage, index: int, command: DeleteStream) -> tuple[ClusterImage, CommandOutcome]:
    """Delete a stream. Raise RemoteError (stream_not_found, stream_changed)."""
    state = image.by_id(command.stream_id)
    outcome = CommandOutcome(stream=state, changed=True, deleted=True, partitions=state.partition_keys())
    return image.without_stream(state), outcome


def form_cluster(image: ClusterImage, index: int, command: FormCluster) -> tuple[ClusterImage, CommandOutcome]:
    """Set the cluster's id and its first level. Raise RemoteError (cluster_mismatch) if it has another id."""
    if image.cluster_id not in ("", command.cluster_id):
        text = f"the cluster id is {image.cluster_id} and cannot become {command.cluster_id}"
        raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text)
    if image.cluster_id:
        return image, CommandOutcome()
    level = max(image.feature_level, common_level(image.brokers.values(), command.feature_level))
    return replace(image, cluster_id=command.cluster_id, feature_level=level), CommandOutcome(changed=True)


def start_broker(image: ClusterImage, index: int, command: StartBroker) -> tuple[ClusterImage, CommandOutcome]:
    """Begin a new leadership of every partition."""
    raising = Raising()
    raised = {stream_id: raising.stream(state, 1) for stream_id, state in image.streams.items()}
    return replace(image, streams=PersistentMap(raised)), CommandOutcome(changed=True)


class Raising:
    """Begins leaderships of many streams. Equal states stay one shared object, as nearly all are."""

    def __init__(self) -> None:
        self._raised: dict[tuple[tuple[PartitionState, ...], int], tuple[PartitionState, ...]] = {}

    def stream(self, state: StreamState, by: int) -> StreamState:
        """Return `state` after `by` leadership starts."""
        key = (state.partitions, by)
        raised = self._raised.get(key)
        if raised is None:
            raised = self._raised[key] = tuple(
                msgspec.structs.replace(one, leader_epoch=LeaderEpoch(one.leader_epoch + by), version=one.version + by)
                for one in state.partitions
            )
        return state.with_partitions(raised)
