"""The planted mistakes, of the simulator and of Raft's own: each can be made, and only where it was asked for."""

from __future__ import annotations

import io
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.extent import needs_time
from tests.sim.mutants.mutants import ALL
from tests.sim.mutants.planting import Patch
from tests.sim.raft.mutants import MUTANTS as RAFT_MUTANTS

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "penstock"
PLANTED = {
    **{mutant.name: mutant.patches for mutant in ALL},
    **{name: (Patch(mutant.module, mutant.old, mutant.new),) for name, mutant in RAFT_MUTANTS.items()},
}


def source_of(module: str) -> str:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def words_of(source: str) -> Iterator[str]:
    """The names in a source, or in a piece of one that need not parse by itself."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
                yield token.string
    except (tokenize.TokenError, IndentationError):
        return


@cache
def words_of_the_source() -> frozenset[str]:
    paths = [path for path in SOURCE.rglob("*.py") if not path.name.startswith("mutants")]
    return frozenset(word for path in paths for word in words_of(_without_imports(path.read_text(encoding="utf-8"))))


def _without_imports(source: str) -> str:
    """A module's name is no attribute of anything."""
    return re.sub(r"^ *(?:from \S+ )?import (?:\([^)]*\)|.*$)", "", source, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PLANTED)
def test_its_text_is_there_once_and_what_replaces_it_compiles(name: str) -> None:
    for patch in PLANTED[name]:
        source = source_of(patch.module)
        assert source.count(patch.old) == 1
        assert patch.old != patch.new
        compile(source.replace(patch.old, patch.new), patch.module, "exec")


@pytest.mark.parametrize("name", PLANTED)
def test_it_names_only_what_the_source_names(name: str) -> None:
    """A mistake that ends in an AttributeError is found by every seed, and shows nothing."""
    for patch in PLANTED[name]:
        own = {word for line in patch.new.splitlines() for word in _bound(line)}
        assert (
            set(words_of(patch.new))
            - words_of_the_source()
            - set(words_of(_without_imports(source_of(patch.module))))
            - own
            == set()
        )


def _bound(line: str) -> Iterator[str]:
    """The names that a line binds, such as `late = …`, `for late in …`."""
    words = list(words_of(line.strip()))
    if words and (line.strip().startswith(f"{words[0]} =") or line.strip().startswith("for ")):
        yield words[0]


def test_none_uses_a_name_that_is_not_defined_where_it_stands(tmp_path: Path) -> None:
    """Nor one that ends in a NameError."""
    for number, (name, patches) in enumerate(PLANTED.items()):
        for patch in patches:
            text = source_of(patch.module).replace(patch.old, patch.new)
            (tmp_path / f"{number}_{patch.module}.py").write_text(f"# {name}\n{text}", encoding="utf-8")
    undefined = tmp_path / "shown.py"
    undefined.write_text("def planted():\n    return is_not_there\n", encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", "--output-format"]
    checked = subprocess.run(
        [*command, "concise", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "shown.py:2:12: F821" in checked.stdout, checked.stderr
    assert checked.stdout.count("F821") == 1, checked.stdout


@needs_time
def test_a_process_that_installs_one_has_it_and_no_other_has() -> None:
    code = (
        "from tests.sim.mutants import mutants; mutants.install('says synced what is not');"
        "from tests.sim.run.run import run_seeds, run_seed; print(any(run_seed(seed, 1).error for seed in range(5)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout.strip() == "True"
