"""Lists of a suite's tests, and what came of a run.

Rules: a list is made from the suite, before it is run against Penstock, and fixes the denominators. A test that is on
the list and was not run has not passed; a test that was run and is not on the list is an error. Skipped is not passed.

A line of a list is a name, a tab, and what the test needs, separated by commas. Its group is the first of these words
that it needs:

| word       | the test needs                                                                            |
|------------|-------------------------------------------------------------------------------------------|
| `acked`    | a consumer with acks, or the pausing, resetting and priorities of consumers                |
| `sources`  | mirrors or sources                                                                        |
| `extras`   | schedules, counters, atomic batches, republishing, transforms, work queues, interest, pins |
| `cluster`  | several servers in a cluster                                                              |
| `server`   | streams, look-ups, readers without acks, key-value buckets, object stores                 |
| `client`   | no server: nothing of it can fail here                                                    |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

HERE = Path(__file__).parent
LISTS = HERE / "lists"
RESULTS = HERE / "results"
GROUPS = ("acked", "sources", "extras", "cluster", "server", "client")


class Result(StrEnum):
    """What came of one test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Listed:
    """One test of a list."""

    name: str
    needs: tuple[str, ...]

    @property
    def group(self) -> str:
        return next(group for group in GROUPS if group in self.needs)


@dataclass(frozen=True)
class Outcome:
    """What came of one test, and the first thing that it said if it did not pass."""

    name: str
    result: Result
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One test of one run, as it is kept."""

    name: str
    needs: str
    group: str
    result: str
    reason: str


@dataclass(frozen=True)
class Run:
    """All of one suite against one system."""

    suite: str
    version: str
    system: str
    rows: tuple[Row, ...]

    def passed(self, *groups: str) -> tuple[int, int]:
        """Return how many tests of these groups passed, and how many there are."""
        rows = [row for row in self.rows if row.group in groups]
        return sum(row.result == Result.PASSED for row in rows), len(rows)

    def write(self, folder: Path) -> Path:
        """Write the run as JSON, one test a line; return the path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.suite}.{self.system}.json"
        head = json.dumps({"suite": self.suite, "version": self.version, "system": self.system})[:-1]
        rows = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in self.rows)
        path.write_text(f'{head}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")
        return path


def read_run(path: Path) -> Run:
    """Read a run that was written."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return Run(found["suite"], found["version"], found["system"], tuple(Row(**row) for row in found["rows"]))


def read_list(suite: str) -> list[Listed]:
    """Read the list of a suite."""
    lines = (LISTS / f"{suite}.txt").read_text(encoding="utf-8").splitlines()
    found = [line.split("\t") for line in lines if line and not line.startswith("#")]
    return [Listed(name, tuple(needs.split(","))) for name, needs in found]


def judged(suite: str, version: str, system: str, listed: Iterable[Listed], outcomes: Iterable[Outcome]) -> Run:
    """Return the run of the listed tests; raise ValueError for a test that is not listed or is told twice."""
    told: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.name in told:
            raise ValueError(f"{suite}: {outcome.name} is told twice")
        told[outcome.name] = outcome
    rows = []
    for test in listed:
        outcome = told.pop(test.name, Outcome(test.name, Result.NOT_RUN, "the suite did not run it"))
        rows.append(Row(test.name, ",".join(test.needs), test.group, outcome.result, outcome.reason))
    if told:
        raise ValueError(f"{suite}: not on the list: {', '.join(told)}")
    return Run(suite, version, system, tuple(rows))
