"""The blocking client: the same calls, from threads, with Ctrl-C, forks and exits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.client.blocking import client as blocking
from penstock.client.blocking.threads import LoopThread, PublishQueue
from penstock.client.errors import ClientClosed
from penstock.client.link.link import Link
from penstock.messages import FetchRequest, Request
from tests.extent import each_change
from tests.fake_broker import Answer, FakeBroker, columns

SOURCE = Path(penstock.__file__).parents[2]


class BrokerThread:
    """A fake broker on a loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.broker: FakeBroker = self.run(self._start())

    async def _start(self) -> FakeBroker:
        broker = FakeBroker()
        await broker.start()
        return broker

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def stop(self) -> None:
        self.run(self.broker.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def running() -> Iterator[BrokerThread]:
    thread = BrokerThread()
    yield thread
    thread.stop()


@pytest.fixture
def broker(running: BrokerThread) -> FakeBroker:
    return running.broker


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[blocking.Client]:
    with penstock.connect(broker.address) as client:
        yield client


def fill(broker: FakeBroker, batches: int, name: str = "a") -> None:
    stream = broker.create(name)
    for number in range(batches):
        stream.append(columns(*(b"%d" % (number * 10 + row) for row in range(10))))


def public_methods(face: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in vars(face).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def test_every_call_that_waits_takes_a_time_out() -> None:
    waiting = {name for name in public_methods(aio.Client) if name not in ("close", "producer")}
    for name in waiting:
        assert "timeout" in public_methods(aio.Client)[name].parameters, name


def test_a_stream_is_made_written_read_and_deleted(client: blocking.Client) -> None:
    assert client.create_stream("a", "s").name == "a"
    client.append("a", [{"value": b"%d" % number} for number in range(1_000)])
    assert [batch.num_rows for batch in client.read("a")] == [1_000]
    assert [message.value for message in client.messages("a", 998)] == [b"998", b"999"]
    assert client.get("a", 5).value == b"5"
    assert client.last("a", subject="s").value == b"999"
    assert client.offsets("a", penstock.LATEST).offset == 1_000
    assert client.to_table("a").num_rows == len(client.to_pandas("a")) == len(client.to_polars("a")) == 1_000
    assert [info.name for info in client.streams()] == ["a"]
    assert client.alter_stream("a", max_bytes=10_000_000).config.max_bytes == 10_000_000
    assert [info.name for info in client.streams_for("s")] == ["a"]
    assert client.status().broker_id == 1
    client.delete_stream("a")
    with pytest.raises(penstock.StreamNotFound):
        client.stream("a")


def test_no_broker_leaves_no_thread(broker: FakeBroker, running: BrokerThread) -> None:
    running.run(broker.stop())
    before = set(threading.enumerate())
    with pytest.raises(penstock.Unavailable):
        penstock.connect(broker.address)
    assert set(threading.enumerate()) <= before


def test_many_threads_share_one_client(broker: FakeBroker, client: blocking.Client) -> None:
    fill(broker, 20)

    def work(number: int) -> tuple[int, int]:
        return client.get("a", number % 200).offset, sum(batch.num_rows for batch in client.read("a", number % 200))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(200))) == [(number, 200 - number) for number in range(200)]
    assert broker.connections == 1


def test_a_reader_left_early_gives_back_its_task_wherever_it_is_collected(
    broker: FakeBroker, client: blocking.Client
) -> None:
    fill(broker, 5)
    for _ in range(5):
        reader = client.read("a", follow=True)
        assert next(reader).num_rows == 50
        del reader
    gc.collect()

    async def left() -> list[asyncio.Task]:
        tasks = [task for task in asyncio.all_tasks() if "_fetch_ahead" in repr(task)]
        await asyncio.wait(tasks, timeout=5) if tasks else None
        return [task for task in tasks if not task.done()]

    assert client._thread.run(left()) == []


def test_following_in_one_thread_while_another_writes(broker: FakeBroker, client: blocking.Client) -> None:
    broker.create("a")
    got: list[bytes | None] = []

    def follow() -> None:
        for message in client.messages("a", end=100, follow=True):
            got.append(message.value)  # noqa: PERF401

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(100):
        client.append("a", [{"value": b"%d" % number}])
    reader.join(10)
    assert got == [b"%d" % number for number in range(100)]


