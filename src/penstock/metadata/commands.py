"""Commands of the metadata log: every change of the cluster's metadata.

Rules: a command holds everything that its effect depends on, the time included, so that every broker that folds the
same commands gets the same image. A command type never changes its meaning; new needs get new types or fields with
defaults. Unknown fields are refused, never dropped: a field changes the effect, and a broker that ignored it would get
another image. Such a broker stops, and says that it must be upgraded (`node/quorum/metadata_entries.py`). So a later
version gives a new field a default with the old meaning, and omits it when it has that value (`omit_defaults`); to an
array it adds no field, but makes a new type. It proposes commands unknown to older versions only from the feature level
of that version on (`feature_versions`). A command's effect on each partition (leader, ISR) is not in it:
it follows from the image.

| command        | proposed by                | when                                                              |
|----------------|----------------------------|-------------------------------------------------------------------|
| create, alter, delete stream | the node     | a client asks                                                     |
| add partitions | the node                  | a client asks                                                     |
| add companion  | the node                   | the first row of a stream is to be marked; its first consumer     |
|                |                            | with acks is to be made                                           |
| mark keys      | the node                   | the leader of a partition that keys left has all it gets of them  |
| truncate partition | the node               | a client asks the leader of the partition                         |
| set intake     | the node                   | a client asks: pause, resume, read-only, seal                     |
| form cluster   | the node                   | the first broker creates the cluster                              |
| raise feature level | the node              | an administrator asks, and all brokers run that version           |
| register broker | the controller            | a broker has started; the command's index is its incarnation      |
| fence broker   | the controller             | its session timed out                                             |
| stop broker    | the controller             | the broker is stopping                                            |
| change isr     | the controller             | partition leaders saw followers fall behind or catch up           |
| elect leaders  | the controller             | followers cannot reach a leader, or the preferred one is back     |
| recover partitions | the controller         | all replicas with every acked message returned from unclean stops |
| start broker   | a single broker            | it has started                                                    |
| decide api     | the controller, the node   | brokers' evidence or an operator: who serves JetStream's API      |
| create, alter, delete user, change rules | the node | an administrator asks; at set-up the node itself |
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from penstock.access import Credential, Quotas, Rule, User
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Intake, StreamConfig, SuspendDeletion
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.messages.peers import IsrChange, IsrMember
from penstock.metadata.api_decisions import ApiState
from penstock.metadata.feature_levels import FIRST_LEVEL, FeatureLevel


class _Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Asked(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """A client's command; the user is recorded only if authentication is on."""

    by: str = ""  # the user
    at_us: int = 0


class CreateStream(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="create_stream"):
    """Create a stream; its id is the command's index."""

    config: StreamConfig
    created_us: int
    assignments: tuple[tuple[BrokerId, ...], ...] = ()  # the replicas of each partition; empty: all on the first broker
    observers: tuple[tuple[BrokerId, ...], ...] = ()  # of each partition; empty: none
    intake: Intake = Intake.OPEN  # the initial state
    refuse_overlap: bool = False  # as in CreateStreamRequest


class AlterStream(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="alter_stream"):
    """Change fields of a stream's config; with `observers`, also the observers of each partition."""

    stream_id: int
    changes: dict[str, Any]
    observers: tuple[tuple[BrokerId, ...], ...] | None = None  # None: unchanged
    keep_suspended: bool = False  # as in AlterStreamRequest
    add_subjects: tuple[str, ...] = ()
    remove_subjects: tuple[str, ...] = ()
    refuse_overlap: bool = False  # as in AlterStreamRequest

    def changes_to(self, config: StreamConfig) -> dict[str, Any]:
        """Return the changes without those that do not apply to `config`."""
        if self.keep_suspended and config.suspend_deletion is SuspendDeletion.YES:
            return {name: value for name, value in self.changes.items() if name != "suspend_deletion"}
        return self.changes


class AddPartitions(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="add_partitions"):
    """Add partitions to a stream, if it still has `before` of them."""

    stream_id: StreamId
    before: int  # the current number
    assignments: tuple[tuple[BrokerId, ...], ...]  # the replicas of each new one
    observers: tuple[tuple[BrokerId, ...], ...] = ()  # of each new one; empty: none
    range_bounds: tuple[str, ...] = ()  # lower bounds of the new ones, if the stream is split by ranges


