"""A broker that the system gives too little memory, or too few threads, says so in one line, and what to do."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import broker_environment
from tests.extent import needs_time

MIB = 1 << 20


@needs_time
@pytest.mark.parametrize(
    ("limit", "most"),
    [(resource.RLIMIT_AS, mib * MIB) for mib in (60, 120, 400, 600)] + [(resource.RLIMIT_NOFILE, 8)],
)
def test_a_start_with_too_little_of_something_ends_with_one_line(tmp_path: Path, limit: int, most: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"],
        env=broker_environment({"PENSTOCK_HTTP": "off"}),
        preexec_fn=lambda: resource.setrlimit(limit, (most, most)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    *_, last = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "ulimit -" in last, done.stderr
