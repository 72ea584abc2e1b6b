"""The contracts on layers speak of every package; `make check` holds the imports to them."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"

OUTER = {"doctor", "cli", "aio", "broker", "client", "frugal", "lake", "ops", "vfs", "spark", "testing"}
"""What talks to the world; all else is a core, or below the cores."""


def contracts() -> dict[str, dict]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["id"]: contract for contract in config["tool"]["importlinter"]["contracts"]}


def packages() -> set[str]:
    """Every package and module right below `penstock`."""
    folders = {path.parent.name for path in SOURCE.glob("*/*.py")}
    return folders | {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")}


def test_every_core_is_bound_by_the_contract_for_cores() -> None:
    bound = {module.removeprefix("penstock.") for module in contracts()["cores"]["source_modules"]}
    assert {name for name in bound if "." not in name} == packages() - OUTER
    # Beside whole packages, cores within one that is none.
    cores = {"client.link.attempts", "client.link.cluster", "client.consume.progress"}
    assert {name for name in bound if "." in name} == cores


def test_every_layer_exists() -> None:
    lines = contracts()["layers"]["layers"]
    named = {name.strip(" ()") for line in lines for name in line.split("|")}
    assert named == packages()
