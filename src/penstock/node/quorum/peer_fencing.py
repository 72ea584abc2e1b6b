"""Identity fencing of Raft messages: the registered data directory, and one process at a time, may speak for a member.

Rules: every message names its sender's data directory and process, and those of its receiver that the sender knows.

| a message                                             | is dropped, because                                      |
|-------------------------------------------------------|----------------------------------------------------------|
| asks, and names another disk of this broker           | that disk is gone, and its votes and acks with it        |
| answers, from another disk than is registered         | a broker with an empty disk could vote a second time     |
| answers another process than this                     | a copy of this disk asked, and runs beside this broker   |
| lists the runs of its disk without the known one      | its disk is an older copy: it has lost votes and acks    |
| names a log that ends before what it acknowledged     | the same, of a copy that was taken in its last run       |
| is of another process than was received lately        | one of the two runs on a copy of the disk                |

A registration counts from the moment it is in the log, committed or not: after a start the commit index is unknown. The
disk of a first voter that is not registered yet is the one that it named first. Requests are not checked for the
sender's disk: a broker that was away learns of new disks only from a leader, which may have one. Until it is
registered, a broker names the runs of its disk and where its log ended at its start; every process that asked to be
registered on the disk is among the runs (`node/data_dir/process_history.py`). What a member acknowledged before is
known only to the leader of the term in which it did so; in a later term it may rightly have truncated that. A sender on
an older copy gets an error here, because there may be no leader that could refuse it; everything else is dropped
silently. "Lately" is DUPLICATE_PROCESS_MS, so a broker that was killed and restarts at once waits that long. The
registered process is always accepted: it takes precedence over a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import RaftRequest
from penstock.metadata.commands import RegisterBroker
from penstock.metadata.disk_identity import may_have_run
from penstock.node.context import Context
from penstock.node.quorum.metadata_entries import command_in
from penstock.node.quorum.raft_listener import EntryPosition
from penstock.raft import Entry, Message
from penstock.raft.messages import FROM_MEMBERS

_REGISTERS = b"register_broker"  # part of every such command: other commands need not be decoded again
_RIVAL_TICKS = limits.DUPLICATE_PROCESS_MS // limits.RAFT_TICK_MS
FORGOTTEN = (
    "a broker has lost metadata that it had acknowledged, as after a start on an older copy of its data directory. The"
    " metadata of the other brokers is valid now: keep this data directory, to see what they lack, and start with an"
    " empty one"
)


class PeerProcess(NamedTuple):
    """The identity registered for a broker; empty fields are unknown."""

    data_dir_id: str = ""
    process: str = ""


class ProcessStart(NamedTuple):
    """The state of the disk at this process's start."""

    runs: tuple[str, ...]  # processes that ran on this disk, with this one
    log_index: int  # last entry in the log
    raft_term: int


class _Logged(NamedTuple):
    """A registration in the log."""

    log_index: int
    speaker: PeerProcess


class _Heard(NamedTuple):
    """The process that last spoke for a member, and when."""

    process: str
    tick: int