def test_an_interrupt_ends_a_waiting_call_and_the_client_goes_on(
    broker: FakeBroker, running: BrokerThread, client: blocking.Client
) -> None:
    fill(broker, 1)
    main = threading.main_thread().ident
    assert main is not None

    async def interrupt(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest):
            signal.pthread_kill(main, signal.SIGINT)
        return None

    broker.intercept = interrupt
    reader = client.read("a", 10, follow=True)
    with pytest.raises(KeyboardInterrupt):
        next(reader)
    broker.intercept = None
    assert client.get("a", 3).offset == 3
    assert list(reader) == []


def test_a_closed_client_says_so_and_closes_twice(broker: FakeBroker) -> None:
    client = penstock.connect(broker.address)
    thread = client._thread._thread
    client.close()
    client.close()
    assert not thread.is_alive()
    with pytest.raises(ClientClosed, match="the client is closed"):
        client.status()
    with pytest.raises(ClientClosed, match="the client is closed"):
        client.publish_nowait("s", b"x")


def test_a_client_that_is_forgotten_gives_back_its_thread_and_connection(broker: FakeBroker) -> None:
    client = penstock.connect(broker.address)
    client.status()
    thread = client._thread._thread
    del client
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_closing_in_one_thread_ends_a_read_in_another(broker: FakeBroker, client: blocking.Client) -> None:
    fill(broker, 1)
    reading = threading.Event()
    ended: list[BaseException] = []

    async def tell(request: Request) -> Answer | None:
        if isinstance(request, FetchRequest):
            reading.set()
        return None

    broker.intercept = tell

    def follow() -> None:
        try:
            for _ in client.read("a", 10, follow=True):
                pass
        except (OperationalError, asyncio.CancelledError) as error:
            ended.append(error)

    reader = threading.Thread(target=follow)
    reader.start()
    assert reading.wait(5)
    client.close()
    reader.join(5)
    assert not reader.is_alive()
    assert isinstance(ended[0], OperationalError)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_call_whose_loop_ends_first_is_told(is_closed: bool) -> None:
    gate = threading.Event()

    class Ending(LoopThread):
        def check(self) -> None:
            super().check()
            if is_closed:
                self.stop()
            else:  # it ends when the work is handed over, and before it looks at it
                self.loop.call_soon_threadsafe(gate.wait)
                self.loop.call_soon_threadsafe(self.loop.stop)
                threading.Timer(0.05, gate.set).start()

    thread = Ending()
    with pytest.raises(ClientClosed, match="closed"):
        thread.run(asyncio.Event().wait())
    thread._thread.join(5)


def test_publishes_whose_loop_ends_first_are_told() -> None:
    gate = threading.Event()
    thread = LoopThread()
    publishes = PublishQueue(aio.Client(Link("127.0.0.1:1", "test", "1"), "test", None, {}), thread)
    thread.loop.call_soon_threadsafe(gate.wait)
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    futures = [publishes.put("s", b"x", timeout=5.0) for _ in range(3)]
    gate.set()
    for future in futures:
        with pytest.raises(penstock.Unavailable, match="closed"):
            future.result(5)
    publishes.wait_until_sent(5)
    thread._thread.join(5)


def test_publishes_of_many_threads_are_all_taken_from_the_queue() -> None:
    """Whenever the loop finds it empty, somebody may put at that very moment."""
    count, interval = 1_500, sys.getswitchinterval()
    thread = LoopThread()
    publishes = PublishQueue(aio.Client(Link("127.0.0.1:1", "test", "1"), "test", None, {}), thread)
    futures: list[concurrent.futures.Future[penstock.PubAck | None]] = []

    def put() -> None:
        for _ in range(count):
            future = publishes.put("s", b"x", key=b"", timeout=30.0)
            futures.append(future)
            if len(futures) % 7 == 0:
                future.exception(30)  # so that the queue runs empty

    putting = [threading.Thread(target=put) for _ in range(3)]
    sys.setswitchinterval(1e-5)
    try:
        for one in putting:
            one.start()
        for one in putting:
            one.join(60)
        with pytest.raises(ValueError, match="empty key"):
            publishes.wait_until_sent(30)
    finally:
        sys.setswitchinterval(interval)
    publishes.wait_until_sent(0)
    assert all(isinstance(future.exception(0), ValueError) for future in futures)
    assert (len(futures), publishes._slots._taken) == (3 * count, 0)
    thread.stop()


