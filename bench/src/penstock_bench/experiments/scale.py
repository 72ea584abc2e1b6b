"""`penstock bench scale`: cost of idle streams, and speed of a long stream compared with a short one.

Rules: The streams are made on disk before a broker runs, by the code that a broker runs, with one sync for all. The
memory of a broker with one stream is subtracted. A start is timed from the call of `penstock serve` to its ready line,
after a clean stop and after kill -9; its CPU time is reported, too, because other programs may use the machine.
Messages of idle streams have the current time: with older ones the broker would first roll every segment by its age.
Look-ups use random offsets or times, in turn in both streams, through a Penstock client, with all files in the page
cache, so that disk reads are not compared. The short log equals the beginning of the long one: their batches have
equally many rows.

The long and the short stream are started in turn, START_ROUNDS times each, always after kill -9, and their ratio is
taken by rounds. The killed broker is idle: its log is flushed to the end, and the checkpoint covers all of it. A start
reads only the tail that the index of the last segment does not cover, and the first start completes that index. A batch
has 16,384 rows, as from a bulk writer; publishers through NATS make smaller ones.

Goals apply to a stream of LONG_MESSAGES and to IDLE_STREAMS: a smaller run is measured, but not judged.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import OperationalError
from penstock.base.limits import MIB
from penstock.broker.supervision.child import ReadyLine
from penstock.client.blocking import client as blocking
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock_bench.experiments.data_dirs import FIRST_US, append, encoded, flush, made_in, new_log, started
from penstock_bench.experiments.experiment import Findings, Row, Said, findings, in_turn
from penstock_bench.machine.idle_resources import held
from penstock_bench.machine.processes import cpu_seconds
from penstock_bench.results.report import Figure

IDLE_STREAMS = 10_000
LONG_MESSAGES = 100_000_000
START_ROUNDS = 5
STEPS = 8  # reported by a run
_STREAM_MESSAGES = 3
_ROWS = 16_384
_VALUE_BYTES = 16
_BATCH_BYTES = 64 * _ROWS  # slightly more than needed
_FLUSH_BATCHES = 64
_READ_BYTES = 8 * MIB
_LOOKUPS = 200
_TIMEOUT_S = 60.0
# For the time estimate, with a reserve.
_STREAMS_A_SECOND = 500
_MESSAGES_A_SECOND = 2_000_000
_START_SECONDS = 1.0
_LOOKUPS_SECONDS = 5.0
_LONG = "long"


class ScalePlan(msgspec.Struct, frozen=True):
    """The streams, messages and times of a run."""

    streams: int = IDLE_STREAMS
    messages: int = LONG_MESSAGES
    short_messages: int = 1_000_000
    idle_seconds: float = 20.0
    settle_seconds: float = 3.0  # after a start, until the checkpoints are written
    start_rounds: int = START_ROUNDS

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        made = self.streams / _STREAMS_A_SECOND + (self.messages + self.short_messages) / _MESSAGES_A_SECOND
        watched = 3 * self.settle_seconds + 2 * self.idle_seconds
        return made + watched + 2 * self.start_rounds * _START_SECONDS + 2 * _LOOKUPS_SECONDS

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return STEPS

    def run(self, folder: Path, said: Said) -> Findings:
        """Run the whole plan."""
        return Findings([*_streams(self, folder, said), *_long_stream(self, folder, said)])

    @property
    def has_idle_goals(self) -> bool:
        """True if the goals apply to this number of idle streams."""
        return self.streams >= IDLE_STREAMS

    @property
    def has_long_goals(self) -> bool:
        """True if the goals apply to a stream of this length."""
        return self.messages >= LONG_MESSAGES

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return 256 * MIB + self.streams * 32 * 1024 + (self.messages + self.short_messages) * _BATCH_BYTES // _ROWS


class Idle(msgspec.Struct, frozen=True):
    """One start, and the idle cost of the broker after it."""

    start_seconds: float
    start_cpu_seconds: float
    cpu_percent: float
    resident_bytes: int


# Making


def make_streams(folder: Path, count: int) -> None:
    """Make a data directory with `count` streams of a few messages each."""
    with made_in(folder) as (vfs, metadata):
        marks = LogCreationMarkers(vfs)
        for number in range(count):
            config = StreamConfig(name=f"stream-{number:05d}", subject=f"scale.{number:05d}")
            log = new_log(vfs, metadata, marks, config)
            message = encoded({"value": [b"0123456789abcdef"]}, config.subject)
            now_us = time.time_ns() // 1_000
            for _ in range(_STREAM_MESSAGES):
                append(log, message, now_us)
            log.close()


def make_long(folder: Path, messages: int) -> None:
    """Make a data directory with one stream of `messages` small messages; the log stays open, as after kill -9."""
    with made_in(folder) as (vfs, metadata):
        log = new_log(vfs, metadata, LogCreationMarkers(vfs), StreamConfig(name=_LONG, subject="scale.long"))
        values = [random.Random(1).randbytes(_VALUE_BYTES) for _ in range(_ROWS)]  # noqa: S311 (content, no secret)
        whole = encoded({"value": values}, "scale.long")
        while (left := messages - log.log_end) > 0:
            message = whole if left >= _ROWS else encoded({"value": values[:left]}, "scale.long")
            append(log, message, FIRST_US + log.log_end)
            if log.log_end // _ROWS % _FLUSH_BATCHES == 0:
                flush(log)
        flush(log)


# Measuring


def _kill(ready: ReadyLine) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(ready.process_id, signal.SIGKILL)


def idle(folder: Path, plan: ScalePlan, seconds: float, *, kill: bool) -> Idle:
    """Start a broker on `folder`, leave it idle for `seconds`, and stop or kill it."""
    with started(folder) as (ready, start_seconds):
        broker = ("penstock serve", ready.process_id)
        start_cpu_seconds = cpu_seconds(*broker)
        time.sleep(plan.settle_seconds)
        before = cpu_seconds(*broker), time.monotonic()
        time.sleep(seconds)
        used, passed = cpu_seconds(*broker) - before[0], max(1e-6, time.monotonic() - before[1])
        resident_bytes = held(ready.process_id).resident_bytes
        if kill:
            _kill(ready)
    return Idle(start_seconds, start_cpu_seconds, 100 * used / passed, resident_bytes)


def lookups(folders: dict[str, tuple[Path, int]], *, kind: str) -> dict[str, float]:
    """Return by name the median milliseconds of a look-up. `kind`: offset, at random offsets; time, at random times."""
    chance = random.Random(2)  # noqa: S311 (places, no secret)
    taken: dict[str, list[float]] = {name: [] for name in folders}
    with contextlib.ExitStack() as running:
        clients = {}
        for name, (folder, _) in folders.items():
            _read_through(folder)
            ready, _ = running.enter_context(started(folder))
            clients[name] = running.enter_context(blocking.connect(ready.client, timeout=_TIMEOUT_S))
        for turn in range(2 * _LOOKUPS):
            for name, (_, messages) in folders.items():
                place = chance.randrange(messages)
                seconds = _looked_up(clients[name], kind, place, messages)
                if turn >= _LOOKUPS:  # the earlier turns fill the page cache
                    taken[name].append(seconds)
    return {name: 1_000 * statistics.median(found) for name, found in taken.items()}


def _read_through(folder: Path) -> None:
    for path in folder.rglob("*.arrows"):
        with path.open("rb") as file:
            while file.read(_READ_BYTES):
                continue


def _looked_up(client: blocking.Client, kind: str, place: int, messages: int) -> float:
    """Look up once and return the seconds. Raise OperationalError if the answer is wrong."""
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=FIRST_US + place)
    began = time.perf_counter()
    if kind == "offset":
        found, wanted = client.get(_LONG, place, timeout=_TIMEOUT_S).offset, place
    else:
        found, wanted = client.offsets(_LONG, moment, timeout=_TIMEOUT_S).offset, first_at(place, messages)
    seconds = time.perf_counter() - began
    if found != wanted:
        raise OperationalError(f"a look-up by {kind} found offset {found:,}, and {wanted:,} is right")
    return seconds


def first_at(place: int, messages: int) -> int:
    """Return the first offset with a timestamp of FIRST_US + `place` or later: a batch's rows have its first row's."""
    return min(-(-place // _ROWS) * _ROWS, messages)


def _streams(plan: ScalePlan, folder: Path, said: Said) -> list[Figure]:
    one, many = folder / "one", folder / "many"
    make_streams(one, 1)
    make_streams(many, plan.streams)
    said(f"{plan.streams:,} streams made")
    alone = idle(one, plan, plan.idle_seconds, kill=False)
    said("one stream")
    clean = idle(many, plan, plan.idle_seconds, kill=True)
    said("many streams")
    killed = idle(many, plan, 0.0, kill=False)
    said("many streams after kill -9")
    each = (clean.resident_bytes - alone.resident_bytes) / max(1, plan.streams - 1) / 1024
    which = f"{plan.streams:,} idle streams"
    goal = _goals(judged=plan.has_idle_goals)
    return [
        Figure("idle-cpu", f"{which}: CPU", "% of a core", clean.cpu_percent, *goal(3, 1)),
        Figure("idle-memory", f"{which}: resident, each", "KB", each, *goal(10, 4)),
        Figure("idle-start", f"{which}: start", "s", clean.start_seconds, *goal(10, 3)),
        Figure("idle-start-cpu", f"{which}: CPU of the start", "s", clean.start_cpu_seconds),
        Figure("idle-start-killed", f"{which}: start after kill -9", "s", killed.start_seconds, *goal(10, 3)),
        Figure("one-start", "one stream: start", "s", alone.start_seconds),
        Figure("one-start-cpu", "one stream: CPU of the start", "s", alone.start_cpu_seconds),
    ]


def _long_stream(plan: ScalePlan, folder: Path, said: Said) -> list[Figure]:
    short, long = folder / "short", folder / "long"
    make_long(short, plan.short_messages)
    make_long(long, plan.messages)
    said(f"{plan.messages:,} messages made")
    logs = {"short": (short, plan.short_messages), "long": (long, plan.messages)}

    def start(name: str, _: int) -> dict[str, float]:
        with started(logs[name][0]) as (ready, seconds):
            _kill(ready)
        return {"seconds": seconds}

    starts = in_turn(start, tuple(logs), rounds=plan.start_rounds, said=lambda name: None)
    said("start after kill -9")
    by_offset = lookups(logs, kind="offset")
    said("look-ups by offset")
    by_time = lookups(logs, kind="time")
    said("look-ups by time")
    which = f"{plan.messages:,} messages against {plan.short_messages:,}"
    goal = _goals(judged=plan.has_long_goals)
    what, of = "start after kill -9", ("seconds", "long")
    rows = (
        Row("long-start", f"{plan.messages:,} messages: {what}", "s", *of, "", *goal(2)),
        Row("short-start", f"{plan.short_messages:,} messages: the same", "s", "seconds", "short"),
        Row("long-start-ratio", f"{which}: {what}", "×", *of, "short", *goal(1.2)),
    )
    return [
        *findings(rows, starts).figures,
        Figure("long-offset", f"{which}: look-up by offset", "×", by_offset["long"] / by_offset["short"], *goal(1.2)),
        Figure("long-offset-ms", f"{plan.messages:,} messages: look-up by offset", "ms", by_offset["long"]),
        Figure("long-time", f"{which}: look-up by time", "×", by_time["long"] / by_time["short"], *goal(1.2)),
        Figure("long-time-ms", f"{plan.messages:,} messages: look-up by time", "ms", by_time["long"]),
    ]


_Goal = tuple[float | None, float | None]


def _goals(*, judged: bool) -> Callable[..., _Goal]:
    """Return a function that returns the (reach, stretch) of a figure; (None, None) unless `judged`."""

    def goal(reach: float, stretch: float | None = None) -> _Goal:
        return (reach, stretch) if judged else (None, None)

    return goal
