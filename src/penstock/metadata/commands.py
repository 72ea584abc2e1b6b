"""The commands of the metadata log: everything that can change what the cluster agrees on.

Rules: a command holds all that its effect depends on, the time included, so that every broker that folds the same
commands gets the same image. A command type never changes its meaning; new needs get new types or defaulted fields.
What is not known is refused, never dropped: a field that is there changes what the command comes to, and a broker that
went on without it would come to another image. It ends, and says that it must be upgraded (`node/entries.py`). So a
later version gives a field that it adds to a command the default that means what was meant before, and leaves it out
where it has that (`omit_defaults`); to an array it adds none, but makes a new type. It proposes what older versions do
not know only where somebody asks for what they cannot do, or where all brokers are of its version.
What a command does to each partition (who leads, which ISRs shrink) is not in it: that follows from the image.

| command        | proposed by                | when                                                              |
|----------------|----------------------------|-------------------------------------------------------------------|
| create, alter, delete stream | the node     | a client asks                                                     |
| add partitions | the node                  | a client asks                                                     |
| mark keys      | the node                   | the leader of a partition that keys left has all it has of them   |
| truncate partition | the node               | a client asks the leader of the partition                         |
| set intake     | the node                   | a client asks: pause, resume, read-only, seal                     |
| form cluster   | the node                   | the first broker makes the cluster                                |
| register broker | the controller            | a broker has started; its run is numbered by the command's index  |
| fence broker   | the controller             | it was silent for a session                                       |
| stop broker    | the controller             | it was told to stop, and says so                                  |
| change isr     | the controller             | partition leaders saw followers fall behind or catch up           |
| elect leaders  | the controller             | followers cannot reach a leader, or the preferred one is back     |
| recover partitions | the controller         | all who had what was acked are back from unclean stops            |
| start broker   | a broker that is alone     | it has started                                                    |
| create, alter, delete user, change rules | the node | an administrator asks; at set-up the node itself |
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from penstock.access import Credential, Quotas, Rule, User
from penstock.base.config import Intake, StreamConfig
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, StreamId
from penstock.messages.peers import IsrChange, IsrMember


class _Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Asked(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """What a client asked for; who it was is told only where everybody logs in."""

    by: str = ""  # the user
    at_us: int = 0


class CreateStream(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="create_stream"):
    """Make a stream; its id is the command's index."""

    config: StreamConfig
    created_us: int
    assignments: tuple[tuple[BrokerId, ...], ...] = ()  # the replicas of each partition; none: all on the first broker
    observers: tuple[tuple[BrokerId, ...], ...] = ()  # of each partition; none: none has any
    intake: Intake = Intake.OPEN  # at the beginning


class AlterStream(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="alter_stream"):
    """Change fields of a stream's config; with `observers`, also who these are of each partition from now on."""

    stream_id: int
    changes: dict[str, Any]
    observers: tuple[tuple[BrokerId, ...], ...] | None = None  # None: as they are


class AddPartitions(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="add_partitions"):
    """Give a stream more partitions, where it has so many as was known."""

    stream_id: StreamId
    before: int  # how many it has
    assignments: tuple[tuple[BrokerId, ...], ...]  # the replicas of each new one
    observers: tuple[tuple[BrokerId, ...], ...] = ()  # of each new one; none: none has any
    range_bounds: tuple[str, ...] = ()  # where the new ones begin, if the stream is split by ranges


class AddReplicas(_Command, frozen=True, kw_only=True, tag="add_replicas"):
    """Have more brokers hold a stream, where those hold it that were known."""

    stream_id: StreamId
    assignments: tuple[tuple[BrokerId, ...], ...]  # the replicas of each partition: those that there are come first


class MarkKeys(_Command, frozen=True, kw_only=True, tag="mark_keys"):
    """A partition takes nothing more of the keys that left it, and all it has of them is committed before an offset."""

    stream_id: StreamId
    partitions: int  # how many there were once those were added to which they went
    partition: PartitionId
    leader_epoch: LeaderEpoch
    end_offset: Offset
    marked_us: int


class DeleteStream(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="delete_stream"):
    """Delete a stream."""

    stream_id: int


class TruncatePartition(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="truncate_partition"):
    """Give up what comes before an offset, all of which its leader has committed in that leader epoch."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    before: Offset


class ReportArchived(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="report_archived"):
    """An archive has what comes before an offset, all of it committed in that leader epoch; None: there is none."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    archive: str
    end_offset: Offset | None


class SetIntake(_Asked, frozen=True, kw_only=True, omit_defaults=True, tag="set_intake"):
    """Have a stream take messages, or not."""

    stream_id: StreamId
    intake: Intake
    since_us: int


class FormCluster(_Command, frozen=True, kw_only=True, tag="form_cluster"):
    """Name the cluster, once."""

    cluster_id: str


