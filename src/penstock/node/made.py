"""Which logs have been made: so that one that has vanished is told from one that was never made.

Rules: a create is journaled first and its folder made afterwards, so after a crash a stream of the journal may have no
folder yet. Once its log is durable its mark is made durable too, and only then is the create answered. A stream with a
mark and without a log has lost it: nothing is begun anew in its place. The marks lie beside the streams' folder, not in
it: they must outlive it (a disk that was not mounted, a folder that was removed).

    journaled → log durable → mark durable → answered

A mark is an empty file in `made/` (named in `node/folders.py`); ids are never used again, so an old one does no harm.
"""

from __future__ import annotations

from penstock.vfs import Vfs

MADE_PATH = "made"


class MadeLogs:
    """The marks of one data directory. `mark` and `forget` are for a disk thread or the start."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._names: set[str] = set()

    def read(self) -> None:
        """Take over what is there. OSError."""
        self._names = set(self._vfs.list(MADE_PATH))

    def __contains__(self, mark: str) -> bool:
        """Whether the log with this mark was made."""
        return mark in self._names

    def mark(self, mark: str) -> None:
        """The log is durable. Once this returns, it is known to have been made. OSError."""
        self._vfs.open(f"{MADE_PATH}/{mark}", create=True).close()
        self._vfs.sync_dir(MADE_PATH)
        self._names.add(mark)

    def forget(self, mark: str) -> None:
        """The stream was deleted, and its folder is removed. OSError."""
        self._vfs.remove(f"{MADE_PATH}/{mark}")
        self._names.discard(mark)
