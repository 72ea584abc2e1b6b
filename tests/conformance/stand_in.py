"""A stand-in for the program `nats-server`, for suites that start it themselves: a real one, with a broker beside it.

Rules: it takes nats-server's arguments. Without JetStream among them it becomes the real program. With JetStream, the
real program gets them without JetStream, plus a port for leaf nodes, and a broker stores its data in the same folder.
No suite may use the server before the broker is ready: until then its log lines are kept back, its monitoring port does
not answer, and the file that tells its ports is not there. The stand-in passes signals on; if it is killed, both
programs die with it.

    suite ── arguments, signals ──▶ stand-in ──▶ nats-server ◀── clients
          ◀── log, /varz, ports ───    │              ▲
                                       └────▶ broker ─┘
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.process.parent_death_signal import dying_with_parent
from tests.conformance.configs import (
    gateway_flags,
    jetstream_login,
    wait_for_api,
    with_leaf_port,
    without_jetstream,
)

READY_S = 30.0
REAL = "CONFORMANCE_NATS_SERVER"
"""Variable with the path of the real program."""
_PORT_FREE_S = 10.0
_LOOK_S = 0.02
_LINE_BYTES_MAX = 1 << 20
_SERVE = "from penstock.cli import main; main()"
_CLIENTS = re.compile(rb"Listening for client connections on \S*:(\d+)")
_LEAVES = re.compile(rb"Listening for leafnode connections on \S*:(\d+)")
_MONITOR = re.compile(rb"Starting http monitor on \S*:(\d+)")
_READY = b"Server is ready"
_PORTS_FOLDER = re.compile(r"^\s*ports_file_dir\s*[:=]?\s*\"?([^\"\s]+)\"?\s*$", re.MULTILINE)
_HAS_HOST = re.compile(r"^\s*(host|net|listen)\b", re.MULTILINE)
_STORE = re.compile(r"\bstore_dir\s*[:=]?\s*\"?([^\"\s,}]+)")
_ALONE = {"-js": "jetstream", "--jetstream": "jetstream"}
_WITH_VALUE = {
    "-p": "port",
    "--port": "port",
    "-a": "address",
    "--addr": "address",
    "--net": "address",
    "-m": "monitor",
    "--http_port": "monitor",
    "-sd": "store",
    "--store_dir": "store",
    "-c": "config",
    "--config": "config",
    "-l": "log",
    "--log": "log",
    "-P": "pid",
    "--pid": "pid",
}


@dataclass
class Arguments:
    """Arguments of nats-server: those that matter here by their names, and all others as they are."""

    known: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    @property
    def config(self) -> str:
        """Text of the config file."""
        path = self.known.get("config")
        return Path(path).read_text(encoding="utf-8") if path is not None else ""

    @property
    def wants_jetstream(self) -> bool:
        """True if the arguments or the config turn JetStream on."""
        return "jetstream" in self.known or re.search(r"\bjetstream\b", self.config) is not None


def parse(arguments: list[str]) -> Arguments:
    """Read arguments as Go's package `flag` does: `-name value`, `-name=value`, with one dash or two."""
    found = Arguments()
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag in _ALONE:
            found.known[_ALONE[flag]] = ""
        elif flag in _WITH_VALUE:
            found.known[_WITH_VALUE[flag]] = value if equals else rest.pop(0)
        else:
            found.others.append(flag + equals + value)
    return found


