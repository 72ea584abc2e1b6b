"""A save of the metadata log that is under way, what waits for its end, and who leads meanwhile.

Rules: the core is told nothing until the save is over. What is ours waits in the order in which it came; messages of
peers behind it, as many as there is room for, and Raft repairs what was dropped; of the ticks that pass one is made up
for. A save that hangs must not hold up the others: who leads is what the messages say that wait.

| the save                | this broker | who leads                                                        |
|-------------------------|-------------|------------------------------------------------------------------|
| is under way            | leads       | this broker, until a leader of a later term writes               |
| is so for METADATA_SAVE | led         | nobody that is known: most of the others elect anew in that time |
| is under way            | follows     | whom it has heard as a leader last, if that was in METADATA_SAVE |

Who led says nothing until the save is over: its successor is to take it for away, not to give it anything to hold.
Where nobody else votes nobody takes a leader's place, and all waits for the disk.

What is ours waits in a bounded queue as well. Only what nobody would hear of is never refused, and so there is little
of it: this broker hands over once, at its end, and asks for the others' word once for each of its own heartbeats, of
which there are none once it leads no more, or once the save has stalled.
"""

from __future__ import annotations

from collections import deque

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.node.proposals import Input
from penstock.raft import Message, Raft
from penstock.raft.messages import FROM_LEADER
from penstock.raft.wire import is_believable

_HUNG_TICKS = limits.METADATA_SAVE_MS // limits.RAFT_TICK_MS
_STALL_TICKS = limits.FLUSH_STALL_MS // limits.RAFT_TICK_MS
_DEPOSED = "a save of the metadata has not come back, and others elect another metadata leader"
_STALLED = f"a save of the metadata has not come back for {limits.FLUSH_STALL_MS // 1_000} s"


class Saving:
    """One at a time: `begin`, then `end`, then whoever owns this takes what has waited."""

    def __init__(self, core: Raft) -> None:
        self.is_under_way = False
        self.ticks = 0  # so long has it been
        self.messages: deque[Message] = deque()  # of peers
        self._inputs: deque[Input] = deque()  # ours; also those that came between the core's ready and advance
        self._input_bytes = 0
        self._message_bytes = 0
        self._core = core
        self._has_ticked = False
        self._leader: BrokerId | None = None  # as the core knew, or a peer has said since
        self._leader_term = 0
        self._leader_ticks = 0  # when it was heard last

    def begin(self) -> None:
        """From here on all waits."""
        self.is_under_way = True
        self.ticks = 0
        self._leader, self._leader_term, self._leader_ticks = self._core.leader, self._core.term, 0

    def end(self) -> None:
        """It is over, well or not."""
        self.is_under_way = False

    def tick(self) -> None:
        """One tick of Raft's time has passed."""
        self._has_ticked = True
        self.ticks += 1

    def take_tick(self) -> bool:
        """Whether any has passed that the core has not heard of."""
        has_ticked, self._has_ticked = self._has_ticked, False
        return has_ticked

    @property
    def leader(self) -> BrokerId | None:
        """Who leads, as far as is known; see the module's table."""
        if not (self.is_under_way or self.messages):
            return self._core.leader
        is_heard = self.ticks - self._leader_ticks < _HUNG_TICKS
        voters = self._core.membership.voters
        return self._leader if is_heard or voters == (self._core.id,) else None

    @property
    def stall(self) -> str:
        """Why nothing that hangs on the save is waited for any more; empty: it is."""
        if not self.is_under_way:
            return ""
        if self._core.is_leader and self.leader != self._core.id:
            return _DEPOSED
        return _STALLED if self.ticks >= _STALL_TICKS else ""

    def put(self, given: Input) -> None:
        """Something of ours has come; it is refused as overloaded if too much waits."""
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
        """The one of ours that has waited longest."""
        if not self._inputs:
            return None
        given = self._inputs.popleft()
        self._input_bytes -= given.size_bytes
        return given

    def take_inputs(self) -> tuple[Input, ...]:
        """Those of ours that wait; what comes because of them waits anew."""
        inputs = tuple(self._inputs)
        self._inputs.clear()
        self._input_bytes = 0
        return inputs

    def received(self, message: Message, size_bytes: int) -> None:
        """A message of a peer has come."""
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
        if place == (self._leader_term, self._leader):  # as nearly always
            self._leader_ticks = self.ticks
            return
        is_news = message.term > self._leader_term or (message.term == self._leader_term and self._leader is None)
        if is_news and is_believable(message, self._core.id, self._core.term):
            self._leader_term, self._leader = place
            self._leader_ticks = self.ticks
