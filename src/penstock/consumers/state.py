"""One consumer with acks, without I/O: what it may deliver, acks in, changed rows out, what is due.

Rules: the caller delivers through a cursor that has `table` (see `hot.deliveries.Cursor`), applies acks to `table`, and
then takes the rows that tell what changed. Rows are appended in the order in which they were taken, under the leadership
that the state belongs to. Times are elapsed µs of this process, and never go back.

    cursor.fill_again(rows, …)      messages that are ready again: first, if their rows are there
    cursor.fill(rows, …)            new messages; both enter them in `table`
    pending.apply_acks(group, …)    acks of a whole read
    state.expire(now_us)            what is due becomes ready, or has reached max_deliver
    state.take_rows(now_us)         what changed: at most a change and a snapshot

A consumer with `config.commits_first` keeps its frames until the rows that were taken behind them are committed. One
whose rows were refused under a leadership that goes on calls `rows_lost`: then the next row is a snapshot.
"""

from __future__ import annotations

from penstock.consumers.config import AckConfig
from penstock.hot.pending import PendingTable

Row = tuple[bytes, bytes | None]
"""A key and its value; None deletes the key."""

CHANGES_MAX = 128
"""Changes between two snapshots at most."""
NOTE_US = 60_000_000
"""Interval of the rows that note the time that is left, while messages wait for a time."""


class ConsumerState:
    """The state of one consumer under one leadership."""

    __slots__ = ("config", "consumer_id", "told", "table")

    def __init__(self, consumer_id: bytes, config: AckConfig, told: bytes, next_offset: int, now_us: int) -> None:
        """A new consumer, whose first message is at `next_offset` or behind.

        `consumer_id`: ID_BYTES random bytes, of this consumer for ever (`rows.ID_BYTES`). `told`: bytes of the caller
        about it, at most `rows.TOLD_BYTES_MAX`: its name and its config as JSON.
        """
        self.consumer_id = consumer_id
        self.config = config
        self.told = told
        self.table = PendingTable(consumer_id, next_offset, now_us)

    def take_rows(self, now_us: int) -> list[Row]:
        """Return what changed since the last call, to be appended; empty: nothing did."""
        raise NotImplementedError

    def rows_lost(self) -> None:
        """Rows that were taken may not have been appended: the next call of `take_rows` gives a snapshot."""
        raise NotImplementedError

    def expire(self, now_us: int) -> list[int]:
        """Make ready what is due; return offsets that have reached max_deliver, each one once under a leadership.

        These stay pending until the caller gives them up (`give_up`); `exhausted` lists them again.
        """
        raise NotImplementedError

    def exhausted(self) -> list[int]:
        """Return the offsets that have reached max_deliver and are still pending."""
        raise NotImplementedError

    def give_up(self, offset: int) -> bool:
        """Take a message out of the pending ones for good; False: it is not pending."""
        raise NotImplementedError

    def due_us(self) -> int:
        """When `expire`, or a row that notes the time, may be due: a lower bound; UNLIMITED: never."""
        raise NotImplementedError

    def update(self, config: AckConfig, told: bytes, now_us: int) -> list[Row]:
        """Take another config; return rows as `take_rows` does. ValueError: the order cannot be changed."""
        raise NotImplementedError

    def reset(self, next_offset: int, now_us: int) -> None:
        """Begin anew at an offset: nothing is pending, sequences begin at 1, acks of earlier deliveries name nothing."""
        raise NotImplementedError

    def remove_range(self, begin: int, end: int) -> int:
        """Messages with these offsets are gone: they leave the pending ones. Return how many did."""
        raise NotImplementedError

    def deletion(self) -> list[Row]:
        """Return the rows that delete the consumer, to be appended as one batch."""
        raise NotImplementedError
