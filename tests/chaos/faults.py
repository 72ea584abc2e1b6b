"""What is struck, and the plan that a seed gives: which fault, whom, how long.

Rules: a plan is drawn before anything runs, from the seed, the number of brokers and the time alone; what this machine
cannot do is left out when its turn comes. Its first faults are each of them once, in any order. Faults that the product
promises to survive only one by one wait until every replica is in sync, and until it is so again: `is_alone`.

| fault                   | what happens                                                     | what may be lost     |
|-------------------------|------------------------------------------------------------------|----------------------|
| kill                    | SIGKILL of one broker                                            | nothing              |
| kill all                | SIGKILL of all at once                                           | nothing              |
| pause                   | SIGSTOP of one broker                                            | nothing              |
| roll                    | SIGTERM of one after the other                                   | nothing              |
| cut off                 | one broker reaches nobody, and nobody reaches it                 | nothing              |
| cut from brokers        | one broker and all others do not hear of each other, NATS does   | nothing              |
| cut one way             | what one broker sends does not arrive at another                 | nothing              |
| cut from NATS           | one broker and all nats-servers do not hear of each other        | nothing              |
| slow link               | what one broker sends is slow, and some is lost on the way       | nothing              |
| restart NATS            | one nats-server is killed, and comes back                        | nothing              |
| step the clock          | one broker's wall clock goes forward or back by up to an hour    | nothing              |
| full disk               | one broker has no room any more                                  | nothing              |
| power loss              | one broker loses what was not synced                             | nothing              |
| power loss of all       | all do, at the same moment                                       | under `auto`: note 1 |
| empty disk              | one broker is killed, and comes back with nothing                | nothing              |
| flipped bit             | a bit of one replica's segment is another one, or of what is     | nothing              |
|                         | beside it: an index, the lineage, the checkpoint                 |                      |
| truncated file          | one replica's segment is shorter                                 | nothing              |

Note 1: what was promised after the first moment from which on every replica in sync lacks something on its disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from penstock.commitlog.files.files import CHECKPOINT, LINEAGE
from tests.chaos.history import History, Place, PowerLost
from tests.chaos.system import CLOCK_STEP_S_MAX, PLACES, STREAMS, System, now_s
from tests.chaos.unsynced import Waiting

HOLD_S = (1.0, 7.0)
CALM_S = (0.0, 3.0)
ROLL_S = 60.0
_OF_SEGMENTS = 0.6  # of the bits that flip
ON_ITS_WAY_S = 1.0
"""So long clients may yet hear what brokers said that are dead: it lies in sockets, and in nats-servers."""


class NotHereError(Exception):
    """This machine, or this run, has nothing for that fault to strike."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One line of a plan."""

    fault: str
    broker: int  # whom
    other: int  # a second one, never the same
    hold_s: float
    calm_s: float  # before the next one
    seed: int  # of what is drawn while it strikes

    def __str__(self) -> str:
        whom = f"broker {self.broker}" + (f" to {self.other}" if self.fault == "cut one way" else "")
        return f"{self.fault:<18} {whom:<14} for {self.hold_s:3.1f} s"


