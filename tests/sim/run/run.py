"""Runs seeds: one, or many on all cores.

Rules: One process runs a seed from beginning to end, and the result does not depend on which process it is. A worker
that dies or takes too long is a failure of its seed. Mutants are installed before a worker imports the patched modules.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from tests.sim.models.clients import SLOTS
from tests.sim.mutants import mutants
from tests.sim.mutants.planted import PlantedProcessError, begin, ending_of
from tests.sim.mutants.planting import check_text
from tests.sim.plan.plan import RunPlan, make_plan
from tests.sim.plan.shrink import Part, shrink
from tests.sim.run.world import RunResult, World

_AHEAD = 4  # queued seeds for each process


def plan_of(seed: int, brokers: int) -> RunPlan:
    return make_plan(seed, brokers, SLOTS)


def run_seed(seed: int, brokers: int) -> RunResult:
    return run_plan(plan_of(seed, brokers))


def run_plan(plan: RunPlan, show: Callable[[str], None] | None = None) -> RunResult:
    return World(plan, show).run()


def plan_error(plan: RunPlan) -> str:
    """Return how a run fails; empty if it does not."""
    return run_plan(plan).error


def run_seeds(seeds: Iterable[int], brokers: int, processes: int, mutant: str = "") -> Iterator[RunResult]:
    """Run many seeds and yield their results as they finish. Close the generator to stop early.

    PlantedProcessError: a worker died.
    """
    if mutant:
        check_text(mutants.named(mutant))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=begin, initargs=(mutant,))
    waiting = iter(seeds)
    with pool:
        try:
            open_runs = {pool.submit(run_seed, seed, brokers) for seed in islice(waiting, _AHEAD * processes)}
            workers = multiprocessing.active_children()
            while open_runs:
                done = next(as_completed(open_runs))
                open_runs.discard(done)
                for seed in waiting:
                    open_runs.add(pool.submit(run_seed, seed, brokers))
                    break
                yield done.result()
        except BrokenProcessPool:
            endings = ", ".join(ending_of(one.exitcode) for one in workers)
            raise PlantedProcessError(f"{mutant}: of the workers, one died and ended the others: {endings}") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def shrunk(failed: RunResult, brokers: int) -> Part:
    """Return the smallest part of a failing seed's plan that fails in the same way."""

    def run(plan: RunPlan) -> str:
        return run_plan(plan).error

    return shrink(plan_of(failed.seed, brokers), failed.error, run, failed.simulated_us)
