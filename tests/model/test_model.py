"""The model of replication: it holds in a small scope, finds what is planted, and names functions that there are."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.extent import needs_time

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "model.md").read_text()
MODEL = (ROOT / "model" / "replication.pml").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.partition("## Which action is which function")[2], re.MULTILINE)

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None,
    reason="needs spin and a C compiler (apt-get install spin gcc)",
)


@pytest.fixture(scope="module")
def check() -> ModuleType:
    """model/check.py."""
    spec = importlib.util.spec_from_file_location("model_check", ROOT / "model" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its data classes look there
    spec.loader.exec_module(module)
    return module


def found(name: str) -> Any:
    """What `replication.leader.Leadership.fetched` names in the package; an error if there is no such thing."""
    parts = ["penstock", *name.split(".")]
    for count in range(len(parts), 1, -1):
        module = ".".join(parts[:count])
        try:
            thing: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not (module + ".").startswith(f"{error.name}."):
                raise
            continue
        for part in parts[count:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(f"there is no module of {name}")


def test_every_action_names_functions_that_there_are() -> None:
    assert len(ROWS) > 20
    for action, functions in ROWS:
        names = re.findall(r"`([\w.]+)`", functions)
        assert names, action
        for name in names:
            assert callable(found(name)), name


def test_every_action_of_the_model_is_on_the_page() -> None:
    helpers = {"check", "tidy", "d_step", "atomic", "may_be_wanted", "ARRIVE_AT_ONCE"}
    processes = MODEL[MODEL.index("proctype Broker") : MODEL.index("init {")]
    used = set(re.findall(r"\b([a-z]\w*)\(", processes)) - helpers
    assert used <= {action for action, _ in ROWS}
    for action, _ in ROWS:
        assert re.search(rf"^inline {action}\(", MODEL, re.MULTILINE), action


def test_invariants_are_explained(check: ModuleType) -> None:
    for name in check.INVARIANTS:
        assert f"**{name}**" in PAGE
        assert f"assert({name})" in MODEL


def test_mistakes_and_places_are_in_the_model_and_on_the_page(check: ModuleType) -> None:
    planted = set(re.findall(r"^#ifn?def ([A-Z_]+)$", MODEL, re.MULTILINE)) - {
        "REACH", "FSYNC", "STEP_BY_STEP", "DISK_AT_ONCE", "ANSWERS_IN_FLIGHT", "BREADTH_FIRST",
    }  # fmt: skip
    planted = {one for one in planted if not one.endswith("_MAX") and one != "MIN_ISR"}
    assert planted == {one.name for one in check.MISTAKES}
    assert all(f"`{one.name}`" in PAGE for one in check.MISTAKES)
    numbers = set(re.findall(r"^#define [A-Z_]+ (\d+) +/\*", MODEL.partition("Non-vacuity")[2], re.MULTILINE))
    assert {number for one in check.PLACES for number in re.findall(r"REACH=(\d+)", one.defines)} == numbers


def test_steps_are_told_in_words(check: ModuleType) -> None:
    text = (
        "   MSG broker 3 hears: leader 0, epoch 1, isr 5, eligible 2, unsure 0\n   MSG   now: leader 2, isr 3\nelse\n"
    )
    assert list(check.told(text)) == [
        "  broker 3 hears: nobody leads, epoch 1, isr {1, 3}, eligible {2}, unsure {}",
        "    now: leader 2, isr {1, 2}",
    ]


def test_what_is_missing_is_said(check: ModuleType, capsys: pytest.CaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert check.main(["--only", "nothing"]) == 2
    assert "apt-get install spin" in capsys.readouterr().err


@needs_spin
@needs_time
def test_a_small_scope_holds(check: ModuleType) -> None:
    assert check.main(["--only", "isr_small", "--jobs", "1"]) == 0


@needs_spin
@needs_time
@pytest.mark.parametrize("name", ["TRUNCATE_TO_HW", "COMMIT_OVER_SMALLER_ISR", "STALE_INCARNATION"])
def test_planted_mistakes_are_found(check: ModuleType, name: str) -> None:
    assert check.main(["--only", name, "--jobs", "1"]) == 0
