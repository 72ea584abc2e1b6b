"""From the last row of each key to the consumers of a partition.

Rules: a snapshot says from which change on it has to be completed; these changes are all there, one behind the other,
as a slot is used again only behind a snapshot. What is in other slots is older, and counts no more.

    snapshot: next change 130      slots  7f: 127   80: 128   82: 130   83: 131   84: -      applied: 130, 131
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.errors import CorruptionError
from penstock.consumers import rows
from penstock.consumers.rows import Snapshot
from penstock.consumers.state import ConsumerState, Row


class StoredConsumer:
    """A consumer as its rows say; `take_over` makes a state of it."""

    __slots__ = ("_changes", "_snapshot", "consumer_id", "told")

    def __init__(self, consumer_id: bytes, told: bytes, snapshot: Snapshot, changes: list[tuple[bytes, int]]) -> None:
        """`changes`: those that complete the snapshot, in order, and where the operations of each begin."""
        self.consumer_id = consumer_id
        self.told = told
        self._snapshot = snapshot
        self._changes = changes

    def take_over(self, now_us: int, log_end: int, *, entries_max: int = rows.ENTRIES_MAX) -> ConsumerState:
        """Go on as its leader: what is in hand stays in hand with the time that is left.

        `log_end`: end of the stream's messages; positions beyond it go back (after an unclean election).
        CorruptionError: a row is malformed, or more than `entries_max` messages are pending.
        """
        table = self._snapshot.table(self.consumer_id, now_us, entries_max)
        for value, at in self._changes:
            rows.apply_change(table, value, at, entries_max)
        table.go_on(now_us)
        state = ConsumerState(
            self.consumer_id,
            self._snapshot.config,
            self.told,
            table,
            number=self._snapshot.next_change + len(self._changes),
            changes=len(self._changes),
        )
        if table.cut(log_end):
            state.rows_lost()
        return state

    def deletion(self) -> list[Row]:
        """Return the rows that delete it, to be appended as one batch."""
        number = self._snapshot.next_change + len(self._changes)
        return [(key, None) for key in rows.keys_of(self.consumer_id, number)]


def stored_consumers(found: Mapping[bytes, bytes]) -> dict[bytes, StoredConsumer]:
    """Return the consumers by id. CorruptionError: a row is malformed, or rows are missing."""
    told: dict[bytes, bytes] = {}
    snapshots: dict[bytes, Snapshot] = {}
    changes: dict[bytes, dict[int, bytes]] = {}
    for key, value in found.items():
        parts = rows.parse_key(key)
        if parts.kind == rows.TOLD:
            told[parts.consumer_id] = value
        elif parts.kind == rows.SNAPSHOT:
            snapshots[parts.consumer_id] = rows.decode_snapshot(value)
        else:
            changes.setdefault(parts.consumer_id, {})[parts.slot] = value
    for consumer_id in sorted(told.keys() ^ snapshots.keys() | changes.keys() - told.keys()):
        raise CorruptionError("", 0, f"config and snapshot of consumer {consumer_id.hex()}", "one of its rows without")
    return {
        consumer_id: StoredConsumer(
            consumer_id, told[consumer_id], snapshot, _completing(snapshot, changes.get(consumer_id, {}))
        )
        for consumer_id, snapshot in snapshots.items()
    }


def _completing(snapshot: Snapshot, slots: Mapping[int, bytes]) -> list[tuple[bytes, int]]:
    """Return the changes that a snapshot does not hold, in order."""
    numbers = {}
    for slot, value in slots.items():
        number, at = rows.decode_change(value)
        if number % rows.SLOTS != slot:
            raise CorruptionError("", 0, f"a change of slot {slot}", f"change {number}")
        if number >= snapshot.next_change:
            numbers[number] = value, at
    wanted = range(snapshot.next_change, snapshot.next_change + len(numbers))
    if len(numbers) > rows.CHANGES_MAX or any(number not in numbers for number in wanted):
        expected = f"changes from {snapshot.next_change} on, one behind the other, {rows.CHANGES_MAX} at most"
        raise CorruptionError("", 0, expected, f"{len(numbers)} of them up to {max(numbers)}")
    return [numbers[number] for number in wanted]
