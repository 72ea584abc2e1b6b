"""Commands and programs of the README, the how-to pages and the tutorials, and a reader who runs them.

Rules: a code block without language, or of `sh`, holds commands only, one a line; lines that end with `\\`, `|` or
`&&`, and `for` up to `done`, continue. What a program prints, and a piece of a config, is a block of `text`. A Python
block that continues the one before it is one program with it. A block whose first line is a comment with the name of a
file, such as `# shop.py` or `// shop.frugal`, is that file.

Theory: the reader runs a page in a folder of its own, as the commands stand. Only addresses differ: each port of the
page is a free port of this machine, and the defaults of brokers and clients (7422, 8422, 4222) are set by variables.
A command that repeats until Ctrl-C (`--every`, `--follow`) runs once; a program that serves until then goes on to the
end of the page, or until the page starts it again.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

from penstock.broker.config.settings import SETTINGS
from penstock.broker.nats.server import find_nats_server
from tests import warm
from tests.broker_process import Child, broker_environment
from tests.docs.test_python_blocks import ASYNCIO, CONTINUES
from tests.ports import ports_in_a_row

ROOT = Path(__file__).parents[2]
PAGES = {
    path.stem: path
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs/how-to").glob("*.md")),
        *sorted((ROOT / "docs/tutorial").glob("*.md")),
    )
}
PYTHON = "python "  # begins the name of each program
FILE = "file "  # begins the name of each file
TIMEOUT_S = 60
_PROGRAMS = {
    "penstock",
    "curl",
    "kill",
    "umask",
    "python3",
    "chmod",
    "echo",
    "cp",
    "mkdir",
    "touch",
    "for",
    "printf",
    "git",
    "sed",
}
_NOT_EVERYWHERE = ("curl", "jq")
_OF_SHELL = ("", "sh", "bash")
_NAMED = re.compile(r"(?:#|//) ([\w./-]+\.(?:py|frugal|thrift|proto))\n")
_OPERATORS = re.compile(r"[|&;<>()]|\$")
_BEGINS_COMMAND = {"|", "&&", "||", ";", "(", "do", "exec"}


class Step(NamedTuple):
    """A command line, a program or a file."""

    name: str
    """The command line itself, `python 2` for the second program of the page, or `file shop.py`."""
    text: str

    @property
    def is_file(self) -> bool:
        return self.text is not self.name and self.name.startswith(FILE)

    @property
    def is_program(self) -> bool:
        return self.text is not self.name and not self.is_file


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Language and text of each code block."""
    for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE):
        yield language, dedent(text)


def steps(page: str) -> list[Step]:
    """The commands, programs and files of a page, in order."""
    found: list[Step] = []
    for language, text in blocks(page):
        if (named := _NAMED.match(text)) is not None:
            found.append(Step(f"{FILE}{named[1]}", text))
        elif language == "python":
            if text.startswith(CONTINUES):
                before = found.pop()
                found.append(before._replace(text=before.text + text))
            else:
                found.append(Step(f"{PYTHON}{1 + sum(one.is_program for one in found)}", text))
        elif language in _OF_SHELL:
            found += (Step(line, line) for line in command_lines(text))
    return found


def command_lines(block: str) -> Iterator[str]:
    """The commands of a block, without comments."""
    begun = ""
    for line in block.replace("\\\n", " ").splitlines():
        begun = f"{begun} {_without_comment(line)}".strip()
        if begun.endswith(("&&", "|")) or not begun:
            continue
        if begun.startswith("for ") and not begun.endswith("done"):
            begun += "" if begun.endswith("; do") else ";"
            continue
        yield re.sub(r"  +", " ", begun)
        begun = ""
    assert not begun, begun


def _without_comment(line: str) -> str:
    return re.sub(r"(?:^|\s)#(?!.*['\"]).*$", "", line).strip()


def is_plain(line: str) -> bool:
    """Return whether a line is one command, without operators and variables of the shell."""
    quoted = re.sub(r"'[^']*'", "", line)
    return _OPERATORS.search(quoted) is None


