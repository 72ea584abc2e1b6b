"""Initial metadata of a broker: existing Raft state, the initial voters, or the journal of an older version.

| the data directory has       | the metadata starts                                                                |
|------------------------------|------------------------------------------------------------------------------------|
| `raft/`                      | as it was left; the initial voters in the settings are ignored                     |
| `metadata.journal`           | as the image that it folds to, with this broker as only voter; the journal is kept |
| neither, with initial voters | empty, with these voters                                                           |
| neither, with `join`         | empty, without voters: the metadata leader makes it a learner once it registers    |
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import NamedTuple

from msgspec.structs import replace

from penstock.base.errors import OperationalError
from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.image import BrokerState, ClusterImage, StreamState
from penstock.metadata.persistence.fold import fold
from penstock.metadata.persistence.journal import JOURNAL_PATH, MARK_PATH, RESERVE_PATH, read_journal
from penstock.metadata.persistence.snapshot import encode_image
from penstock.metadata.persistent_map import PersistentMap
from penstock.node.settings import Settings
from penstock.raft import RaftMembership, RaftStorage, Snapshot
from penstock.vfs import Vfs

RAFT_PATH = "raft"
IMPORTED_PATH = f"{JOURNAL_PATH}.imported"


class OpenedMetadata(NamedTuple):
    """Initial metadata."""

    storage: RaftStorage
    notices: tuple[str, ...] = ()  # for the operator
    deleted: tuple[StreamState, ...] = ()  # streams of the journal whose files may still be there


def has_metadata(vfs: Vfs) -> bool:
    """True if the data directory holds metadata."""
    return not {f"{RAFT_PATH}/", JOURNAL_PATH}.isdisjoint(vfs.list(""))


def open_storage(vfs: Vfs, settings: Settings) -> OpenedMetadata:
    """Open the initial metadata storage; blocking. PenstockError, OSError."""
    voters = tuple(sorted(settings.voters)) or (() if settings.join else (settings.broker_id,))
    if JOURNAL_PATH in set(vfs.list("")):
        return _imported(vfs, settings, voters)
    storage = RaftStorage.open(vfs, Snapshot(0, 0, RaftMembership(voters), b"") if voters else None)
    return OpenedMetadata(storage, tuple(storage.notices))


def _imported(vfs: Vfs, settings: Settings, voters: tuple[BrokerId, ...]) -> OpenedMetadata:
    if voters != (settings.broker_id,) or settings.broker_id != BrokerId(1):
        text = f"{JOURNAL_PATH} is that of a broker that was alone: start it alone, as broker 1, and let others join it"
        raise OperationalError(text)
    entries, note = read_journal(vfs)
    image, deleted, _ = fold((entry.index, entry.command) for entry in entries)
    image = _as_cluster(image, settings)
    # If a crash interrupts this before the rename, it is repeated and yields the same bytes.
    storage = RaftStorage.open(vfs, Snapshot(image.index, 1, RaftMembership(voters), encode_image(image)))
    vfs.remove(RESERVE_PATH)
    vfs.rename(JOURNAL_PATH, IMPORTED_PATH)
    vfs.sync_dir("")
    vfs.remove(MARK_PATH)  # only now: the mark guards the journal as long as that counts
    taken = f"took {len(image.streams)} streams over from {JOURNAL_PATH}, which is now {IMPORTED_PATH}"
    notices = (*storage.notices, *([] if note is None else [note]), taken)
    return OpenedMetadata(storage, notices, deleted)


def _as_cluster(image: ClusterImage, settings: Settings) -> ClusterImage:
    """Return the image as that of a one-broker cluster that is down: the broker leads again once it registers."""
    streams = {
        stream_id: replace(state, partitions=tuple(replace(partition, leader=None) for partition in state.partitions))
        for stream_id, state in image.streams.items()
    }
    # Use only settings that never change: this is repeated after a crash, perhaps with other settings.
    broker = BrokerState(
        settings.broker_id,
        address="",
        rack=None,
        data_dir_id=settings.data_dir_id,
        incarnation=Incarnation(1),
        is_live=False,
        clean_stop=True,
        broker_version="",
    )
    return with_fields(image, streams=PersistentMap(streams), brokers=PersistentMap({settings.broker_id: broker}))
