"""Forks brokers and commands from a template process that has imported Penstock.

Rules: each test process has one template, started on first use: `python -W error -m tests.warm FD`. The template
imports the modules of brokers and commands, then forks a child for each request. A child has its own pid, descriptors,
environment and working directory, and can be killed, stopped and waited for like any process. Variables that the
interpreter reads at its start cannot be changed in a fork: a command with other such variables, or with code to run
between fork and exec, runs in a new interpreter (see `fits`).

Theory: a broker starts in 0.6 s of CPU, of which 0.5 s are imports. A test run starts a thousand.

    test process ── request, stdin, stdout, stderr ──▶ template ── fork ──▶ child
                 ◀── pid; later pid, status, CPU ────
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

_MESSAGE_BYTES_MAX = 1 << 20
_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "ARROW_", "OMP_", "TZ", "PENSTOCK_PLAIN")
"""Prefixes of variables that the interpreter and its libraries read only at their start."""
_PROGRAM = "-c"  # in the place of the command: a Python program follows
_JEMALLOC = "jemalloc_bg_thd"  # thread of Arrow's allocator, which handles forks
_ROOT = Path(__file__).resolve().parents[1]


# In the test process


class Forked(subprocess.Popen[Any]):
    """`penstock …` as a child of the template, with the interface of Popen."""

    def __init__(self, arguments: Sequence[str], *, env: Mapping[str, str], **options: Any) -> None:
        self._ended = threading.Event()
        self._status = 0
        super().__init__(list(arguments), env=dict(env), **options)

    def _execute_child(self, args: list[str], *others: Any) -> None:
        """Have the template fork the child. The parameters are those of CPython 3.11 to 3.14."""
        env, cwd = others[5], others[4]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = others[9:15]
        self.pid = _template().fork(self, args, env, cwd, (p2cread, c2pwrite, errwrite))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def ended(self, status: int) -> None:
        """Record the wait status from the template."""
        self._status = status
        self._ended.set()

    def _internal_poll(self, **_: Any) -> int | None:
        if self.returncode is None and self._ended.is_set():
            self.returncode = os.waitstatus_to_exitcode(self._status)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        code = self._internal_poll()
        assert code is not None
        return code


def penstock(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    text: bool = False,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[Any]:
    """Run `penstock …`, by default without stdin, with pipes for its output; forked if the environment permits."""
    return _started(["penstock"], ["-m", "penstock"], arguments, environment, text=text, cwd=cwd, stdin=stdin)


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: str | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run `penstock …` to its end, with that on stdin, or without stdin; return its exit code and output."""
    pipe = subprocess.DEVNULL if stdin is None else subprocess.PIPE
    with penstock(arguments, environment, text=True, stdin=pipe) as running:
        try:
            out, err = running.communicate(stdin, timeout=timeout_s)
        finally:
            running.kill()  # nothing, if it has ended
    return subprocess.CompletedProcess(arguments, running.returncode, out, err)


def python(program: str, environment: Mapping[str, str], *, cwd: Path | None = None) -> subprocess.Popen[Any]:
    """Run `python -c PROGRAM` without stdin, with pipes for its output; forked if the environment permits."""
    return _started([_PROGRAM], ["-c"], [program], environment, text=True, cwd=cwd, stdin=subprocess.DEVNULL)


def _started(
    warm: list[str],
    cold: list[str],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    text: bool,
    cwd: Path | None,
    stdin: int,
) -> subprocess.Popen[Any]:
    """Start the template's child `warm ARGUMENTS…`, or else `python -W error cold ARGUMENTS…`."""
    if fits(environment):
        command, start = [*warm, *arguments], Forked
    else:
        command, start = [sys.executable, "-W", "error", *cold, *arguments], subprocess.Popen
    pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return start(command, env=dict(environment), text=text, cwd=cwd, **pipes)


