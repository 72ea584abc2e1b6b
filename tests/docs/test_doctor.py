"""The page on `penstock doctor` lists every check that the command prints, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import penstock.doctor

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/doctor.md").read_text(encoding="utf-8")
MODULES = sorted(Path(penstock.doctor.__file__).parent.glob("*.py"))


def test_its_tables_have_every_check() -> None:
    sources = "".join(module.read_text(encoding="utf-8") for module in MODULES)
    checks = set(re.findall(r"""\b(?:_CHECK|check) = "([^"]+)\"""", sources))
    checks |= set(re.findall(r"""\b(?:ok|warn|fail|unknown)\("([^"]+)",""", sources))
    tables = re.findall(r"^\| check \| ok if \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    listed = {name.strip() for rows in tables for row in rows.splitlines() for name in row.split("|")[1].split(",")}
    assert len(listed) > 15
    assert checks - listed == set()
    assert {one for one in listed if not re.search(rf'"{one}"', sources)} == set()
