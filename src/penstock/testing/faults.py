"""What goes wrong in a simulated test, and how it is drawn.

| fault          | what happens                                                                              |
|----------------|-------------------------------------------------------------------------------------------|
| `kill`         | a broker's process dies, and comes back a second or two later                             |
| `power`        | a broker's machine loses its power: what was not synced may be gone                       |
| `restart`      | a broker is stopped cleanly: others lead                                                  |
| `pause`        | a broker's process gets no turn for a while, up to 15 s, as all below                     |
| `clock`        | a broker's calendar is set forward or back, by up to two minutes                          |
| `slow-disk`    | what a broker writes takes up to two seconds                                              |
| `hung-disk`    | what a broker writes does not come back                                                   |
| `full-disk`    | a broker's disk takes nothing                                                             |
| `nats-lost`    | a broker loses its connection to NATS                                                     |
| `nats-restart` | the NATS server is gone, with every connection, and comes back                            |
| `acks-lost`    | NATS loses half of the acks                                                               |
| `reset`        | connections between two machines break: what was under way arrives, or not                |
| `partition`    | two machines do not hear each other, or one of them the other; or nobody hears a broker   |
| `slow-network` | all takes up to 100 ms                                                                    |
| `program`      | a program that `cluster.start` has started is killed, and started again a second later    |
| `outage`       | all brokers' processes die within a moment                                                |
| `blackout`     | all brokers' machines lose their power at once: with durability `auto` acked messages may |
|                | be lost                                                                                   |

Drawn are all but the last two, unless a test names what it wants. A power loss strikes only where others are in sync
and have lost none: so what is acked stays, by the guarantees of durability `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from random import Random

from penstock.sim import plan
from penstock.sim.plan import Ill
from penstock.sim.scheduler import Scheduler

_LASTS_US_MAX = 15_000_000


class Fault(StrEnum):
    """What can go wrong; see the table of `penstock.testing.faults`."""

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
"""What the simulator calls it. A program is none of its business."""

DRAWN = tuple(fault for fault in Fault if fault not in (Fault.OUTAGE, Fault.BLACKOUT))
"""What is drawn where a test does not say."""


def chosen(faults: bool | str | Iterable[str]) -> tuple[Fault, ...]:
    """What a test wants: True is DRAWN, False nothing; or one name, or several. ValueError."""
    if isinstance(faults, bool):
        return DRAWN if faults else ()
    names = [faults] if isinstance(faults, str) else list(faults)
    unknown = sorted(set(names) - set(Fault))
    if unknown:
        raise ValueError(f"there is no fault {', '.join(map(repr, unknown))}; there are {', '.join(Fault)}")
    return tuple(dict.fromkeys(map(Fault, names)))


class Storm:
    """Draws faults, one about every `every_s` seconds, until `end`. `strike` carries one out."""

    def __init__(
        self,
        scheduler: Scheduler,
        random: Random,
        kinds: tuple[Fault, ...],
        every_s: float,
        brokers: int,
        strike: Callable[[Fault, plan.Fault], None],
    ) -> None:
        self._scheduler = scheduler
        self._random = random
        self._kinds = kinds
        self._every_us = int(every_s * 1_000_000)
        self._brokers = brokers
        self._strike = strike
        self._is_over = False

    def begin(self) -> None:
        """The first one comes after a while."""
        if self._kinds:
            self._scheduler.after(int(2 * self._random.random() * self._every_us), self._draw)

    def end(self) -> None:
        """No more of them."""
        self._is_over = True

    def _draw(self) -> None:
        if self._is_over:
            return
        random = self._random
        kind = self._kinds[int(random.random() * len(self._kinds))]
        lasts_us = int(100_000 + random.random() ** 3 * (_LASTS_US_MAX - 100_000))
        broker_id = 1 + int(random.random() * self._brokers)
        drawn = plan.Fault(
            self._scheduler.now_us, ILLS.get(kind, Ill.CRASH), broker_id, lasts_us, random.getrandbits(32)
        )
        self._strike(kind, drawn)
        self.begin()
