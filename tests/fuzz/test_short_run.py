"""A short run of each fuzz target, without sanitizers: compiled and plain must agree on the seeds and what follows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.ingest.producers import Producers
from tests import hot_modes
from tests.extent import HAS_TIME
from tests.fuzz import engine
from tests.fuzz.run import SHARES
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS, patched

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 120
INPUTS = 600


def order(target: str, folder: Path, **more: object) -> dict[str, object]:
    return {
        "target": target,
        "seed": 1,
        "inputs": INPUTS,
        "seconds": SECONDS_MAX,
        "compare_every": 2,
        "chunk": str(folder / "chunk"),
        "corpus": str(folder / "corpus"),
        **more,
    }


def test_every_target_has_seeds_and_a_share() -> None:
    assert TARGETS.keys() == SEEDS.keys() == SHARES.keys()


@hot_modes.needs_compiled
@pytest.mark.parametrize("target", TARGETS)
def test_compiled_and_plain_agree(target: str, tmp_path: Path) -> None:
    inputs = INPUTS if HAS_TIME or target != "appends" else INPUTS // 4  # each of those is a life of a broker
    found = engine.run(order(target, tmp_path, inputs=inputs))
    assert found["inputs"] == inputs
    assert found["compared"] >= inputs // 2
    assert found["kinds"] > 1


def test_a_broker_that_forgets_what_was_appended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    again = SEEDS["appends"][1]
    TARGETS["appends"](hot_modes.running, again)
    monkeypatch.setattr(Producers, "appended", lambda _self, _header: None)  # the planted mistake
    with pytest.raises(AssertionError, match="is not known"):
        TARGETS["appends"](hot_modes.running, again)


def test_the_same_seed_makes_the_same_inputs(tmp_path: Path) -> None:
    chunks = []
    for _ in range(2):
        engine.run(order("envelope", tmp_path))
        chunks.append((tmp_path / "chunk").read_text())
    assert chunks[0] == chunks[1]
    assert len(json.loads(chunks[0])) > 100


def test_what_went_wrong_is_known_afterwards(tmp_path: Path) -> None:
    # An input that no target can take, in a process of its own, as `run` starts one.
    (tmp_path / "alone").write_text(json.dumps(["00"]))
    wrong = order("envelope", tmp_path, replay=str(tmp_path / "alone"), compiled="")
    good = subprocess.run([sys.executable, "-m", "tests.fuzz.engine", json.dumps(wrong)], cwd=ROOT, check=False)
    assert good.returncode == 0
    (tmp_path / "alone").write_text(json.dumps(["no digits"]))
    bad = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.engine", json.dumps(wrong)], cwd=ROOT, check=False, capture_output=True
    )
    assert bad.returncode != 0


def test_patches_keep_the_checksum_right() -> None:
    checker = hot_modes.running("message").Checker
    from penstock.batch import codec

    found = checker(codec.LAYOUT).message(patched(b"\x01"))
    assert isinstance(found, tuple)
