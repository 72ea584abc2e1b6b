"""Workers share the rewriting of test modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.rewriting import write_share


def test_each_worker_writes_its_share_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for number in range(5):
        (tmp_path / f"test_{number}.py").write_text("def test_it():\n    assert True\n")
    (tmp_path / "shared.py").write_text("")

    def written_by(worker: int) -> tuple[int, list[str]]:
        count = write_share(pytestconfig, [str(tmp_path), "tests/unit/test_rewriting.py::test_it"], worker, 2)
        return count, sorted(path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc"))

    assert written_by(1) == (2, ["test_1", "test_3"])
    assert written_by(1) == (0, ["test_1", "test_3"])
    assert written_by(0) == (3, [f"test_{number}" for number in range(5)])
    (tmp_path / "test_3.py").write_text("def test_it():\n    assert not False\n")
    assert written_by(1)[0] == 1
