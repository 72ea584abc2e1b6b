"""Reads the stream configs of a data directory without a broker, from its Raft snapshot and log.

Rules: it writes nothing. All log entries count, committed or not: the commit index is stored only with a later entry,
so it is not on disk for the last entries before a stop.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import PenstockError
from penstock.vfs.keys import ENCRYPTED_BEGIN

if TYPE_CHECKING:
    from penstock.base.config import StreamConfig
    from penstock.metadata.image import ClusterImage

_STREAMS = "streams"
_LOG = "log"
_SNAPSHOT = "snapshot"


class EncryptedStreams:
    """Knows which streams are encrypted; reads each data directory once."""

    def __init__(self) -> None:
        self._known: dict[Path, dict[int, StreamConfig]] = {}

    def holds(self, log_folder: Path) -> bool:
        """True if the log must be encrypted: by its stream's config if known, else if any segment is."""
        folder = log_folder.resolve()
        stream_id = folder.parent.name.partition("-")[0]
        if folder.parent.parent.name == _STREAMS and stream_id.isdecimal():
            config = self._configs(folder.parents[2]).get(int(stream_id))
            if config is not None:
                return config.is_encrypted
        return any(_is_encrypted(folder, file.name) for file in folder.glob("*.arrows"))

    def _configs(self, data_dir: Path) -> dict[int, StreamConfig]:
        import msgspec

        if data_dir not in self._known:
            try:
                self._known[data_dir] = stream_configs(data_dir / "raft")
            except (OSError, PenstockError, msgspec.DecodeError):  # callers that need the configs report it themselves
                self._known[data_dir] = {}
        return self._known[data_dir]


def _is_encrypted(folder: Path, name: str) -> bool:
    from penstock.vfs.real import RealVfs

    try:
        with closing(RealVfs(folder).open(name, read_only=True)) as file:
            return file.read_at(0, len(ENCRYPTED_BEGIN)) == ENCRYPTED_BEGIN
    except OSError:
        return False


def stream_configs(raft_folder: Path) -> dict[int, StreamConfig]:
    """Return the config of each stream by its id. Raise OSError; CorruptionError or RemoteError for invalid files."""
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
    """Return the commands in a log by index; a repeated index replaces all entries from there on (Raft truncation)."""
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
