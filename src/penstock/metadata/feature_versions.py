"""Feature gates of the metadata: no command is proposed that a broker of the cluster does not know.

Rules: a broker stops at a command that it does not know (`node/quorum/metadata_entries.py`), because it must not get
another image than the others. So everything that a version adds to the commands is listed here, with that version. From
0.4 on it waits for the cluster's feature level (`feature_levels`), which an administrator raises once every broker runs
that version. What 0.2 and 0.3 added waits only for the brokers: until every one of the cluster runs that version or a
later one, also absent brokers, which may return with their old version. A test compares these lists with what the
previous version knew.

| what is new                                 | goes into                 |
|---------------------------------------------|---------------------------|
| a type of command                           | COMMANDS                  |
| a field of one that there was               | COMMAND_FIELDS            |
| a field of a stream's config                | CONFIG_FIELDS             |
| an operation that rules allow               | OPERATIONS                |
| anything else                               | `feature_levels.FEATURES` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.access import Operation
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.commands import (
    AddCompanion,
    AddPartitions,
    AddReplicas,
    AlterStream,
    AlterUser,
    ChangeRules,
    Command,
    CreateStream,
    CreateUser,
    DecideApi,
    DeleteStream,
    DeleteUser,
    ExportUsers,
    FormCluster,
    RaiseFeatureLevel,
    RecordDeletion,
    ReportArchived,
    SetIntake,
    TruncatePartition,
)
from penstock.metadata.feature_levels import (
    FEATURES,
    FIRST_LEVEL,
    Feature,
    FeatureLevel,
    Version,
    level_text,
    version_of,
)
from penstock.metadata.image import BrokerState, ClusterImage

COMMANDS: Mapping[type[Command], Version] = {
    **dict.fromkeys((CreateUser, AlterUser, DeleteUser, ChangeRules, ExportUsers, AddReplicas), (0, 2)),
    RaiseFeatureLevel: (0, 4),
    AddCompanion: (0, 4),
    RecordDeletion: (0, 4),
    DecideApi: (0, 4),
}

_ASKED = {"by": (0, 2), "at_us": (0, 2)}
COMMAND_FIELDS: Mapping[type[Command], Mapping[str, Version]] = {
    CreateStream: {**_ASKED, "intake": (0, 2), "refuse_overlap": (0, 4)},
    AlterStream: {
        **_ASKED,
        "keep_suspended": (0, 3),
        "add_subjects": (0, 4),
        "remove_subjects": (0, 4),
        "refuse_overlap": (0, 4),
    },
    AddPartitions: _ASKED,
    DeleteStream: _ASKED,
    TruncatePartition: _ASKED,
    ReportArchived: _ASKED,
    SetIntake: _ASKED,
    FormCluster: {"feature_level": (0, 4)},
}

CONFIG_FIELDS: Mapping[str, Version] = {
    "encryption": (0, 2),
    "suspend_deletion": (0, 3),
    "schema_check": (0, 4),
    "more_subjects": (0, 4),
    "former_subjects": (0, 4),
    "description": (0, 4),
    "metadata": (0, 4),
    "max_messages_per_subject": (0, 4),
    "discard": (0, 4),
    "discard_new_per_subject": (0, 4),
    "deny_delete": (0, 4),
    "deny_purge": (0, 4),
    "subject_delete_marker_ttl_ms": (0, 4),
    "nats_readable": (0, 4),
    "allow_message_schedules": (0, 4),
    "first_offset": (0, 4),
    "retention": (0, 4),
    "interest_of": (0, 4),
    "allow_atomic": (0, 4),
}

OPERATIONS: Mapping[Operation, Version] = {Operation.MONITOR: (0, 3), Operation.REGISTER: (0, 4)}


def unsupported_reason(image: ClusterImage, command: Command) -> RemoteError | None:
    """Return the error if the cluster's level, or a broker, is too old for the command; else None."""
    if isinstance(command, RaiseFeatureLevel | FormCluster):  # they bring the level
        return too_old_for(image.brokers.values(), command.feature_level)
    needed, what = max(_new_in(command), default=((), ""))
    if needed > FIRST_LEVEL:
        return _missing(image, needed, what)
    if image.feature_level > FIRST_LEVEL or not needed:
        return None
    older = _older_than(needed, image.brokers.values())
    return _older_error(older, f"{what} is known since version {level_text(needed)}") if older else None


