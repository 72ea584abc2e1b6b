"""`.ci/run`: pytest's closing line comes last, and what `make check` finds fails a change as a test does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = "=========== 5217 passed, 3 skipped in 290.51s (0:04:50) ==========="
FAILED = "=========== 1 failed, 5216 passed, 3 skipped in 290.51s (0:04:50) ==========="
# A make that ends as it is told, and says which tier of tests it was asked for.
MAKE = """#!/bin/sh
[ "$1" = setup ] && exit 0
[ "$1" = check ] && echo "{style}" && exit {checked}
echo "tier $TESTS"
echo "{closing}"
echo "make: *** [Makefile:15: test] Error 1"
exit {code}
"""


def run(folder: Path, closing: str, *, code: int = 0, style: str = "") -> subprocess.CompletedProcess[str]:
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    make = folder / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE.format(closing=closing, code=code, style=style, checked=int(bool(style))))
    make.chmod(0o755)
    shutil.copy(make, make.with_name("spin"))  # is there: nothing is to be installed
    environment = {**os.environ, "PATH": f"{make.parent}:{os.environ['PATH']}", "TESTS": ""}
    return subprocess.run(
        [str(folder / ".ci" / "run")], capture_output=True, text=True, check=False, timeout=30, env=environment
    )


def test_all_passes(tmp_path: Path) -> None:
    finished = run(tmp_path, PASSED)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[:2] == ["tier change", PASSED]


def test_a_failure_fails_and_is_said_last(tmp_path: Path) -> None:
    finished = run(tmp_path, FAILED, code=2)
    assert finished.returncode == 2
    assert finished.stdout.splitlines()[-1] == FAILED


def test_what_make_check_says_is_said_and_fails(tmp_path: Path) -> None:
    finished = run(tmp_path, PASSED, style="F401 unused import")
    assert finished.returncode == 1
    assert "make check has failed:\nF401 unused import" in finished.stdout
    assert finished.stdout.splitlines()[-1] == PASSED
