"""What a broker's metadata begins with: what is there, the first voters, or the journal of an older broker.

| the data directory has     | the metadata begins                                                             |
|----------------------------|---------------------------------------------------------------------------------|
| `raft/`                    | as it was left; the first voters in the settings mean nothing any more           |
| `metadata.journal`         | with the image that it folds to, as the one voter; the journal is put aside      |
| neither, with first voters | empty, with these voters                                                        |
| neither, with `join`       | empty, as nobody's: the metadata leader makes it a learner once it is registered |
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import NamedTuple

from msgspec.structs import replace

from penstock.base.errors import OperationalError
from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.fold import fold
from penstock.metadata.image import BrokerState, ClusterImage, StreamState
from penstock.metadata.journal import JOURNAL_PATH, MARK_PATH, RESERVE_PATH, read_journal
from penstock.metadata.persistent import PersistentMap
from penstock.metadata.snapshot import encode_image
from penstock.node.settings import Settings
from penstock.raft import Membership, Snapshot, Storage
from penstock.vfs import Vfs

RAFT_PATH = "raft"
IMPORTED_PATH = f"{JOURNAL_PATH}.imported"


class Opened(NamedTuple):
    """What the metadata begins with."""

    storage: Storage
    notices: tuple[str, ...] = ()  # what an operator should know
    deleted: tuple[StreamState, ...] = ()  # streams of the journal whose files may still be there


def has_metadata(vfs: Vfs) -> bool:
    """Whether there is anything to go on from."""
    return not {f"{RAFT_PATH}/", JOURNAL_PATH}.isdisjoint(vfs.list(""))


def open_storage(vfs: Vfs, settings: Settings) -> Opened:
    """The storage to begin with; blocking. PenstockError, OSError."""
    voters = tuple(sorted(settings.voters)) or (() if settings.join else (settings.broker_id,))
    if JOURNAL_PATH in set(vfs.list("")):
        return _imported(vfs, settings, voters)
    storage = Storage.open(vfs, Snapshot(0, 0, Membership(voters), b"") if voters else None)
    return Opened(storage, tuple(storage.notices))


def _imported(vfs: Vfs, settings: Settings, voters: tuple[BrokerId, ...]) -> Opened:
    if voters != (settings.broker_id,) or settings.broker_id != BrokerId(1):
        text = f"{JOURNAL_PATH} is that of a broker that was alone: start it alone, as broker 1, and let others join it"
        raise OperationalError(text)
    entries, note = read_journal(vfs)
    image, deleted, _ = fold((entry.index, entry.command) for entry in entries)
    image = _as_cluster(image, settings)
    # Cut short before the journal has its new name, all this is done again, and comes to the same bytes.
    storage = Storage.open(vfs, Snapshot(image.index, 1, Membership(voters), encode_image(image)))
    vfs.remove(RESERVE_PATH)
    vfs.rename(JOURNAL_PATH, IMPORTED_PATH)
    vfs.sync_dir("")
    vfs.remove(MARK_PATH)  # only now: the journal was to be held against it as long as it counted
    taken = f"took {len(image.streams)} streams over from {JOURNAL_PATH}, which is now {IMPORTED_PATH}"
    notices = (*storage.notices, *([] if note is None else [note]), taken)
    return Opened(storage, notices, deleted)


def _as_cluster(image: ClusterImage, settings: Settings) -> ClusterImage:
    """The image of a cluster of one broker that is not there now: it leads again what it led once it registers."""
    streams = {
        stream_id: replace(state, partitions=tuple(replace(partition, leader=None) for partition in state.partitions))
        for stream_id, state in image.streams.items()
    }
    # Of the settings only what stays as it is: this is done again if it was cut short, perhaps with others.
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
