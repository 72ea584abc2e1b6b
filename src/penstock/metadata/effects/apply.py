"""The state machine of the metadata log: `apply` gives a command's effect on the image.

Rules: pure, and the same in every version that knows the command: brokers of two versions must not get two images. So
limits, which a version may change, are checked when a command is proposed, not here. A command's index is higher than
that of every earlier one, but not always the next: the Raft log also has entries of its own. A refused command changes
nothing but the index.

| module                | commands                                                                                    |
|-----------------------|---------------------------------------------------------------------------------------------|
| `streams`             | create, alter and delete stream, set intake, truncate partition, form cluster, start broker, |
|                       | add companion                                                                               |
| `partition_expansion` | add partitions, mark keys                                                                   |
| `replica_expansion`   | add replicas                                                                                |
| `brokers`             | register, fence and stop broker, raise feature level                                        |
| `users`               | create, alter, delete, export users, change rules                                           |
| `api_decisions`       | decide api                                                                                  |
| `leaderships`         | change isr, elect leaders, recover partitions                                               |
| `elections`           | leader election of one partition, which all of them use                                     |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.base.errors import RemoteError
from penstock.metadata.commands import (
    AddCompanion,
    AddPartitions,
    AddReplicas,
    AlterStream,
    AlterUser,
    ChangeIsr,
    ChangeRules,
    Command,
    CreateStream,
    CreateUser,
    DecideApi,
    DeleteStream,
    DeleteUser,
    ElectLeaders,
    ExportUsers,
    FenceBroker,
    FormCluster,
    MarkKeys,
    RaiseFeatureLevel,
    RecordDeletion,
    RecoverPartitions,
    RegisterBroker,
    ReportArchived,
    SetIntake,
    StartBroker,
    StopBroker,
    TruncatePartition,
)
from penstock.metadata.effects import (
    api_decisions,
    brokers,
    leaderships,
    partition_expansion,
    replica_expansion,
    streams,
    users,
)
from penstock.metadata.effects.audited_commands import is_audited
from penstock.metadata.image import ClusterImage, CommandOutcome

_CHANGES: dict[type[Command], Callable[[ClusterImage, int, Any], tuple[ClusterImage, CommandOutcome]]] = {
    CreateStream: streams.create_stream,
    AlterStream: streams.alter_stream,
    DeleteStream: streams.delete_stream,
    AddPartitions: partition_expansion.add_partitions,
    MarkKeys: partition_expansion.mark_keys,
    AddReplicas: replica_expansion.add_replicas,
    AddCompanion: streams.add_companion,
    RecordDeletion: streams.record_deletion,
    SetIntake: streams.set_intake,
    TruncatePartition: streams.truncate_partition,
    ReportArchived: streams.report_archived,
    FormCluster: streams.form_cluster,
    RaiseFeatureLevel: brokers.raise_feature_level,
    DecideApi: api_decisions.decide_api,
    StartBroker: streams.start_broker,
    RegisterBroker: brokers.register_broker,
    FenceBroker: brokers.fence_broker,
    StopBroker: brokers.stop_broker,
    ChangeIsr: leaderships.change_isr,
    ElectLeaders: leaderships.elect_leaders,
    RecoverPartitions: leaderships.recover_partitions,
    CreateUser: users.create_user,
    AlterUser: users.alter_user,
    DeleteUser: users.delete_user,
    ChangeRules: users.change_rules,
    ExportUsers: users.export_users,
}


def apply(image: ClusterImage, index: int, command: Command) -> tuple[ClusterImage, CommandOutcome | RemoteError]:
    """Return the image after `command`, and its outcome. A refused command changes nothing but the index."""
    assert index > image.index, (index, image.index)
    try:
        changed, outcome = _CHANGES[type(command)](image, index, command)
    except RemoteError as error:
        return replace(image, index=index), error
    acted = index if changed.users and is_audited(command, outcome) else image.acted
    return replace(changed, index=index, acted=acted), outcome
