"""Clean-stop mark: everything that this broker wrote was on its disk when it stopped.

Rules: the mark is written last, once every log is closed and synced, with its checkpoint, and a start removes it
durably before it does anything else; so a broker that was killed has none. Without it a replica may have lost data that
it reported to its leader. The mark names the incarnation that stopped, and the metadata knows whether that was the last
one. If it was not, this is an older copy of the data directory and lacks later data. Nor does the mark count if a
checkpoint was corrupted since: behind an older one a start takes corruption for a torn tail, and cuts it off.

Source of the idea: KIP-966 (Kafka), "clean shutdown file" with the broker's epoch in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from penstock.base.ids import Incarnation
from penstock.commitlog import Log, is_checkpoint_whole
from penstock.node.data_dir.folders import STREAMS_PATH
from penstock.node.data_dir.log_creation_markers import MADE_PATH
from penstock.node.step import Outbox
from penstock.vfs import Vfs

CLEAN_STOP_PATH = "clean-stop"
_TEXT_BYTES_MAX = 20


def take_clean_stop(vfs: Vfs) -> Incarnation | None:
    """Remove the mark durably and return the incarnation that stopped cleanly; None if the last stop was not clean.

    Blocking. OSError.
    """
    if CLEAN_STOP_PATH not in vfs.list(""):
        return None
    with closing(vfs.open(CLEAN_STOP_PATH)) as file:
        text = bytes(file.read_at(0, min(file.size(), _TEXT_BYTES_MAX)))
    vfs.remove(CLEAN_STOP_PATH)
    vfs.sync_dir("")
    return Incarnation(int(text)) if text.isdigit() else None


def doubtful_log(vfs: Vfs) -> str:
    """Return the path of a log whose newest checkpoint may be lost; empty if there is none. Blocking.

    Folders of streams that this broker has not created are of no account: they are put aside.
    """
    made = {one.partition(".")[0] for one in vfs.list(MADE_PATH)}
    for stream in filter(_is_folder, vfs.list(STREAMS_PATH)):
        if stream.rstrip("/") not in made:
            continue
        for partition in filter(_is_folder, vfs.list(f"{STREAMS_PATH}/{stream}")):
            path = f"{STREAMS_PATH}/{stream}{partition}".rstrip("/")
            try:
                if not is_checkpoint_whole(vfs, path):
                    return path
            except OSError:
                return path
    return ""


def _is_folder(name: str) -> bool:
    return name.endswith("/")


def mark_clean_stop(vfs: Vfs, incarnation: Incarnation) -> None:
    """Write the mark: all data of this incarnation and of those before it is on the disk. Blocking. OSError."""
    with closing(vfs.open(CLEAN_STOP_PATH, create=True)) as file:
        file.write_at(0, str(incarnation).encode())
        file.sync()
    vfs.sync_dir("")


def mark_if_synced(vfs: Vfs, whole_since: Incarnation | None, logs: Iterable[Log], outbox: Outbox) -> None:
    """Write the mark if all data is on the disk; otherwise the next start counts as unclean. Blocking."""
    if whole_since is not None and all(log.is_on_disk for log in logs):
        try:
            mark_clean_stop(vfs, whole_since)
        except OSError as error:
            outbox.notice(f"cannot record that the broker stopped cleanly: {error}")
