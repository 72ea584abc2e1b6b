"""Who may speak for a member of the Raft group: the disk that is registered, and one process at a time.

Rules: every message names data directory and process of its sender, and what it knows of those of its receiver.

| a message                                             | is dropped, because                                      |
|-------------------------------------------------------|----------------------------------------------------------|
| asks, and means another disk here                     | that one is gone, and what it had promised with it       |
| answers, from another disk than is registered         | a broker with an empty disk could vote a second time     |
| answers another process than this                     | a copy of this disk asked, beside us                     |
| names the runs of its disk, but not one that is known | its disk is an older copy: it has forgotten its promises |
| names a log that ends before what it acknowledged     | the same, of a copy that was taken in its last run       |
| is of another process than was heard of lately        | a copy of its disk speaks beside it, or it beside a copy |

What counts as registered is also what is only in the log: after a start nobody knows yet how much of it is committed.
Of a first voter that is not registered yet, the disk is the one that it named first. Who asks is not judged by his
disk: a broker that was away hears of the others' new disks only from a leader that may have one. A broker names its
runs, and where its log ended when it was started, until it is registered in this one; whoever asked to be registered on
its disk is among them (`node/runs.py`). What it had acknowledged before is known to the leader of the term in which it
did, and to nobody after; in a later term it may, rightly, have given that up.
Whoever speaks from an older copy is told so, as nobody may lead who could; all else is dropped without a word.
Lately is RIVAL_MS; so a broker that was killed and comes back at once waits for that long. The process that is
registered is heard in any case: it comes before a copy.
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
from penstock.metadata.image import ClusterImage
from penstock.metadata.runs import may_have_run
from penstock.node.entries import command_in
from penstock.node.observer import Place
from penstock.raft import Entry, Message
from penstock.raft.messages import FROM_MEMBERS

_REGISTERS = b"register_broker"  # in every such command: the others need not be decoded twice
_RIVAL_TICKS = limits.RIVAL_MS // limits.RAFT_TICK_MS
FORGOTTEN = (
    "some broker has forgotten what it had acknowledged, as one does that is started on an older copy of its data"
    " directory. What the others have holds now: keep this data directory, to see what they lack, and start with an"
    " empty one"
)


class Speaker(NamedTuple):
    """Who speaks for a broker; what is empty is not known."""

    data_dir_id: str = ""
    process: str = ""


class Start(NamedTuple):
    """With what this process was started."""

    runs: tuple[str, ...]  # the processes that have run on this disk, this one among them
    log_index: int  # of the last entry in the log
    raft_term: int


class _Logged(NamedTuple):
    """A registration in the log."""

    log_index: int
    speaker: Speaker


class _Heard(NamedTuple):
    """The process of a member that was heard of last, and when."""

    process: str
    tick: int


class Speakers:
    """Those of all members, as one broker sees them. `tick` as often as Raft's time passes."""

    def __init__(
        self, own: Speaker, start: Start, image: Callable[[], ClusterImage], acknowledged: Callable[[BrokerId], Place]
    ) -> None:
        """`acknowledged`: up to where a member has told this broker that it has the log, in the present term."""
        self._own = own
        self._start: Start | None = start  # None: it need not be told any more
        self._image = image
        self._acknowledged_now = acknowledged
        self._before: dict[BrokerId, tuple[str, Place]] = {}  # what was so when the process was heard first
        self._logged: dict[BrokerId, _Logged] = {}  # the last registration in the log
        self._first_disks: dict[BrokerId, str] = {}  # of members, as each named it first in this run
        self._heard: dict[BrokerId, _Heard] = {}
        self._older_copies: set[BrokerId] = set()  # members whose last message was dropped for that
        self._ticks = 0

    def tick(self) -> None:
        """One tick of Raft's time has passed."""
        self._ticks += 1

    def registered(self) -> None:
        """This process is: that its disk is no older copy has been seen."""
        self._start = None

    @property
    def is_registered(self) -> bool:
        """Whether this process is."""
        return self._start is None

    @property
    def older_copies(self) -> tuple[BrokerId, ...]:
        """The members that speak from an older copy of their disk."""
        return tuple(sorted(self._older_copies))

    def note(self, entries: Iterable[Entry]) -> None:
        """These are in the log."""
        for entry in entries:
            command = command_in(entry) if _REGISTERS in entry.data else None
            if isinstance(command, RegisterBroker):
                self._logged[command.broker_id] = _Logged(entry.index, Speaker(command.data_dir_id, command.process))

    def of(self, broker_id: BrokerId) -> Speaker:
        """Who is registered for that broker."""
        image = self._image()
        logged = self._logged.get(broker_id)
        if logged is not None and logged.log_index > image.index:
            return logged.speaker
        known = image.brokers.get(broker_id)
        if known is None:
            return Speaker(self._first_disks.get(broker_id, ""))
        return Speaker(known.data_dir_id, known.process)

    def lately(self, broker_id: BrokerId) -> str | None:
        """The process that has spoken for that member lately; None: nobody has."""
        heard = self._heard.get(broker_id)
        return None if heard is None or self._ticks - heard.tick >= _RIVAL_TICKS else heard.process

    def request(self, message: Message) -> RaftRequest:
        """What a message of ours goes out with."""
        heard = self._heard.get(message.to) if isinstance(message, FROM_MEMBERS) else None
        request = RaftRequest(
            data_dir_id=self._own.data_dir_id,
            to_data_dir_id=self.of(message.to).data_dir_id,
            process=self._own.process,
            to_process="" if heard is None else heard.process,
        )
        return request if self._start is None else msgspec.structs.replace(request, **self._start._asdict())

    def acknowledged(self, broker_id: BrokerId, process: str) -> Place:
        """Up to where that member must have had the log before this process of it was started, as of which term."""
        before = self._before.get(broker_id)  # also of a process that has no name
        return before[1] if before is not None and before[0] == process else self._acknowledged_now(broker_id)

    def may_speak(self, request: RaftRequest, message: Message, *, is_member: bool) -> bool:
        """Whether the message counts; see the module's table. RemoteError (older_copy): so the sender is told."""
        if is_member:
            self._first_disks.setdefault(message.sender, request.data_dir_id)
        if not self._is_of_these_disks(request, message):
            return False
        return not is_member or self._is_of_its_process(request, message)

    def _is_of_these_disks(self, request: RaftRequest, message: Message) -> bool:
        if not isinstance(message, FROM_MEMBERS):
            # Whoever asks may have a disk of which this image does not know yet, most of all a leader that tells of it.
            return request.to_data_dir_id in ("", self._own.data_dir_id)  # else meant for a disk that was here before
        is_for_us = request.to_process in ("", self._own.process)
        return is_for_us and self.of(message.sender).data_dir_id in ("", request.data_dir_id)

    def _is_of_its_process(self, request: RaftRequest, message: Message) -> bool:
        sender = message.sender
        registered = self.of(sender)
        if request.process != registered.process:
            if registered.data_dir_id == request.data_dir_id and self._is_older_copy(request, sender, registered):
                self._older_copies.add(sender)
                text = f"broker {message.to} knows of a later state of the data directory of broker {sender}"
                raise RemoteError(ErrorCode.CLUSTER_MISMATCH, text, older_copy=True)
            if self.lately(sender) not in (None, request.process):
                return False
        before = self._before.get(sender)
        if before is None or before[0] != request.process:
            self._before[sender] = request.process, self._acknowledged_now(sender)
        self._heard[sender] = _Heard(request.process, self._ticks)
        self._older_copies.discard(sender)
        return True

    def _is_older_copy(self, request: RaftRequest, sender: BrokerId, registered: Speaker) -> bool:
        if not may_have_run(registered.process, request.runs):
            return True
        log_index, raft_term = self.acknowledged(sender, request.process)
        return request.log_index is not None and request.raft_term <= raft_term and request.log_index < log_index