def missing(image: ClusterImage, feature: Feature) -> RemoteError | None:
    """Return the error if the cluster's level is too low for the feature, else None."""
    return _missing(image, feature.level, feature.name)


def _missing(image: ClusterImage, needed: Version, what: str) -> RemoteError | None:
    if image.feature_level >= needed:
        return None
    text = (
        f"{what} needs feature level {level_text(needed)}; the cluster is at {level_text(image.feature_level)}: run "
        "`penstock cluster upgrade` once all brokers are upgraded"
    )
    return RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, feature_level=level_text(image.feature_level))


def too_old_for(brokers: Iterable[BrokerState], level: FeatureLevel) -> RemoteError | None:
    """Return the error if a broker of the cluster, live or absent, is older than a level; else None."""
    older = [] if level == FIRST_LEVEL else _older_than(level, brokers)
    if not older:
        return None
    error = _older_error(older, f"feature level {level_text(level)} needs version {level_text(level)} of every broker")
    if all(one.is_live for one in older):
        return error
    text = f"{error.message} (also one that is away: it cannot be removed from the cluster, so start it or replace it)"
    return RemoteError(error.code, text, **error.details)


def common_level(brokers: Iterable[BrokerState], own: FeatureLevel) -> FeatureLevel:
    """Return the level at which a new cluster of these brokers begins: `own`, unless one is older."""
    return FIRST_LEVEL if _older_than(own, brokers) else own


def features_of(level: FeatureLevel) -> list[str]:
    """Return the names of the features that a level brings, for users; sorted."""
    named: list[tuple[str, Version]] = [
        *((_option_words(name), since) for name, since in CONFIG_FIELDS.items()),
        *((f"the permission {operation}", since) for operation, since in OPERATIONS.items()),
        *FEATURES,
    ]
    return sorted({name for name, since in named if since == level})


def _older_than(needed: Version, brokers: Iterable[BrokerState]) -> list[BrokerState]:
    # A broker without a version has not registered since the metadata was that of a single broker: it is this one.
    known = ((one, version_of(one.broker_version)) for one in brokers)
    return sorted((one for one, version in known if version and version < needed), key=lambda one: one.broker_id)


def _older_error(older: list[BrokerState], rule: str) -> RemoteError:
    names = ", ".join(f"broker {one.broker_id} ({one.broker_version})" for one in older)
    text = f"{rule}, and there is an earlier one: {names}; upgrade it first"
    return RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, brokers=[one.broker_id for one in older])


def _new_in(command: Command) -> Iterator[tuple[Version, str]]:
    """Yield the listed features that the command uses."""
    kind = type(command)
    tag = str(kind.__struct_config__.tag).replace("_", " ")
    if (version := COMMANDS.get(kind)) is not None:
        yield version, f"the command {tag}"
    for name, version in COMMAND_FIELDS.get(kind, {}).items():
        if getattr(command, name) != _default(kind, name):
            yield version, _IN_WORDS.get(name, f"{name} of the command {tag}")
    if isinstance(command, CreateStream):
        used: set[str] = {
            name for name in CONFIG_FIELDS if getattr(command.config, name) != _default(StreamConfig, name)
        }
    else:
        used = set(command.changes) if isinstance(command, AlterStream) else set()
    rules = command.user.rules if isinstance(command, CreateUser) else ()
    rules = command.add if isinstance(command, ChangeRules) else rules
    for operation in {rule.operation for rule in rules} & OPERATIONS.keys():
        yield OPERATIONS[operation], f"the operation {operation} of a rule"
    yield from ((version, _option_words(name)) for name, version in CONFIG_FIELDS.items() if name in used)


_IN_WORDS = {
    "refuse_overlap": "a stream whose subjects no other one has",
    "more_subjects": "a second subject of a stream",
    **dict.fromkeys(("former_subjects", "add_subjects", "remove_subjects"), "a change of a stream's subjects"),
}


def _option_words(name: str) -> str:
    return _IN_WORDS.get(name, f"the option {name} of a stream")


def _default(kind: Any, name: str) -> object:
    """Return the default of a field."""
    return kind.__struct_defaults__[kind.__struct_fields__.index(name) - len(kind.__struct_fields__)]