class _Template:
    """The template of this process, and the state of its children."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.cpu_s = 0.0
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._pid = 0
        self._asking: Forked | None = None
        self._children: dict[int, Forked] = {}
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.warm", str(other.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(other.fileno(),),
            cwd=_ROOT,
            env=self.environment,
        )
        other.close()
        threading.Thread(target=self._read, name="warm", daemon=True).start()
        atexit.register(self.close)

    def fork(
        self, child: Forked, arguments: list[str], environment: Mapping[str, str], cwd: Any, files: tuple[int, ...]
    ) -> int:
        """Have a child forked; return its pid."""
        request = {"arguments": arguments, "environment": dict(environment), "cwd": str(cwd or Path.cwd())}
        with self._lock:
            self._answered.clear()
            self._asking = child
            given = [place if number == -1 else number for place, number in enumerate(files)]
            socket.send_fds(self._socket, [json.dumps(request).encode()], given)
            if not self._answered.wait(60):
                raise AssertionError("the template does not answer")
            return self._pid

    def _read(self) -> None:
        while message := self._socket.recv(_MESSAGE_BYTES_MAX):
            pid, status, cpu_s = json.loads(message)
            if status is None:
                assert self._asking is not None
                self._children[pid] = self._asking
                self._pid = pid
                self._answered.set()
            else:
                self.cpu_s += cpu_s
                self._children.pop(pid).ended(status)

    def close(self) -> None:
        """End the template; its children continue."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        self._socket.close()


_templates: dict[int, _Template] = {}  # by process


def _environment() -> dict[str, str]:
    from tests.broker_process import broker_environment  # imported here: that module imports this one

    return broker_environment({})


def _template() -> _Template:
    found = _templates.get(os.getpid())
    if found is None:
        found = _templates[os.getpid()] = _Template(_environment())
    return found


def fits(environment: Mapping[str, str]) -> bool:
    """True if a child with this environment can be forked: the interpreter would start in the same way."""

    def at_start(variables: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(_AT_START)}

    return at_start(environment) == at_start(_environment())


def cpu_s() -> float:
    """Return the CPU seconds of ended children, which are not children of this process, so `os.times` lacks them."""
    found = _templates.get(os.getpid())
    return 0.0 if found is None else found.cpu_s


# In the template


def main(descriptor: int) -> None:
    """Import, then fork a child for each request until the tests close the socket."""
    _import_all()
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len(threads) - threads.count(_JEMALLOC) == 1, f"a fork would have one of these threads only: {threads}"
    requests = socket.socket(fileno=descriptor)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        sources: list[Any] = [requests, woken]
        ready, _, _ = select.select(sources, [], [])
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES_MAX, 3)
            if not message:
                os._exit(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts Arrow's thread
                pid = os.fork()
            if pid == 0:
                _child(json.loads(message), files)
            for number in files:
                os.close(number)
            requests.send(json.dumps([pid, None, 0]).encode())
        if woken in ready:
            os.read(woken, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            with suppress(OSError):
                requests.send(json.dumps([pid, status, usage.ru_utime + usage.ru_stime]).encode())


def _import_all() -> None:
    import gc

    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its import would start a thread for each core
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # as a broker sets it, which is too late once this is loaded
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
    import rich.console  # noqa: F401

    import penstock.aio
    import penstock.broker.config.config
    import penstock.broker.serve
    import penstock.cli.broker.serve  # noqa: F401
    from penstock.cli.program import program

    program()  # imports the modules of all commands

    gc.collect()
    gc.freeze()


def _child(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Run `penstock …` or a program as a new interpreter would, and exit."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        sys.stdin = sys.__stdin__ = os.fdopen(0, "r", encoding="utf-8")  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")  # type: ignore[misc]
        sys.stderr.reconfigure(line_buffering=True)
        if os.environ.get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(write_through=True)
        sys.argv = request["arguments"]
        code = _run()
    finally:
        os._exit(code)


def _run() -> int:
    code: object = 0
    try:
        if sys.argv[0] == _PROGRAM:
            exec(compile(sys.argv.pop(), "<string>", "exec"), {"__name__": "__main__"})
        else:
            from penstock.cli import main as penstock

            penstock()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 (as an interpreter handles an uncaught exception)
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    return int(code or 0) & 0xFF


if __name__ == "__main__":
    main(int(sys.argv[1]))
