"""`.ci/run`: what failed runs once more, alone; what fails again has failed, and what passes then is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIRST = "=========== 1 failed, 5216 passed, 3 skipped in 290.51s (0:04:50) ==========="
# A make that fails as pytest does: what failed is in its cache. The second call is asked for that only.
MAKE = """#!/bin/sh
[ "$1" = setup ] && exit 0
[ "$1" = check ] && echo "{style}" && exit {checked}
echo "$@" >> calls
if [ "$1 $2" = "test ARGS=--last-failed --last-failed-no-failures=none" ]; then
    echo "{second}"
    exit {code}
fi
mkdir -p .pytest_cache/v/cache
printf '{failed}' > .pytest_cache/v/cache/lastfailed
echo "{first}"
exit 2
"""
ONE = '{{\\n  "tests/a.py::test_b": true\\n}}'
MANY = "{{" + ",".join(f'\\n  "tests/a.py::test_b[{number}]": true' for number in range(9)) + "\\n}}"


def run(
    folder: Path, *, failed: str = ONE, first: str = FIRST, second: str = "", code: int = 0, style: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    make = folder / "bin" / "make"
    make.parent.mkdir()
    make.write_text(
        MAKE.format(
            second=second, code=code, first=first, failed=failed.format(), style=style, checked=int(bool(style))
        )
    )
    make.chmod(0o755)
    shutil.copy(make, make.with_name("spin"))  # is there: nothing is to be installed
    environment = {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [str(folder / ".ci" / "run")], capture_output=True, text=True, check=False, timeout=30, env=environment
    )


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_what_passes_alone_is_named_and_counted(tmp_path: Path) -> None:
    finished = run(tmp_path, second="====== 1 passed, 5219 deselected in 1.20s ======")
    assert finished.returncode == 0, finished.stderr
    assert 'UNSTEADY: failed beside the others, and passed alone:\n  "tests/a.py::test_b": true' in finished.stdout
    assert finished.stdout.splitlines()[-1] == "5217 passed, 1 of them at the second go, alone, in 290.51s"


def test_what_fails_again_has_failed(tmp_path: Path) -> None:
    last = "====== 1 failed, 5219 deselected in 1.20s ======"
    finished = run(tmp_path, second=last, code=2)
    assert finished.returncode == 2
    assert finished.stdout.splitlines()[-1] == last
    assert "UNSTEADY" not in finished.stdout


@pytest.mark.parametrize(
    ("failed", "first"),
    [(MANY, FIRST), ("{{}}", FIRST), (ONE, "!!!!!!!! KeyboardInterrupt !!!!!!!!\n" + FIRST)],
    ids=["many", "nothing ran", "interrupted"],
)
def test_where_it_cannot_be_chance_there_is_no_second_go(tmp_path: Path, failed: str, first: str) -> None:
    finished = run(tmp_path, failed=failed, first=first, second="1 passed in 1.20s")
    assert (finished.returncode, calls(tmp_path)) == (2, 1)
    assert finished.stdout.splitlines()[-1] == FIRST


def test_what_make_check_says_is_said_and_fails(tmp_path: Path) -> None:
    finished = run(tmp_path, second="====== 1 passed, 5219 deselected in 1.20s ======", style="F401 unused import")
    assert finished.returncode == 1
    assert "make check has failed:\nF401 unused import" in finished.stdout
    assert finished.stdout.splitlines()[-1] == "====== 1 passed, 5219 deselected in 1.20s ======"