class RegisterBroker(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="register_broker"):
    """A broker has started. `clean_stop`: nothing that it had written can be lost since the run `run_before`.

    That counts only if it was its last run, or if the same `process` asks again: what is older may be a copy of its
    data directory that somebody kept, and lacks what came since.
    """

    broker_id: BrokerId
    data_dir_id: str
    address: str
    rack: str | None
    broker_version: str
    clean_stop: bool
    registered_us: int
    run_before: int = 0  # 0: not known, as older brokers had it; the last one
    process: str = ""  # random for each start; "": not known


class FenceBroker(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="fence_broker"):
    """That run of a broker is taken for dead.

    `silent`: live ones that were not heard of lately, or cannot listen to NATS: any other leads before them.
    """

    broker_id: BrokerId
    incarnation: Incarnation
    silent: tuple[BrokerId, ...] = ()


class StopBroker(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="stop_broker"):
    """That run of a broker ends by its own wish. `silent` as above."""

    broker_id: BrokerId
    incarnation: Incarnation
    silent: tuple[BrokerId, ...] = ()


class ChangeIsr(_Command, frozen=True, kw_only=True, tag="change_isr"):
    """Compare-and-set of the ISRs of partitions that a broker leads, each for itself."""

    broker_id: BrokerId
    incarnation: Incarnation
    changes: tuple[IsrChange, ...]


class ElectionReason(StrEnum):
    """Why a partition that has a leader gets another one."""

    UNREACHABLE = "unreachable"  # most of the other in-sync replicas cannot fetch from it
    RESIGNED = "resigned"  # it cannot serve: its log has failed
    IMPEDED = "impeded"  # it cannot serve: its disk takes nothing; its log has all that it had
    PREFERRED = "preferred"  # the first of the replicas is in sync again


class Election(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One partition whose leadership in that epoch is to end."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    reason: ElectionReason


class ElectLeaders(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="elect_leaders"):
    """Give partitions another leader, each for itself. `silent` as above."""

    elections: tuple[Election, ...]
    silent: tuple[BrokerId, ...] = ()


class ReplicaEnd(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the log of a replica ended, in that run of its broker."""

    broker_id: BrokerId
    incarnation: Incarnation
    last_epoch: LeaderEpoch  # of its newest batch; 0: it never had one
    log_end: Offset
    has_failed: bool = False  # it is damaged, or cannot be opened or written

    @property
    def is_unknown(self) -> bool:
        """Whether it is not known where the log ended."""
        return self.has_failed and not self.last_epoch

    @property
    def length(self) -> tuple[LeaderEpoch, Offset]:
        """The longer log is the greater."""
        return self.last_epoch, self.log_end


class Recovery(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One partition that nobody leads since that epoch, and all its logs that there are."""

    stream_id: StreamId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    ends: tuple[ReplicaEnd, ...]


class RecoverPartitions(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="recover_partitions"):
    """Have the longest logs lead, each partition for itself. `silent` as above, where logs are equally long."""

    recoveries: tuple[Recovery, ...]
    silent: tuple[BrokerId, ...] = ()


class StartBroker(_Command, frozen=True, kw_only=True, tag="start_broker"):
    """A broker that is alone has started: every partition begins a new leader epoch."""

    started_us: int


class CreateUser(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="create_user"):
    """Make a user. The first one has everybody log in from then on. `by`: who asked; empty: nobody had to log in."""

    user: User
    created_us: int
    by: str = ""
    is_first: bool = False  # only if there is none
    chance: bytes = b""  # of the first one: see `ClusterImage.decoy_key`


class AlterUser(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="alter_user"):
    """Take credentials from a user and give it others, at once; or change what it may use."""

    name: str
    altered_us: int
    add: tuple[Credential, ...] = ()  # one that has the id of another takes its place
    drop: tuple[str, ...] = ()  # ids
    quotas: Quotas | None = None  # None: as they are
    by: str = ""


class DeleteUser(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="delete_user"):
    """Delete a user, its credentials and its rules."""

    name: str
    deleted_us: int
    by: str = ""


class ChangeRules(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="change_rules"):
    """Give a user rules, and take some from it, at once; of `*` they are everybody's."""

    name: str
    changed_us: int
    add: tuple[Rule, ...] = ()
    drop: tuple[Rule, ...] = ()
    by: str = ""


class ExportUsers(_Command, frozen=True, kw_only=True, omit_defaults=True, tag="export_users"):
    """Somebody is told of users all of which they can be made again, a page behind `after`. It changes nothing."""

    exported_us: int
    after: str = ""
    by: str = ""


Command = (
    CreateStream
    | AlterStream
    | AddPartitions
    | AddReplicas
    | MarkKeys
    | DeleteStream
    | TruncatePartition
    | ReportArchived
    | SetIntake
    | FormCluster
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
    # IsrChange is a message, too, and of those what is not known is passed over.
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
    """MessagePack, tagged with the command's type."""
    return _encoder.encode(command)


def decode_command(data: bytes) -> Command:
    """The command in `data`; msgspec.DecodeError if it is none that this version knows, and knows all of."""
    try:
        command: Command = _decoder.decode(data)
        if isinstance(command, ChangeIsr):
            _change_isr_decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    return command
