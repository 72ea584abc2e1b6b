"""Invariants of read replicas (observers) and of reads from replicas that do not lead.

| promise                                                              | checked at                          |
|----------------------------------------------------------------------|-------------------------------------|
| an observer leads nothing and is in no set that decides              | every new image of a broker         |
| a removed observer keeps nothing, and begins anew if added again     | every turn of a broker             |
| everything acked longer ago than `behind_us` is shown                | an answer to a fetch                |

`checks` and `agreement` verify for all replicas, observers too, that only committed messages are shown and that
`committed_end` never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.base.ids import PartitionKey
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import PartitionHistory

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker

_SAMPLES_MAX = 256
_SKEW = 2_000  # clock error of a broker: less than one part in this many
_SLACK_US = 1_000


class Observing:
    """Observations of the observers of one run."""

    def __init__(self, histories: Mapping[tuple[str, int], PartitionHistory]) -> None:
        self._histories = histories
        self._held: dict[int, frozenset[PartitionKey]] = {}  # broker → its open partitions
        self._applied: dict[int, tuple[int, int]] = {}  # broker → its run and applied index

    def acted(self, broker: SimBroker, applied: int) -> list[PartitionHistory]:
        """Check a broker after each of its events; return the partitions that it has given up."""
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
            if history.is_deleted:
                continue  # its damaged files are back if the power is lost before they are removed
            disk = (broker.broker_id, broker.disk.number)
            history.damaged.discard(disk)
            history.mended.discard(disk)
        return found

    def started(self, broker: SimBroker) -> None:
        """Forget the open partitions of a broker whose run begins: some may not be opened again."""
        self._held.pop(broker.broker_id, None)


class CommitPromises:
    """High watermarks known at some times: a replica that claims to show all up to a time must show at least these."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=_SAMPLES_MAX)

    def note(self, history: PartitionHistory, now_us: int) -> None:
        """Record the promised end at this time."""
        self._samples.append((now_us, history.promised_end))

    def check(self, history: PartitionHistory, committed_end: int, asked_us: int, behind_us: int | None) -> None:
        """Check a replica's answer to a fetch at `asked_us`: `behind_us` bounds its staleness."""
        if behind_us is None or history.cuts or history.may_lose or history.is_damaged or history.is_given_up:
            return
        shown_us = asked_us - behind_us - behind_us // _SKEW - _SLACK_US
        wanted = max((end for at_us, end in self._samples if at_us <= shown_us), default=0)
        if committed_end < wanted:
            text = (
                f"{history.name()}: a replica says that it is {behind_us} us behind at most, and shows {committed_end}"
            )
            raise ViolationError(f"{text} at {asked_us} us; {wanted} was promised at {shown_us} us")
