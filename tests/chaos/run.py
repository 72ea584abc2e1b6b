"""One run: start the system, keep it busy, strike it by a plan, let it rest, and look at what everybody has.

Rules: what ends a run early (it does not come to rest in time, a process dies of a mistake) is a failure like any that
the checker finds. The folder of a run that failed stays: logs, data directories, the history, the plan.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from penstock import open_segment, segment_files
from penstock.base import limits
from penstock.base.errors import CorruptionError, PenstockError, RemoteError
from penstock.commitlog.files.files import CHECKPOINT
from penstock.messages import PartitionInfo
from tests.broker_process import eventually
from tests.chaos import checker, faults
from tests.chaos.clients import Consumer, Publisher, Rows, connected, fetched, rows_of
from tests.chaos.faults import FAULTS, NotHereError, Strike
from tests.chaos.history import History, Kept, Place
from tests.chaos.network import Network
from tests.chaos.system import PLACES, RECOVERY_S, System

STRIKES_MAX = 10_000
_CAUGHT_UP_S = 120.0
_BEFORE_S = 2.0  # the first fault strikes brokers that have something to lose
_MENDING_TRIES_S = 2 * limits.REPAIR_RETRY_MS / 1000  # then a log that cannot be mended has been tried again
_BUILT_ANEW = (".index", ".subjects", ".cleaned", ".mended", ".new")  # from other files, which must be there

PUBLISHERS = (
    ("orders once", "once", "orders", "orders", 0),
    ("orders once 1", "once", "orders", "orders.1", 1),
    ("orders id", "id", "orders", "orders", 0),
    ("orders again", "again", "orders", "orders.1", 1),
    ("orders append", "append", "orders", "", 1),
    ("ledger once", "once", "ledger", "ledger.a", 0),
    ("ledger silent", "silent", "ledger", "ledger.b", 0),
    ("ledger append", "append", "ledger", "ledger.c", 0),
    ("keyed once", "once", "keyed", "keyed.a", 0),
    ("keyed id", "id", "keyed", "keyed.b", 0),
)


@dataclass(slots=True)
class Options:
    """What to run."""

    seed: int
    seconds: float
    brokers: int = 3
    nats_servers: int = 1
    faults: tuple[str, ...] = ()
    strikes: int = STRIKES_MAX
    mutant: str = ""
    lies: bool = False
    damages_most: bool = True  # at the end
    recovery_s: float = RECOVERY_S


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    folder: Path
    options: Options
    result: checker.Result = field(default_factory=checker.Result)
    struck: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, str] = field(default_factory=dict)  # fault → why
    network: str = ""  # which one it was
    heard: Counter[str] = field(default_factory=Counter)  # by publishers
    readers_sent_back: int = 0
    failures: list[str] = field(default_factory=list)  # beside what the checker found
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing was found."""
        return not self.failures and not self.result.mistakes


Show = Callable[[str], None]


async def run(folder: Path, network: Network, options: Options, show: Show) -> Outcome:
    """The whole of it; every process has ended when it returns."""
    outcome = Outcome(folder, options, network=type(network).__name__)
    history = History()
    began_s = time.monotonic()
    system = System(
        *(folder, network, options.brokers, options.nats_servers),
        small=True,
        mutant=options.mutant,
        lies=options.lies,
        recovery_s=options.recovery_s,
    )
    try:
        system.start()
        await system.make_streams()
        await _busy(system, history, options, outcome, show)
        if options.damages_most:
            await _damage_most(system, history, Random(options.seed), outcome, show)
    except (AssertionError, PenstockError, OSError) as error:
        outcome.failures.append(f"{type(error).__name__}: {error}")
    finally:
        system.end()
        history.save(folder / "history.jsonl")
    outcome.failures += [f"ended by itself: {one}" for one in system.ended_by_themselves]
    for path in sorted(folder.glob("broker*.log")):
        if "Traceback" in path.read_text():
            outcome.failures.append(f"a traceback in {path.name}")
    found = checker.check(history.events)
    outcome.result.mistakes.update(found.mistakes)
    outcome.result.acked, outcome.result.polled = found.acked, found.polled
    outcome.result.stored, outcome.result.lost_as_promised = found.stored, found.lost_as_promised
    outcome.seconds = time.monotonic() - began_s
    return outcome


