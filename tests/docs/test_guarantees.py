"""The page on guarantees names tests: each line at least one, and each of them is defined in the file that it names.

Nothing here runs them, or knows whether they are skipped: some need time, and run where `tests.extent` has it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[a-z_/0-9]+\.py)::(test_\w+)`", PAGE)))


def test_each_line_of_the_table_names_one() -> None:
    rows = PAGE.partition("## What shows it")[2].splitlines()
    lines = [line for line in rows if line.startswith("| ")][1:]  # behind the head
    assert len(lines) > 15
    assert [line for line in lines if not line.startswith("|--") and "::test_" not in line] == []


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_is_there(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", text, flags=re.MULTILINE)
