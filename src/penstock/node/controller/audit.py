"""The audit log, stream `__audit`: one row for each change of the cluster, with its user.

    key    the index of the command, in decimal
    value  {"index":17,"time":"2026-11-25T23:00:00.000000Z","by":"ann","act":"delete_stream","stream":"orders", …}

Rules: a row stands for a command that was committed and has changed something; the leader of `__audit` writes it, and
it applies all commands, as every broker does. The last row says which command was written last, so each is there once
across leader changes. Every broker remembers the last AUDIT_ACTS_KEPT commands: those before them, or before its
snapshot, that no leader has written become a gap: one row whose `act` is "unknown" and whose index is that of the last
missing one. If retention has deleted all rows for their age, commands of that age are not written again. No row holds a
secret or its verifier. The stream is created once the cluster has users; before that no change has a user. A stream of
that name that users created before it was reserved is left alone, and no rows are written: the broker's log says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.config import Acks, Encryption, StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import PartitionId, PartitionKey
from penstock.base.subjects import AUDIT_STREAM
from penstock.base.units import format_offsets
from penstock.batch import codec
from penstock.commitlog import LogView
from penstock.hot.message_group import MessageGroup
from penstock.messages import Response
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
from penstock.metadata.effects.audited_commands import is_audited
from penstock.metadata.feature_levels import level_text
from penstock.metadata.image import ClusterImage, CommandOutcome
from penstock.node.context import Context
from penstock.node.partition.log_queries import Query
from penstock.node.partition.partition import Partition
from penstock.node.step import InternalCaller, Lane
from penstock.replication.leader import Leadership

SUBJECT = b"$PENSTOCK.audit"

_encoder = msgspec.json.Encoder()


def audit_config(encryption: Encryption = Encryption.NONE) -> StreamConfig:
    """Return the config with which `__audit` is created."""
    return StreamConfig(
        name=AUDIT_STREAM,
        subject=SUBJECT.decode(),
        acks=Acks.NEVER,
        dedup_window_ms=None,
        max_age_ms=limits.AUDIT_AGE_MS,
        segment_age_ms=limits.AUDIT_SEGMENT_AGE_MS,
        encryption=encryption,
    )


class AuditedCommand(NamedTuple):
    """One audited command; `row` is its value."""

    at: int  # the index of the command
    row: bytes
    when_us: int = 0  # 0: unknown


def audited_command_of(index: int, command: Command, outcome: CommandOutcome) -> AuditedCommand | None:
    """Return the audit row of a command that was applied; None if it has none."""
    if not is_audited(command, outcome) or (told := _told(command, outcome)) is None:
        return None
    by = getattr(command, "by", "")
    when_us = _when_us(command)
    fields = {"index": index, "time": _time(when_us), "by": by, **told}
    row = _encoder.encode({name: value for name, value in fields.items() if value not in (None, "")})
    return AuditedCommand(index, row, when_us)


def _when_us(command: Command) -> int:
    for name in ("at_us", "created_us", "altered_us", "deleted_us", "changed_us", "exported_us", "since_us"):
        if when_us := getattr(command, name, 0):
            return int(when_us)
    return 0


def _time(when_us: int) -> str | None:
    if not when_us:
        return None
    moment = datetime.fromtimestamp(when_us // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{when_us % 1_000_000:06d}Z"


def _told(command: Command, outcome: CommandOutcome) -> dict[str, Any] | None:
    stream = None if outcome.stream is None else outcome.stream.name
    match command:
        case CreateStream():
            return {"act": "create_stream", "stream": stream, **_subjects(command.config)}
        case AlterStream():
            # With `keep_suspended` the config says afterwards, too, if deletion was suspended by a user before.
            changed = command.changes if outcome.stream is None else command.changes_to(outcome.stream.config)
            subjects = {"add_subjects": command.add_subjects, "remove_subjects": command.remove_subjects}
            changed = {**changed, **{name: list(those) for name, those in subjects.items() if those}}
            return {"act": "alter_stream", "stream": stream, "changes": changed}
        case AddPartitions():
            partitions = command.before + len(command.assignments)
            return {"act": "alter_stream", "stream": stream, "changes": {"partitions": partitions}}
        case DeleteStream():
            return {"act": "delete_stream", "stream": stream}
        case SetIntake():
            return {"act": "set_intake", "stream": stream, "intake": command.intake}
        case TruncatePartition():
            return {"act": "truncate", "stream": stream, "partition": command.partition, "before": command.before}
        case RecordDeletion():
            place = {"stream": stream, "partition": command.partition, "messages": command.messages}
            place |= {"secure": True} if command.is_secure else {}
            offsets = [format_offsets(*one) for one in command.ranges]
            if not command.subject:
                return {"act": "delete_messages", **place, "offsets": offsets}
            kept = {"keep": command.keep} if command.keep else {}
            return {"act": "purge_subject", **place, "subject": command.subject, **kept, "offsets": offsets}
        case ReportArchived():
            return {"act": "forget_archive", "stream": stream, "archive": command.archive}
        case CreateUser():
            user = command.user
            ids = [one.credential_id for one in user.credentials]
            rules = [str(rule) for rule in user.rules]
            return {"act": "create_user", "user": user.name, "credentials": ids, "rules": rules}
        case AlterUser():
            added = [one.credential_id for one in command.add]
            changes: dict[str, Any] = {"added": added or None, "dropped": list(command.drop) or None}
            if command.quotas is not None:
                changes["quotas"] = msgspec.structs.asdict(command.quotas)
            shown = {name: value for name, value in changes.items() if value is not None}
            return {"act": "alter_user", "user": command.name, **shown}
        case DeleteUser():
            return {"act": "delete_user", "user": command.name}
        case ChangeRules():
            both = {"added": list(map(str, command.add)), "dropped": list(map(str, command.drop))}
            return {"act": "change_rules", "user": command.name, **{name: one for name, one in both.items() if one}}
        case ExportUsers():
            return {"act": "export_users", "after": command.after}
        case RaiseFeatureLevel():
            return {"act": "raise_feature_level", "level": level_text(command.feature_level)}
        case DecideApi():
            return {"act": "take_api", "prefix": command.prefix}
    return None


def _subjects(config: StreamConfig) -> dict[str, Any]:
    return {"subject": config.subject, **({"more_subjects": config.subjects[1:]} if config.subjects[1:] else {})}


class _LastIndex(Query):
    """Read the index of the last audited command from the log; in a disk thread."""

    def __init__(self, view: LogView, end: int) -> None:
        super().__init__(view)
        self._end = end
        self.index = 0

    def run(self) -> None:
        """RemoteError corrupt_range, OSError, QueryGivenUpError."""
        for _, data in self._batches(self._view.log_start, self._end, reverse=True):
            keys = codec.check_rows(data).column("key").to_pylist()
            self.index = max((int(key) for key in keys if key is not None and key.isdigit()), default=0)
            return


Partitions = Mapping[PartitionKey, Partition]
Write = Callable[[Partition, InternalCaller, bytearray], None]


class _Writing(NamedTuple):
    """One leadership of `__audit`, and the read of its log."""

    leadership: Leadership
    reading: _LastIndex


class AuditLog:
    """Writes the audit log where this broker leads it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_anothers_told = False
        self._outbox = context.outbox
        self._acts: deque[AuditedCommand] = deque(maxlen=limits.AUDIT_ACTS_KEPT)
        self._known_from = 0  # commands up to this index that are not among the acts are unknown here
        self._writing: _Writing | None = None
        self._written: int | None = None  # index of the last command in the log; None: not read yet

    def begin(self, image: ClusterImage) -> None:
        """Note that the commands up to this image were not seen one by one."""
        self._known_from = max(self._known_from, image.acted)

    def applied(self, index: int, command: Command, outcome: CommandOutcome) -> None:
        """Remember a command that was applied."""
        if (act := audited_command_of(index, command, outcome)) is not None:
            if len(self._acts) == self._acts.maxlen:
                self._known_from = self._acts[0].at
            self._acts.append(act)

    def write_missing(self, partitions: Partitions, write: Write) -> None:
        """Write the missing rows if this broker leads `__audit`. `write` appends one batch to a partition."""
        partition = self._led(partitions)
        if partition is None:
            self._writing = self._written = None
            return
        leadership = partition.leadership
        assert leadership is not None
        if self._writing is None or self._writing.leadership is not leadership:
            self._read(partition, leadership, partitions, write)
        elif self._written is not None:
            self._write_missing(partition, self._written, write)

    def _left(self, written: int, *, was_empty: bool) -> list[AuditedCommand]:
        """Return the remembered commands that are not written; `was_empty`: the log has never had a row."""
        if written or was_empty:
            return [act for act in self._acts if act.at > written]
        aged_us = self._context.now.wall_us - limits.AUDIT_AGE_MS * 1_000
        return [act for act in self._acts if act.when_us >= aged_us]

    def _led(self, partitions: Partitions) -> Partition | None:
        image = self._context.image
        stream_id = image.names.get(AUDIT_STREAM)
        if stream_id is None:
            return None
        if not image.streams[stream_id].config.is_internal:
            if image.users and not self._is_anothers_told:
                self._is_anothers_told = True
                text = "which is reserved, so no audit rows are written; delete that stream"
                self._outbox.notice(f"a stream created by users has the name {AUDIT_STREAM!r}, {text}")
            return None
        partition = partitions.get(PartitionKey(stream_id, PartitionId(0)))
        if partition is None or partition.leadership is None or not partition.is_writable or partition.when_idle:
            return None
        return partition

    def _read(self, partition: Partition, leadership: Leadership, partitions: Partitions, write: Write) -> None:
        reading = _LastIndex(partition.view(), partition.log.log_end)
        writing = self._writing = _Writing(leadership, reading)
        self._written = None

        def done(error: Exception | None) -> None:
            if self._writing is not writing:
                return
            if error is None:
                self._written = reading.index
                self.write_missing(partitions, write)
            else:
                self._writing = None  # retried at the next `write_missing`

        self._outbox.work(Lane.READ, reading.run, done)

    def _write_missing(self, partition: Partition, written: int, write: Write) -> None:
        acts = self._left(written, was_empty=not partition.log.log_end)
        if written < self._known_from:
            gap = {"index": self._known_from, "act": "unknown", "after": written}
            acts.insert(0, AuditedCommand(self._known_from, _encoder.encode(gap)))
        acts = acts[: limits.AUDIT_ROWS_AT_ONCE]
        if not acts:
            return
        keys = [str(act.at).encode() for act in acts]
        group = MessageGroup.of([SUBJECT] * len(acts), [act.row for act in acts], keys=keys)
        data = codec.encode(group, 0, len(acts), base_offset=0, timestamp_us=0, leader_epoch=0)[0]
        self._written = acts[-1].at

        def stored(response: Response | RemoteError) -> None:
            if isinstance(response, RemoteError):
                self._writing = None  # read the log again: the rows may be there

        write(partition, InternalCaller(stored), data)
