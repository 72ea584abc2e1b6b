"""No function of the package has more than 60 lines: what grows beyond is probably two."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
FUNCTION_LINES_MAX = 60  # of its body: the options of a command with their help texts are a table, not code


def too_long(path: Path) -> list[str]:
    name = path.relative_to(SOURCE).as_posix()
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.body[0].lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{name}: {node.name} has {lines} lines")
    return found


def test_nothing_is_too_long() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 100
    assert [mistake for path in paths for mistake in too_long(path)] == []
