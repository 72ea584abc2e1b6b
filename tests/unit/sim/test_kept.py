"""Plans as files: what is written is read again, and runs as it ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.extent import each_change
from tests.sim.__main__ import main
from tests.sim.models.clients import SLOTS
from tests.sim.plan.kept import PlanFileError, keep, load
from tests.sim.plan.plan import make_plan
from tests.sim.run.run import run_plan
from tests.sim.run.world import World

PLAN = make_plan(5, 1, SLOTS)
SMALL = PLAN._replace(operations=PLAN.operations[:40], faults=PLAN.faults[:2], end_us=3_000_000)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    keep(path, PLAN, 'offset 3 "is" lost')
    kept = load(path)
    assert kept.plan() == PLAN
    assert kept.shows == 'offset 3 "is" lost'
    assert kept.mended_by == ""


@each_change
def test_it_runs_as_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "plan.json", SMALL, "lost")
    assert main(["--plan", str(tmp_path / "plan.json"), "--quiet"]) == 0
    assert run_plan(SMALL).digest in capsys.readouterr().out.splitlines()[-1]


def test_a_plan_of_nothing(tmp_path: Path) -> None:
    empty = SMALL._replace(operations=(), faults=())
    keep(tmp_path / "plan.json", empty, "lost")
    assert load(tmp_path / "plan.json").plan() == empty


def test_what_was_kept_is_not_written_over(tmp_path: Path) -> None:
    keep(tmp_path / "plan.json", SMALL, "one")
    with pytest.raises(FileExistsError):
        keep(tmp_path / "plan.json", SMALL, "another")
    assert load(tmp_path / "plan.json").shows == "one"


@pytest.mark.parametrize(
    "change",
    [
        {"faults": [[1, "crash", 2, 5, 7]]},
        {"faults": [[1, "crash", 1, -5, 7]]},
        {"faults": [[1, "bad luck", 1, 5, 7]]},
        {"operations": [[1, "publish", SLOTS, 7]]},
        {"operations": [[-1, "publish", 0, 7]]},
        {"operations": [[1, "publish", 0]]},
        {"brokers": 0},
        {"seed": "5"},
        {"more": 1},
    ],
    ids=str,
)
def test_what_is_no_plan_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object]) -> None:
    path = tmp_path / "plan.json"
    keep(path, SMALL, "lost")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(PlanFileError):
        load(path)
    assert main(["--plan", str(path)]) == 2
    assert capsys.readouterr().out.startswith(f"{path} is no plan: ")


def test_no_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", str(tmp_path / "none.json")]) == 2
    assert "is no plan" in capsys.readouterr().out


@each_change
def test_what_does_not_fail_is_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "plan.json", SMALL, "lost")
    path = tmp_path / "again.json"
    assert main(["--plan", str(tmp_path / "plan.json"), "--save", str(path), "--quiet"]) == 0
    assert "is not written" in capsys.readouterr().out
    assert not path.exists()


def test_what_fails_is_kept_with_what_it_showed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sim.run import world

    monkeypatch.setattr(world, "LIVENESS_US", 0)  # nobody can be live at once
    assert World(SMALL).run().error
    path = tmp_path / "plan.json"
    keep(tmp_path / "first.json", SMALL, "lost")
    options = ["--plan", str(tmp_path / "first.json"), "--operations", "0-9", "--save", str(path), "--quiet"]
    assert main(options) == 1
    assert load(path).operations == SMALL.operations[:10]
    assert load(path).shows.startswith("ViolationError: not live")
