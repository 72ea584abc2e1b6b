"""CONTRIBUTING.md names files, functions and tables that exist, and the tiers and folders of tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.docs.test_architecture import names_of
from tests.extent import Tier

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:src|tests|docs|deploy|examples)/[\w./-]+")


@cache
def tables_of(path: Path) -> frozenset[str]:
    """Return the names that a module assigns: tables, constants, type aliases."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {one.id for one in targets if isinstance(one, ast.Name)}
    return frozenset(names)


def test_every_function_class_and_table_that_the_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)
    assert len(named) > 30
    missing = []
    for file, name in named:
        path = ROOT / file
        if not path.is_file() or name not in names_of(path) | tables_of(path):
            missing.append(f"{file}:{name}")
    assert missing == []


def test_every_file_that_the_page_names_exists_and_is_named_by_its_full_path() -> None:
    named = [code.split(":")[0] for code in CODE.findall(PAGE)]
    paths = [one for one in named if PATH.fullmatch(one)]
    assert len(paths) > 70
    assert [one for one in paths if not (ROOT / one).exists()] == []
    assert [one for one in named if re.fullmatch(r"[\w/]*\w\.py", one) and not PATH.fullmatch(one)] == []


def test_every_link_leads_to_a_page() -> None:
    links = [one for one in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE) if "://" not in one]
    assert links
    assert [one for one in links if not (ROOT / one).exists()] == []


def test_every_tier_and_every_folder_of_tests_is_explained() -> None:
    assert re.findall(r"^\| `(\w+)` \| .* `make test|^\| `(\w+)` \| .* `\.ci/run`", PAGE, flags=re.MULTILINE)
    assert [one for one in Tier if f"| `{one}` |" not in PAGE] == []
    folders = {f"tests/{one.name}" for one in (ROOT / "tests").iterdir() if any(one.rglob("test_*.py"))}
    folders.add("tests/scenarios")  # its tests are text files
    assert folders == set(
        re.findall(r"`(tests/[a-z]+)`", PAGE.partition("A new test goes here:")[2].partition("##")[0])
    )


def test_every_command_that_the_page_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = makefile.partition(".PHONY: ")[2].partition("\n")[0].split()
    named = set(re.findall(r"`(?:TEST_COSTS=\S+ )?make ([\w-]+)", PAGE))
    assert len(named) > 5
    assert named - set(targets) == set()
