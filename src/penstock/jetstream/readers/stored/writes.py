"""The changes of all stored consumers of one partition: written one batch at a time, in order.

Rules: while a batch is being committed, the next one gathers. A change that no client waits for waits up to
WRITE_DELAY_US for others. What depends on a change, frames and answers to acks, is sent once it is committed. An
answer to an ack also waits until the messages that it removes are hidden. Rows that
were refused while the leadership goes on are written again, as a snapshot; once it has ended nothing is sent any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import RemoteError
from penstock.consumers.state import Row
from penstock.jetstream.answers import publish_command
from penstock.jetstream.gateway import Gateway
from penstock.jetstream.readers.stored.led import Held, LedConsumer

if TYPE_CHECKING:
    from penstock.jetstream.readers.running.output import Output
    from penstock.jetstream.readers.stored.removals import Removals
    from penstock.node.consumers.consumer_logs import KnownConsumers

WRITE_DELAY_US = 10_000
BATCH_BYTES_MAX = 512 * limits.KIB
"""Keys and values of one batch: the consumers that are left go with the next one."""
BATCH_ROWS_MAX = 4_096
_RETRY_US = 100_000
_ROW_BYTES = 32  # of a row beside its key and value, about


class ConsumerWrites:
    """Writes to the log of consumers of one partition, in one leadership."""

    def __init__(
        self, gateway: Gateway, log: KnownConsumers, output: Output, stream_id: int, removals: Removals
    ) -> None:
        self.log = log
        self._stream_id, self._removals = stream_id, removals
        self.due_us: int | None = None  # when the next batch is to be written
        self.is_writing = False
        self.batches = 0  # that were committed
        self._gateway = gateway
        self._output = output
        self._changed: dict[LedConsumer, None] = {}
        self._behind: dict[LedConsumer, None] = {}  # changed, and wait for their rows on the way: see `store`
        self.released: list[LedConsumer] = []  # whose rows were committed: they may go on; the caller takes them

    def note(self, led: LedConsumer, now_us: int, *, waits: bool) -> None:
        """A consumer has changed; `waits`: a client waits until that is committed."""
        self._changed[led] = None
        due_us = now_us if waits else now_us + WRITE_DELAY_US
        if self.due_us is None or due_us < self.due_us:
            self.due_us = due_us

    def is_due(self, now_us: int) -> bool:
        """True if `write` has something to do now."""
        return not self.is_writing and self.due_us is not None and now_us >= self.due_us

    def write(self, now: Now) -> None:
        """Write what is due, unless a batch is on the way."""
        if not self.is_due(now.elapsed_us):
            return
        rows: list[Row] = []
        held: list[tuple[LedConsumer, Held]] = []
        size = 0
        while self._changed and size < BATCH_BYTES_MAX and len(rows) < BATCH_ROWS_MAX:
            led = next(iter(self._changed))
            del self._changed[led]
            if led.is_deleted:
                continue
            if led.under_way:  # its rows on the way may hold changes that clients wait for
                self._behind[led] = None
                continue
            mine = led.state.first_rows() if led.is_told_lost else led.state.take_rows(now.elapsed_us)
            led.is_told_lost = False
            size += sum(_ROW_BYTES + len(key) + len(value or b"") for key, value in mine)
            rows += mine
            led.under_way += 1
            held.append((led, led.take_held()))
        self.due_us = now.elapsed_us if self._changed else None
        if rows:
            self.is_writing = True
            self.log.append(rows, partial(self._written, held))
        else:
            self._release(held)

    def store(self, led: LedConsumer, rows: list[Row], done: Callable[[RemoteError | None], None]) -> None:
        """Append rows of a consumer at once, behind those that are on the way; if they are refused, all is written.

        What the consumer does meanwhile is written behind them: these rows may hold acks and deliveries.
        """

        def stored(error: RemoteError | None) -> None:
            led.under_way -= 1
            if error is not None:
                self._lost(led)
            else:
                self.released.append(led)
            self._go_on(led)
            done(error)

        led.under_way += 1
        self.log.append(rows, stored)

    def delete(self, led: LedConsumer, done: Callable[[RemoteError | None], None]) -> None:
        """Delete a consumer: what waits for its rows is dropped."""

        def deleted(error: RemoteError | None) -> None:
            if error is not None:
                led.is_deleted = False
                self._lost(led)
            done(error)

        led.is_deleted = True
        led.take_held()
        self.log.append(led.state.deletion(), deleted)

    def _lost(self, led: LedConsumer) -> None:
        """Rows of a consumer may not be stored: all of it is written, unless the leadership has ended."""
        if self.log.is_current and not led.is_deleted:
            led.is_told_lost = True
            self._changed[led] = None
            self.due_us = self._gateway.node.now.elapsed_us + _RETRY_US

    def _go_on(self, led: LedConsumer) -> None:
        """Write what a consumer did while its rows were on the way, once none are any more."""
        if led in self._behind and not led.under_way:
            del self._behind[led]
            self.note(led, self._gateway.node.now.elapsed_us, waits=True)

    def take_released(self) -> list[LedConsumer]:
        """Take the consumers whose rows were committed."""
        found, self.released = self.released, []
        return found

    def _written(self, held: list[tuple[LedConsumer, Held]], error: RemoteError | None) -> None:
        self.is_writing = False
        if error is None:
            self.batches += 1
            self._release(held)
            for led, _ in held:
                self._go_on(led)
            return
        if not self.log.is_current:
            return  # the next leader goes on with what was committed
        for led, what in held:
            led.under_way -= 1
            if not led.is_deleted:
                led.state.rows_lost()
                led.hold_again(what)
                self._changed[led] = None
                self._behind.pop(led, None)
        self.due_us = self._gateway.node.now.elapsed_us + _RETRY_US

    def _release(self, held: list[tuple[LedConsumer, Held]]) -> None:
        answers = bytearray()
        for led, what in held:
            led.under_way -= 1
            for reply in what.replies:
                answers += publish_command(reply, b"")
            if not led.is_deleted:
                if what.frames:
                    self._output.send(what.frames)
                self.released.append(led)
        if answers:
            self._removals.then(self._stream_id, partial(self._gateway.send, bytes(answers)))
