"""Choose the replica that a reader fetches from. No IO.

Rules: a reader stays with one broker, to use its cache, and changes if the broker refuses, does not answer, or lacks
messages that are known to exist. The broker that failed is then avoided for a while, longer each time. The reader also
chooses again from time to time, so that brokers that were away get their share again. Nothing is read twice or out of
order: each fetch names the last offset read and its leader epoch, and a replica that has less answers "not yet". After
a few such answers the leader is asked. If the leader cannot answer (`error_codes.OF_ONE_BROKER`) or does not answer,
every replica not asked yet is asked once.

| wanted      | replicas asked                                                               |
|-------------|------------------------------------------------------------------------------|
| `leader`    | the partition's leader                                                       |
| `any`       | all in-sync replicas and observers (read replicas), equally likely           |
| `nearest`   | those on the client's rack; if there are none, as `any`                      |
| `followers` | as `any` without the leader, while there are others                          |
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionKey
from penstock.client.link.cluster import ClusterView

Which = Literal["leader", "any", "nearest", "followers"]

_AVOID_S_MIN = 1.0
_AVOID_S_MAX = 30.0
_CHOICE_S = 60.0  # longest time that a reader stays with one broker


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Selects the replicas that a reader reads from: "leader", "any", "nearest" (on the rack given to `connect`) or
    "followers".

    `max_staleness`, in seconds: a replica that may lack messages committed longer ago than this is not read from; None:
    no limit. It does not apply to the leader.
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
        """`max_staleness` in whole milliseconds."""
        return None if self.max_staleness is None else max(1, round(self.max_staleness * 1_000))


LEADER = ReadFrom()
FOLLOWERS = ReadFrom("followers", None)
"""For ranges known to be committed."""


def read_from_of(wanted: ReadFrom | str | None) -> ReadFrom | None:
    """Return a validated `ReadFrom`. ValueError."""
    return wanted if wanted is None or isinstance(wanted, ReadFrom) else ReadFrom(wanted)  # type: ignore[arg-type]


class ReplicaChoice:
    """Chooses the replica for one reader of one partition. Times are seconds of a monotonic clock."""

    def __init__(self, view: ClusterView, key: PartitionKey, wanted: ReadFrom, rack: str | None) -> None:
        self.wanted = wanted
        self._view = view
        self._key = key
        self._rack = rack
        self._chosen: BrokerId | None = None
        self._until_s = 0.0
        self._failures: dict[BrokerId, tuple[int, float]] = {}  # failures in a row, and until when it is avoided

    def address(self, now_s: float) -> str | None:
        """Return HOST:PORT of the replica to ask now; None: ask the leader."""
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
        """Return the replicas that may be chosen; empty: ask the leader."""
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
        """Return HOST:PORT of each replica except the leader and those in `tried`, including recently failed ones."""
        leader = self._view.leader(self._key)
        replicas = (one for one in self._view.holders(self._key) if leader is None or one != leader.broker_id)
        addresses = (self._view.address_of(one) for one in replicas)
        return [one for one in addresses if one is not None and one not in tried]

    def leader_failed(self, now_s: float) -> None:
        """Record that the leader did not answer, or answered with an error."""
        leader = self._view.leader(self._key)
        self._chosen = None if leader is None else leader.broker_id
        self.failed(now_s)

    def failed(self, now_s: float) -> None:
        """Record that the chosen replica did not answer, answered with an error, or lacks messages."""
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
        """Record that the chosen replica has answered."""
        if self._failures and self._chosen is not None:
            self._failures.pop(self._chosen, None)
