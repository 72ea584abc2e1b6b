"""Folders of the streams' logs in the data directory, and the treatment of folders that belong to no stream.

Rules: a folder that belongs to no stream of the image is moved to `quarantine/`, never adopted and never deleted,
unless it holds no file; the folder of a deleted stream is removed, and then the marks of its logs. If NFS keeps files
that were open then (`.nfs…`), the folder stays for as long as they do. The id comes first in a folder's name, because a
stream's name can be used again.

    streams/00000004-orders/0     the log of partition 0
    streams/00000004-orders/1     the log of partition 1
    streams/1099511627780-__marks-4/0      the log of marks of partition 0 (see `penstock.metadata.companions`)
    streams/2199023255556-__consumers-4/0  the log of consumers of partition 0
    made/00000004-orders          the mark of partition 0: its log was made
    made/00000004-orders.1        the mark of partition 1 (no stream's name holds a dot)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.base.config import Storage
from penstock.base.errors import CorruptionError
from penstock.base.ids import StreamId
from penstock.metadata.companions import is_companion, is_marks, target_id, with_companions
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock.node.step import Outbox
from penstock.raft.tasks import LOG_PATH
from penstock.vfs import Vfs, is_nfs_leftover

STREAMS_PATH = "streams"
QUARANTINE_PATH = "quarantine"


def folder_of(stream_id: int, name: str) -> str:
    """Return the name of a stream's folder, without its path."""
    return f"{stream_id:08d}-{name}"


def stream_path(stream: StreamState) -> str:
    """Return the path of a stream's folder."""
    return f"{STREAMS_PATH}/{folder_of(stream.stream_id, stream.name)}"


def log_path(stream: StreamState, partition: int) -> str:
    """Return the path of the folder of one log."""
    return f"{stream_path(stream)}/{partition}"


def marker_of(stream_id: int, name: str, partition: int) -> str:
    """Return the name of a log's creation mark, without its path."""
    folder = folder_of(stream_id, name)
    return f"{folder}.{partition}" if partition else folder


def check_folders(vfs: Vfs, last_index: int) -> None:
    """Raise CorruptionError if a folder was made by a command beyond the end of the metadata log.

    To continue would orphan that stream: a command is on the disk before its folder is created.
    """
    for folder in _listed(vfs, STREAMS_PATH):
        number = folder.partition("-")[0]
        if not last_index or (number.isdecimal() and target_id(int(number)) > last_index):
            expected = f"the command that made {STREAMS_PATH}/{folder}"
            raise CorruptionError(LOG_PATH, 0, expected, f"{last_index} commands")


def _listed(vfs: Vfs, path: str) -> list[str]:
    """List a folder without the files that NFS keeps there and removes by itself."""
    return [name for name in vfs.list(path) if not is_nfs_leftover(name)]


def _files_below(vfs: Vfs, path: str) -> Iterator[str]:
    """Yield the names of the files in a folder and its subfolders."""
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        for name in vfs.list(folder):
            if name.endswith("/"):
                waiting.append(f"{folder}/{name.rstrip('/')}")
            else:
                yield name


class LogFolders:
    """The log folders of one data directory, and which logs have been made in it."""

    def __init__(self, vfs: Vfs, outbox: Outbox) -> None:
        self.made = LogCreationMarkers(vfs)
        self.marks_ahead: set[StreamId] = set()  # streams that have marks here, unknown to the image yet
        self._vfs = vfs
        self._outbox = outbox

    def tidy(self, image: ClusterImage, deleted: Iterable[StreamState]) -> None:
        """Read the marks, remove deleted streams and quarantine unknown folders at the start; blocking. OSError."""
        self.made.read()
        known = {stream_path(one) for state in image.streams.values() for one in with_companions(state)}
        # Compare whole names: a folder that only shares the number of a deleted stream is not that stream's.
        gone = (one for state in deleted for one in with_companions(state))
        removed = {stream_path(state): state for state in gone if state.config.storage is Storage.FILE}
        for name in _listed(self._vfs, STREAMS_PATH):
            path = f"{STREAMS_PATH}/{name.rstrip('/')}"
            if path in removed:
                try:
                    self.remove(self._vfs, removed[path])
                except OSError as error:
                    text = f"cannot remove {path} of a deleted stream: {error}; the next start tries again"
                    self._outbox.notice(text)
            elif path not in known and not self._is_ahead(name, image):
                self._put_away(path, is_folder=name.endswith("/"))

    def _put_away(self, path: str, *, is_folder: bool) -> None:
        """Quarantine an unknown entry. A folder with only files kept by NFS stays, and is removed once it is empty."""
        names = list(_files_below(self._vfs, path)) if is_folder else [path]
        if not names:
            self._vfs.remove(path)
        elif not all(map(is_nfs_leftover, names)):
            self._quarantine(path)

    def _is_ahead(self, name: str, image: ClusterImage) -> bool:
        """True if the folder may be that of a stream that the image will have once more of the log is committed.

        Or of a companion log that its stream will have then.
        """
        number = name.partition("-")[0]
        if not number.isdecimal():
            return False
        stream_id = target_id(int(number))
        if not is_companion(int(number)):
            return stream_id > image.index
        is_ahead = stream_id > image.index or stream_id in image.streams
        if is_ahead and is_marks(int(number)):
            self.marks_ahead.add(stream_id)
        return is_ahead

    def remove(self, vfs: Vfs, stream: StreamState) -> None:
        """Remove the logs of a deleted stream, then their marks; blocking. OSError."""
        vfs.remove(stream_path(stream))
        for number in range(len(stream.partitions)):
            self.made.forget(marker_of(stream.stream_id, stream.name, number))

    def drop(self, vfs: Vfs, stream: StreamState, partition: int) -> None:
        """Remove one log of a stream that continues, then its mark; blocking. OSError."""
        vfs.remove(log_path(stream, partition))
        self.made.forget(marker_of(stream.stream_id, stream.name, partition))

    def _quarantine(self, path: str) -> None:
        target = self._free_quarantine_path(path.rpartition("/")[2])
        self._vfs.rename(path, target)
        self._vfs.sync_dir(QUARANTINE_PATH)
        self._vfs.sync_dir(STREAMS_PATH)
        self._outbox.notice(f"{path} belongs to no stream of this broker; moved to {target}")

    def _free_quarantine_path(self, folder: str) -> str:
        taken = {name.rstrip("/") for name in self._vfs.list(QUARANTINE_PATH)}
        number = 1
        while (name := folder if number == 1 else f"{folder}.{number}") in taken:
            number += 1
        return f"{QUARANTINE_PATH}/{name}"