def test_a_flush_that_cannot_wait_longer_says_how_many_are_left() -> None:
    gate = threading.Event()
    thread = LoopThread()
    publishes = PublishQueue(aio.Client(Link("127.0.0.1:1", "test", "1"), "test", None, {}), thread)
    thread.loop.call_soon_threadsafe(gate.wait)
    for _ in range(3):
        publishes.put("s", b"x", key=b"", timeout=5.0)
    with pytest.raises(penstock.TimedOut, match="messages could not be sent yet"):
        publishes.wait_until_sent(0.01)
    gate.set()
    with pytest.raises(ValueError, match="empty key"):
        publishes.wait_until_sent(30)
    thread.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_ends_the_loop_closes_the_client(error: type[BaseException]) -> None:
    """Otherwise nothing ends the futures of what was sent."""
    thread, closed = LoopThread(), threading.Event()

    class Owner:
        pass

    async def close() -> None:
        closed.set()

    def leave() -> None:
        raise error

    owner = Owner()
    thread.end_with(owner, close)
    thread.loop.call_soon_threadsafe(leave)
    thread._thread.join(5)
    assert closed.is_set()
    thread.close()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_collected_client_that_the_end_of_the_program_stops_too_raises_nothing() -> None:
    """A program that drops a client and ends: the loop is told to stop twice, the second time while it ends."""
    thread, closing = LoopThread(), threading.Event()

    async def close() -> None:
        closing.set()
        await asyncio.Event().wait()

    thread.stop_after(close)
    assert closing.wait(5)
    thread.stop()
    assert thread.loop.is_closed()


