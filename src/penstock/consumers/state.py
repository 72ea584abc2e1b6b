"""One consumer with acks, without I/O: what it may deliver, acks in, changed rows out, what is due.

Rules: the caller delivers through a cursor that has `table` (`hot.deliveries.Cursor.attach`), applies acks to `table`,
and then takes the rows that tell what changed. Rows are appended in the order in which they were taken, under the
leadership that the state belongs to. Times are elapsed µs of this process, and never go back.

    state.expire(now_us)                  what is due becomes ready, or has reached max_deliver
    cursor.fill_again(rows, …)            messages that are ready again: first, if their rows are there
    cursor.fill(rows, …)                  new messages; both enter them in `table`
    pending_acks.apply_acks(group, …)     acks of a whole read
    state.take_rows(now_us)               what changed: a change, a snapshot, or both

A consumer with `config.commits_first` keeps its frames until the rows that were taken behind them are committed. After
rows of a leadership that goes on were refused, `rows_lost` makes the next one a snapshot. While a consumer is paused
nothing is delivered, and time counts.
"""

from __future__ import annotations

from penstock.consumers import rows
from penstock.consumers.config import AckConfig
from penstock.hot.pending import ENDED, NEVER, PendingTable

Row = tuple[bytes, bytes | None]
"""A key and its value; None deletes the key."""

NOTE_MS = 60_000
"""Interval of the rows that note the time that is left, while messages wait for a time."""
PASSED_MAX = 65_536
"""Messages that are not wanted, behind which the position is noted though nothing else changed."""
POSITION_MAX = 2**59
"""Greatest first offset of a consumer: behind every message, and far below what a row holds, so that it can be read."""
CARRIED_NUMBER_MAX = 2**59
"""Deliveries, and resets, of a consumer that is carried: far below what a row holds, so that it can go on."""
CARRIED_CLOCK_MS_MAX = 2**49
"""The clock of a consumer that is carried: 17,000 years."""
_CHANGE_BYTES = 4_096  # up to which a change is never more than a snapshot
_ENTRY_BYTES = 8  # of a snapshot, at most, but for rare ones


