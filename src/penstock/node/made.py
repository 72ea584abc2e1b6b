"""Which logs have been made: so that one that has vanished is told from one that was never made.

Rules: a create is journaled first and its folder made afterwards, so after a crash a stream of the journal may have no
folder yet. Once its log is durable its mark is made durable too, and only then is the create answered. A stream with a
mark and without a log has lost it: nothing is begun anew in its place. The marks lie beside the streams' folder, not in
it: they must outlive it (a disk that was not mounted, a folder that was removed).

    journaled → log durable → mark durable → answered

A mark is an empty file `made/<folder of the stream>`; ids are never used again, so an old one does no harm.
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

    def __contains__(self, folder: str) -> bool:
        """Whether the log in this stream's folder (its name, without path) was made."""
        return folder in self._names

    def mark(self, folder: str) -> None:
        """The log is durable. Once this returns, it is known to have been made. OSError."""
        self._vfs.open(f"{MADE_PATH}/{folder}", create=True).close()
        self._vfs.sync_dir(MADE_PATH)
        self._names.add(folder)

    def forget(self, folder: str) -> None:
        """The stream was deleted, and its folder is removed. OSError."""
        self._vfs.remove(f"{MADE_PATH}/{folder}")
        self._names.discard(folder)
