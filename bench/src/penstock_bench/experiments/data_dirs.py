"""Makes, copies and cleans data directories without a broker process, by the broker's code."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, StreamId
from penstock.batch import codec
from penstock.batch.reader import segment_files
from penstock.batch.schema import arrow_schema
from penstock.broker.config.data_dir import take_data_dir
from penstock.broker.supervision.child import ReadyLine, serving
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.metadata.commands import Command, CreateStream, FormCluster, RegisterBroker, encode_command
from penstock.metadata.effects.streams import created_config
from penstock.node.data_dir.folders import STREAMS_PATH, folder_of, marker_of
from penstock.node.data_dir.log_creation_markers import LogCreationMarkers
from penstock.raft import Entry, EntryKind, HardState, RaftMembership, RaftStorage, Ready, Snapshot
from penstock.vfs.real import RealFile, RealFolder, RealVfs

FIRST_US = 1_700_000_000_000_000
"""Creation time recorded in the data directory, in µs since 1970."""
_PARTITION = 0  # of each stream
_BROKER = BrokerId(1)
_TERM = 1


class UnsyncedFile(RealFile):
    """A file that ignores syncs."""

    __slots__ = ()

    def sync(self) -> None:
        """Do nothing."""

    def sync_fileno(self) -> int | None:
        """None: the kernel would sync."""
        return None


class UnsyncedFolder(RealFolder):
    """A folder that ignores syncs."""

    __slots__ = ()

    def sync(self) -> None:
        """Do nothing."""


class UnsyncedVfs(RealVfs):
    """A file system that ignores syncs: callers sync the whole one (`os.sync`) before they rely on the files."""

    file_type = UnsyncedFile
    folder_type = UnsyncedFolder

    def sync_dir(self, path: str) -> None:
        """Do nothing."""

    def together(self, *syncs: Callable[[], None]) -> None:
        """Do nothing."""


class Metadata:
    """The metadata log of a single broker: cluster formation, registration, and the commands of `add`."""

    def __init__(self, vfs: UnsyncedVfs, data_dir_id: str) -> None:
        self._storage = RaftStorage.open(vfs, Snapshot(0, 0, RaftMembership((_BROKER,)), b""))
        self._entries = [Entry(_TERM, 1, EntryKind.LEADERSHIP, b"")]
        self.add(FormCluster(cluster_id=data_dir_id))
        run = RegisterBroker(
            broker_id=_BROKER,
            data_dir_id=data_dir_id,
            address="127.0.0.1:0",
            rack=None,
            broker_version="bench",
            clean_stop=True,
            registered_us=FIRST_US,
        )
        self.add(run)

    def add(self, command: Command) -> int:
        """Append a command; return its index."""
        index = len(self._entries) + 1
        self._entries.append(Entry(_TERM, index, EntryKind.COMMAND, encode_command(command)))
        return index

    def close(self) -> None:
        """Write all entries to the Raft log, and close it."""
        hard_state = HardState(_TERM, _BROKER, len(self._entries))
        task = self._storage.save(Ready(True, None, tuple(self._entries), hard_state, (), (), ()))
        assert task is not None
        task.run()
        self._storage.saved(task)
        self._storage.close()


@contextmanager
def made_in(folder: Path) -> Iterator[tuple[UnsyncedVfs, Metadata]]:
    """Make a new data directory of a single broker; everything is on disk when the context ends."""
    folder.mkdir(parents=True)
    data_dir = take_data_dir(folder)
    data_dir.release()
    vfs = UnsyncedVfs(folder)
    metadata = Metadata(vfs, data_dir.id)
    yield vfs, metadata
    metadata.close()
    os.sync()


def new_log(vfs: UnsyncedVfs, metadata: Metadata, marks: LogCreationMarkers, config: StreamConfig) -> Log:
    """Create the log of a stream of one partition, in its first leader epoch."""
    create = CreateStream(config=created_config(config, 1), created_us=FIRST_US, assignments=((_BROKER,),))
    stream_id = StreamId(metadata.add(create))
    path = f"{STREAMS_PATH}/{folder_of(stream_id, config.name)}/{_PARTITION}"
    log = Log.open(LogFolder(vfs, path, stream_id, _PARTITION), LogConfig.of(config), now_us=FIRST_US)
    log.start_epoch(1)
    marks.add(marker_of(stream_id, config.name, _PARTITION))
    return log


def append(log: Log, message: bytearray, timestamp_us: int) -> None:
    """Append a record batch as a leader appends a client's: with offsets, a timestamp and leader epoch 1."""
    data = codec.reencode(message, base_offset=log.log_end, timestamp_us=timestamp_us, leader_epoch=1)
    log.append(data, codec.read_header(data))


def encoded(columns: dict[str, Any], subject: str) -> bytearray:
    """Encode rows as a client sends them. A column that is missing is null, and `subject` that of every row."""
    import pyarrow as pa

    schema, rows = arrow_schema(), len(columns["value"])
    nulls = [None] * rows
    found = {"subject": [subject] * rows, "key": nulls, "value": nulls, "headers": nulls} | columns
    arrays = [pa.array(values, schema.field(name).type) for name, values in found.items()]
    return codec.encode_arrow(pa.RecordBatch.from_arrays(arrays, names=list(found)))


def log_of(folder: Path, stream: str) -> Path:
    """Return the folder of a stream's log in a data directory. Raise ValueError if there is none."""
    (found,) = (folder / STREAMS_PATH).glob(f"*-{stream}/{_PARTITION}")
    return found


def clone(made: Path, work: Path, log: Path) -> None:
    """Clone a folder with one log, and sync it: sealed segments are never written, so they are hard-linked."""
    sealed = {str(path) for path in segment_files(log)[:-1]}

    def put(source: str, target: str) -> None:
        if source in sealed:
            os.link(source, target)
        else:
            shutil.copyfile(source, target)

    shutil.copytree(made, work, copy_function=put)
    os.sync()


def size_of(log: Path) -> int:
    """Return the bytes of a log's segments."""
    return sum(path.stat().st_size for path in segment_files(log))


def clean(log: Log) -> None:
    """Run the cleaner to its end, without the pauses of its rate limit."""
    while (task := log.clean(0)) is not None:
        while not task.is_done:
            task.run()
        log.cleaned(task, 0)


def flush(log: Log) -> None:
    """Raise the flushed offset to the log end offset."""
    if (task := log.flush()) is not None:
        task.run()
        log.flushed(task)
        log.note_flushed()


@contextmanager
def started(folder: Path) -> Iterator[tuple[ReadyLine, float]]:
    """Run a broker on `folder`; return its ready line and the seconds from the call to that line."""
    began = time.monotonic()
    with serving(folder, "--listen", "127.0.0.1:0", "--nats-port", "0", "--log-level", "error") as ready:
        yield ready, time.monotonic() - began