def test_a_closed_client_makes_no_connection_for_what_is_still_queued(broker: FakeBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nats:
        client = penstock.connect(broker.address, nats=f"nats://127.0.0.1:{nats.getsockname()[1]}")
        client._thread.run(client._client._publications.close())
        future = client.publish_nowait("s", b"x", timeout=5.0)
        assert isinstance(future.exception(1), penstock.Unavailable)
        client.close()
        nats.settimeout(0)
        with pytest.raises(BlockingIOError):
            nats.accept()


def test_threads_whose_messages_all_fail_leave_time_for_the_rest_of_the_loop() -> None:
    thread = LoopThread()
    publishes = PublishQueue(aio.Client(Link("127.0.0.1:1", "test", "1"), "test", None, {}), thread)
    enough = threading.Event()

    def put() -> None:
        while not enough.is_set():
            publishes.put("s", b"x", key=b"", timeout=30.0)

    putting = [threading.Thread(target=put) for _ in range(3)]
    for one in putting:
        one.start()
    try:
        for _ in range(3):
            thread.run(asyncio.wait_for(asyncio.sleep(0.01), 5))
    finally:
        enough.set()
        for one in putting:
            one.join(30)
    thread.stop()


@pytest.mark.parametrize("also_fails", [False, True])
def test_a_flush_waits_for_what_was_sent_though_another_message_could_not_be_sent(
    client: blocking.Client, monkeypatch: pytest.MonkeyPatch, also_fails: bool
) -> None:
    waited: list[float] = []

    async def flush(*, timeout: float) -> None:
        waited.append(timeout)
        if also_fails:
            raise penstock.Unavailable("refused")

    monkeypatch.setattr(client._client, "flush", flush)
    client.publish_nowait("s", b"x", key=b"")
    with pytest.raises(ValueError, match="empty key") as caught:
        client.flush(timeout=5)
    assert len(waited) == 1
    assert 0 < waited[0] <= 5
    notes = ["one that was sent failed, too: refused"] if also_fails else []
    assert getattr(caught.value, "__notes__", []) == notes


class _Interrupted:
    """A lock or a loop during whose call the user interrupts once."""

    def __init__(self, real: Any, *, when: str) -> None:
        self._real = real
        self._when = when

    def _interrupt(self, when: str) -> None:
        if self._when == when:
            self._when = ""
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._interrupt("entering")
        self._real.__enter__()

    def __exit__(self, *error: object) -> None:
        self._real.__exit__(*error)
        self._interrupt("leaving")

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self._interrupt("calling")
        self._real.call_soon_threadsafe(call)
        self._interrupt("called")


@pytest.mark.parametrize("when", ["entering", "leaving", "calling", "called"])
def test_an_interrupt_while_the_queue_is_started_leaves_no_message_behind(when: str) -> None:
    """Python sees a signal at any call, also as the lock is left."""
    thread = LoopThread()
    publishes = PublishQueue(aio.Client(Link("127.0.0.1:1", "test", "1"), "test", None, {}), thread)
    if when in ("entering", "leaving"):
        publishes._starting = _Interrupted(publishes._starting, when=when)  # type: ignore[assignment]
    else:
        real, thread.loop = thread.loop, _Interrupted(thread.loop, when=when)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        publishes.put("s", b"x", key=b"", timeout=5.0)
    later = publishes.put("s", b"x", key=b"", timeout=5.0)
    assert isinstance(later.exception(5), ValueError)
    if when in ("calling", "called"):
        thread.loop = real
    with pytest.raises(ValueError, match="empty key"):
        publishes.wait_until_sent(5)
    assert publishes._slots._taken == 0
    thread.stop()


def test_messages_that_are_late_keep_their_places_until_they_leave_the_queue(broker: FakeBroker) -> None:
    """NATS does not answer: else those behind one that waits for it would be without a limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = penstock.connect(broker.address, nats=f"nats://127.0.0.1:{silent.getsockname()[1]}")
        try:
            first = client.publish_nowait("s", b"x", timeout=60)
            for _ in range(limits.PUBLISHES_IN_FLIGHT_MAX - 1):
                last = client.publish_nowait("s", b"x", timeout=0.0)
            assert "it is not stored" in str(last.exception(10))
            with pytest.raises(penstock.TimedOut, match="earlier messages"):
                client.publish_nowait("s", b"x", timeout=0.01)
            assert not first.done()
        finally:
            with pytest.warns(penstock.PublishWarning, match=r"^4,094 messages .* the first: .*it is not stored"):
                client.close()
        assert isinstance(first.exception(10), penstock.Unavailable)
        assert client._publishes._slots._taken == 0


def test_messages_that_wait_behind_another_end_by_their_own_time_outs(broker: FakeBroker) -> None:
    """NATS does not answer: one message waits for the connection, and those behind it do not wait in turn."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with penstock.connect(broker.address, nats=f"nats://127.0.0.1:{silent.getsockname()[1]}") as client:
            first = client.publish_nowait("s", b"x", timeout=4)
            behind = [client.publish_nowait("s", b"x", timeout=timeout) for timeout in (0.3, 0.6, 0.3, 4, 4.1)]
            for future in (behind[0], behind[2], behind[1]):
                assert "it is not stored" in str(future.exception(3))
                assert not first.done()
            assert isinstance(first.exception(10), penstock.Unavailable)
            assert all(future.exception(3) is not None for future in behind)
            with pytest.raises(penstock.TimedOut, match="it is not stored"):
                client.flush(timeout=5)
            assert client._publishes._slots._taken == 0


def run_python(code: str, address: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "PENSTOCK_SERVER": address}
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment,
    )


@each_change
def test_a_fork_is_told_to_connect_again(broker: FakeBroker) -> None:
    code = """
import os, penstock
client = penstock.connect()
pid = os.fork()
if pid == 0:
    try:
        client.status()
    except penstock.OperationalError as error:
        os._exit(7 if "connect again" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), client.status().broker_id)
"""
    done = run_python(code, broker.address)
    assert (done.stdout, done.stderr) == ("7 1\n", "")


def test_a_program_that_ends_without_closing_ends_cleanly(broker: FakeBroker) -> None:
    fill(broker, 1)
    code = """
import penstock
client = penstock.connect()
reader = client.read("a", follow=True)
print(next(reader).num_rows)
"""
    done = run_python(code, broker.address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
