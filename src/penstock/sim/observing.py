"""What holds of observers, and of whoever reads from a replica that does not lead.

| promise                                                              | checked when                        |
|----------------------------------------------------------------------|-------------------------------------|
| an observer leads nothing, and is in none of the sets that decide    | whenever a broker has another image |
| who observes no more has nothing of it left, and begins anew later   | every event of a broker             |
| all that was acked longer ago than `behind_us` is shown              | an answer to a fetch                |

That what an observer shows is committed, and that its `committed_end` never goes back, is checked as of all replicas:
see `checks` and `agreement`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.base.ids import PartitionKey
from penstock.sim import inspector
from penstock.sim.checks import History
from penstock.sim.violation import ViolationError

if TYPE_CHECKING:
    from penstock.sim.broker import SimBroker

_SAMPLES_MAX = 256
_SKEW = 2_000  # a clock of a broker goes wrong by less than one part of so many
_SLACK_US = 1_000


class Observing:
    """What was seen of the observers of one run."""

    def __init__(self, histories: Mapping[tuple[str, int], History]) -> None:
        self._histories = histories
        self._held: dict[int, frozenset[PartitionKey]] = {}  # broker → what it had open
        self._applied: dict[int, tuple[int, int]] = {}  # broker → its run, and what it had applied

    def acted(self, broker: SimBroker, applied: int) -> list[History]:
        """After every event of a broker; the partitions that it has given up."""
        assert broker.node is not None
        if self._applied.get(broker.broker_id) != (broker.run, applied):
            self._applied[broker.broker_id] = broker.run, applied
            if (wrong := inspector.misplaced(broker.node)) is not None:
                raise ViolationError(f"{broker.name}, at index {applied}: {wrong}")
        held = inspector.held(broker.node)
        before = self._held.get(broker.broker_id, frozenset())
        if held == before:
            return []
        self._held[broker.broker_id] = frozenset(held)
        gone = before - held
        if not gone:
            return []
        found = [one for one in self._histories.values() if PartitionKey(one.stream_id, one.partition) in gone]  # type: ignore[arg-type]
        for history in found:
            history.ends.pop(broker.broker_id, None)
            disk = (broker.broker_id, broker.disk.number)
            history.damaged.discard(disk)
            history.mended.discard(disk)
        return found

    def started(self, broker: SimBroker) -> None:
        """A run begins: what was open before is opened again, or is not."""
        self._held.pop(broker.broker_id, None)


class Promises:
    """What was known to be committed at some moments: whoever says that it shows all of that moment has so much."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES_MAX)

    def note(self, history: History, now_us: int) -> None:
        """So much was acked, or read, by now."""
        self._samples.append((now_us, history.promised_end))

    def check(self, history: History, committed_end: int, asked_us: int, behind_us: int | None) -> None:
        """Somebody was asked at `asked_us`, and says up to where it shows all, and how old that may be."""
        if behind_us is None or history.cuts or history.may_lose or history.is_damaged or history.is_given_up:
            return
        shown_us = asked_us - behind_us - behind_us // _SKEW - _SLACK_US
        wanted = max((end for at_us, end in self._samples if at_us <= shown_us), default=0)
        if committed_end < wanted:
            text = (
                f"{history.name()}: a replica says that it is {behind_us} us behind at most, and shows {committed_end}"
            )
            raise ViolationError(f"{text} at {asked_us} us; {wanted} was promised at {shown_us} us")
