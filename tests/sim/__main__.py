"""`python -m tests.sim`: run seeds, repeat one, shrink one that fails, or check that mutants are found."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.sim.mutants import mutants
from tests.sim.plan.kept import PlanFileError, keep, load
from tests.sim.plan.plan import RunPlan
from tests.sim.plan.shrink import Part, from_ranges
from tests.sim.run.report import Report
from tests.sim.run.run import plan_of, run_plan, run_seed, run_seeds, shrunk
from tests.sim.run.world import RunResult

_OBSERVED_BROKERS = 5  # two more than replicas, so that observers are added and removed
_BAR_CHARS = 30
_SHOWN_FAILURES_MAX = 10
KEPT = "tests/sim/kept"
_OF_CLUSTERS = (
    *mutants.CLUSTER_MUTANTS,
    *mutants.MUTANTS_OF_RIGHTS,
    *mutants.MUTANTS_OF_SCHEMAS,
    *mutants.MUTANTS_OF_MARKS,
    *mutants.MUTANTS_OF_CONSUMERS,
    *mutants.MUTANTS_OF_LEVELS,
    *mutants.MUTANTS_OF_SUBJECTS,
    *mutants.MUTANTS_OF_OBSERVERS,
    *mutants.MUTANTS_OF_GATEWAY,
)


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description="Simulate brokers, NATS and clients.")
    parser.add_argument("--seeds", type=int, default=1_000, help="number of seeds (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--brokers", type=int, default=3, help="brokers in the cluster (3)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="parallel worker processes (one for each core)"
    )
    parser.add_argument("--seed", type=int, help="run this seed and print its trace")
    parser.add_argument("--plan", type=Path, help="run the plan in this file and print its trace")
    parser.add_argument("--save", type=Path, help="write the plan of --seed or --plan to this file if the run fails")
    parser.add_argument("--operations", type=from_ranges, help="run only these operations of the plan: 0-40,52")
    parser.add_argument("--faults", type=from_ranges, help="run only these faults of the plan")
    parser.add_argument("--quiet", action="store_true", help="print only the result, not the trace")
    parser.add_argument("--no-shrink", action="store_true", help="do not shrink failing seeds")
    parser.add_argument("--mutants", action="store_true", help="check that every mutant is found")
    parser.add_argument("--mutant", metavar="NAME", help="check that this mutant is found")
    options = parser.parse_args(arguments)
    if options.seed is not None and options.plan is not None:
        parser.error("--seed and --plan exclude each other")
    known = (*_OF_ONE_BROKER, *_OF_CLUSTERS)
    if options.mutant not in (None, *(one.name for one in known)):
        parser.error(f"no mutant is called {options.mutant!r}")
    if options.save is not None and options.seed is None and options.plan is None:
        parser.error("--save needs --seed or --plan")
    return options


def command_of(seed: int, brokers: int, part: Part) -> str:
    """Return the command that repeats a run."""
    return " ".join(f"python -m tests.sim --brokers {brokers} --seed {seed} {part.options()}".split())


def _one(options: argparse.Namespace) -> int:
    plan = plan_of(options.seed, options.brokers) if options.plan is None else load(options.plan).plan()
    plan = Part(options.operations, options.faults).of(plan)
    show: Callable[[str], None] | None = None if options.quiet else _say
    began_s = time.perf_counter()
    result = run_plan(plan, show)
    report = Report(plan.brokers)
    report.add(result)
    for line in report.lines(time.perf_counter() - began_s):
        _say(line)
    if options.save is not None:
        _save(options.save, plan, result)
    _say(f"seed {result.seed}, trace {result.digest}: {result.error or 'all is well'}")
    return 1 if result.error else 0


def _save(path: Path, plan: RunPlan, result: RunResult) -> None:
    if not result.error:
        _say(f"{path} is not written: the run did not fail")
        return
    keep(path, plan, result.error)
    _say(f"kept: python -m tests.sim --plan {path}")


def _many(options: argparse.Namespace) -> int:
    report = Report(options.brokers)
    began_s = time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    for result in run_seeds(seeds, options.brokers, options.processes):
        report.add(result)
        _progress(report, options.seeds)
        if result.error:
            _tell("")
            _say(f"seed {result.seed}: {result.error}\n  {command_of(result.seed, options.brokers, Part())}")
    _tell("")
    for line in report.lines(time.perf_counter() - began_s):
        _say(line)
    for mistake in report.mistakes():
        _say(f"not good enough: {mistake}")
    for failed in report.failures[:_SHOWN_FAILURES_MAX]:
        _explain(failed, options)
    _say(f"{len(report.failures)} of {report.seeds} seeds failed" if report.failures else "no seed failed")
    return 1 if report.failures or report.mistakes() else 0


def _explain(failed: RunResult, options: argparse.Namespace) -> None:
    if options.no_shrink:
        return
    _tell(f"shrinking seed {failed.seed}…")
    part = shrunk(failed, options.brokers)
    _tell("")
    assert part.operations is not None
    assert part.faults is not None
    size = f"{len(part.operations)} operations and {len(part.faults)} faults"
    _say(f"seed {failed.seed} fails with {size}, too; keep it, and run what is kept:")
    path = f"{KEPT}/seed-{options.brokers}-{failed.seed}.json"
    _say(f"  {command_of(failed.seed, options.brokers, part)} --save {path}")
    _say(f"  python -m tests.sim --plan {path}")


_OF_ONE_BROKER = (*mutants.MUTANTS, *mutants.MUTANTS_OF_EXPECTATIONS, *mutants.MUTANTS_OF_BATCHES)
"""Mutants that one broker shows soonest."""

_BROKEN = ("TypeError", "NameError", "AttributeError", "ImportError", "UnboundLocalError")
"""Python errors that show that a mutant no longer fits the code: the checks have not found it."""


def _mutants(options: argparse.Namespace) -> int:
    survived = 0
    wanted = (*_OF_ONE_BROKER, *(_OF_CLUSTERS if options.brokers > 1 else ()))
    for mutant in wanted if options.mutant is None else (mutants.named(options.mutant),):
        seeds = range(options.first, options.first + options.seeds)
        brokers = 1 if mutant in _OF_ONE_BROKER else options.brokers
        if mutant in mutants.MUTANTS_OF_OBSERVERS:
            brokers = max(brokers, _OBSERVED_BROKERS)
        runs = run_seeds(seeds, brokers, options.processes, mutant.name)
        found: RunResult | None = None
        for number, result in enumerate(runs, 1):
            _tell(f"{mutant.name}: {number} seeds")
            # A seed that also fails without the mutant does not count.
            if result.error and not run_seed(result.seed, brokers).error:
                found = result
                break
        runs.close()  # type: ignore[attr-defined]
        _tell("")
        text = "NOT FOUND" if found is None else f"seed {found.seed}: {found.error[:100]}"
        is_broken = found is not None and found.error.startswith(_BROKEN)
        survived += found is None or is_broken
        if is_broken:
            text = f"PLANTED WRONGLY, {text}"
        _say(f"{mutant.name:<45} {text}")
    return 1 if survived else 0


def _progress(report: Report, seeds: int) -> None:
    done = report.seeds * _BAR_CHARS // seeds
    _tell(f"[{'#' * done:<{_BAR_CHARS}}] {report.seeds}/{seeds} seeds, {len(report.failures)} failed")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(text: str) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 if nothing failed."""
    options = _parsed(arguments)
    if options.mutants or options.mutant is not None:
        return _mutants(options)
    if options.seed is None and options.plan is None:
        return _many(options)
    try:
        return _one(options)
    except (PlanFileError, FileExistsError) as mistake:
        _say(f"{mistake}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
