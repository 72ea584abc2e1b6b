"""No source compares the code of an error by identity: a `RemoteError.code` that came from a peer is a plain str."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("src", "bench/src", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]


def identities(source: str) -> Iterator[int]:
    """The lines in which something's `code` is compared with `is` to anything but a constant, such as None."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        for operator, one, other in zip(node.ops, sides, sides[1:], strict=False):
            is_code = any(isinstance(side, ast.Attribute) and side.attr == "code" for side in (one, other))
            is_constant = any(isinstance(side, ast.Constant) for side in (one, other))
            if isinstance(operator, ast.Is | ast.IsNot) and is_code and not is_constant:
                yield node.lineno


def test_no_code_is_compared_by_identity() -> None:
    texts = {path: path.read_text("utf-8") for path in SOURCES}
    assert len(texts) > 300
    candidates = {path: text for path, text in texts.items() if ".code" in text and " is " in text}
    assert [(str(path), line) for path, text in candidates.items() for line in identities(text)] == []


@pytest.mark.parametrize("text", ["error.code is ErrorCode.NOT_YET", "a == ErrorCode.X is not e.code", "X is e.code"])
def test_identity_is_found(text: str) -> None:
    assert [*identities(text)] == [1]


@pytest.mark.parametrize("text", ["error.code == ErrorCode.NOT_YET", "error.code is None", "error is code"])
def test_equality_and_none_are_not(text: str) -> None:
    assert [*identities(text)] == []
