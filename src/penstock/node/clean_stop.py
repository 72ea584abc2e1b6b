"""The mark of a clean stop: that everything which this broker wrote was on its disk when it stopped.

Rules: it is made last, once every log is closed and synced, and taken away first, durably, before a start does anything
else: so a broker that was killed has none. Without it a replica may have lost what it told its leader that it has. It
names the run that stopped (an incarnation): the metadata knows whether that was the last one. If it was not, this is an
older copy of the data directory, and lacks what came since.

Source of the idea: KIP-966 (Kafka), "clean shutdown file" with the broker's epoch in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.base.ids import Incarnation
from penstock.commitlog import Log, LogState
from penstock.node.step import Outbox
from penstock.vfs import Vfs

if TYPE_CHECKING:
    from penstock.node.partition import Partition

CLEAN_STOP_PATH = "clean-stop"
_TEXT_BYTES_MAX = 20


def take_clean_stop(vfs: Vfs) -> Incarnation | None:
    """The run that stopped cleanly, None if the last stop was not clean. Blocking. OSError.

    The mark is gone when this returns, on the disk too.
    """
    if CLEAN_STOP_PATH not in vfs.list(""):
        return None
    with closing(vfs.open(CLEAN_STOP_PATH)) as file:
        text = bytes(file.read_at(0, min(file.size(), _TEXT_BYTES_MAX)))
    vfs.remove(CLEAN_STOP_PATH)
    vfs.sync_dir("")
    return Incarnation(int(text)) if text.isdigit() else None


def mark_clean_stop(vfs: Vfs, incarnation: Incarnation) -> None:
    """Everything that this run and those before it wrote is on the disk. Blocking. OSError."""
    with closing(vfs.open(CLEAN_STOP_PATH, create=True)) as file:
        file.write_at(0, str(incarnation).encode())
        file.sync()
    vfs.sync_dir("")


def mark_if_whole(vfs: Vfs, whole_since: Incarnation | None, partitions: Iterable[Partition], outbox: Outbox) -> None:
    """Make the mark, unless something is not on the disk: then the next start says so. Blocking."""
    if whole_since is not None and all(_is_on_disk(one.log) for one in partitions):
        try:
            mark_clean_stop(vfs, whole_since)
        except OSError as error:
            outbox.notice(f"cannot note that the broker stopped cleanly: {error}")


def _is_on_disk(log: Log) -> bool:
    """Whether everything that was written survives."""
    return log.state is not LogState.FENCED and log.flushed_end == log.log_end