class AddReplicas(_Command, frozen=True, kw_only=True, tag="add_replicas"):
    """Add replicas to a stream's partitions, if their replicas are still the known ones."""

    stream_id: StreamId
    assignments: tuple[tuple[BrokerId, ...], ...]  # the replicas of each partition: existing ones first


class AddCompanion(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="add_companion"):
    """Give each partition of a stream a companion log, for good; see `penstock.metadata.companions`."""

    stream_id: StreamId
    kind: CompanionKind = CompanionKind.MARKS


class RecordDeletion(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="record_deletion"):
    """A user deletes messages of a partition, which its leader has found; see `node.api.deletions`. Changes nothing."""

    stream_id: StreamId
    partition: PartitionId
    messages: int
    ranges: tuple[tuple[Offset, Offset], ...]  # their offsets, half-open; the first ones only
    subject: str = ""  # of a purge; empty: single messages
    keep: int = 0  # of a purge
    is_secure: bool = False


class MarkKeys(_Command, frozen=True, kw_only=True, tag="mark_keys"):
    """A partition gets no more of the keys that left it; its messages with them are committed and end at an offset."""

    stream_id: StreamId
    partitions: int  # the number of partitions after the growth that moved the keys
    partition: PartitionId
    leader_epoch: LeaderEpoch
    end_offset: Offset
    marked_us: int


class DeleteStream(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="delete_stream"):
    stream_id: int


class TruncatePartition(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="truncate_partition"):
    """Truncate the partition before an offset that its leader has committed in that leader epoch."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    before: Offset


class ReportArchived(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="report_archived"):
    """An archive has everything before an offset, committed in that leader epoch; None: forget this archive."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    archive: str
    end_offset: Offset | None


class SetIntake(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="set_intake"):
    """Change if a stream accepts messages (`Intake`)."""

    stream_id: StreamId
    intake: Intake
    since_us: int


class FormCluster(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="form_cluster"):
    """Set the cluster's id, and the feature level at which it begins, once."""

    cluster_id: str
    feature_level: FeatureLevel = FIRST_LEVEL


class RaiseFeatureLevel(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="raise_feature_level"):
    """Raise the cluster's feature level, if no broker of the cluster is older."""

    feature_level: FeatureLevel


class DecideApi(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="decide_api"):
    """Decide if the cluster serves JetStream's API under a prefix; `by` only of an operator's decision."""

    prefix: str
    before: int  # index of the decision that it replaces; 0: there is none
    state: ApiState
    decided_us: int
    why: str = ""
    broker_id: BrokerId = BrokerId(0)  # whose evidence or setting led to it; 0: no single one
    held_back_by: tuple[BrokerId, ...] = ()  # brokers that do not want to serve it
    evidence: tuple[tuple[BrokerId, Incarnation], ...] = ()  # runs of brokers that found no other service


class RegisterBroker(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="register_broker"):
    """A broker has started. `clean_stop`: nothing written was lost since the incarnation `run_before`.

    That counts only if that was its last incarnation, or if the same `process` registers again: otherwise its data
    directory may be an older copy, which lacks later data.
    """

    broker_id: BrokerId
    data_dir_id: str
    address: str
    rack: str | None
    broker_version: str
    clean_stop: bool
    registered_us: int
    run_before: int = 0  # 0: unknown (older brokers); treated as the last one
    process: str = ""  # random for each start; "": unknown


class FenceBroker(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="fence_broker"):
    """Declare that incarnation of a broker dead.

    `silent`: live brokers not heard of lately, or without NATS: all others lead before them.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    silent: tuple[BrokerId, ...] = ()


class StopBroker(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="stop_broker"):
    """That incarnation of a broker stops by its own request. `silent` as in `FenceBroker`."""

    broker_id: BrokerId
    incarnation: Incarnation
    silent: tuple[BrokerId, ...] = ()


class ChangeIsr(_Command, frozen=True, kw_only=True, tag="change_isr"):
    """Compare-and-set of ISRs of partitions that a broker leads, each for itself."""

    broker_id: BrokerId
    incarnation: Incarnation
    changes: tuple[IsrChange, ...]


class ElectionReason(StrEnum):
    """The reason for another leader of a partition that has one."""

    UNREACHABLE = "unreachable"  # most of the other in-sync replicas cannot fetch from it
    RESIGNED = "resigned"  # it cannot serve: its log has failed
    IMPEDED = "impeded"  # it cannot serve: its disk accepts nothing, but its log is complete
    PREFERRED = "preferred"  # the first of the replicas is in sync again


class Election(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition whose leadership in that epoch is to end."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    reason: ElectionReason


class ElectLeaders(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="elect_leaders"):
    """Elect other leaders, each partition for itself. `silent` as in `FenceBroker`."""

    elections: tuple[Election, ...]
    silent: tuple[BrokerId, ...] = ()


class ReplicaEnd(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The log end of a replica, in that incarnation of its broker."""

    broker_id: BrokerId
    incarnation: Incarnation
    last_epoch: LeaderEpoch  # of its last batch; 0: it never had one
    log_end: Offset
    has_failed: bool = False  # corrupt, or cannot be opened or written

    @property
    def is_unknown(self) -> bool:
        """True if the log end is unknown."""
        return self.has_failed and not self.last_epoch

    @property
    def length(self) -> tuple[LeaderEpoch, Offset]:
        """Sort key: the longer log compares greater."""
        return self.last_epoch, self.log_end