def penstock_commands(line: str) -> Iterator[list[str]]:
    """The arguments of each `penstock …` of a command line."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    command: list[str] | None = None
    begins = True
    for word in words:
        if word in _BEGINS_COMMAND or set(word) <= set("|&;<>()"):
            if command is not None:
                yield command
            command, begins = None, word in _BEGINS_COMMAND
        elif command is not None:
            command.append(word)
        elif begins and word.rpartition("/")[2] == "penstock":
            command = []
        else:
            begins = begins and "=" in word  # variables before the command
    if command is not None:
        yield command


def settings_of(words: list[str]) -> dict[str, object]:
    """The settings that the options of `penstock serve` make."""
    by_flag = {setting.flag: setting for setting in SETTINGS.values()}
    rest = iter(words)
    found: dict[str, object] = {}
    for word in rest:
        setting = by_flag[word]
        found[setting.name] = next(rest) if setting.metavar else "yes"
    return found


class _Server(Child):
    """A server of the page."""

    def start(self, process: subprocess.Popen[bytes], ready: str) -> None:
        self._launched(process)
        if not ready:
            return
        assert self.stdout is not None
        assert self.stderr is not None
        try:
            self.stdout.wait_for(ready)
        except AssertionError as error:
            raise AssertionError(f"{error}\nand on stderr:\n{self.stderr.text}") from None


class Reader:
    """Runs the commands and programs of a page in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first_port = ports_in_a_row(40)
        self._servers: dict[str, _Server] = {}
        programs = folder / "bin"
        programs.mkdir(parents=True)
        (programs / "penstock").write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m penstock "$@"\n')
        (programs / "penstock").chmod(0o755)
        path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = broker_environment({"PATH": path, "PENSTOCK_SERVER": f"127.0.0.1:{self._port(7422)}"})
        self.folder = folder / "work"
        self.folder.mkdir()

    def _port(self, port: int, host: str = "127.0.0.1") -> int:
        """The port of this machine that stands for a port of the page."""
        if host == "other":
            return self._first_port + 39
        for first, count, place in (
            (7422, 25, 0),
            (8422, 5, 25),
            (8222, 1, 30),
            (4222, 1, 31),
            (4318, 1, 32),
            (8080, 1, 33),
        ):
            if 0 <= port - first < count:
                return self._first_port + place + port - first
        raise AssertionError(f"no port stands for {port}")

    def here(self, text: str) -> str:
        """The text with the ports of this reader."""
        text = re.sub(
            r"\b(127\.0\.0\.1|localhost|other):(\d{4,5})\b",
            lambda found: f"127.0.0.1:{self._port(int(found[2]), found[1])}",
            text,
        )
        text = re.sub(
            r"(-p |--nats-monitor-port |-m |port=)(\d{4})\b", lambda one: f"{one[1]}{self._port(int(one[2]))}", text
        )
        return text.replace("nats.connect()", f'nats.connect("nats://127.0.0.1:{self._port(4222)}")')

    def run(self, step: Step, code: int = 0, said: str = "") -> None:
        """Run a step to its exit with `code`, after it said `said`; or start a server, or write a file."""
        text = self.here(step.text)
        if step.is_file:
            file = self.folder / step.name.removeprefix(FILE)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            return
        if step.is_program:
            _check(step, warm.python(_pasted(text), self.environment, cwd=self.folder), code, said)
            return
        commands = text.split(" && ")
        if len(commands) > 1 and all(map(is_plain, commands)):
            for command in commands:
                self.run(Step(command, command))
            return
        words = shlex.split(text)
        if words[0] == "export":
            self._export(text)
        elif words[0] == "nats-server":
            self._serve(text, self._merged([str(find_nats_server()), *words[1:]]), "Server is ready")
        elif words[:2] == ["penstock", "serve"]:
            self.serve(words[1:])
        elif words[0] == "python":
            _check(step, self._file(words), code, said)
        elif words[0] == "penstock" and is_plain(text):
            stdin = subprocess.PIPE
            running = warm.penstock(_once(words[1:]), self.environment, text=True, cwd=self.folder, stdin=stdin)
            _check(step, running, code, said)
        else:
            assert words[0].lstrip("(") in _PROGRAMS, f"{step.name}: not a program that a test may run"
            if missing := [one for one in _NOT_EVERYWHERE if one in words and shutil.which(one) is None]:
                pytest.skip(f"not on this machine: {missing[0]}")
            _check(step, self._in_shell(text), code, said)

    def _export(self, text: str) -> None:
        """Set variables for the commands that follow."""
        done = subprocess.run(
            ["/bin/bash", "-e", "-c", f"{text}; env -0"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
        )  # fmt: skip
        names = re.findall(r"(\w+)=", text)
        variables = dict(one.split("=", 1) for one in done.stdout.split("\0") if one)
        self.environment |= {name: variables[name] for name in names}

    def serve(self, words: list[str], more: Mapping[str, str] | None = None) -> None:
        """Start a broker that was not yet started, or anew with other options."""
        settings = {
            "PENSTOCK_LISTEN": f"127.0.0.1:{self._port(7422)}",
            "PENSTOCK_NATS_PORT": str(self._port(4222)),
            "PENSTOCK_HTTP": f"127.0.0.1:{self._port(8422)}",
        }
        if {"--cluster", "--join"} & set(words):
            settings = {"PENSTOCK_HTTP": "off"}
        elif "--nats" in words:
            del settings["PENSTOCK_NATS_PORT"]
        directory = words[words.index("--data-dir") + 1] if "--data-dir" in words else ""
        environment = self.environment | settings | dict(more or {})
        ready = "" if "--cluster" in words else "ready client="  # a cluster needs more of its brokers
        if (old := self._servers.pop(directory, None)) is not None:
            _end(old)
        self._serve(directory, warm.penstock(words, environment, cwd=self.folder), ready)

    def other_broker(self) -> None:
        """Start the broker that pages name `other:7422`."""
        listen = {"PENSTOCK_LISTEN": f"127.0.0.1:{self._port(7422, 'other')}", "PENSTOCK_NATS_PORT": "0"}
        self.serve(["serve", "--data-dir", "other"], listen | {"PENSTOCK_HTTP": "off"})

    def start(self, step: Step, ready: str) -> None:
        """Start a program that serves until Ctrl-C, and wait until it said `ready`; or start it anew."""
        if (old := self._servers.pop(step.name, None)) is not None:
            old.end()
        self._serve(step.name, self._file(shlex.split(self.here(step.text)), text=False), ready)

    def wait(self, server: str, said: str) -> None:
        """Wait until a program that serves said something."""
        stdout = self._servers[server].stdout
        assert stdout is not None
        stdout.wait_for(said)

    def interrupt(self, server: str) -> str:
        """Press Ctrl-C in the terminal of a program that serves; return what it said. AssertionError: it failed."""
        running = self._servers.pop(server)
        running.signal(signal.SIGINT)
        code = running.wait(TIMEOUT_S)
        assert running.stdout is not None
        said = running.stdout.text + running.said
        running.end()
        assert code == 0, said
        return said

    def _file(self, words: list[str], *, text: bool = True) -> subprocess.Popen[Any]:
        """Run `python FILE …`."""
        return subprocess.Popen(
            [sys.executable, "-W", "error", *words[1:]],
            cwd=self.folder,
            env=self.environment | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=text,
        )

    def _serve(self, name: str, process: subprocess.Popen[bytes], ready: str) -> None:
        server = self._servers[name] = _Server()
        server.start(process, ready)

    def _merged(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a program with one pipe for both stdout and stderr."""
        return subprocess.Popen(
            ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", *command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def _in_shell(self, text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/bin/bash", "-e", "-o", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        """End all servers."""
        for server in reversed(self._servers.values()):
            server.end()


def _end(server: Child) -> None:
    """Stop a broker that another one follows on its data directory."""
    server.signal(signal.SIGTERM)
    server.wait(TIMEOUT_S)
    server.end()


def _check(step: Step, running: subprocess.Popen[str], code: int, said: str) -> None:
    """Wait for the end; a program that ends with an error may show where."""
    with running:
        try:
            output, errors = running.communicate("yes\n" if running.stdin else None, timeout=TIMEOUT_S)
        finally:
            running.kill()
    told = f"{step.name}\n{output}\n{errors}"
    assert running.returncode == code, told
    assert said in output + errors, told
    assert "Traceback" not in errors or (step.is_program and code), told


def _once(words: list[str]) -> list[str]:
    """The arguments of a command without those by which it goes on until Ctrl-C."""
    if "--every" in words:
        place = words.index("--every")
        words = words[:place] + words[place + 2 :]
    return [word for word in words if word != "--follow"]


def _pasted(program: str) -> str:
    """A program that does what the pasted block does, in an interpreter that imports from its folder."""
    path = 'import sys; sys.path.insert(0, "")'
    if not program.startswith(ASYNCIO):
        return f"{path}\n{program}"
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return f"""{path}
import asyncio, types
code = compile({program!r}, "page", "exec", flags={flags})
asyncio.run(types.FunctionType(code, globals())())
"""
