"""What the demo on Spark needs beyond Penstock: what is missing, how large it is, and where it cannot be installed."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from penstock.cli.demo.install import EXTRAS, InstallTarget, Requirement, is_there, obstacle, requirements, sizes_mb

ROOT = Path(__file__).resolve().parents[4]
NAMED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
LINES = [f'{text}; extra == "{extra}"' for extra, texts in NAMED.items() for text in texts]
HOME = InstallTarget("/venv/bin/python", "/venv/lib", has_pip=True, is_managed=False, is_writable=True)


def test_what_the_extras_name_is_found_in_the_metadata() -> None:
    found = requirements(["pyarrow>=21", *LINES, "odd; python_version < '3'"], ["spark", "lake"])
    assert [one.text for one in found] == NAMED["spark"] + NAMED["lake"]
    assert Requirement("pyiceberg", "pyiceberg[sql-sqlite]>=0.10") in found
    assert requirements(LINES, []) == []


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("typer>=0.1,<0.2", False),
        ("typer>=0.1,<999", True),
        ("typer<0.2", False),
        ("typer>=0.1", True),
        ("typer", True),
        ("typer>=999", False),
        ("a-package-that-nobody-has>=1", False),
    ],
)
def test_what_is_missing_or_too_old_is_not_there(text: str, there: bool) -> None:
    assert is_there(Requirement(re.split("[<>]", text)[0], text)) is there


def test_the_sizes_are_those_that_dev_says() -> None:
    tree = ast.parse((ROOT / "dev.py").read_text())
    (said,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SIZES_MB"
    )
    for extra in ("java", "lake"):
        assert sizes_mb(requirements(LINES, [extra])) == said[extra]
    brought = {"numpy", "pandas"}  # by the demo's data: dev.py counts them there
    spark = [one for one in requirements(LINES, ["spark"]) if one.name not in brought]
    assert sizes_mb(spark) == said["spark"]
    assert sizes_mb(requirements(LINES, EXTRAS))[0] == sum(said[extra][0] for extra in EXTRAS) + 1  # each rounded up


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (HOME, None),
        (HOME._replace(has_pip=False), "/venv/bin/python -m ensurepip"),
        (HOME._replace(is_managed=True), "is managed by the system"),
        (HOME._replace(is_writable=False), "cannot be written to by you, in /venv/lib"),
    ],
)
def test_where_nothing_can_be_installed_it_is_said_what_to_do(place: InstallTarget, said: str | None) -> None:
    found = obstacle(place)
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert said in found
        assert "'.[demo,spark,java,lake]'" in found