class PartitionRecovery(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition without a leader since that epoch, and all its known logs."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    ends: tuple[ReplicaEnd, ...]


class RecoverPartitions(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="recover_partitions"):
    """Elect the longest logs, each partition for itself. `silent` as in `FenceBroker`, among equally long logs."""

    recoveries: tuple[PartitionRecovery, ...]
    silent: tuple[BrokerId, ...] = ()


class StartBroker(_Command, frozen=True, kw_only=True, tag="start_broker"):
    """A single broker has started: every partition begins a new leader epoch."""

    started_us: int


class CreateUser(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="create_user"):
    """Create a user. From the first one on all clients must log in. `by`: the caller; empty: authentication was off."""

    user: User
    created_us: int
    by: str = ""
    is_first: bool = False  # refused if there are users
    chance: bytes = b""  # random, of the first one: see `ClusterImage.decoy_key`


class AlterUser(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="alter_user"):
    """Remove and add credentials of a user, atomically; or change its quotas."""

    name: str
    altered_us: int
    add: tuple[Credential, ...] = ()  # replaces a credential with the same id
    drop: tuple[str, ...] = ()  # ids
    quotas: Quotas | None = None  # None: unchanged
    by: str = ""


class DeleteUser(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="delete_user"):
    """Delete a user, its credentials and its rules."""

    name: str
    deleted_us: int
    by: str = ""


class ChangeRules(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="change_rules"):
    """Add and remove rules of a user, atomically; of `*` they apply to everybody."""

    name: str
    changed_us: int
    add: tuple[Rule, ...] = ()
    drop: tuple[Rule, ...] = ()
    by: str = ""


class ExportUsers(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="export_users"):
    """A client exports a page of users after `after`, with everything needed to restore them. Changes nothing."""

    exported_us: int
    after: str = ""
    by: str = ""


Command = (
    CreateStream
    | AlterStream
    | AddPartitions
    | AddReplicas
    | AddCompanion
    | RecordDeletion
    | MarkKeys
    | DeleteStream
    | TruncatePartition
    | ReportArchived
    | SetIntake
    | FormCluster
    | RaiseFeatureLevel
    | DecideApi
    | RegisterBroker
    | FenceBroker
    | StopBroker
    | ChangeIsr
    | ElectLeaders
    | RecoverPartitions
    | StartBroker
    | CreateUser
    | AlterUser
    | DeleteUser
    | ChangeRules
    | ExportUsers
)


class _IsrChangeShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    # IsrChange is also a message type, and messages ignore unknown fields.
    stream_id: Any
    partition: Any
    leader_epoch: Any
    version: Any
    isr: tuple[Annotated[list[Any], msgspec.Meta(max_length=len(IsrMember.__struct_fields__))], ...]
    commits_resumed: Any = False


class _ChangeIsrShape(msgspec.Struct, frozen=True, tag="change_isr"):
    changes: tuple[_IsrChangeShape, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Command)
_change_isr_decoder = msgspec.msgpack.Decoder(_ChangeIsrShape)


def encode_command(command: Command) -> bytes:
    """Encode as MessagePack, tagged with the command's type."""
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """Decode a command. Raise msgspec.DecodeError if this version does not know all of it."""
    try:
        command: Command = _decoder.decode(data)
        if isinstance(command, ChangeIsr):
            _change_isr_decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    return command
