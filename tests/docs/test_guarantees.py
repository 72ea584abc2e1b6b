"""The page on guarantees proves each promise: each row names a test function or a story, and each of them exists.

Nothing here runs them, or knows whether they are skipped: some need time, and run where `tests.extent` has it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "guarantees.md").read_text(encoding="utf-8")
PAGES = [PAGE, (DOCS / "explanation/failures.md").read_text(encoding="utf-8")]
TEST = re.compile(r"\[(test_\w+)\]\((?:\.\./)+(tests/[a-z_/0-9]+\.py)\)")
STORY = re.compile(r"\[(?:\w+\.txt)\]\((?:\.\./)+(tests/scenarios/[a-z_/0-9]+\.txt)\)")
NAMED = sorted({found for page in PAGES for found in TEST.findall(page)})
STORIES = sorted({found for page in PAGES for found in STORY.findall(page)})


def proven_rows() -> list[str]:
    """Rows of the tables whose columns are promise, condition and proof."""
    rows: list[str] = []
    is_proven = False
    for line in PAGE.splitlines():
        if line == "| promise | condition | proof |":
            is_proven = True
        elif not line.startswith("| "):
            is_proven = is_proven and line.startswith("|--")
        elif is_proven:
            rows.append(line)
    return rows


def test_each_promise_names_a_proof() -> None:
    rows = proven_rows()
    assert len(rows) > 30
    assert [row for row in rows if not TEST.search(row) and not STORY.search(row)] == []


@pytest.mark.parametrize(("name", "file"), NAMED)
def test_a_named_test_is_there(name: str, file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, flags=re.MULTILINE)


@pytest.mark.parametrize("story", STORIES)
def test_a_named_story_is_there(story: str) -> None:
    assert (ROOT / story).exists()
