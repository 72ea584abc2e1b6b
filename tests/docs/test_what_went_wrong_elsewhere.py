"""Every test that the page names is there, by file and function; of a story, the file that tells it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "what-went-wrong-elsewhere.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what happened")]
NAMED = re.findall(r"`(tests/[^`]+)`", PAGE)


def functions_of(path: Path) -> set[str]:
    """The functions that a test file defines."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_names_a_test() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if "`tests/" not in row.rsplit(" | ", 1)[-1]] == []


def test_every_named_test_is_there() -> None:
    missing = []
    for name in NAMED:
        file, _, function = name.partition("::")
        path = ROOT / file
        told_by = path.suffix == ".txt" if not function else path.suffix == ".py"
        if not (told_by and path.exists() and (not function or function in functions_of(path))):
            missing.append(name)
    assert missing == []
