"""Audited commands (acts): changes that a user made to the cluster, which the stream `__audit` reports.

Rules: an act changed something, or revealed secret verifiers; a client asked for it, and it concerns users' own
streams, users, or the whole cluster. Acts exist only where there are users. The image holds the index of the last act,
so the writer of `__audit` knows if it has all.
"""

from __future__ import annotations

from penstock.metadata.commands import (
    AddPartitions,
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
    RaiseFeatureLevel,
    RecordDeletion,
    ReportArchived,
    SetIntake,
    TruncatePartition,
)
from penstock.metadata.image import CommandOutcome

_OF_STREAMS = CreateStream | AlterStream | AddPartitions | DeleteStream | SetIntake | RecordDeletion
_OF_USERS = CreateUser | AlterUser | DeleteUser | ChangeRules | ExportUsers
_OF_THE_CLUSTER = RaiseFeatureLevel


def is_audited(command: Command, outcome: CommandOutcome) -> bool:
    """True if an applied command is an act."""
    if not outcome.changed:
        return False
    if isinstance(command, _OF_USERS | _OF_THE_CLUSTER):
        return True
    if isinstance(command, _OF_STREAMS):
        return outcome.stream is not None and not outcome.stream.config.is_internal
    if isinstance(command, TruncatePartition | DecideApi):
        return bool(command.by)  # otherwise a message (rollup) caused it, or evidence of brokers
    return isinstance(command, ReportArchived) and command.end_offset is None
