#!/usr/bin/env python3
"""Check the model of replication (`replication.pml`) with spin: `make model`, `make model ARGS=--full`.

Rules: standard library, spin and a C compiler, nothing else. Each configuration bounds what may go wrong, and all that
is possible within these bounds is looked at; one that is not finished within its time or memory has failed. Each
planted mistake must be found, and each place of interest reached: a model in which nothing happens passes, too.

Theory: a state takes some 280 bytes. Searches keep all states whole, and so miss none; those of --full are too large
for that, and keep a hash of each (spin's HC4), by which they miss some: 2 of 78,599 states and 2,159 of 3,754,437 where
both ways were tried. Mistakes and places are searched breadth first: what is shown is as short as it can be.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

MODEL = Path(__file__).resolve().with_name("replication.pml")
MEMORY_MB_MAX = 2_000  # of one search; two run beside each other
SECONDS_MAX = 600  # the same
FULL_SECONDS_MAX = 3_600  # of a search of --full
DEPTH_MAX = 100_000  # of a search; how far one goes is in the table
TABLE_BITS = 22  # of the table of states, which grows

INVARIANTS = ("StrongIsr", "LeaderCompleteness", "LogMatching", "ConsistentRead", "NoCommittedLoss")


class UsageError(Exception):
    """Why nothing can be checked, in words for whoever runs it."""


@dataclass(frozen=True)
class Configuration:
    """What is looked at: all that is possible within the bounds in `defines`."""

    name: str
    defines: str
    what: str
    is_full: bool = False  # only with --full


@dataclass(frozen=True)
class Probe:
    """A mistake that is planted, or a place that is to be reached: the search must end there."""

    name: str
    defines: str
    what: str


_ONE = "LOG_MAX=1 MESSAGES_MAX=1"
_TWO_ROOM_FOR_ONE = "LOG_MAX=1 MESSAGES_MAX=2"

CONFIGURATIONS = (
    Configuration(
        "isr_small", f"DISK_AT_ONCE {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=1", "one message, one fencing"
    ),
    Configuration(
        "isr",
        "DISK_AT_ONCE LOG_MAX=2 MESSAGES_MAX=2 FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=2",
        "changes of the ISR whose answers are late or lost, while a broker is fenced",
    ),
    Configuration(
        "failover",
        f"DISK_AT_ONCE {_TWO_ROOM_FOR_ONE} FENCES_MAX=3 EPOCHS_MAX=4 CHANGES_MAX=0",
        "three brokers are fenced one after the other, dead or alive, and return",
    ),
    Configuration(
        "failover_isr",
        f"DISK_AT_ONCE {_TWO_ROOM_FOR_ONE} FENCES_MAX=2 EPOCHS_MAX=3 CHANGES_MAX=1",
        "two are fenced, and an ISR is changed",
    ),
    Configuration(
        "lineage",
        "DISK_AT_ONCE LOG_MAX=2 MESSAGES_MAX=3 FENCES_MAX=2 EPOCHS_MAX=3 CHANGES_MAX=0",
        "logs that differ in several epochs",
    ),
    Configuration(
        "stops",
        f"DISK_AT_ONCE {_TWO_ROOM_FOR_ONE} STOPS_MAX=1 MOVES_MAX=1 FENCES_MAX=0 EPOCHS_MAX=3 CHANGES_MAX=1",
        "a clean stop, and a leader that gets a successor though it is live",
    ),
    Configuration(
        "min_isr_1",
        f"DISK_AT_ONCE MIN_ISR=1 {_TWO_ROOM_FOR_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=2",
        "one in sync is enough",
    ),
    Configuration(
        "late_answers",
        f"DISK_AT_ONCE ANSWERS_IN_FLIGHT STEP_BY_STEP {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=1",
        "answers to fetches are late, too, and a broker may stay at any image",
    ),
    Configuration(
        "all_killed",
        f"DISK_AT_ONCE {_ONE} KILLS_MAX=3 FENCES_MAX=0 EPOCHS_MAX=3 CHANGES_MAX=0",
        "three processes are killed, one after the other or all at once",
    ),
    Configuration(
        "power_auto",
        f"{_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=0 EPOCHS_MAX=3 CHANGES_MAX=2",
        "`auto`: a power loss that takes what is not synced, and changes of the ISR",
    ),
    Configuration(
        "power_fsync",
        f"FSYNC {_ONE} POWER_LOSSES_MAX=2 FENCES_MAX=0 EPOCHS_MAX=2 CHANGES_MAX=1",
        "`fsync`: two power losses, and a change of the ISR",
    ),
    Configuration(
        "power_fsync_all",
        f"FSYNC {_ONE} POWER_LOSSES_MAX=3 FENCES_MAX=0 EPOCHS_MAX=3 CHANGES_MAX=0",
        "`fsync`: three power losses, also of all at once",
    ),
    Configuration(
        "power_auto_fenced",
        f"{_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=1 EPOCHS_MAX=3 CHANGES_MAX=1",
        "`auto`: a power loss, and a broker that is fenced",
        is_full=True,
    ),
    Configuration(
        "killed_isr",
        f"DISK_AT_ONCE {_ONE} KILLS_MAX=2 FENCES_MAX=1 EPOCHS_MAX=3 CHANGES_MAX=1",
        "two killed, one fenced, a change of the ISR",
        is_full=True,
    ),
    Configuration(
        "all_killed_two",
        "DISK_AT_ONCE LOG_MAX=2 MESSAGES_MAX=2 KILLS_MAX=3 FENCES_MAX=1 EPOCHS_MAX=3 CHANGES_MAX=0",
        "three killed and one fenced, two messages",
        is_full=True,
    ),
)

MISTAKES = (
    Probe(
        "TRUNCATE_TO_HW",
        "DISK_AT_ONCE LOG_MAX=1 MESSAGES_MAX=1 FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0",
        "a follower cuts its log to its own committed end",
    ),
    Probe(
        "COMMIT_OVER_SMALLER_ISR",
        f"DISK_AT_ONCE {_ONE} FENCES_MAX=0 EPOCHS_MAX=1 CHANGES_MAX=1",
        "only the ISR that is asked for counts, before it is agreed on",
    ),
    Probe(
        "STALE_INCARNATION",
        f"{_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=0 EPOCHS_MAX=2 CHANGES_MAX=2",
        "a change of the ISR may name a run that is over",
    ),
    Probe(
        "COMMIT_BESIDE_RIVALS",
        f"DISK_AT_ONCE {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0",
        "a leader commits while others are eligible",
    ),
    Probe(
        "LOST_IS_REFUSED",
        f"DISK_AT_ONCE {_ONE} FENCES_MAX=0 EPOCHS_MAX=1 CHANGES_MAX=3",
        "a change of the ISR without an answer is taken for refused",
    ),
    Probe(
        "COUNT_DIVERGING",
        f"DISK_AT_ONCE {_TWO_ROOM_FOR_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=1",
        "a fetch counts though the logs differ",
    ),
    Probe(
        "EPOCH_NOT_RAISED",
        f"MIN_ISR=1 {_TWO_ROOM_FOR_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=0 EPOCHS_MAX=2 CHANGES_MAX=1",
        "a broker that leads again does so in the same epoch",
    ),
    Probe(
        "OWN_LOG_END",
        f"DISK_AT_ONCE {_ONE} FENCES_MAX=0 EPOCHS_MAX=1 CHANGES_MAX=0",
        "a follower shows to readers all that it has",
    ),
    Probe(
        "UNCLEAN_IS_SURE",
        f"{_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0",
        "who returns from an unclean stop stays eligible",
    ),
)

PLACES = (
    Probe("all committed", "REACH=1 DISK_AT_ONCE LOG_MAX=2 MESSAGES_MAX=2 FENCES_MAX=0 CHANGES_MAX=0", ""),
    Probe("truncated", f"REACH=2 DISK_AT_ONCE {_TWO_ROOM_FOR_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0", ""),
    Probe("cut below another", f"REACH=3 DISK_AT_ONCE {_TWO_ROOM_FOR_ONE} FENCES_MAX=2 CHANGES_MAX=0", ""),
    Probe("eligible leads", f"REACH=4 DISK_AT_ONCE {_ONE} FENCES_MAX=3 CHANGES_MAX=0", ""),
    Probe("recovered", f"REACH=5 DISK_AT_ONCE {_ONE} KILLS_MAX=3 FENCES_MAX=0 CHANGES_MAX=0", ""),
    Probe("late change made", f"REACH=6 DISK_AT_ONCE {_ONE} FENCES_MAX=0 EPOCHS_MAX=1 CHANGES_MAX=1", ""),
    Probe("late fetch counted", f"REACH=7 DISK_AT_ONCE {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0", ""),
    Probe("joined", f"REACH=8 DISK_AT_ONCE {_ONE} FENCES_MAX=0 EPOCHS_MAX=1 CHANGES_MAX=2", ""),
    Probe("resumed", f"REACH=9 DISK_AT_ONCE {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=1", ""),
    Probe("two lead", f"REACH=10 DISK_AT_ONCE {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0", ""),
    Probe("union counted", f"REACH=11 DISK_AT_ONCE {_ONE} FENCES_MAX=0 EPOCHS_MAX=1 CHANGES_MAX=2", ""),
    Probe(
        "stale answer dropped",
        f"REACH=12 ANSWERS_IN_FLIGHT DISK_AT_ONCE {_ONE} FENCES_MAX=1 EPOCHS_MAX=2 CHANGES_MAX=0",
        "",
    ),
    Probe("stale run refused", f"REACH=13 DISK_AT_ONCE {_ONE} KILLS_MAX=1 FENCES_MAX=0 EPOCHS_MAX=2 CHANGES_MAX=2", ""),
    Probe("led again", f"REACH=14 MIN_ISR=1 {_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=2 EPOCHS_MAX=2 CHANGES_MAX=1", ""),
    Probe("lost unsynced", f"REACH=15 {_ONE} POWER_LOSSES_MAX=1 FENCES_MAX=0 EPOCHS_MAX=2 CHANGES_MAX=0", ""),
)


@dataclass(frozen=True)
class Result:
    """What a search came to."""

    name: str
    is_complete: bool
    violated: str  # the assertion, "" if none was
    states: int
    depth: int
    seconds: float
    memory_mb: float
    story: tuple[str, ...] = ()  # up to the violation, step by step
    trouble: str = ""  # why it could not go on
    is_hashed: bool = False


def tools() -> None:
    """UsageError if spin or a C compiler is missing."""
    missing = [name for name in ("spin", "cc") if shutil.which(name) is None]
    if missing:
        hints = {"spin": "apt-get install spin", "cc": "apt-get install gcc"}
        raise UsageError("\n".join(f"{name} is missing; on Debian and Ubuntu: {hints[name]}" for name in missing))


def search(
    name: str, defines: str, *, is_shortest: bool = False, is_hashed: bool = False, has_story: bool = True
) -> Result:
    """Compile the model with these bounds, and look at all of its states, or until something is violated."""
    with tempfile.TemporaryDirectory(prefix="penstock-model-") as text:
        folder = Path(text)
        shutil.copy(MODEL, folder / MODEL.name)
        arguments = [f"-D{one}" for one in defines.split()]
        if is_shortest:
            arguments.append("-DBREADTH_FIRST")
        _run(["spin", *arguments, "-a", MODEL.name], folder)
        options = ["-DSAFETY", "-DNOREDUCE", "-DNOFAIR", f"-DMEMLIM={MEMORY_MB_MAX}"]
        options += ["-DBFS"] if is_shortest else []
        options += ["-DHC4"] if is_hashed or is_shortest else []  # what is found is found either way
        # The shorter the search, the less time it may take to compile it.
        speed = "-O0" if is_shortest else "-O2" if is_hashed else "-O1"
        _run(["cc", speed, "-w", *options, "-o", "pan", "pan.c"], folder)
        began = time.monotonic()
        seconds_max = FULL_SECONDS_MAX if is_hashed else SECONDS_MAX
        try:
            limits = [f"-m{DEPTH_MAX}", f"-w{TABLE_BITS}"]
            text = _run([str(folder / "pan"), *limits], folder, seconds_max=seconds_max)
        except subprocess.TimeoutExpired:
            return Result(name, False, "", 0, 0, time.monotonic() - began, 0, trouble=f"not done in {seconds_max} s")
        seconds = time.monotonic() - began
        story: tuple[str, ...] = ()
        if has_story and (folder / f"{MODEL.name}.trail").exists():
            story = tuple(told(_run(["spin", *arguments, "-t", MODEL.name], folder)))
        return replace(parsed(name, text, seconds, story), is_hashed=is_hashed)


def _run(command: list[str], folder: Path, seconds_max: float | None = None) -> str:
    finished = subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds_max,
    )
    if finished.returncode != 0 and command[0] in ("spin", "cc") and "-t" not in command:
        raise UsageError(f"{' '.join(command)} failed:\n{finished.stdout[-2000:]}")
    return finished.stdout


def parsed(name: str, text: str, seconds: float, story: tuple[str, ...]) -> Result:
    """What the search printed."""

    def number(pattern: str) -> float:
        found = re.search(pattern, text)
        return float(found.group(1)) if found else 0

    violated = re.search(r"pan:\d+: (?:assertion violated )?(.*?) \(at depth", text)
    trouble = ""
    if "errors:" not in text:
        trouble = "the search ended early: " + " ".join(text.split()[-30:])
    elif "max search depth too small" in text:
        trouble = "the search is too deep"
    elif violated is None and "Search not completed" in text:
        trouble = "the search was not completed; memory, most likely"
    return Result(
        name=name,
        is_complete=not trouble and violated is None,
        violated="" if violated is None else violated.group(1).strip("() "),
        states=int(number(r"(\d+) states, stored")),
        depth=int(number(r"depth reached (\d+)")),
        seconds=seconds,
        memory_mb=number(r"([\d.]+)\s+total actual memory usage"),
        story=story,
        trouble=trouble,
    )


_WORDS = (
    ("leader 0", "nobody leads"),
    ("a clean stop: 0", "an unclean stop"),
    ("a clean stop: 1", "a clean stop"),
)


def told(text: str) -> Iterator[str]:
    """The steps of a replayed trail, one a line, in words."""
    for line in text.splitlines():
        found = re.match(r"\s*MSG (\s*)(.*)", line)
        if found:
            indent, step = found.groups()
            step = re.sub(r"\b(isr|ISR|eligible|unsure|to) (\d+)(?=,| is|$)", _set_in_words, step)
            for written, word in _WORDS:
                step = step.replace(written, word)
            yield f"  {indent}{step}"


def _set_in_words(found: re.Match[str]) -> str:
    word, number = found.group(1), int(found.group(2))
    if word == "to" and "ISR" not in found.string:
        return found.group(0)
    members = [str(one + 1) for one in range(3) if number >> one & 1]
    return f"{word} {{{', '.join(members)}}}"


# What is printed


def row(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    """One line of the table; numbers to the right."""
    first, *middle, last = (
        cell.ljust(width) if number in (0, len(cells) - 1) else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *middle, last)).rstrip()


HEADING = ("", "states", "depth", "seconds", "MB", "verdict")
WIDTHS = (26, 12, 7, 8, 7, 1)


def line(result: Result, verdict: str) -> str:
    """Its line of the table."""
    numbers = (f"{result.states:,}", str(result.depth), f"{result.seconds:.1f}", f"{result.memory_mb:,.0f}")
    return row((result.name, *numbers, verdict), WIDTHS)


def verdict_of(result: Result) -> str:
    """Of a configuration."""
    if result.trouble:
        return result.trouble
    if result.violated:
        return f"VIOLATES {result.violated}"
    return "holds in nearly all states, by hash" if result.is_hashed else "holds in all states"


def configurations(chosen: list[Configuration], workers: ThreadPoolExecutor) -> bool:
    """Whether the model holds in all of them."""
    print("\n" + row(("configuration", *HEADING[1:]), WIDTHS))
    is_well = True
    for result in workers.map(lambda one: search(one.name, one.defines, is_hashed=one.is_full), chosen):
        print(line(result, verdict_of(result)), flush=True)
        is_well = is_well and result.is_complete
        for step in result.story:
            print(step)
    return is_well


def mistakes(chosen: list[Probe], workers: ThreadPoolExecutor, *, shows: bool) -> bool:
    """Whether each planted mistake is found."""
    print("\n" + row(("planted mistake", *HEADING[1:]), WIDTHS))
    is_well = True
    for result in workers.map(lambda one: search(one.name, f"{one.name} {one.defines}", is_shortest=True), chosen):
        is_found = result.violated in INVARIANTS
        verdict = f"found: {result.violated}" if is_found else f"NOT FOUND {result.violated}{result.trouble}"
        print(line(result, verdict), flush=True)
        is_well = is_well and is_found
        for step in result.story if shows or not is_found else ():
            print(step)
    return is_well


def places(chosen: list[Probe], workers: ThreadPoolExecutor, *, shows: bool) -> bool:
    """Whether each place is reached: the assertion there, that it is not, must fail."""
    print("\n" + row(("place", *HEADING[1:]), WIDTHS))
    is_well = True
    for result in workers.map(lambda one: search(one.name, one.defines, is_shortest=True, has_story=shows), chosen):
        is_reached = bool(result.violated) and result.violated not in INVARIANTS
        verdict = "reached" if is_reached else f"NOT REACHED {result.violated}{result.trouble}"
        print(line(result, verdict), flush=True)
        is_well = is_well and is_reached
        for step in result.story:
            print(step)
    return is_well


def main(arguments: list[str]) -> int:
    """Check what is asked for; 0 if all is as it must be."""
    parser = argparse.ArgumentParser(prog="make model", description="Check the model of replication with spin.")
    parser.add_argument("--full", action="store_true", help="larger bounds, too: hours")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these configurations, mistakes or places")
    parser.add_argument("--show", action="store_true", help="how each mistake is found, and each place reached")
    parser.add_argument("--jobs", type=int, default=0, help="searches side by side; 2 where there are as many cores")
    asked = parser.parse_args(arguments)
    try:
        tools()
        return checked(asked)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


def checked(asked: argparse.Namespace) -> int:
    """What `main` does where all is there."""
    known = {one.name for one in (*CONFIGURATIONS, *MISTAKES, *PLACES)}
    unknown = sorted(set(asked.only or ()) - known)
    if unknown:
        raise UsageError(f"there is no {', '.join(unknown)}; there are {', '.join(sorted(known))}")

    def wanted(name: str, *, is_full: bool = False) -> bool:
        return name in asked.only if asked.only else asked.full or not is_full

    began = time.monotonic()
    jobs = asked.jobs or min(2, len(os.sched_getaffinity(0)))
    looked = [one for one in CONFIGURATIONS if wanted(one.name, is_full=one.is_full)]
    planted = [one for one in MISTAKES if wanted(one.name)]
    reached = [one for one in PLACES if wanted(one.name)]
    is_well = True
    with ThreadPoolExecutor(jobs) as workers:
        if planted:
            is_well = mistakes(planted, workers, shows=asked.show) and is_well
        if reached:
            is_well = places(reached, workers, shows=asked.show) and is_well
        if looked:
            is_well = configurations(looked, workers) and is_well
    print(f"\n{'All is as it must be' if is_well else 'FAILED'}, after {time.monotonic() - began:.0f} s.")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
