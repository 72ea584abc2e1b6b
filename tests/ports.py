"""Ports for the servers of tests.

Rules: while a server is down, the kernel may give an ephemeral port to an outgoing connection of any process, and then
the server cannot start again. So ports are taken from below the ephemeral range. Each process that runs tests has its
own block, reserved by a file lock until the process ends.
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
    """The ports of this process. A port is reused only after all others of the block."""

    def __init__(self) -> None:
        self._lock, self._first = _locked()
        self._next = 0

    def take(self, wanted: int) -> int:
        """Return the first of `wanted` consecutive ports without a listener."""
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
    """Lock a block; return the locked file and the first port."""
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
    """Return the first of `wanted` consecutive ports of this process without a listener."""
    return _block().take(wanted)


def free_ports(wanted: int) -> list[int]:
    """Return `wanted` ports of this process without a listener."""
    return [ports_in_a_row(1) for _ in range(wanted)]