class StandIn:
    """The two programs, and what the suite sees of them."""

    def __init__(self, arguments: Arguments) -> None:
        self._arguments = arguments
        in_config = _STORE.search(arguments.config)
        store = arguments.known.get("store") or (in_config and in_config[1])
        self._folder = Path(store or tempfile.mkdtemp(prefix="stand-in-"))
        self._ports: dict[str, int] = {}
        self._kept: list[bytes] = []
        log = arguments.known.get("log")
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._is_ready = asyncio.Event()
        self._is_up = asyncio.Event()
        self._nats: Process | None = None
        self._broker: Process | None = None
        self._monitor: asyncio.Server | None = None
        self._ended = False

    async def run(self) -> int:
        """Run until nats-server ends; return its exit code."""
        await self._wait_until_free(int(self._arguments.known.get("port", "0")))
        self._nats = await self._start_nats()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: loop.create_task(self._stop()))
        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self._nats.send_signal, number)
        reading = loop.create_task(self._read_log(self._nats))
        up = loop.create_task(self._is_up.wait())
        await asyncio.wait((up, reading), return_when=asyncio.FIRST_COMPLETED)
        if self._is_up.is_set():
            await self._start_broker()
            await self._show()
        else:
            self._say_kept()
        code = await self._nats.wait()
        await reading
        await self._end_broker()
        return code

    async def _start_nats(self) -> Process:
        known = self._arguments.known
        config = with_leaf_port(without_jetstream(self._arguments.config), -1)
        self._folder.mkdir(parents=True, exist_ok=True)
        config = _PORTS_FOLDER.sub(lambda _: f"ports_file_dir: {self._folder}", config)
        file = self._folder / "nats-server.conf"
        file.write_text(config, encoding="utf-8")
        flags = (("address", "-a"), ("port", "-p"))
        place = [part for name, flag in flags if name in known for part in (flag, known[name])]
        if "address" not in known and _HAS_HOST.search(config) is None:
            place += ["-a", "127.0.0.1"]
        monitor = ["-m", "-1"] if "monitor" in known else []
        command = [os.environ[REAL], "-c", str(file), *place, *monitor, *self._arguments.others]
        return await asyncio.create_subprocess_exec(
            *dying_with_parent(command), stderr=PIPE, limit=_LINE_BYTES_MAX, start_new_session=True
        )

    async def _wait_until_free(self, port: int) -> None:
        """Wait for the end of a server that was killed just now and still has the port."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PORT_FREE_S):
                while port > 0 and not _is_free(port):  # noqa: ASYNC110 (another process cannot set an event here)
                    await asyncio.sleep(_LOOK_S)

    async def _tell_ports(self, folder: Path) -> None:
        """Write the file that tells the ports, as a server with this process's id does."""
        assert self._nats is not None
        theirs = self._folder / f"nats-server_{self._nats.pid}.ports"
        async with asyncio.timeout(_PORT_FREE_S):
            while not theirs.exists():  # noqa: ASYNC110 (another process cannot set an event here)
                await asyncio.sleep(_LOOK_S)
        theirs.rename(folder / f"nats-server_{os.getpid()}.ports")

    async def _read_log(self, process: Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            for name, pattern in (("client", _CLIENTS), ("leaf", _LEAVES), ("monitor", _MONITOR)):
                if (found := pattern.search(line)) is not None:
                    self._ports[name] = int(found[1])
            self._kept.append(line)
            if _READY in line:
                self._is_up.set()
            if self._is_ready.is_set():
                self._say_kept()

    def _say_kept(self) -> None:
        text, self._kept = b"".join(self._kept), []
        with suppress(OSError):  # the suite may have closed the pipe
            os.write(sys.stderr.fileno() if self._log is None else self._log, text)

    async def _start_broker(self) -> None:
        login = jetstream_login(self._arguments.config)
        prefix = login.prefix if login is not None else ""
        is_default = login is not None and re.search(rf"no_auth_user\W+{login.user}\b", self._arguments.config)
        url = f"nats://{'' if is_default else prefix}127.0.0.1:{self._ports['client']}"
        flags = gateway_flags(self._arguments.config, f"nats://{prefix}127.0.0.1:{self._ports['leaf']}")
        places = ["--data-dir", str(self._folder / "penstock"), "--listen", "127.0.0.1:0", "--nats", url]
        command = [sys.executable, "-P", "-c", _SERVE, "serve", *places, *flags]
        log = (self._folder / "penstock.log").open("ab")
        with log:
            self._broker = await asyncio.create_subprocess_exec(
                *dying_with_parent(command), stdout=PIPE, stderr=log, start_new_session=True
            )
        assert self._broker.stdout is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                while line := await self._broker.stdout.readline():
                    if b"ready client=" in line:
                        await asyncio.to_thread(wait_for_api, self._ports["client"], login)
                        return
        self._kept.append(b"[FTL] the broker is not ready; see " + str(self._folder / "penstock.log").encode() + b"\n")

    async def _show(self) -> None:
        if "monitor" in self._arguments.known:
            port = int(self._arguments.known["monitor"])
            self._monitor = await asyncio.start_server(self._pass_on, "127.0.0.1", port, reuse_address=True)
        if (ports := _PORTS_FOLDER.search(self._arguments.config)) is not None:
            await self._tell_ports(Path(ports[1]))
        if (path := self._arguments.known.get("pid")) is not None:
            Path(path).write_text(str(os.getpid()), encoding="utf-8")
        self._is_ready.set()
        self._say_kept()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection to the real monitoring port."""
        with suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._ports["monitor"])
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

    async def _stop(self) -> None:
        if self._ended:
            return
        self._ended = True
        await self._end_broker()
        assert self._nats is not None
        with suppress(ProcessLookupError):
            self._nats.terminate()

    async def _end_broker(self) -> None:
        if self._broker is not None and self._broker.returncode is None:
            with suppress(ProcessLookupError):
                self._broker.terminate()
            await self._broker.wait()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def main(given: list[str]) -> int:
    """Be nats-server with these arguments."""
    arguments = parse(given)
    if not arguments.wants_jetstream:
        os.execv(os.environ[REAL], [os.environ[REAL], *given])
    return asyncio.run(_run(arguments))


async def _run(arguments: Arguments) -> int:
    return await StandIn(arguments).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
