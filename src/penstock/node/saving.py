"""A save of the metadata log that is under way, and what waits for its end.

Rules: meanwhile the core is told nothing. What is ours waits in the order in which it came; messages of peers behind
it, as many as there is room for, and Raft repairs what was dropped; of the ticks that pass one is made up for.
"""

from __future__ import annotations

from collections import deque

from penstock.base import limits
from penstock.node.proposals import Input
from penstock.raft import Message

_STALL_TICKS = limits.FLUSH_STALL_MS // limits.RAFT_TICK_MS
_STALLED = f"a save of the metadata has not come back for {limits.FLUSH_STALL_MS // 1_000} s"


class Saving:
    """One at a time: `begin`, then `end`, then whoever owns this takes what has waited."""

    def __init__(self) -> None:
        self.is_under_way = False
        self.ticks = 0  # so long has it been
        self.inputs: deque[Input] = deque()  # ours; also those that came between the core's ready and advance
        self.messages: deque[Message] = deque()  # of peers
        self._has_ticked = False

    def begin(self) -> None:
        """From here on all waits."""
        self.is_under_way = True
        self.ticks = 0

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
    def stall(self) -> str:
        """Why nothing that hangs on the save is waited for any more; empty: it is."""
        return _STALLED if self.is_under_way and self.ticks >= _STALL_TICKS else ""

    def take_inputs(self) -> tuple[Input, ...]:
        """Those of ours that wait; what comes because of them waits anew."""
        inputs = tuple(self.inputs)
        self.inputs.clear()
        return inputs

    def received(self, message: Message) -> None:
        """A message of a peer has come."""
        if len(self.messages) < limits.RAFT_MESSAGES_WAITING_MAX:
            self.messages.append(message)