async def _busy(system: System, history: History, options: Options, outcome: Outcome, show: Show) -> None:
    streams = {one.name: one for one in await system.streams() or ()}
    publishers = [Publisher(system, history, *one) for one in PUBLISHERS]
    consumers = [
        Consumer(system, history, place, streams[place.stream].stream_id, broker)
        for place in PLACES
        for broker in (None, *map(int, streams[place.stream].partitions[place.partition].replicas))
    ]
    try:
        await _strike(system, history, options, outcome, show)
        show("coming to rest")
        await system.in_sync()
        for publisher in publishers:
            await publisher.stop()
        parts = await system.at_rest()
        await _caught_up(consumers, parts)
        await _read_all(system, history, streams, parts)
    finally:
        for publisher in publishers:
            with suppress(PenstockError, OSError):
                await publisher.stop()
                await publisher.close()
            outcome.heard.update(publisher.heard)
        for consumer in consumers:
            await consumer.stop()
        outcome.readers_sent_back = sum(consumer.sent_back for consumer in consumers)
    codes = await system.stop()
    if any(codes.values()):
        outcome.failures.append(f"exit codes of clean stops: {codes}")
    for place, part in parts.items():
        for kept in kept_on_disks(place, part, system.log_folders):
            history.add(kept)


async def _strike(system: System, history: History, options: Options, outcome: Outcome, show: Show) -> None:
    """Until the time has passed; each fault is healed before the next one but one."""
    until_s = time.monotonic() + options.seconds
    await asyncio.sleep(_BEFORE_S)
    lasting: tuple[Strike, float] | None = None
    for strike in faults.plan(options.seed, options.brokers, options.strikes, options.faults):
        fault = FAULTS[strike.fault]
        if lasting is not None and (fault.is_alone or strike.seed % 3):  # now and then two at once
            await _heal(system, history, *lasting, show)
            lasting = None
        if time.monotonic() >= until_s:
            break
        if fault.is_alone:
            await system.in_sync()
        try:
            text = await fault.strike(system, history, strike, Random(strike.seed))
        except NotHereError as error:
            outcome.left_out[fault.name] = str(error)
            continue
        show(f"{strike}  {text}".rstrip())
        outcome.struck[fault.name] += 1
        if lasting is not None:
            await _heal(system, history, *lasting, show)
        lasting = strike, time.monotonic() + strike.hold_s
        if fault.is_alone:
            await _heal(system, history, *lasting, show)
            lasting = None
            await system.in_sync()
        await asyncio.sleep(strike.calm_s)
    if lasting is not None:
        await _heal(system, history, *lasting, show)


async def _heal(system: System, history: History, strike: Strike, until_s: float, show: Show) -> None:
    await asyncio.sleep(max(0.0, until_s - time.monotonic()))
    if text := await FAULTS[strike.fault].heal(system, history, strike, Random(strike.seed)):
        show(f"{strike.fault:<18} {text}")


async def _caught_up(consumers: list[Consumer], parts: dict[Place, PartitionInfo]) -> None:
    """Every consumer is given all that is committed."""

    def behind() -> list[str]:
        return [
            f"{one.name} is at {one.position} of {parts[one.place].committed_end}, told {dict(one.said)}"
            for one in consumers
            if one.position < (parts[one.place].committed_end or 0)
        ]

    async def look() -> bool:
        return not behind()

    try:
        await eventually(look, "every consumer has all", _CAUGHT_UP_S)
    except AssertionError:
        raise AssertionError(f"consumers that do not come to the end: {behind()}") from None


async def _read_all(
    system: System, history: History, streams: dict[str, object], parts: dict[Place, PartitionInfo]
) -> None:
    """What each replica gives to whoever reads from it."""
    for place, part in parts.items():
        stream_id = getattr(streams[place.stream], "stream_id")  # noqa: B009
        for number in map(int, part.replicas):
            rows, error = await _read(system, number, stream_id, place, part.committed_end or 0)
            assert error is None, f"{place} at broker {number}: {error}"
            history.add(Kept(f"broker {number}", place, rows))


async def _read(
    system: System, number: int, stream_id: int, place: Place, end: int
) -> tuple[Rows, PenstockError | None]:
    """All rows from the beginning on, or up to the first error of the broker."""
    rows: Rows = {}
    connection = await connected(system, number)
    try:
        async with asyncio.timeout(RECOVERY_S):
            while (offset := max(rows, default=-1) + 1) < end:
                found, _ = await fetched(connection, stream_id, place, offset, None, 1000)
                rows.update(found)
    except (RemoteError, CorruptionError) as error:
        return rows, error
    finally:
        connection.writer.transport.abort()
    return rows, None


def kept_on_disks(place: Place, part: PartitionInfo, log_folders: Callable[[int, Place], list[Path]]) -> Iterator[Kept]:
    """What each replica has in its files, also one that has none."""
    for number in map(int, part.replicas):
        yield Kept(f"disk of broker {number}", place, _on_disk(log_folders(number, place)))


