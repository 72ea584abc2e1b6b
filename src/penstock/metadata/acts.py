"""Which commands are acts: what somebody did to the cluster, and `__audit` tells.

Rules: an act has changed something, or has told what checks secrets; it was asked for by a client, and is about users'
own streams, or users. Only where there are users; the image knows the index of the last one, so that whoever writes
knows whether it has all.
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
    DeleteStream,
    DeleteUser,
    ExportUsers,
    ReportArchived,
    SetIntake,
    TruncatePartition,
)
from penstock.metadata.image import Outcome

_OF_STREAMS = CreateStream | AlterStream | AddPartitions | DeleteStream | SetIntake
_OF_USERS = CreateUser | AlterUser | DeleteUser | ChangeRules | ExportUsers


def is_act(command: Command, outcome: Outcome) -> bool:
    """Whether a command that was applied is one."""
    if not outcome.changed:
        return False
    if isinstance(command, _OF_USERS):
        return True
    if isinstance(command, _OF_STREAMS):
        return outcome.stream is not None and not outcome.stream.config.is_internal
    if isinstance(command, TruncatePartition):
        return bool(command.by)  # else messages asked for it
    return isinstance(command, ReportArchived) and command.end_offset is None
