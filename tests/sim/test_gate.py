"""A share of the mutation gate: mistakes that the first seeds find within seconds. `make sim-mutants` plants all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.extent import each_change, needs_time
from tests.sim.mutants.mutants import MUTANTS_OF_BATCHES
from tests.sim.run.run import run_seeds

SEEDS = range(12)
SEEDS_WITH_BATCHES = (14, 19, 20, 28)
SEEDS_WITH_UPGRADES = (10, 13, 16, 65)  # some in which brokers are upgraded


@each_change
@pytest.mark.parametrize(
    ("mutant", "brokers"),
    [
        ("acks before the sync", 1),
        ("committed_end counts nobody of the ISR but the leader", 3),
        pytest.param("a leader that may be deposed refuses what its successor stores", 3, marks=needs_time),
        pytest.param("a broker goes by the rules that it found first", 3, marks=needs_time),
        ("rows that are put get the time of now", 3),
        pytest.param("a change of users is answered before all brokers go by it", 3, marks=needs_time),
        pytest.param("who may append is looked at when it is appended", 3, marks=needs_time),
        pytest.param("who leads the audit next tells again what was told", 3, marks=needs_time),
        pytest.param("a follower shows what it has", 3, marks=needs_time),
        ("two registrations are made side by side", 1),
        pytest.param("only the first version is forgotten", 1, marks=needs_time),
        pytest.param("rows of an append are not checked", 1, marks=needs_time),
        pytest.param("a broker that leads one partition keeps all keys", 3, marks=needs_time),
    ],
    ids=str,
)
def test_a_planted_mistake_is_found(mutant: str, brokers: int) -> None:
    check_found(mutant, SEEDS, brokers)


@each_change
@pytest.mark.parametrize(
    "mutant",
    [
        "what is new does not wait for the level",
        pytest.param("the level is lowered", marks=needs_time),
        pytest.param("a broker that is too old for the level is registered", marks=needs_time),
    ],
)
def test_a_planted_mistake_of_an_upgrade_is_found(mutant: str) -> None:
    check_found(mutant, SEEDS_WITH_UPGRADES, 3)


@needs_time
@pytest.mark.parametrize("mutant", [one.name for one in MUTANTS_OF_BATCHES])
def test_a_planted_mistake_of_atomic_batches_is_found(mutant: str) -> None:
    check_found(mutant, SEEDS_WITH_BATCHES, 1)


def check_found(mutant: str, seeds: Sequence[int], brokers: int) -> None:
    runs = run_seeds(seeds, brokers, 1, mutant)
    found = next((result.error for result in runs if result.error), "")
    runs.close()  # type: ignore[attr-defined]
    assert found.startswith("ViolationError: ")