def _on_disk(folders: list[Path]) -> Rows:
    """The rows in the files of a broker that has ended."""
    rows: Rows = {}
    for folder in folders:
        for path in segment_files(folder):
            with open_segment(path) as segment:
                for _, message in segment.messages():
                    rows.update(rows_of(message))
    return rows


async def _damage_most(system: System, history: History, chance: Random, outcome: Outcome, show: Show) -> None:
    """Bits flip on most replicas of a place: they are mended from the others. Then all lose the same: nobody gets what
    was not there, and no file goes.
    """
    truths = {place: _truth(history, place) for place in PLACES}
    place = chance.choice([one for one in PLACES if truths[one]] or [PLACES[0]])
    replicas = [number for number in system.brokers if system.segments(number, place)]
    struck = chance.sample(replicas, len(replicas) // 2 + 1)
    for number in struck:
        faults.flip(system.segments(number, place)[0], chance)
    show(f"bits of {place} flip at brokers {struck}")
    for number in system.brokers:
        system.launch(number)
    truth = truths[place]

    async def are_mended() -> bool:
        return all([await _look(system, number, place, truth) == (truth, None) for number in replicas])

    await eventually(are_mended, f"most replicas of {place} are mended", RECOVERY_S)
    show("they are mended")
    for number in system.brokers:
        system.kill(number)
    for number in replicas:
        path = system.segments(number, place)[0]
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    before = {folder: contents(folder) for number in replicas for folder in system.log_folders(number, place)}
    show(f"{place} is cut short at all brokers")
    for number in system.brokers:
        system.launch(number)
    for number in replicas:
        found = await _look(system, number, place, truth)
        assert found is not None
        rows, error = found
        wrong = [offset for offset, row in rows.items() if truth.get(offset) != row]
        if wrong:
            outcome.failures.append(f"{place} at broker {number}: other rows than there were, from {wrong[0]} on")
        show(f"broker {number} gives {len(rows)} of {len(truth)} rows{f', then {error}' if error else ''}"[:150])
    await asyncio.sleep(_MENDING_TRIES_S)
    for number in system.brokers:
        system.kill(number)
    for folder, files in before.items():
        outcome.failures += [f"{folder}: {text}" for text in gone(files, contents(folder))]


_GENERATION = re.compile(r"([0-9]+)(?:\.([0-9]+))?\.arrows")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file there, by its path within the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def gone(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """What has gone of the files of a damaged log, in words: nothing may, but new ones may come, and bytes behind.

    A mend that found all it needs, as where a segment of another replica reaches further, puts a later generation of
    the segment into its place, and keeps the damaged bytes.
    """
    texts = []
    for name, content in sorted(before.items()):
        if name.endswith(_BUILT_ANEW):
            continue
        if name not in after:
            if _is_mended(name, content, after):
                continue
            texts.append(f"{name} was deleted")
        elif not after[name].startswith(content) and name != CHECKPOINT:  # which is written anew in its place
            texts.append(f"{name} was cut or changed")
    return texts


def _is_mended(name: str, content: bytes, after: Mapping[str, bytes]) -> bool:
    """Whether a later generation of that segment is there, and beside it what was damaged at the old one's end."""
    cuts = [(int(one.rpartition("-")[2]), kept) for one, kept in after.items() if one.startswith(f"{name}.cut-")]
    return any(_is_later(one, name) for one in after) and any(content[at:] == kept for at, kept in cuts if kept)


def _is_later(one: str, other: str) -> bool:
    found = [_GENERATION.fullmatch(name) for name in (one, other)]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return False
    return int(found[0][2] or 0) > int(found[1][2] or 0)


async def _look(system: System, number: int, place: Place, truth: Rows) -> tuple[Rows, PenstockError | None] | None:
    """What a replica gives, once its broker answers."""

    async def look() -> tuple[Rows, PenstockError | None] | None:
        with suppress(OSError, RemoteError):
            streams = {one.name: one for one in await system.streams() or ()}
            if place.stream in streams:
                stream_id = streams[place.stream].stream_id
                return await _read(system, number, stream_id, place, max(truth, default=-1) + 1)
        return None

    return await eventually(look, f"broker {number} answers", RECOVERY_S)


def _truth(history: History, place: Place) -> Rows:
    rows: Rows = {}
    for event in history.events:
        if isinstance(event, Kept) and event.place == place:
            rows.update(event.rows)
    return rows
