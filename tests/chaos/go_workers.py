"""Unmodified nats.go clients: processes of the program in `go`, whose events come as lines of JSON."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections import Counter
from pathlib import Path

from tests.chaos.acked import AckHistory, Confirmed, Taken


class GoProgram:
    """A worker or a publisher; it can be killed and started again."""

    def __init__(self, program: Path, history: AckHistory, *arguments: str) -> None:
        """`arguments`: as the program's head tells them; of a worker the fourth is its consumer."""
        self.arguments = arguments
        self.heard: Counter[str] = Counter()
        self._program, self._history = program, history
        self._consumer = arguments[3] if len(arguments) > 3 else ""
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process."""
        assert self._reading is None
        self._process = await asyncio.create_subprocess_exec(self._program, *self.arguments, stdout=PIPE)
        self._reading = asyncio.create_task(self._read(self._process))

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed process may be torn
                self._note(json.loads(line))

    def _note(self, event: dict[str, object]) -> None:
        value, at_s = str(event["value"]), float(str(event["at_s"]))
        self.heard[value if event["event"] == "failed" else str(event["event"])] += 1
        match event["event"]:
            case "published":
                self._history.published.add(value)
            case "stored":
                self._history.stored.add(value)
            case "taken":
                deliveries = int(str(event["deliveries"]))
                self._history.taken.append(Taken(at_s, self._consumer, value, deliveries))
            case "acking":
                self._history.acking.add((self._consumer, value))
            case "confirmed":
                self._history.confirmed.append(Confirmed(at_s, self._consumer, value))

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait for the end of the process, and take in all that it said."""
        assert self._process is not None
        assert self._reading is not None
        await self._reading
        await self._process.wait()
        self._reading = None

    async def kill(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None and self._reading is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self.ended()
