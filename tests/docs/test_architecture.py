"""ARCHITECTURE.md and GLOSSARY.md name files, functions and packages that exist."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8")

CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:bench/src|src|tests|model|docs)/[\w./-]+")
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


@cache
def names_of(path: Path) -> frozenset[str]:
    """Return the functions, classes and members that a file defines, members as `Class.member`."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                inner = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
                names |= {f"{node.name}.{one.name}" for one in inner}
    return frozenset(names)


def test_every_function_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)
    assert len(named) > 100
    missing = []
    for path, name in named:
        if not (ROOT / path).is_file() or name not in names_of(ROOT / path):
            missing.append(f"{path}:{name}")
    assert missing == []


def test_every_file_that_the_page_names_exists_and_is_named_by_its_full_path() -> None:
    named = [code.split(":")[0] for code in CODE.findall(PAGE)]
    paths = [one for one in named if PATH.fullmatch(one)]
    assert len(paths) > 200
    assert [one for one in paths if not (ROOT / one).exists()] == []
    short = [one for one in named if re.fullmatch(r"[\w/]*\w\.(?:py|pml)", one) and not PATH.fullmatch(one)]
    assert short == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "GLOSSARY.md"])
def test_every_link_leads_to_a_page_and_a_heading(page: str) -> None:
    broken = []
    for target, heading in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = ROOT / (target or page)
        if not path.exists():
            broken.append(target)
        elif heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            if heading not in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}:
                broken.append(f"{target}#{heading}")
    assert broken == []


def test_the_table_of_packages_has_the_layers_of_the_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {one["id"]: one for one in config["tool"]["importlinter"]["contracts"]}
    layers = [line.replace("(", "").replace(")", "").split(" | ") for line in reversed(contracts["layers"]["layers"])]
    expected = {(number, name) for number, names in enumerate(layers, start=1) for name in names}
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert {(int(number), name) for number, name in rows} == expected
    assert len(rows) == len(expected)


def test_a_term_stands_once_in_the_glossary() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\*", GLOSSARY, flags=re.MULTILINE)
    assert len(terms) > 80
    assert sorted(terms) == sorted(set(terms))
