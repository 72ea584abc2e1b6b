"""Levels and versions: which level a broker of a version has."""

from __future__ import annotations

import pytest

import penstock
from penstock.metadata.feature_levels import FEATURES, LEVELS, NEWEST_LEVEL, level_of, level_text, version_of


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("0.1.0", (0, 3)),
        ("0.3.0", (0, 3)),
        ("0.3.9rc1", (0, 3)),
        ("0.4.0.dev0", (0, 4)),
        ("0.10.0", (0, 4)),
        ("1", (0, 4)),
        ("", (0, 4)),
        ("test", (0, 4)),
    ],
)
def test_the_level_of_a_version(version: str, level: tuple[int, int]) -> None:
    assert level_of(version) == level


def test_the_newest_level_is_that_of_this_version() -> None:
    assert version_of(penstock.__version__)[:2] == NEWEST_LEVEL
    assert level_of(penstock.__version__) == NEWEST_LEVEL
    assert list(LEVELS) == sorted(set(LEVELS))
    assert {one.level for one in FEATURES} <= set(LEVELS)
    assert level_text(NEWEST_LEVEL) == ".".join(penstock.__version__.split(".")[:2])
