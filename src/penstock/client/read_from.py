"""From which replicas a reader reads: what its caller wants, and whom it asks now. No IO.

Rules: a reader stays with one broker, so that what that has in memory is of use, and goes to another one when it is
refused there, when that does not answer, or has nothing to give that is known to be there; then the one that failed is
left out for a while, longer each time. It chooses anew from time to time, so that brokers that were away get their
share again. Nothing is read twice or in another order: each fetch says what was read last, and of which leader epoch,
and whoever has less says "not yet". After a few of them the leader is asked. Where the leader says of itself that it
cannot answer (`error_codes.OF_ONE_BROKER`), or does not answer, every replica that was not asked yet is asked once.

| wanted      | asked are                                                                   |
|-------------|------------------------------------------------------------------------------|
| `leader`    | the partition's leader                                                       |
| `any`       | all in sync, and the observers, each as likely as the others                 |
| `nearest`   | those of them on the client's rack; where there is none, as `any`            |
| `followers` | as `any`, without the leader, while there are others                         |
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionKey
from penstock.client.cluster import ClusterView

Which = Literal["leader", "any", "nearest", "followers"]

_AVOID_S_MIN = 1.0
_AVOID_S_MAX = 30.0
_CHOICE_S = 60.0  # so long at most a reader stays with one broker


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Which replicas answer a reader: "leader", "any", "nearest" (on the rack given to `connect`) or "followers".

    `max_staleness`, in seconds: who may lack something that was committed so long ago is not read from; None: that does
    not matter. Of a leader it is not asked.
    """

    which: Which = "leader"
    max_staleness: float | None = limits.READ_STALENESS_MS_DEFAULT / 1_000

    def __post_init__(self) -> None:
        if self.which not in get_args(Which):
            raise ValueError(f"read_from is {self.which!r}; there are {', '.join(map(repr, get_args(Which)))}")
        if self.max_staleness is not None and not 0 < self.max_staleness < 2**31:
            raise ValueError(f"max_staleness is {self.max_staleness!r} s; give it some time, or None for any")

    @property
    def max_staleness_ms(self) -> int | None:
        """The same in whole milliseconds."""
        return None if self.max_staleness is None else max(1, round(self.max_staleness * 1_000))


LEADER = ReadFrom()
FOLLOWERS = ReadFrom("followers", None)
"""For ranges of which it is known that they are committed."""


def read_from_of(wanted: ReadFrom | str | None) -> ReadFrom | None:
    """What a caller said, checked. ValueError."""
    return wanted if wanted is None or isinstance(wanted, ReadFrom) else ReadFrom(wanted)  # type: ignore[arg-type]


class Choice:
    """Whom one reader of one partition asks. Times are seconds of any clock that only goes forward."""

    def __init__(self, view: ClusterView, key: PartitionKey, wanted: ReadFrom, rack: str | None) -> None:
        self.wanted = wanted
        self._view = view
        self._key = key
        self._rack = rack
        self._chosen: BrokerId | None = None
        self._until_s = 0.0
        self._failures: dict[BrokerId, tuple[int, float]] = {}  # how often in a row, and until when it is left out

    def address(self, now_s: float) -> str | None:
        """HOST:PORT of the replica to be asked now; None: the leader, wherever that is."""
        if self.wanted.which == "leader":
            return None
        able = self._able(now_s)
        if self._chosen not in able or now_s >= self._until_s:
            chance = self._view.chance
            self._chosen = able[int(chance() * len(able))] if able else None
            self._until_s = now_s + _CHOICE_S * (0.5 + chance())
        chosen, leader = self._chosen, self._view.leader(self._key)
        if chosen is None or (leader is not None and leader.broker_id == chosen):
            return None
        return self._view.address_of(chosen)

    def _able(self, now_s: float) -> list[BrokerId]:
        """Who may be chosen; nobody: the leader has to do."""
        leader = self._view.leader(self._key)
        able = [
            one
            for one in self._view.holders(self._key)
            if self._view.is_live(one) and self._view.address_of(one) is not None and not self._is_avoided(one, now_s)
        ]
        if self.wanted.which == "followers":
            return [one for one in able if leader is None or one != leader.broker_id]
        if self.wanted.which == "nearest" and self._rack is not None:
            return [one for one in able if self._view.rack_of(one) == self._rack] or able
        return able

    def _is_avoided(self, broker_id: BrokerId, now_s: float) -> bool:
        failed = self._failures.get(broker_id)
        return failed is not None and now_s < failed[1]

    def others(self, tried: Collection[str]) -> list[str]:
        """HOST:PORT of each replica but the leader and those in `tried`, whether it failed lately or not."""
        leader = self._view.leader(self._key)
        replicas = (one for one in self._view.holders(self._key) if leader is None or one != leader.broker_id)
        addresses = (self._view.address_of(one) for one in replicas)
        return [one for one in addresses if one is not None and one not in tried]

    def leader_failed(self, now_s: float) -> None:
        """The leader did not answer, or with an error."""
        leader = self._view.leader(self._key)
        self._chosen = None if leader is None else leader.broker_id
        self.failed(now_s)

    def failed(self, now_s: float) -> None:
        """The replica that was chosen last did not answer, or with an error, or has less than it should."""
        if self._chosen is None:
            return
        count, _ = self._failures.get(self._chosen, (0, 0.0))
        pause_s = min(_AVOID_S_MAX, _AVOID_S_MIN * 2.0 ** min(count, 10)) * (0.5 + self._view.chance())
        self._failures.pop(self._chosen, None)
        self._failures[self._chosen] = count + 1, now_s + pause_s
        if len(self._failures) > limits.REPLICAS_MAX + limits.OBSERVERS_MAX:
            del self._failures[next(iter(self._failures))]
        self._chosen = None

    def answered(self) -> None:
        """Whoever was chosen last has answered."""
        if self._failures and self._chosen is not None:
            self._failures.pop(self._chosen, None)