Strikes = Callable[[System, History, Strike, Random], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, and what mends it; both tell what was done, in words."""

    name: str
    strike: Strikes
    heal: Strikes
    is_alone: bool = False


async def _start_all(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    for number in system.brokers:
        if not system.brokers[number].is_running:
            system.launch(number)
    return ""


async def _kill(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    system.kill(strike.broker)
    return ""


async def _kill_all(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    system.kill(*system.brokers)
    return ""


async def _pause(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    system.pause(strike.broker)
    return ""


async def _resume(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    system.resume()
    return ""


async def _roll(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    codes = []
    for number in system.brokers:
        if system.brokers[number].is_running:
            codes.append(await asyncio.to_thread(system.brokers[number].stop, ROLL_S))
            system.launch(number)
            await system.in_sync()
    return f"exit codes {codes}"


async def _nothing(_system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    return ""


def _can_cut(system: System) -> None:
    if not system.network.can_cut:
        raise NotHereError("there are no network namespaces")


def _nodes(system: System) -> list[str]:
    return [f"broker{number}" for number in system.brokers] + [server.name for server in system.nats]


async def _cut_off(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    _can_cut(system)
    own = f"broker{strike.broker}"
    for other in _nodes(system):
        if other != own:
            system.network.cut(own, other)
            system.network.cut(other, own)
    return ""


async def _cut_from_brokers(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    _can_cut(system)
    for other in system.brokers:
        if other != strike.broker:
            system.network.cut(f"broker{strike.broker}", f"broker{other}")
            system.network.cut(f"broker{other}", f"broker{strike.broker}")
    return ""


async def _cut_one_way(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    _can_cut(system)
    system.network.cut(f"broker{strike.broker}", f"broker{strike.other}")
    return ""


async def _cut_from_nats(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    _can_cut(system)
    for server in system.nats:
        system.network.cut(f"broker{strike.broker}", server.name)
        system.network.cut(server.name, f"broker{strike.broker}")
    return ""


async def _slow(system: System, _history: History, strike: Strike, chance: Random) -> str:
    _can_cut(system)
    bits_per_s = chance.choice((100_000, 1_000_000))
    system.network.slow(f"broker{strike.broker}", bits_per_s)
    return f"{bits_per_s // 1000} kbit/s"


async def _heal_network(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    system.network.heal()
    return ""


async def _kill_nats(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    server = system.nats[strike.broker % len(system.nats)]
    server.kill()
    return server.name


async def _start_nats(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    for server in system.nats:
        if not server.is_running:
            await asyncio.to_thread(server.start)
    return ""


async def _step(system: System, _history: History, strike: Strike, chance: Random) -> str:
    off_s = chance.choice((-CLOCK_STEP_S_MAX, -30.0, 30.0, CLOCK_STEP_S_MAX))
    system.set_clock(strike.broker, off_s)
    return f"by {off_s:+.0f} s"


async def _fill(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    if not system.can_fill:
        raise NotHereError("no file system can be mounted")
    system.fill(strike.broker)
    return ""


async def _make_room(system: System, _history: History, _strike: Strike, _chance: Random) -> str:
    system.make_room()
    return ""


async def _power_loss(system: System, _history: History, strike: Strike, chance: Random) -> str:
    system.kill(strike.broker)
    return f"{system.power_fails([strike.broker], chance)} writes and names undone"


async def _power_loss_of_all(system: System, history: History, _strike: Strike, chance: Random) -> str:
    parts = await system.partitions() or {}
    members = {place: tuple(map(int, part.isr)) for place, part in parts.items()}
    cut_s = now_s()
    system.kill(*system.brokers)
    unsynced = {
        place: waiting
        for place, waiting in system.unsynced(members).items()
        if STREAMS[place.stream]["durability"] == "auto"
    }
    undone = system.power_fails(list(system.brokers), chance)
    await asyncio.sleep(ON_ITS_WAY_S)
    lost = power_lost(now_s(), cut_s, unsynced)
    history.add(lost)
    most_ms = max([(cut_s - since_s) * 1000 for since_s in lost.since_s.values()], default=0.0)
    waited_ms = max([waited_s * 1000 for waited_s in lost.waited_s.values()], default=0.0)
    text = f"{undone} writes and names undone, of the last {max(0.0, most_ms):.0f} ms"
    return f"{text}, of which {max(0.0, waited_ms):.0f} ms passed without a sync"


def power_lost(at_s: float, cut_s: float, unsynced: Mapping[Place, list[Waiting]]) -> PowerLost:
    """What may be gone: what every replica in sync lacks. Of what it waited for, the best of them is judged."""
    return PowerLost(
        at_s,
        {place: max(one.since_s for one in waiting) for place, waiting in unsynced.items()},
        {place: min(one.waited_s(cut_s) for one in waiting) for place, waiting in unsynced.items()},
    )


async def _empty(system: System, _history: History, strike: Strike, _chance: Random) -> str:
    system.kill(strike.broker)
    system.empty_disk(strike.broker)
    return ""


def _place(system: System, strike: Strike, chance: Random) -> Place:
    """One that the broker has a replica of, while it still runs."""
    places = [place for place in PLACES if system.segments(strike.broker, place)]
    if not places:
        raise NotHereError("that broker has no replica")
    return chance.choice(places)


def to_flip(segments: list[Path], chance: Random) -> Path:
    """Now and then a file beside a segment: its index, the lineage, the checkpoint."""
    segment = chance.choice(segments)
    kinds: dict[str, list[Path]] = {}
    for path in sorted(segment.parent.iterdir()):
        if (path.suffix == ".index" or path.name in (LINEAGE, CHECKPOINT)) and path.stat().st_size:
            kinds.setdefault(path.suffix or path.name, []).append(path)
    if not kinds or chance.random() < _OF_SEGMENTS:
        return segment
    return chance.choice(kinds[chance.choice(list(kinds))])


def flip(path: Path, chance: Random) -> int:
    """Turn one bit of a file over; where."""
    position = chance.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return position


async def _flip(system: System, _history: History, strike: Strike, chance: Random) -> str:
    place = _place(system, strike, chance)
    system.kill(strike.broker)
    path = to_flip(system.segments(strike.broker, place), chance)
    position = flip(path, chance)
    system.launch(strike.broker)
    return f"{place}, {path.name} at {position}"


async def _truncate(system: System, _history: History, strike: Strike, chance: Random) -> str:
    place = _place(system, strike, chance)
    system.kill(strike.broker)
    path = chance.choice(system.segments(strike.broker, place))
    length = chance.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(length)
    system.launch(strike.broker)
    return f"{place}, {path.name} to {length} bytes"


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("kill", _kill, _start_all),
        Fault("kill all", _kill_all, _start_all),
        Fault("pause", _pause, _resume),
        Fault("roll", _roll, _nothing, is_alone=True),
        Fault("cut off", _cut_off, _heal_network),
        Fault("cut from brokers", _cut_from_brokers, _heal_network),
        Fault("cut one way", _cut_one_way, _heal_network),
        Fault("cut from NATS", _cut_from_nats, _heal_network),
        Fault("slow link", _slow, _heal_network),
        Fault("restart NATS", _kill_nats, _start_nats),
        Fault("step the clock", _step, _nothing),
        Fault("full disk", _fill, _make_room),
        Fault("power loss", _power_loss, _start_all, is_alone=True),
        Fault("power loss of all", _power_loss_of_all, _start_all, is_alone=True),
        Fault("empty disk", _empty, _start_all, is_alone=True),
        Fault("flipped bit", _flip, _nothing, is_alone=True),
        Fault("truncated file", _truncate, _nothing, is_alone=True),
    )
}


def plan(seed: int, brokers: int, count: int, only: tuple[str, ...] = ()) -> list[Strike]:
    """So many strikes; of these faults, or of all."""
    chance = Random(seed)
    names = list(only or FAULTS)
    strikes: list[Strike] = []
    deck: list[str] = []
    while len(strikes) < count:
        deck = deck or chance.sample(names, len(names))
        broker, other = chance.sample(range(1, brokers + 1), 2)
        times = chance.uniform(*HOLD_S), chance.uniform(*CALM_S)
        strikes.append(Strike(deck.pop(), broker, other, *times, chance.getrandbits(32)))
    return strikes
