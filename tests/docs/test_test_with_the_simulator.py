"""The page on testing with the simulator: its service has the mistake that it says, and the mended one has none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import penstock
from tests.extent import RUNS_ALL, needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/test-with-the-simulator.md").read_text(encoding="utf-8")
PLUGIN = "penstock.testing.plugin"  # by its name: it is there also where the package was installed before it had one


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    words = command.split()
    assert words[0] == "pytest"
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", *words, "-p", PLUGIN, "-p", "no:cacheprovider", "-W", "error"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1]), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@needs_time
def test_a_seed_finds_the_mistake_and_none_finds_one_in_the_mended_service(tmp_path: Path) -> None:
    shop, test, last_lines = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    first, second = re.findall(r"```sh\n(.*?)\n```", PAGE, flags=re.DOTALL)
    (tmp_path / "shop.py").write_text(shop, encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(test, encoding="utf-8")
    # A change runs the page's seeds up to the first that finds the mistake, and fewer of the mended service.
    found = run(tmp_path, first if RUNS_ALL else f"{first} -x")
    failed = re.findall(r"^FAILED test_shop\.py::\w+\[seed(\d+)\]", found.stdout, re.MULTILINE)
    paid = re.findall(r"^E +assert (\d+) == 4950$", found.stdout, re.MULTILINE)
    assert 0 < len(failed) < 15, found.stdout
    assert len(failed) == len(paid)
    assert max(map(int, paid)) < 4950
    seed = failed[0]
    again = f"pytest 'test_shop.py::test_every_order_is_in_the_ledger_once' --penstock-seed={seed}"
    assert f"run it again: {again}" in found.stdout
    one = run(tmp_path, again.replace("'", ""))
    assert next(line for line in one.stdout.splitlines() if line.startswith(f"seed {seed}: ")) in found.stdout

    begin = shop.index(last_lines.splitlines()[1])
    (tmp_path / "shop.py").write_text(shop[:begin] + last_lines.partition("\n")[2], encoding="utf-8")
    assert run(tmp_path, again.replace("'", "")).returncode == 0
    assert "--penstock-seeds=40" in second
    mended = run(tmp_path, second if RUNS_ALL else second.replace("40", "8"))
    assert mended.returncode == 0, mended.stdout
    assert f"{40 if RUNS_ALL else 8} passed" in mended.stdout
