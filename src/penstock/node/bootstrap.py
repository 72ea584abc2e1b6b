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

from msgspec.structs import replace

from penstock.base.errors import OperationalError
from penstock.base.ids import BrokerId, Incarnation
from penstock.metadata.fold import fold
from penstock.metadata.image import BrokerState, ClusterImage
from penstock.metadata.journal import JOURNAL_PATH, Journal
from penstock.metadata.persistent import PersistentMap
from penstock.metadata.snapshot import encode_image
from penstock.node.settings import Settings
from penstock.raft import Membership, Snapshot, Storage
from penstock.vfs import Vfs

RAFT_PATH = "raft"
IMPORTED_PATH = f"{JOURNAL_PATH}.imported"


def open_storage(vfs: Vfs, settings: Settings) -> tuple[Storage, list[str]]:
    """The storage to begin with, and what an operator should know; blocking. PenstockError, OSError."""
    voters = tuple(sorted(settings.voters)) or (() if settings.join else (settings.broker_id,))
    names = set(vfs.list(""))
    if JOURNAL_PATH not in names:
        bootstrap = Snapshot(0, 0, Membership(voters), b"") if voters else None
        storage = Storage.open(vfs, bootstrap)
        return storage, storage.notices
    if voters != (settings.broker_id,) or settings.broker_id != BrokerId(1):
        text = f"{JOURNAL_PATH} is that of a broker that was alone: start it alone, as broker 1, and let others join it"
        raise OperationalError(text)
    journal, entries, note = Journal.open(vfs)
    journal.close()
    image, _, _ = fold((entry.index, entry.command) for entry in entries)
    image = _as_cluster(image, settings)
    storage = Storage.open(vfs, Snapshot(image.index, 1, Membership(voters), encode_image(image)))
    vfs.rename(JOURNAL_PATH, IMPORTED_PATH)
    vfs.sync_dir("")
    notices = storage.notices + ([] if note is None else [note])
    return storage, [
        *notices,
        f"took {len(image.streams)} streams over from {JOURNAL_PATH}, which is now {IMPORTED_PATH}",
    ]


def _as_cluster(image: ClusterImage, settings: Settings) -> ClusterImage:
    """The image of a cluster of one broker that is not there now: it leads again what it led once it registers."""
    streams = {
        stream_id: replace(state, partitions=tuple(replace(partition, leader=None) for partition in state.partitions))
        for stream_id, state in image.streams.items()
    }
    broker = BrokerState(
        settings.broker_id,
        settings.address,
        settings.rack,
        settings.data_dir_id,
        Incarnation(1),
        is_live=False,
        clean_stop=True,
        broker_version=settings.broker_version,
    )
    return with_fields(image, streams=PersistentMap(streams), brokers=PersistentMap({settings.broker_id: broker}))
