"""The mark of a clean stop: that everything which this broker wrote was on its disk when it stopped.

Rules: it is made last, once every log is closed and synced, and taken away first, durably, before a start does anything
else: so a broker that was killed has none. Without it a replica may have lost what it told its leader that it has.

Source of the idea: KIP-966 (Kafka), "clean shutdown file".
"""

from __future__ import annotations

from penstock.vfs import Vfs

CLEAN_STOP_PATH = "clean-stop"


def take_clean_stop(vfs: Vfs) -> bool:
    """Whether the last stop was clean; the mark is gone when this returns, on the disk too. Blocking. OSError."""
    if CLEAN_STOP_PATH not in vfs.list(""):
        return False
    vfs.remove(CLEAN_STOP_PATH)
    vfs.sync_dir("")
    return True


def mark_clean_stop(vfs: Vfs) -> None:
    """Everything is on the disk. Blocking. OSError."""
    vfs.open(CLEAN_STOP_PATH, create=True).close()
    vfs.sync_dir("")