class ConsumerState:
    """The state of one consumer under one leadership."""

    __slots__ = ("_config_bytes", "_is_lost", "_number", "_since_snapshot", "config", "consumer_id", "table", "told")

    def __init__(
        self, consumer_id: bytes, config: AckConfig, told: bytes, table: PendingTable, *, number: int, changes: int
    ) -> None:
        """Go on with a table; `number`: of the next change, `changes`: those since the last snapshot. See `new`."""
        assert len(told) <= rows.TOLD_BYTES_MAX, len(told)
        self.consumer_id = consumer_id
        self.config, self._config_bytes = rows.shared_config(config)
        self.told = told
        self.table = table
        self._number = number
        self._since_snapshot = changes
        self._is_lost = False  # the next row is a snapshot

    @classmethod
    def new(cls, consumer_id: bytes, config: AckConfig, told: bytes, next_offset: int, now_us: int) -> ConsumerState:
        """Return a new consumer, whose first message is at `next_offset` or behind; append its `first_rows`.

        `consumer_id`: `rows.ID_BYTES` random bytes, of this consumer for ever. `told`: bytes of the caller about it,
        its name and its config as JSON, at most `rows.TOLD_BYTES_MAX`.
        """
        table = PendingTable(consumer_id, next_offset, now_us)
        rows.configure(table, config)
        state = cls(consumer_id, config, told, table, number=0, changes=0)
        state.rows_lost()  # until its first rows are taken
        return state

    @classmethod
    def carried(
        cls, consumer_id: bytes, config: AckConfig, told: bytes, exported: bytes, *, now_us: int, log_end: int
    ) -> ConsumerState:
        """Return a new consumer with the place and the messages in hand of another one, as `export` gave them.

        What is in hand stays so with the time that is left; acks of the other one's deliveries name nothing. Positions
        beyond `log_end` go back to it. ValueError: it has another order by key, or numbers that no consumer reaches.
        CorruptionError: it is malformed.
        """
        snapshot = rows.decode_snapshot(exported)
        if snapshot.config.order != config.order:
            raise ValueError(f"its order by key is {snapshot.config.order}, and that of its config {config.order}")
        counted = max(snapshot.delivered, snapshot.generation)
        if counted > CARRIED_NUMBER_MAX or snapshot.clock_ms > CARRIED_CLOCK_MS_MAX:
            text = f"{counted} deliveries or resets, or a clock of {snapshot.clock_ms} ms,"
            raise ValueError(f"{text} are larger than any that was counted")
        table = snapshot.table(consumer_id, now_us, rows.ENTRIES_MAX)
        rows.configure(table, config)
        table.go_on(now_us)
        table.cut(log_end)
        state = cls(consumer_id, config, told, table, number=0, changes=0)
        state.rows_lost()  # until its first rows are taken
        return state

    def export(self) -> bytes:
        """Return a snapshot for `carried`; it changes nothing here."""
        return rows.encode_snapshot(self._config_bytes, self._number, self.table)

    def first_rows(self) -> list[Row]:
        """Return the rows of a new consumer, to be appended as one batch."""
        return [(rows.told_key(self.consumer_id), self.told), self._snapshot()]

    # What changed.

    def take_rows(self, now_us: int) -> list[Row]:
        """Return what changed since the last call, to be appended; empty: nothing did."""
        table = self.table
        if self._is_lost:
            return [self._snapshot()]
        if not self._has_changes(now_us):
            return []
        if self._is_note_due(now_us):
            table.tick(now_us)
        size = table.changes.size()
        if table.changes.is_lost or size > max(_CHANGE_BYTES, _ENTRY_BYTES * table.count):
            return [self._snapshot()]
        number = self._number
        change = rows.encode_change(number, table.changes.take(table.next_offset))
        self._number += 1
        self._since_snapshot += 1
        taken: list[Row] = [(rows.change_key(self.consumer_id, number), change)]
        if self._since_snapshot >= rows.CHANGES_MAX:
            taken.append(self._snapshot())
        return taken

    def has_changes(self, now_us: int) -> bool:
        """True if `take_rows` would return rows."""
        return self._is_lost or self._has_changes(now_us)

    def _has_changes(self, now_us: int) -> bool:
        changes = self.table.changes
        if changes.size() or changes.is_lost or self.table.next_offset >= changes.position + PASSED_MAX:
            return True
        return self._is_note_due(now_us)

    def _is_note_due(self, now_us: int) -> bool:
        """True if a row is due that notes the time."""
        table = self.table
        return table.next_due_us() != NEVER and table.now_ms(now_us) >= table.clock_ms + NOTE_MS

    def _snapshot(self) -> Row:
        """Return a snapshot, which holds all changes."""
        table = self.table
        table.changes.clear(table.next_offset)
        self._is_lost = False
        self._since_snapshot = 0
        return rows.snapshot_key(self.consumer_id), rows.encode_snapshot(self._config_bytes, self._number, table)

    def rows_lost(self) -> None:
        """Rows that were taken may not have been appended: the next call of `take_rows` gives a snapshot."""
        self._is_lost = True

    # Time.

    def expire(self, now_us: int) -> list[int]:
        """Make ready what is due; return offsets that have reached max_deliver, each one once under a leadership.

        These stay pending until the caller gives them up (`give_up`); `exhausted` lists them again.
        """
        return self.table.expire(now_us)

    def exhausted(self, limit: int) -> list[int]:
        """Return up to `limit` offsets that have reached max_deliver and are still pending; it looks at all entries."""
        return self.table.offsets_in(ENDED, limit)

    def due_us(self) -> int:
        """When `expire`, or a row that notes the time, may be due: a lower bound; NEVER: nothing waits."""
        table = self.table
        due_us = table.next_due_us()
        return due_us if due_us == NEVER else min(due_us, table.origin_us + 1_000 * (table.clock_ms + NOTE_MS))

    # What its clients and its stream ask for.

    def give_up(self, offset: int) -> bool:
        """Take a message out of the pending ones for good; False: it is not pending."""
        return self.table.give_up(offset)

    def remove_range(self, begin: int, end: int) -> int:
        """Messages with these offsets are gone: they leave the pending ones. Return how many did."""
        return self.table.remove_range(begin, end)

    def reset(self, next_offset: int) -> None:
        """Begin anew at an offset: nothing is pending, sequences begin at 1, acks of earlier deliveries name nothing.

        The cursor is to be attached again.
        """
        self.table.reset(next_offset)

    def update(self, config: AckConfig, told: bytes) -> list[Row]:
        """Take another config; return rows, to be appended as one batch. ValueError: the order cannot be changed."""
        rows.configure(self.table, config)
        self.config, self._config_bytes = rows.shared_config(config)
        self.told = told
        return self.first_rows()

    def deletion(self) -> list[Row]:
        """Return the rows that delete the consumer, to be appended as one batch."""
        return [(key, None) for key in rows.keys_of(self.consumer_id, self._number)]
