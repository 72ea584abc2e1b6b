"""Ports for the servers of tests.

Rules: a port that the kernel has chosen is free for anybody's outgoing connection while its server is down, and then
the server cannot start again. So ports are taken from below those, and each process that runs tests has a block of its
own, which a lock on a file keeps until that process ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from contextlib import ExitStack, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO

_FIRST = 20_000
_BLOCK = 500
_BLOCKS = 24


class _Block:
    """The ports of this process. No two of them are given again before all others were."""

    def __init__(self) -> None:
        self._lock, self._first = _locked()
        self._next = 0

    def take(self, wanted: int) -> int:
        """Return the first of so many ports in a row that nobody listens on."""
        for _ in range(2 * _BLOCK):
            if self._next + wanted > _BLOCK:
                self._next = 0
            first = self._first + self._next
            self._next += 1
            with ExitStack() as held, suppress(OSError):
                for port in range(first, first + wanted):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
                self._next += wanted - 1
                return first
        raise AssertionError(f"no {wanted} ports in a row are free from {self._first} to {self._first + _BLOCK - 1}")


def _locked() -> tuple[IO[str], int]:
    """Lock a block; the locked file and the first port."""
    for number in count(os.getpid()):
        path = Path(tempfile.gettempdir()) / f"penstock-tests-{os.getuid()}-ports-{number % _BLOCKS}"
        file = path.open("a")
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file, _FIRST + number % _BLOCKS * _BLOCK
        file.close()
        assert number < os.getpid() + _BLOCKS, f"more than {_BLOCKS} processes run tests"
    raise AssertionError


@cache
def _block() -> _Block:
    return _Block()


def ports_in_a_row(wanted: int) -> int:
    """Return the first of so many ports that are this process's, and on which nobody listens."""
    return _block().take(wanted)


def free_ports(wanted: int) -> list[int]:
    """Return so many ports that are this process's, and on which nobody listens."""
    return [ports_in_a_row(1) for _ in range(wanted)]
