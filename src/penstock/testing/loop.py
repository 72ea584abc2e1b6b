"""The event loop of one simulated program: asyncio on the simulation's time and network.

Rules: time advances only when every program is idle, so that sleeps and time-outs cost no real time. Ready callbacks
run in FIFO order, one turn a microsecond. Tasks and futures have numbers for hashes, so that a set of them has the same
order in every run. There are no threads: executor jobs run at once. Calls that would leave the simulation (sockets,
TLS, processes, servers) are refused.

    a program's call ──▶ ready ──turn──▶ its tasks ──▶ timers, connections ──▶ the scheduler ──▶ ready
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import socket
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple, Unpack
from weakref import WeakSet

from penstock.testing.errors import NotSimulatedError, SpinningError
from penstock.testing.simulation.scheduler import Scheduler, Timer

T = TypeVar("T")
Args = TypeVarTuple("Args")
_log = logging.getLogger("asyncio")
_TURN_US = 1
_CLOSES_MAX = 100  # for a coroutine that ignores GeneratorExit
_TURNS_MAX = 200_000  # in one simulated second: far more than any program needs that waits


class Connector(Protocol):
    """Makes a program's connections."""

    async def connect(self, make: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Return a transport and its protocol. OSError."""


class _Ready(asyncio.Handle):
    """A callback that waits for its turn."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any], args: Any, loop: Loop, context: contextvars.Context | None) -> None:
        super().__init__(call, args, loop, context)
        context = context or contextvars.copy_context()
        self._call: Callable[[], object] = partial(context.run, call, *args)

    def run(self) -> None:
        """Call the callback, unless it was cancelled."""
        if not self.cancelled():
            self._call()


class _Later(asyncio.TimerHandle):
    """A callback at a given time, then in its turn."""

    __slots__ = ("_call", "timer")
    timer: Timer

    def __init__(
        self, when: float, call: Callable[..., Any], args: Any, loop: Loop, context: contextvars.Context | None
    ) -> None:
        super().__init__(when, call, args, loop, context)
        context = context or contextvars.copy_context()
        self._call: Callable[[], object] = partial(context.run, call, *args)

    def run(self) -> None:
        """Call the callback, unless it was cancelled."""
        if not self.cancelled():
            self._call()


class Task(asyncio.Task[T]):
    """A task whose hash is its number."""

    def __init__(self, work: Coroutine[Any, Any, T], number: int, **options: Any) -> None:
        self.number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self.number


class Future(asyncio.Future[T]):
    """A future whose hash is its number."""

    def __init__(self, number: int, loop: Loop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one program. It runs with the simulation until `end`."""

    def __init__(self, scheduler: Scheduler, connector: Connector, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called with errors that must end the run."""
        self.signals: dict[int, Callable[[], object]] = {}
        self._scheduler = scheduler
        self._connector = connector
        self._failed = failed
        self._ready: deque[_Ready | _Later] = deque()
        self._has_turn = False
        self._is_over = False
        self._numbers = 0
        self._second = 0
        self._turns = 0
        self._factory: Callable[..., asyncio.Future[Any]] | None = None
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._generators: WeakSet[AsyncGenerator[Any, Any]] = WeakSet()

    def end(self) -> None:
        """End the loop: the program is dead, and none of its callbacks run any more."""
        self._is_over = True
        self._ready.clear()

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """The unfinished tasks, the oldest first."""
        return sorted((task for task in self._tasks if not task.done()), key=hash)

    def bury(self) -> None:
        """Close the remaining coroutines of a dead program, ignoring their errors."""
        self.do(self._close_all)

    def _close_all(self) -> None:
        closed: set[asyncio.Task[Any]] = set()
        while left := [task for task in self.tasks if task not in closed]:  # cleanup code may start more of them
            closed.update(left)
            for task in left:
                _close(task.get_coro())

    def do(self, call: Callable[[], T]) -> T:
        """Run `call` at once as part of the program, with this loop as the running loop."""
        before = asyncio.events._get_running_loop()  # noqa: SLF001 (asyncio's interface for other event loops)
        hooks = sys.get_asyncgen_hooks()
        asyncio.events._set_running_loop(self)  # noqa: SLF001 (the same)
        sys.set_asyncgen_hooks(firstiter=self._generators.add, finalizer=self._finish)
        try:
            return call()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio.events._set_running_loop(before)  # noqa: SLF001 (the same)

    def _turn(self) -> None:
        self._has_turn = False
        if self._is_over:
            return
        self._count()
        ready, self._ready = self._ready, deque()
        self.do(lambda: self._run(ready))
        if self._ready:
            self._plan()

    def _run(self, ready: deque[_Ready | _Later]) -> None:
        for handle in ready:
            if self._is_over:  # a callback has ended the loop
                return
            try:
                handle.run()
            except KeyboardInterrupt:  # the user interrupts the test
                raise
            except SystemExit as error:
                self._failed(error)
            except BaseException as error:  # noqa: BLE001 (the program's, whatever it is)
                self.call_exception_handler({"message": f"error in {handle!r}", "exception": error, "handle": handle})

    def _count(self) -> None:
        second = self._scheduler.now_us // 1_000_000
        if second != self._second:
            self._second, self._turns = second, 0
        self._turns += 1
        if self._turns > _TURNS_MAX:
            text = f"a program had {_TURNS_MAX} turns within one simulated second: it spins instead of waiting"
            raise SpinningError(f"{text}; is there a loop around `await asyncio.sleep(0)`?")

    def _plan(self) -> None:
        if not self._has_turn and not self._is_over:
            self._has_turn = True
            self._scheduler.after(_TURN_US, self._turn)

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # Time

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._scheduler.now_us / 1_000_000

    def call_soon(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call it in the next turn."""
        handle = _Ready(callback, args, self, context)
        if not self._is_over:
            self._ready.append(handle)
            self._plan()
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call it in the next turn: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it after `delay` simulated seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it at the simulated time `when`."""
        later = _Later(when, callback, args, self, context)

        def due() -> None:
            if not self._is_over:
                self._ready.append(later)
                self._plan()

        later.timer = self._scheduler.at(math.ceil(when * 1_000_000) if when < math.inf else 1 << 62, due)
        return later

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, _Later)
        handle.timer.cancel()

    # Tasks

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return Future(self._number(), self)

    def create_task(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:
        """Return a task of this loop."""
        if self._factory is not None:
            return self._factory(self, coro, **options)  # type: ignore[return-value]
        number = self._number()
        options["name"] = options.get("name") or f"Task-{number}"
        task = Task(coro, number, loop=self, **options)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def set_task_factory(self, factory: Callable[..., asyncio.Future[Any]] | None) -> None:
        """Set the factory for tasks."""
        self._factory = factory

    def get_task_factory(self) -> Any:
        """Return the factory for tasks, or None."""
        return self._factory

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Args]], T], *args: *Args) -> asyncio.Future[T]:
        """Run `func` at once, in this thread: there are no others."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (raised to the awaiting caller)
            future.set_exception(error)
        return future

    async def shutdown_asyncgens(self) -> None:
        """Close unfinished asynchronous generators."""
        for one in list(self._generators):
            await one.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there is no executor."""

    def _finish(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._is_over:
            self.create_task(_closed(generator))

    # Errors

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass an unhandled error to the program's handler, or log it."""
        if self._is_over:
            return  # a dead process reports nothing
        error = context.get("exception")
        if isinstance(error, AssertionError | NotSimulatedError):
            self._failed(error)
        if self._handler is not None:
            self._handler(self, context)
        else:
            self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log it as asyncio does."""
        error = context.get("exception")
        _log.error("%s", context.get("message"), exc_info=error if error is not None else None)

    def set_exception_handler(self, handler: Any) -> None:
        """Set the handler for unhandled errors."""
        self._handler = handler

    def get_exception_handler(self) -> Any:
        """Return the handler for unhandled errors, or None."""
        return self._handler

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Ignore the setting."""

    def is_running(self) -> bool:
        """True until the program ends."""
        return not self._is_over

    def is_closed(self) -> bool:
        """True once the program has ended."""
        return self._is_over

    def stop(self) -> None:
        """Refused: the loop ends with its program."""
        _refuse("loop.stop()", "a program ends when its coroutine returns")

    def close(self) -> None:
        """Refused: the loop ends with its program."""
        _refuse("loop.close()", "a program ends when its coroutine returns")

    def run_until_complete(self, future: Any) -> NoReturn:
        """Refused: the loop runs by itself."""
        _refuse("loop.run_until_complete()", "await it")

    def run_forever(self) -> NoReturn:
        """Refused: the loop runs by itself."""
        _refuse("loop.run_forever()", "await something that does not end")

    # Network and signals

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: str | None = None, port: int | None = None, **options: Any
    ) -> tuple[Any, Any]:
        """Connect to a simulated machine. ConnectionRefusedError, TimeoutError."""
        if options.get("ssl"):
            _refuse("TLS", "connect without")
        if options.get("sock") is not None or host is None or port is None:
            _refuse("a connection over a socket of one's own", "give host and port")
        return await self._connector.connect(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """Return the host name as the address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(host), int(port or 0)))]

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Args]], object], *args: *Args) -> None:
        """Set the handler of a signal; `Program.stop` calls the one for SIGTERM."""
        self.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Remove a handler; return True if there was one."""
        return self.signals.pop(sig, None) is not None


def _close(work: Any) -> None:
    for _ in range(_CLOSES_MAX):
        try:
            work.close()
        except BaseException:  # noqa: BLE001, S112 (errors of cleanup code in a dead program)
            continue
        return


async def _closed(generator: AsyncGenerator[Any, Any]) -> None:
    await generator.aclose()


def _refuse(what: str, instead: str) -> NoReturn:
    raise NotSimulatedError(f"{what} does not exist in the simulation; {instead}")


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        text = "a simulated program reaches simulated machines by asyncio.open_connection, and nothing else"
        _refuse(f"loop.{name}()", text)

    return refuse


for _name in (
    *("create_server", "create_unix_connection", "create_unix_server", "create_datagram_endpoint", "start_tls"),
    *("sendfile", "connect_accepted_socket", "connect_read_pipe", "connect_write_pipe", "subprocess_exec"),
    *("subprocess_shell", "add_reader", "remove_reader", "add_writer", "remove_writer", "sock_recv", "sock_recv_into"),
    *("sock_recvfrom", "sock_recvfrom_into", "sock_sendall", "sock_sendto", "sock_connect", "sock_accept"),
    *("sock_sendfile", "getnameinfo", "set_default_executor"),
):
    setattr(Loop, _name, _refused(_name))
