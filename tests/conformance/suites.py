"""What a suite of a peer is to the runner, and the programs that it needs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from penstock.broker.nats.server import find_nats_server
from tests.conformance.results import Outcome
from tests.conformance.servers import System

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "conformance"
_SETUP_S = 900
_REASON_CHARS = 160
_LOOPBACK = """\
import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", 0x49))  # SIOCSIFFLAGS: up and running
os.execvp(sys.argv[1], sys.argv[1:])
"""
_VARIES = (
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}:\d+"), "HOST:PORT"),
    (re.compile(r"_INBOX\.[\w.]+"), "_INBOX"),
    (re.compile(r"0x[0-9a-f]+"), "ADDRESS"),
    (re.compile(r"/\w+/\S+"), "PATH"),
    (re.compile(r"\d+(\.\d+)?(ms|µs|us|s)\b"), "TIME"),
)


class SuiteMissingError(Exception):
    """A suite, or a program that it needs, is not to be had here; the text says what and why."""


class Suite(Protocol):
    """Tests of a peer, unmodified."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def prepare(self) -> None:
        """Fetch and build what is needed; raise SuiteMissingError."""

    async def run(self, system: System, tests: Sequence[str], folder: Path, jobs: int) -> list[Outcome]:
        """Run these tests against one system, `jobs` side by side where they are independent of each other."""


@dataclass(frozen=True)
class Finished:
    """A program that ended, or was killed at its limit."""

    code: int
    output: str


def program(name: str, suite: str) -> str:
    """Return the path of a program on the PATH; raise SuiteMissingError."""
    found = shutil.which(name)
    if found is None:
        raise SuiteMissingError(f"{suite} needs the program {name}, which is not on the PATH")
    return found


def carry_out(command: Sequence[str], suite: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a step of a suite's preparation; return its standard output; raise SuiteMissingError if it fails."""
    where = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=where, capture_output=True, text=True, timeout=_SETUP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SuiteMissingError(f"{suite}: `{' '.join(command)}` did not end: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise SuiteMissingError(f"{suite}: `{' '.join(command)}` failed:\n{said}")
    return done.stdout


def go_module(path: str, version: str, checksum: str, suite: str) -> Path:
    """Return the folder of a Go module of exactly this content, fetched if need be; raise SuiteMissingError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    said = carry_out([program("go", suite), "mod", "download", "-json", f"{path}@{version}"], suite, BUILD)
    module = json.loads(said)
    if module["Sum"] != checksum:
        raise SuiteMissingError(f"{suite}: {path} {version} has checksum {module['Sum']}, not {checksum}")
    return Path(module["Dir"])


def put_nats_server(folder: Path, system: System) -> str:
    """Put a program `nats-server` there: the real one, or the stand-in. Return a PATH that begins there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nats-server"
    search = f"{folder}{os.pathsep}{os.environ['PATH']}"
    if system is System.NATS_SERVER:
        path.symlink_to(find_nats_server())
        return search
    sources = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    settings = f'PYTHONPATH="{sources}" CONFORMANCE_NATS_SERVER="{find_nats_server()}"'
    command = f'{settings} exec "{sys.executable}" -P -m tests.conformance.stand_in "$@"'
    path.write_text(f"#!/bin/sh\nunset PYTHONDONTWRITEBYTECODE\n{command}\n", encoding="utf-8")
    path.chmod(0o755)
    return search


def alone_in_a_network(suite: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs in a network of its own; raise SuiteMissingError."""
    for how in ((), ("--map-root-user",)):
        begin = ("unshare", "--net", *how, sys.executable, "-c", _LOOPBACK)
        try:
            if subprocess.run((*begin, "true"), capture_output=True, check=False).returncode == 0:
                return begin
        except OSError:
            break
    raise SuiteMissingError(f"{suite} uses fixed ports, and no network of its own can be made here (`unshare --net`)")


def content(folder: Path, *patterns: str) -> str:
    """Return the checksum of the files of a checkout that a run depends on."""
    digest = sha256()
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


async def run_program(command: Sequence[str], cwd: Path, environment: Mapping[str, str], limit_s: float) -> Finished:
    """Run a program until it ends, or its limit, and kill all that it started; output is of both streams."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
        return Finished(process.returncode or 0, output.decode("utf-8", "replace"))
    except TimeoutError:
        return Finished(-9, f"not ended after {limit_s:.0f} s")
    finally:
        with suppress(ProcessLookupError):  # a test that failed may have left its servers
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def reason(text: str) -> str:
    """Return one line of bounded length without what differs from run to run."""
    line = " ".join(text.split())
    for pattern, instead in _VARIES:
        line = pattern.sub(instead, line)
    return line[:_REASON_CHARS]
