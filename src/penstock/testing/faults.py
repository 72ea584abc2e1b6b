"""The kinds of faults of a simulated test, and how they are drawn.

| fault          | what happens                                                                              |
|----------------|-------------------------------------------------------------------------------------------|
| `kill`         | a broker's process dies, and restarts a second or two later                               |
| `power`        | a broker's machine loses its power: data not synced may be lost                           |
| `restart`      | a broker is stopped cleanly: others take over its leaderships                             |
| `pause`        | a broker's process is paused for a while, up to 15 s (as for all faults below)            |
| `clock`        | a broker's calendar clock is set forward or back, by up to two minutes                    |
| `slow-disk`    | a broker's disk writes take up to two seconds                                             |
| `hung-disk`    | a broker's disk writes do not return                                                      |
| `full-disk`    | a broker's disk is full                                                                   |
| `nats-lost`    | a broker loses its connection to NATS                                                     |
| `nats-restart` | the NATS server stops, with every connection, and restarts                                |
| `acks-lost`    | NATS loses half of the acks                                                               |
| `reset`        | connections between two machines break: data in flight arrive, or not                     |
| `partition`    | two machines cannot reach each other, in one or both directions; or a broker is isolated  |
| `slow-network` | every message takes up to 100 ms                                                          |
| `program`      | a program started by `cluster.start` is killed, and restarted a second later              |
| `outage`       | all brokers' processes die within a moment                                                |
| `blackout`     | all brokers' machines lose their power at once: with durability `auto` acked messages may |
|                | be lost                                                                                   |

By default all but the last two are drawn. A power loss strikes only if other in-sync replicas have lost no data, so
that acked messages survive, as durability `auto` guarantees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from random import Random

from penstock.testing.simulation.planned_faults import Ill, PlannedFault
from penstock.testing.simulation.scheduler import Scheduler

_LASTS_US_MAX = 15_000_000


class Fault(StrEnum):
    """The kinds of faults; see the table of `penstock.testing.faults`."""

    KILL = "kill"
    POWER = "power"
    RESTART = "restart"
    PAUSE = "pause"
    CLOCK = "clock"
    SLOW_DISK = "slow-disk"
    HUNG_DISK = "hung-disk"
    FULL_DISK = "full-disk"
    NATS_LOST = "nats-lost"
    NATS_RESTART = "nats-restart"
    ACKS_LOST = "acks-lost"
    RESET = "reset"
    PARTITION = "partition"
    SLOW_NETWORK = "slow-network"
    PROGRAM = "program"
    OUTAGE = "outage"
    BLACKOUT = "blackout"


ILLS = {
    Fault.KILL: Ill.CRASH,
    Fault.POWER: Ill.POWER_CUT,
    Fault.RESTART: Ill.CLEAN_RESTART,
    Fault.PAUSE: Ill.PAUSE,
    Fault.CLOCK: Ill.CLOCK_STEP,
    Fault.SLOW_DISK: Ill.SLOW_DISK,
    Fault.HUNG_DISK: Ill.HUNG_SYNC,
    Fault.FULL_DISK: Ill.FULL_DISK,
    Fault.NATS_LOST: Ill.NATS_LOST,
    Fault.NATS_RESTART: Ill.NATS_RESTART,
    Fault.ACKS_LOST: Ill.ACKS_LOST,
    Fault.RESET: Ill.RESET,
    Fault.PARTITION: Ill.PARTITION,
    Fault.SLOW_NETWORK: Ill.SLOW_NETWORK,
    Fault.OUTAGE: Ill.ALL_KILLED,
    Fault.BLACKOUT: Ill.ALL_LOSE_POWER,
}
"""The simulator's name of each fault, except of `program`, which it does not know."""

DRAWN = tuple(fault for fault in Fault if fault not in (Fault.OUTAGE, Fault.BLACKOUT))
"""The default faults."""


def chosen(faults: bool | str | Iterable[str]) -> tuple[Fault, ...]:
    """Return the faults that a test selects: True is DRAWN, False nothing; or one name, or several. ValueError."""
    if isinstance(faults, bool):
        return DRAWN if faults else ()
    names = [faults] if isinstance(faults, str) else list(faults)
    unknown = sorted(set(names) - set(Fault))
    if unknown:
        raise ValueError(f"there is no fault {', '.join(map(repr, unknown))}; there are {', '.join(Fault)}")
    return tuple(dict.fromkeys(map(Fault, names)))


class Storm:
    """Draws faults, on average one every `every_s` seconds, until `end`; calls `strike` for each."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        kinds: tuple[Fault, ...],
        every_s: float,
        brokers: int,
        strike: Callable[[Fault, PlannedFault], None],
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._kinds = kinds
        self._every_us = int(every_s * 1_000_000)
        self._brokers = brokers
        self._strike = strike
        self._is_over = False

    def begin(self) -> None:
        """Schedule the first fault."""
        if self._kinds:
            self._scheduler.after(int(2 * self._random.random() * self._every_us), self._draw)

    def end(self) -> None:
        """Draw no more faults."""
        self._is_over = True

    def _draw(self) -> None:
        if self._is_over:
            return
        random = self._random
        kind = self._kinds[int(random.random() * len(self._kinds))]
        lasts_us = int(100_000 + random.random() ** 3 * (_LASTS_US_MAX - 100_000))
        broker_id = 1 + int(random.random() * self._brokers)
        drawn = PlannedFault(
            self._scheduler.now_us, ILLS.get(kind, Ill.CRASH), broker_id, lasts_us, random.getrandbits(32)
        )
        self._strike(kind, drawn)
        self.begin()
