"""Creation marks of logs: they distinguish a log that has vanished from one that was never created.

Rules: a create is journaled first and its folder made afterwards, so after a crash a journaled stream may have no
folder yet. Once its log is durable its mark is made durable, and only then is the create answered. A stream with a mark
and without a log has lost it: no new log is begun in its place. The marks lie beside the streams' folder, not in it:
they must outlive it (a disk that was not mounted, a folder that was removed).

    journaled → log durable → mark durable → answered

A mark is an empty file in `made/` (named in `node/data_dir/folders.py`); ids are never reused, so an old one does no
harm.
"""

from __future__ import annotations

from penstock.vfs import Vfs

MADE_PATH = "made"


class LogCreationMarkers:
    """The marks of one data directory. Call `mark` and `forget` in a disk thread or at the start."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._names: set[str] = set()

    def read(self) -> None:
        """Read the existing marks. Raise OSError."""
        self._names = set(self._vfs.list(MADE_PATH))

    def __contains__(self, mark: str) -> bool:
        """True if the log with this mark was created."""
        return mark in self._names

    def add(self, mark: str) -> None:
        """Mark a durable log as created, durably. Raise OSError."""
        self._vfs.open(f"{MADE_PATH}/{mark}", create=True).close()
        self._vfs.sync_dir(MADE_PATH)
        self._names.add(mark)

    def forget(self, mark: str) -> None:
        """Remove the mark of a deleted stream's log, after its folder. Raise OSError."""
        self._vfs.remove(f"{MADE_PATH}/{mark}")
        self._names.discard(mark)
