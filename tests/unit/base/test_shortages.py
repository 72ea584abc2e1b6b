"""What the system did not give is told in one line with the limit to raise; nothing else is taken for that."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from penstock.base.shortages import shortage


@pytest.mark.parametrize(
    ("error", "what", "limit"),
    [
        (MemoryError(), "not enough memory: ", "ulimit -v"),
        (pa.ArrowMemoryError("malloc of size 64 failed"), "malloc of size 64 failed", "MemoryMax="),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "/data/x"), "not enough memory (/data/x)", "ulimit -v"),
        (ImportError("libarrow.so.2600: failed to map segment from shared object"), "libarrow", "ulimit -v"),
        (SystemError("error return without exception set"), "not enough memory: ", "ulimit -v"),
        (RuntimeError("can't start new thread"), "no more threads", "TasksMax="),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "threads or processes", "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files", "/data/y"), "too many open files (/data/y)", "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "on this machine", "fs.file-max"),
    ],
)
def test_what_is_lacking_is_named_with_the_limit_to_raise(error: Exception, what: str, limit: str) -> None:
    told = shortage(error)
    assert told is not None
    assert what in told
    assert limit in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("the loop is closed"),
        SystemError("bad argument to internal function"),
        ImportError("No module named 'x'"),
        OSError(errno.ENOENT, "No such file or directory", "x"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        ValueError("no"),
    ],
)
def test_any_other_error_is_none_of_that(error: Exception) -> None:
    assert shortage(error) is None
