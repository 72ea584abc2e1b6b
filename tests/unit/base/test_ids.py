"""Cluster ids are compared in one way everywhere: a broker that has not joined a cluster says the empty one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.base.ids import are_different_clusters
from tests.extent import each_change

SOURCE = Path(penstock.__file__).parent

MAY_COMPARE = {
    "base/ids.py": "the one way",
    "metadata/effects/streams.py": "what a command in the log changes, where the empty id is the state before it",
    "node/control/cluster.py": "whether there is something new to tell",
}


@pytest.mark.parametrize(
    ("one", "other", "different"),
    [("a", "a", False), ("a", "b", True), ("a", "", False), ("", "b", False), ("", "", False)],
)
def test_the_empty_id_names_no_cluster(one: str, other: str, different: bool) -> None:
    assert are_different_clusters(one, other) is different


@each_change
def test_no_other_code_compares_cluster_ids() -> None:
    found = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if any(_comparisons(file))}
    assert found - {"base/ids.py"} == MAY_COMPARE.keys() - {"base/ids.py"}


def _comparisons(file: Path) -> Iterator[ast.Compare]:
    text = file.read_text()
    for node in ast.walk(ast.parse(text)) if "cluster" in text else ():
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(_names_a_cluster(side) for side in sides) and not any(
                isinstance(one, ast.Constant) for one in sides
            ):
                yield node


def _names_a_cluster(side: ast.expr) -> bool:
    if isinstance(side, ast.Call):
        side = side.func
    name = side.attr if isinstance(side, ast.Attribute) else side.id if isinstance(side, ast.Name) else ""
    return name.endswith("cluster_id")
