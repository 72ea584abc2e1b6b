"""A save of the metadata log under way: the input that waits for it, and the leader known meanwhile.

Rules: the core takes no input until the save is over. This broker's input waits in order; peers' messages wait behind
it, in a bounded queue, and Raft repairs what was dropped; of the ticks meanwhile one is made up for. A save that hangs
must not delay the others: the leader is taken from the waiting messages.

| the save                | this broker | known leader                                                     |
|-------------------------|-------------|------------------------------------------------------------------|
| is under way            | leads       | this broker, until a leader of a later term writes               |
| is so for METADATA_SAVE | led         | None: most of the others elect a new leader in that time         |
| is under way            | follows     | the last leader that wrote to it, if within METADATA_SAVE        |

The former leader sends nothing until the save is over: its successor is to consider it away, and give it no work.
A single voter has no successor, and everything waits for the disk.

This broker's input waits in a bounded queue, too. Only input without a callback is never refused: the leadership
transfer, once, at the stop.
"""

from __future__ import annotations

from collections import deque

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.node.quorum.pending_proposals import Input
from penstock.raft import Message, Raft
from penstock.raft.messages import FROM_LEADER
from penstock.raft.wire import is_believable

_HUNG_TICKS = limits.METADATA_SAVE_MS // limits.RAFT_TICK_MS
_STALL_TICKS = limits.FLUSH_STALL_MS // limits.RAFT_TICK_MS
_DEPOSED = "a save of the metadata has not come back, and others elect another metadata leader"
_STALLED = f"a save of the metadata has not come back for {limits.FLUSH_STALL_MS // 1_000} s"


class MetadataSave:
    """One save at a time: call `begin`, then `end`, then take the queued input."""

    def __init__(self, core: Raft) -> None:
        self.is_under_way = False
        self.ticks = 0  # duration so far
        self.messages: deque[Message] = deque()  # from peers
        self._inputs: deque[Input] = deque()  # this broker's; also from between the core's `ready` and `advance`
        self._input_bytes = 0
        self._message_bytes = 0
        self._core = core
        self._has_ticked = False
        self._leader: BrokerId | None = None  # from the core, or from a peer's later message
        self._leader_term = 0
        self._leader_ticks = 0  # when its last message arrived

    def begin(self) -> None:
        """Start queueing."""
        self.is_under_way = True
        self.ticks = 0
        self._leader, self._leader_term, self._leader_ticks = self._core.leader, self._core.term, 0

    def end(self) -> None:
        """Stop queueing, after success or failure."""
        self.is_under_way = False

    def tick(self) -> None:
        """Count a Raft tick."""
        self._has_ticked = True
        self.ticks += 1

    def take_tick(self) -> bool:
        """Return True, once, if a tick has passed that the core has not taken."""
        has_ticked, self._has_ticked = self._has_ticked, False
        return has_ticked

    @property
    def leader(self) -> BrokerId | None:
        """Known leader; see the table above."""
        if not (self.is_under_way or self.messages):
            return self._core.leader
        is_heard = self.ticks - self._leader_ticks < _HUNG_TICKS
        voters = self._core.membership.voters
        return self._leader if is_heard or voters == (self._core.id,) else None

    @property
    def stall(self) -> str:
        """Why no request waits for the save any more; empty if they do."""
        if not self.is_under_way:
            return ""
        if self._core.is_leader and self.leader != self._core.id:
            return _DEPOSED
        return _STALLED if self.ticks >= _STALL_TICKS else ""

    def put(self, given: Input) -> None:
        """Queue this broker's input; refuse it as overloaded if the queue is full."""
        has_room = len(self._inputs) < limits.METADATA_INPUTS_WAITING_MAX
        if given.done is None or (
            has_room and self._input_bytes + given.size_bytes <= limits.METADATA_INPUT_BYTES_WAITING_MAX
        ):
            self._inputs.append(given)
            self._input_bytes += given.size_bytes
        else:
            text = "too many changes of the metadata wait for the disk; ask again in a moment"
            given.refuse(RemoteError(ErrorCode.OVERLOADED, text))

    def next_input(self) -> Input | None:
        """Return the oldest queued input."""
        if not self._inputs:
            return None
        given = self._inputs.popleft()
        self._input_bytes -= given.size_bytes
        return given

    def take_inputs(self) -> tuple[Input, ...]:
        """Remove and return all queued input."""
        inputs = tuple(self._inputs)
        self._inputs.clear()
        self._input_bytes = 0
        return inputs

    def received(self, message: Message, size_bytes: int) -> None:
        """Queue a peer's message, or drop it if the queue is full."""
        if isinstance(message, FROM_LEADER):
            self._heard_leader(message)
        if not self.messages:
            self._message_bytes = 0
        has_room = self._message_bytes + size_bytes <= limits.RAFT_MESSAGE_BYTES_WAITING_MAX
        if has_room and len(self.messages) < limits.RAFT_MESSAGES_WAITING_MAX:
            self.messages.append(message)
            self._message_bytes += size_bytes

    def _heard_leader(self, message: Message) -> None:
        place = (message.term, message.sender)
        if place == (self._leader_term, self._leader):  # the usual case
            self._leader_ticks = self.ticks
            return
        is_news = message.term > self._leader_term or (message.term == self._leader_term and self._leader is None)
        if is_news and is_believable(message, self._core.id, self._core.term):
            self._leader_term, self._leader = place
            self._leader_ticks = self.ticks
