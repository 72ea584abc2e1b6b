"""Plants mutants: changes a module's source as it is imported, in this process only.

Rules: The text to replace must occur exactly once, so that a mutant does not silently lose its effect when the source
changes. The patch must be installed before the module is first imported; no file changes. This module imports nothing
of Penstock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple


class Patch(NamedTuple):
    """Replaces `old` by `new` in `module`."""

    module: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One mutant: `old` becomes `new` in `module`; `also` patches a second defence against the same fault."""

    name: str
    module: str
    old: str
    new: str
    also: tuple[Patch, ...] = ()

    @property
    def patches(self) -> tuple[Patch, ...]:
        """All patches, each in another module."""
        return Patch(self.module, self.old, self.new), *self.also


class _Patched(SourceFileLoader):
    """Compiles a source with one text replaced by another."""

    def __init__(self, patch: Patch, path: str) -> None:
        super().__init__(patch.module, path)
        self._patch = patch

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the patched source; never use a cached one."""
        patch = self._patch
        source = self.get_data(self.path).decode()
        code: CodeType = self.source_to_code(source.replace(patch.old, patch.new).encode(), self.path)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._patches = {patch.module: patch for patch in mutant.patches}
        assert len(self._patches) == len(mutant.patches), f"{mutant.name}: a module has two patches"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the patched spec, or None for other modules."""
        patch = self._patches.get(fullname)
        if patch is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Patched(patch, spec.origin)
        return spec


def check_text(mutant: Mutant) -> None:
    """Raise an AssertionError if a text is not there once; nothing is imported."""
    for patch in mutant.patches:
        package, *path = patch.module.split(".")
        spec = PathFinder.find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        place = Path(spec.submodule_search_locations[0], *path)
        source = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8")
        assert source.count(patch.old) == 1, f"{mutant.name}: its text is not there once: {patch.old!r}"


def plant(mutant: Mutant) -> None:
    """Install the mutant in this process."""
    check_text(mutant)
    for patch in mutant.patches:
        assert patch.module not in sys.modules, f"{patch.module} is imported already"
    sys.meta_path.insert(0, _Finder(mutant))
