"""Runs `penstock …` as a process, for tests that kill it or check its output."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests import warm
from tests.broker_process import broker_environment

TIMEOUT_S = 120


@contextmanager
def launched(server: str, *arguments: str, more: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a command within the block."""
    environment = broker_environment({"PENSTOCK_SERVER": server, **(more or {})})
    with warm.penstock(arguments, environment, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


async def ended(running: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for the exit code `code`; return stdout and stderr."""
    said, errors = await asyncio.to_thread(running.communicate, timeout=TIMEOUT_S)
    assert running.returncode == code, (running.args, said, errors)
    return said, errors


async def command(server: str, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command to its end; return stdout and stderr."""
    with launched(server, *arguments) as running:
        return await ended(running, code)
