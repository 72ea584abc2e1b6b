"""Loads the modules of `penstock.hot` plain and compiled in one process.

Theory: the plain sources are imported under their own names while the compiled modules are removed from `sys.modules`,
so that they also import each other's plain versions. Each class then exists twice: `outcome` compares errors by name
and text.

    scan = hot_modes.plain("scan"), hot_modes.running("scan")
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from penstock import hot

needs_compiled = pytest.mark.skipif(not hot.is_compiled(), reason="nothing is compiled: there is nothing to compare")


ROOT = Path(__file__).resolve().parents[1]


def load_setup(path: Path = ROOT / "setup.py") -> ModuleType:
    """Import setup.py as a module; this builds nothing."""
    spec = importlib.util.spec_from_file_location("penstock_setup", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names() -> list[str]:
    """Return the modules that setup.py compiles."""
    return [name.removeprefix("penstock.hot.") for name in load_setup().COMPILED]


def running(name: str) -> ModuleType:
    """Return the module that this process runs: the compiled one if it exists."""
    return importlib.import_module(f"penstock.hot.{name}")


def plain(name: str) -> ModuleType:
    """Return the interpreted module."""
    return _plain_modules()[name]


@cache
def _plain_modules() -> dict[str, ModuleType]:
    folder = str(Path(hot.__file__).parent)
    every = [path.stem for path in Path(folder).glob("*.py") if not path.stem.startswith("__")]
    own = {name: module for name, module in sys.modules.items() if name.startswith("penstock.hot.")}
    attributes = dict(vars(hot))
    finder = sys.path_importer_cache.get(folder)
    places = list(hot.__path__)  # includes another folder when a fuzzer runs compiled modules from there
    try:
        hot.__path__[:] = [folder]
        for name in own:
            del sys.modules[name]
            vars(hot).pop(name.removeprefix("penstock.hot."), None)  # `from penstock.hot import …` reads it first
        sys.path_importer_cache[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
        found = {name: running(name) for name in every}
    finally:
        hot.__path__[:] = places
        sys.path_importer_cache[folder] = finder
        for name in every:
            sys.modules.pop(f"penstock.hot.{name}", None)
        sys.modules.update(own)
        vars(hot).update(attributes)
    assert all(str(module.__file__).endswith(".py") for module in found.values())
    return found


def outcome(function: Callable[..., object], *arguments: object, **named: object) -> tuple[object, ...]:
    """Return the value of a call, or the name and text of its error, for comparison of both modes."""
    try:
        return ("value", function(*arguments, **named))
    except Exception as error:  # noqa: BLE001 (both modes must raise the same error, of any type)
        return ("error", type(error).__name__, str(error))
