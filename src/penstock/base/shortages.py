"""Recognises shortages of memory, threads or descriptors, and describes them in one line with the limit to raise.

Rules: the operator must fix such an error wherever it occurs, so no traceback is shown. Other errors give None.
"""

from __future__ import annotations

import errno

_MEMORY = "give it more memory: ulimit -v, MemoryMax= of systemd, the memory limit of the container"
_THREADS = (
    "let it have more threads: ulimit -u, TasksMax= of systemd, the pids limit of the container; or more memory, which "
    "their stacks take: ulimit -v"
)
_FILES = "let it open more files: ulimit -n, LimitNOFILE= of systemd"
_BY_NUMBER = {
    errno.ENOMEM: ("not enough memory", _MEMORY),
    errno.EAGAIN: ("no more threads or processes", _THREADS),
    errno.EMFILE: ("too many open files", _FILES),
    errno.ENFILE: ("too many open files on this machine", "raise fs.file-max (sysctl)"),
}
_NO_THREAD = "can't start new thread"  # CPython's text; the error has no number
_NOTHING_SAID = "without exception set"  # CPython's text where its code in C found no memory for the exception either
_NOT_MAPPED = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")  # dynamic linker


def shortage(error: BaseException) -> str | None:
    """Return the shortage and its remedy in one line; None for other errors."""
    if isinstance(error, MemoryError):
        return _line("not enough memory", str(error), _MEMORY)
    if isinstance(error, SystemError) and _NOTHING_SAID in str(error):
        return _line("not enough memory", "", _MEMORY)
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return _line("no more threads", "", _THREADS)
    if isinstance(error, ImportError) and any(words in str(error) for words in _NOT_MAPPED):
        return _line("not enough memory", str(error), _MEMORY)
    if isinstance(error, OSError) and error.errno in _BY_NUMBER and not isinstance(error, ConnectionError):
        what, advice = _BY_NUMBER[error.errno]
        return _line(what, str(error.filename or ""), advice)
    return None


def _line(what: str, where: str, advice: str) -> str:
    said = " ".join(where.split())
    return f"{what}{f' ({said})' if said else ''}: {advice}"
