"""A share of the mutation gate: mistakes that the first seeds find within seconds. `make sim-mutants` plants all."""

from __future__ import annotations

import pytest

from penstock.sim.run import run_seeds
from tests.extent import needs_time

SEEDS = range(4)


@pytest.mark.parametrize(
    ("mutant", "brokers"),
    [
        ("acks before the sync", 1),
        ("committed_end counts nobody of the ISR but the leader", 3),
        pytest.param("a follower shows what it has", 3, marks=needs_time),
        pytest.param("a broker that leads one partition keeps all keys", 3, marks=needs_time),
    ],
    ids=str,
)
def test_a_planted_mistake_is_found(mutant: str, brokers: int) -> None:
    runs = run_seeds(SEEDS, brokers, 1, mutant)
    found = next((result.error for result in runs if result.error), "")
    runs.close()  # type: ignore[attr-defined]
    assert found.startswith("ViolationError: ")
