"""What a broker does around its start."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import subprocess
import sys

import pytest

from penstock.base import limits
from penstock.broker.serve import _raised_file_limit, made_to_stay
from tests.extent import each_change


@each_change
def test_what_a_start_makes_is_not_looked_at_again() -> None:
    before = gc.get_freeze_count()
    try:
        with made_to_stay():
            assert not gc.isenabled()
            made = [[number] for number in range(1_000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() - before > len(made)
        assert not any(one is made for one in gc.get_objects())
    finally:
        gc.unfreeze()


@each_change
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has its own ways")
def test_memory_for_one_batch_is_that_of_the_one_before() -> None:
    program = """
import resource
from penstock.broker.serve import keep_freed_memory
keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def batch():
    return [bytearray(b"x") * size for size in (4 << 20, 3 << 20, 1 << 20)]
for _ in range(3):
    batch()
before = faults()
for _ in range(20):
    batch()
print(faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    pages_of_a_batch = (8 << 20) // 4096
    assert int(done.stdout) < pages_of_a_batch


@each_change
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has its own ways")
def test_disk_threads_keep_freed_memory_together() -> None:
    program = """
import threading
from pathlib import Path
from penstock.broker.serve import FREED_BYTES_MAX, keep_freed_memory
keep_freed_memory()
done = threading.Event()
def resident():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])
def work(ready):
    pieces = [bytearray(b"x") * (4 << 20) for _ in range(6)]
    del pieces
    ready.set()
    done.wait()
before = resident()
for _ in range(12):
    ready = threading.Event()
    threading.Thread(target=work, args=(ready,)).start()
    ready.wait()
print((resident() - before) / FREED_BYTES_MAX)
done.set()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 3  # of 12 threads, each of which had 24 MiB


@pytest.mark.parametrize(("hard", "is_told"), [(1_024, True), (limits.OPEN_FILES_ADVISED, False)])
def test_that_few_files_may_be_open_is_told_at_the_start(
    hard: int, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
    with caplog.at_level(logging.WARNING, "penstock"):
        assert _raised_file_limit() == hard
    assert [f"only {hard} files may be open, so {hard // 2} clients" in one.getMessage() for one in caplog.records] == (
        [True] if is_told else []
    )


def test_a_start_that_fails_leaves_the_collector_at_work() -> None:
    with pytest.raises(OSError, match="no"), made_to_stay():
        raise OSError("no")
    assert gc.isenabled()
