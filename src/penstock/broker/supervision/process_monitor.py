"""Monitors one broker process of a machine, and restarts it when it ends.

Rules: the process gets a session of its own, so that Ctrl-C reaches the supervisor only, and none of the environment
meant for the supervisor. Its log is passed on line by line, each with the broker's name, except for a start that fails
for the same reason as the previous one. Lines longer than SUPERVISOR_LINE_BYTES_MAX are split. `restart_policy` decides
when to start it again.

    started ──listening──▶ listens ──ready──▶ serves
       ▲                                        │ (from any of them)
       └──────── the delay is over ◀── ended ◀──┘
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncIterator, Callable
from enum import Enum

import msgspec

from penstock.base import limits
from penstock.broker.process.running_timeout import RunningTimeout
from penstock.broker.process.systemd import NOTIFY_VARIABLE
from penstock.broker.supervision.child import environment_of_child
from penstock.broker.supervision.restart_policy import ProcessExit, RestartPolicy
from penstock.broker.supervision.supervised import LISTENING, READY, REASON, ConfigHandoff, encode

_log = logging.getLogger("penstock.supervisor")

_SUPERVISOR_HELD_LINES_MAX = 200  # log lines of a broker that fails again to start for the same reason
SUPERVISOR_LINE_BYTES_MAX = 64 * limits.KIB  # of a broker's log; longer lines are cut
_PROGRAM = "from penstock.broker.supervision.supervised import main; main()"

Written = Callable[[str, bytes], None]
"""Takes the broker's name and a line of its log."""


class ProcessState(Enum):
    """State of a broker process."""

    STARTED = "started"
    LISTENS = "listens"
    SERVES = "serves"
    ENDED = "ended"


class ProcessMonitor:
    """Keeps one broker running. `changed` is called when `state` changes."""

    def __init__(self, name: str, handed: ConfigHandoff, written: Written, changed: Callable[[], None]) -> None:
        self.name = name
        self.state = ProcessState.ENDED
        self.is_in_trouble = False  # the last start failed before listening
        self.last_code = 0  # exit code of the last run that has ended
        self._handed = handed
        self._written = written
        self._changed = changed
        self._restarts = RestartPolicy()
        self._process: Process | None = None
        self._reason = ""
        self._held: deque[bytes] | None = None  # the log of a start that may fail like the previous one
        self._stopping = asyncio.Event()
        self._is_told = False  # True once it has been told to end
        self._finished = asyncio.Event()

    async def run(self) -> None:
        """Start it repeatedly until `stop`, or until its settings make a restart pointless."""
        try:
            while not self._stopping.is_set():
                delay_ms = await self._run_once()
                if delay_ms is None:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_ms / 1_000):
                        await self._stopping.wait()
        finally:
            self._finished.set()

    async def _run_once(self) -> int | None:
        """Run it once; return the delay of the next run in milliseconds, None for no further run."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.last_code, has_listened = await self._process_ended()
        if self._stopping.is_set():
            return None
        ran_ms = int((loop.time() - began_s) * 1_000)
        verdict = self._restarts.ended(ProcessExit(self.last_code, ran_ms, has_listened, self._reason))
        if verdict.is_news:
            self._let_go()
            self._tell(has_listened, verdict.delay_ms)
        self._held = None if has_listened else deque(maxlen=_SUPERVISOR_HELD_LINES_MAX)
        self.is_in_trouble = not has_listened
        self._set(ProcessState.ENDED)
        return verdict.delay_ms

    def will_stop(self) -> None:
        """Do not restart it from now on; it keeps running until `stop`."""
        self._stopping.set()

    def reload(self) -> None:
        """Have it reload its certificates, unless it is too early in its start to handle the signal."""
        if self.state in (ProcessState.LISTENS, ProcessState.SERVES):
            self._send(signal.SIGHUP)

    async def stop(self, timeout_ms: int) -> bool:
        """Send SIGTERM, and SIGKILL after `timeout_ms`; return True if it ended with exit code 0. Idempotent."""
        self._stopping.set()
        self._is_told = True
        self._send(signal.SIGTERM)
        patience = RunningTimeout(asyncio.get_running_loop().time, timeout_ms / 1_000)
        if not await patience.waits_for(self._finished.wait()):
            _log.error("%s does not stop: it is killed; its next start recovers", self.name)
            self._send(signal.SIGKILL)
            await self._finished.wait()
        return self.last_code == 0

    # Inside

    async def _process_ended(self) -> tuple[int, bool]:
        """Run a process to its end; return its exit code, and True if it has listened."""
        self._reason = ""
        environment = environment_of_child()
        environment.pop(NOTIFY_VARIABLE, None)  # the supervisor notifies systemd
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=SUPERVISOR_LINE_BYTES_MAX,
            env=environment,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if self._is_told:  # `stop` was called during the start
            self._send(signal.SIGTERM)
        self._set(ProcessState.STARTED)
        try:
            with contextlib.suppress(OSError):  # it has ended already; see its exit code
                process.stdin.write(encode(self._handed))
                await process.stdin.drain()
            # Both pipes end with the process.
            has_listened, _ = await asyncio.gather(self._read_news(process.stdout), self._pass_on(process.stderr))
            return await process.wait(), has_listened
        finally:
            process.stdin.close()
            self._process = None

    async def _read_news(self, stdout: asyncio.StreamReader) -> bool:
        has_listened = False
        async for line in _lines(stdout):
            word, _, rest = line.partition(b" ")
            if word == LISTENING:
                has_listened, self.is_in_trouble = True, False
                self._let_go()
                self._set(ProcessState.LISTENS)
            elif word == READY:
                self._set(ProcessState.SERVES)
            elif word == REASON:
                with contextlib.suppress(msgspec.DecodeError):
                    self._reason = msgspec.json.decode(rest, type=str)
        return has_listened

    async def _pass_on(self, stderr: asyncio.StreamReader) -> None:
        async for line in _lines(stderr):
            if self._held is None:
                self._written(self.name, line)
            else:
                self._held.append(line)

    def _let_go(self) -> None:
        held, self._held = self._held, None
        for line in held or ():
            self._written(self.name, line)

    def _tell(self, has_listened: bool, delay_ms: int | None) -> None:
        code = self.last_code
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"has ended (exit code {code})"
        if not has_listened:
            how = f"does not start ({'exit code' if code >= 0 else 'signal'} {abs(code)})"
        if delay_ms is None:
            then = "its settings cannot work, so it is not started again"
        else:
            then = f"it is started again in {delay_ms / 1_000:g} s"
            then += "" if has_listened else ", repeatedly until it succeeds; further failures are not logged"
        _log.error("%s %s; %s", self.name, how, then)  # the broker's own log, just before, has the reason

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it may just have ended by itself
                self._process.send_signal(number)

    def _set(self, state: ProcessState) -> None:
        self.state = state
        self._changed()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each line without its end; a line that is too long is split."""
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            yield await reader.readexactly(error.consumed)
            continue
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial
            return
        yield line.rstrip(b"\n")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