class PeerFencing:
    """The identities of all members, as this broker knows them. Call `tick` once per Raft tick."""

    def __init__(
        self, context: Context, own: PeerProcess, start: ProcessStart, acknowledged: Callable[[BrokerId], EntryPosition]
    ) -> None:
        """`acknowledged`: the log index that a member has acknowledged to this broker in the present term."""
        self._own = own
        self._start: ProcessStart | None = start  # None once this process is registered
        self._context = context
        self._acknowledged_now = acknowledged
        self._before: dict[
            BrokerId, tuple[str, EntryPosition]
        ] = {}  # acknowledged place when the process was first received
        self._logged: dict[BrokerId, _Logged] = {}  # last registration in the log
        self._first_disks: dict[BrokerId, str] = {}  # disks that members named first in this run
        self._heard: dict[BrokerId, _Heard] = {}
        self._older_copies: set[BrokerId] = set()  # members whose last message was dropped for that
        self._ticks = 0

    def tick(self) -> None:
        self._ticks += 1

    def registered(self) -> None:
        """Note that this process is registered: its disk is no older copy."""
        self._start = None

    @property
    def is_registered(self) -> bool:
        """True if this process is registered."""
        return self._start is None

    @property
    def older_copies(self) -> tuple[BrokerId, ...]:
        """Members that speak from an older copy of their disk."""
        return tuple(sorted(self._older_copies))

    def note(self, entries: Iterable[Entry]) -> None:
        """Note registrations among new log entries."""
        for entry in entries:
            command = command_in(entry) if _REGISTERS in entry.data else None
            if isinstance(command, RegisterBroker):
                self._logged[command.broker_id] = _Logged(
                    entry.index, PeerProcess(command.data_dir_id, command.process)
                )

    def of(self, broker_id: BrokerId) -> PeerProcess:
        """Return the identity registered for a broker."""
        image = self._context.image
        logged = self._logged.get(broker_id)
        if logged is not None and logged.log_index > image.index:
            return logged.speaker
        known = image.brokers.get(broker_id)
        if known is None:
            return PeerProcess(self._first_disks.get(broker_id, ""))
        return PeerProcess(known.data_dir_id, known.process)

    def lately(self, broker_id: BrokerId) -> str | None:
        """Return the process that spoke for a member within DUPLICATE_PROCESS_MS; None if none did."""
        heard = self._heard.get(broker_id)
        return None if heard is None or self._ticks - heard.tick >= _RIVAL_TICKS else heard.process

    def request(self, message: Message) -> RaftRequest:
        """Return the envelope of an outgoing Raft message."""
        heard = self._heard.get(message.to) if isinstance(message, FROM_MEMBERS) else None
        request = RaftRequest(
            data_dir_id=self._own.data_dir_id,
            to_data_dir_id=self.of(message.to).data_dir_id,
            process=self._own.process,
            to_process="" if heard is None else heard.process,
        )
        return request if self._start is None else msgspec.structs.replace(request, **self._start._asdict())

    def acknowledged(self, broker_id: BrokerId, process: str) -> EntryPosition:
        """Return the place in the log that the member acknowledged before this process of it started."""
        before = self._before.get(broker_id)  # also of a process without a name
        return before[1] if before is not None and before[0] == process else self._acknowledged_now(broker_id)

    def may_speak(self, request: RaftRequest, message: Message, *, is_member: bool) -> bool:
        """True if the message counts; see the table above. Raise RemoteError (older_copy) to inform the sender."""
        if is_member:
            self._first_disks.setdefault(message.sender, request.data_dir_id)
        if not self._is_of_these_disks(request, message):
            return False
        return not is_member or self._is_of_its_process(request, message)

    def _is_of_these_disks(self, request: RaftRequest, message: Message) -> bool:
        if not isinstance(message, FROM_MEMBERS):
            # A sender may have a disk unknown to this image, above all a leader that reports it.
            # else meant for an earlier disk of this broker
            return request.to_data_dir_id in ("", self._own.data_dir_id)
        is_for_us = request.to_process in ("", self._own.process)
        return is_for_us and self.of(message.sender).data_dir_id in ("", request.data_dir_id)

    def _is_of_its_process(self, request: RaftRequest, message: Message) -> bool:
        sender = message.sender
        registered = self.of(sender)
        if request.process != registered.process:
            if registered.data_dir_id == request.data_dir_id and self._is_older_copy(request, sender, registered):
                self._older_copies.add(sender)
                text = f"broker {message.to} knows a later state of the data directory of broker {sender}"
                raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text, older_copy=True)
            if self.lately(sender) not in (None, request.process):
                return False
        before = self._before.get(sender)
        if before is None or before[0] != request.process:
            self._before[sender] = request.process, self._acknowledged_now(sender)
        self._heard[sender] = _Heard(request.process, self._ticks)
        self._older_copies.discard(sender)
        return True

    def _is_older_copy(self, request: RaftRequest, sender: BrokerId, registered: PeerProcess) -> bool:
        if not may_have_run(registered.process, request.runs):
            return True
        log_index, raft_term = self.acknowledged(sender, request.process)
        return request.log_index is not None and request.raft_term <= raft_term and request.log_index < log_index
