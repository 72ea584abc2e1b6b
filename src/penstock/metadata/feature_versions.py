"""Feature versions of the metadata: no command is proposed that an older broker of the cluster does not know.

Rules: a broker stops at a command that it does not know (`node/quorum/metadata_entries.py`), because it must not get
another image than the others. So everything that a version adds to the commands is listed here, with that version. It
is not proposed before every broker of the cluster runs that version or a later one: also absent brokers, which may
return with their old version. A test compares these lists with what the previous version knew.

| what is new                                 | goes into       |
|---------------------------------------------|-----------------|
| a type of command                           | COMMANDS        |
| a field of one that there was               | COMMAND_FIELDS  |
| a field of a stream's config                | CONFIG_FIELDS   |
| an operation that rules allow               | OPERATIONS      |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.access import Operation
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.commands import (
    AddPartitions,
    AddReplicas,
    AlterStream,
    AlterUser,
    ChangeRules,
    Command,
    CreateStream,
    CreateUser,
    DeleteStream,
    DeleteUser,
    ExportUsers,
    ReportArchived,
    SetIntake,
    TruncatePartition,
)
from penstock.metadata.image import BrokerState

Version = tuple[int, ...]

COMMANDS: Mapping[type[Command], Version] = dict.fromkeys(
    (CreateUser, AlterUser, DeleteUser, ChangeRules, ExportUsers, AddReplicas), (0, 2)
)

_ASKED = {"by": (0, 2), "at_us": (0, 2)}
COMMAND_FIELDS: Mapping[type[Command], Mapping[str, Version]] = {
    CreateStream: {**_ASKED, "intake": (0, 2)},
    AlterStream: {**_ASKED, "keep_suspended": (0, 3), "add_subjects": (0, 4), "remove_subjects": (0, 4)},
    AddPartitions: _ASKED,
    DeleteStream: _ASKED,
    TruncatePartition: _ASKED,
    ReportArchived: _ASKED,
    SetIntake: _ASKED,
}

CONFIG_FIELDS: Mapping[str, Version] = {
    "encryption": (0, 2),
    "suspend_deletion": (0, 3),
    "schema_check": (0, 4),
    "more_subjects": (0, 4),
    "description": (0, 4),
    "metadata": (0, 4),
}

OPERATIONS: Mapping[Operation, Version] = {Operation.MONITOR: (0, 3), Operation.REGISTER: (0, 4)}

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def version_of(text: str) -> Version:
    """Parse `0.2.0` into numbers; empty if there are none."""
    found = _NUMBERS.match(text)
    return () if found is None else tuple(map(int, found[0].split(".")))


def unsupported_reason(brokers: Iterable[BrokerState], command: Command) -> RemoteError | None:
    """Return the error if a broker is too old for the command, else None."""
    needed, what = max(_new_in(command), default=((), ""))
    return older_broker_error(brokers, needed, what) if needed else None


def older_broker_error(brokers: Iterable[BrokerState], needed: Version, what: str) -> RemoteError | None:
    """Return the error if a broker is older than the version that knows `what`, else None."""
    # A broker without a version has not registered since the metadata was that of a single broker: it is this one.
    known = ((one, version_of(one.broker_version)) for one in brokers if one.broker_version)
    older = sorted((one.broker_id, one.broker_version) for one, version in known if version < needed)
    if not older:
        return None
    names = ", ".join(f"broker {broker_id} ({version})" for broker_id, version in older)
    version = ".".join(map(str, needed))
    text = f"{what} is known since version {version}, and there is an earlier one: {names}; upgrade it first"
    return RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, brokers=[broker_id for broker_id, _ in older])


def _new_in(command: Command) -> Iterator[tuple[Version, str]]:
    """Yield the listed features that the command uses."""
    kind = type(command)
    tag = str(kind.__struct_config__.tag).replace("_", " ")
    if (version := COMMANDS.get(kind)) is not None:
        yield version, f"the command {tag}"
    for name, version in COMMAND_FIELDS.get(kind, {}).items():
        if getattr(command, name) != _default(kind, name):
            yield version, f"{name} of the command {tag}"
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
    yield from ((version, f"the field {name}") for name, version in CONFIG_FIELDS.items() if name in used)


def _default(kind: Any, name: str) -> object:
    """Return the default of a field."""
    return kind.__struct_defaults__[kind.__struct_fields__.index(name) - len(kind.__struct_fields__)]
