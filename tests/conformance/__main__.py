"""`python -m tests.conformance` runs peers' own test suites against Penstock, or against a nats-server with JetStream.

Exit code 1: a suite is missing here, or a test that passed in the kept results does not pass any more.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.async_nats import AsyncNats
from tests.conformance.faststream import FastStream
from tests.conformance.nats_go import NatsGo
from tests.conformance.nats_java import NatsJava
from tests.conformance.nats_js import NatsJs
from tests.conformance.nats_py import NatsPy
from tests.conformance.natscli import NatsCli
from tests.conformance.page import summary
from tests.conformance.results import GROUPS, RESULTS, Outcome, Result, Run, judged, read_list, read_run
from tests.conformance.servers import System
from tests.conformance.suites import BUILD, Suite, SuiteMissingError

SUITES: tuple[Suite, ...] = (NatsGo(), NatsPy(), NatsJs(), NatsJava(), AsyncNats(), FastStream(), NatsCli())
JOBS = 2
AGAIN_MAX = 8
"""Failed tests that are tried once more, alone: some peers' tests have short time limits. If more failed, those of them
are that passed in the kept results."""


async def run_suite(suite: Suite, system: System, names: Sequence[str] | None = None, jobs: int = JOBS) -> Run:
    """Run a suite, or some of its tests, against one system; raise SuiteMissingError if it is not to be had here."""
    suite.prepare()
    listed = [test for test in read_list(suite.name) if names is None or test.name in names]
    outcomes = await _outcomes(suite, system, [test.name for test in listed], jobs)
    failed = [outcome.name for outcome in outcomes if outcome.result is Result.FAILED]
    again = failed if len(failed) <= AGAIN_MAX else sorted(_passed_before(suite.name, system).intersection(failed))
    if again:
        second = await _outcomes(suite, system, again, 1)
        passed = {outcome.name for outcome in second if outcome.result is Result.PASSED}
        outcomes = [_passed_alone(outcome) if outcome.name in passed else outcome for outcome in outcomes]
    return judged(suite.name, suite.version, system, listed, outcomes)


async def _outcomes(suite: Suite, system: System, names: Sequence[str], jobs: int) -> list[Outcome]:
    # What a killed server leaves behind may still be written to.
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
        return await suite.run(system, names, Path(folder) / "servers", jobs)


def _passed_alone(outcome: Outcome) -> Outcome:
    return Outcome(outcome.name, Result.PASSED, f"when it ran alone; before: {outcome.reason}")


def named(suite: str, group: str) -> list[str]:
    """Return the names of a suite's tests of one group."""
    return [test.name for test in read_list(suite) if test.group == group]


def lost(run: Run) -> list[str]:
    """Return the tests that passed in the kept results and do not pass in this run."""
    kept = _passed_before(run.suite, run.system)
    return [f"{row.name}: {row.result}, {row.reason}" for row in run.rows if row.name in kept - _passed(run)]


def _passed_before(suite: str, system: str) -> set[str]:
    path = RESULTS / f"{suite}.{system}.json"
    return _passed(read_run(path)) if path.exists() else set()


def _passed(run: Run) -> set[str]:
    return {row.name for row in run.rows if row.result == Result.PASSED}


def main(arguments: Sequence[str]) -> int:
    """Run the suites that are named, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(suite.name for suite in SUITES)}")
    parser.add_argument("--against", type=System, choices=list(System), default=System.PENSTOCK, metavar="SYSTEM")
    parser.add_argument("--keep", action="store_true", help="keep the results in the repository, for the page")
    parser.add_argument("--test", action="append", metavar="NAME", help="run this test only; may be given again")
    parser.add_argument("--needs", choices=GROUPS, metavar="WORD", help="run the tests of this group only, as `acked`")
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N", help="run so many tests side by side")
    given = parser.parse_args(arguments)
    if unknown := set(given.suites) - {suite.name for suite in SUITES}:
        parser.error(f"there is no suite {', '.join(sorted(unknown))}")
    if given.keep and (given.test or given.needs):
        parser.error("--keep is for whole suites")
    if given.test and given.needs:
        parser.error("give --test or --needs")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended
    has_failed = False
    for suite in SUITES:
        if given.suites and suite.name not in given.suites:
            continue
        try:
            names = given.test if given.needs is None else named(suite.name, given.needs)
            run = asyncio.run(run_suite(suite, given.against, names, given.jobs))
        except SuiteMissingError as error:
            print(f"MISSING: {error}", file=sys.stderr)
            has_failed = True
            continue
        print("\n".join(summary(run)))
        for row in run.rows:
            if row.result != Result.PASSED or row.reason:
                print(f"  {row.result}: {row.name} ({row.needs}): {row.reason}")
        for line in lost(run):
            print(f"PASSED BEFORE: {line}", file=sys.stderr)
            has_failed = True
        print(f"written to {run.write(RESULTS if given.keep else BUILD)}\n", flush=True)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
