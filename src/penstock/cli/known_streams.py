"""Which streams a data directory knows, without a broker: what its Raft log adds up to.

Rules: nothing is changed. All of the log counts: which entry was committed last is noted with a later one only, so that
a broker that stops does not say it of the last ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.base.config import StreamConfig
    from penstock.metadata.image import ClusterImage

_LOG = "log"
_SNAPSHOT = "snapshot"


def stream_configs(raft_folder: Path) -> dict[int, StreamConfig]:
    """The config of each stream by its id. OSError; CorruptionError, RemoteError where a file cannot be read."""
    return {int(stream_id): state.config for stream_id, state in _image(raft_folder).streams.items()}


def _image(raft_folder: Path) -> ClusterImage:
    from penstock.metadata.apply import apply
    from penstock.metadata.commands import decode_command
    from penstock.metadata.image import ClusterImage
    from penstock.metadata.snapshot import decode_image
    from penstock.raft.snapshot_file import decode_snapshot

    image = ClusterImage()
    if (path := raft_folder / _SNAPSHOT).exists() and (data := decode_snapshot(_content(path), str(path)).data):
        image = decode_image(data)
    for index, command in sorted(_commands(raft_folder / _LOG).items()):
        if index > image.index:
            image, _ = apply(image, index, decode_command(command))
    return image


def _content(path: Path) -> bytes:
    from penstock.base import limits
    from penstock.vfs.real import read_whole

    return read_whole(path, limits.RAFT_SNAPSHOT_BYTES_MAX)


def _commands(path: Path) -> dict[int, bytes]:
    """The commands in a log, by index: a later record of an index takes the place of what was from there on."""
    from penstock.raft.records import decode_record, read_records
    from penstock.raft.values import Entry, EntryKind

    commands: dict[int, bytes] = {}
    for record in read_records(_content(path), str(path)):
        content = decode_record(record, str(path))
        if not isinstance(content, Entry):
            continue
        while commands and (last := next(reversed(commands))) >= content.index:
            del commands[last]
        if content.kind is EntryKind.COMMAND:
            commands[content.index] = content.data
    return commands
