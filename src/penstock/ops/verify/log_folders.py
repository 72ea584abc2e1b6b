"""Opens the folders of logs without a broker, and reads the stream configs from the Raft snapshot and log.

Rules: it writes nothing. All log entries count, committed or not: the commit index is stored only with a later entry,
so it is not on disk for the last entries before a stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import OperationalError, PenstockError
from penstock.base.extras import how_to_install
from penstock.vfs.keys import ENCRYPTED_BEGIN

if TYPE_CHECKING:
    from penstock.base.config import StreamConfig
    from penstock.metadata.image import ClusterImage
    from penstock.vfs import Vfs
    from penstock.vfs.keys import EncryptionKeys

_STREAMS = "streams"
_LOG = "log"
_SNAPSHOT = "snapshot"


@contextmanager
def needed() -> Iterator[None]:
    """Raise OperationalError if an import in the block fails because the extra `encryption` is not installed."""
    try:
        yield
    except ImportError:
        raise OperationalError(f"Penstock was installed without encryption: {how_to_install('encryption')}") from None


class LogFolders:
    """Opens folders of logs, with the keys for encrypted files; reads each data directory once."""

    def __init__(self, keys: EncryptionKeys | None) -> None:
        self._keys = keys
        self._known: dict[Path, dict[int, StreamConfig]] = {}
        self._encrypted: dict[Path, bool] = {}

    def open(self, root: Path, log_folder: Path) -> Vfs:
        """Return a Vfs to read `root`, a log's folder or the one above.

        If the log must be encrypted, a file with messages that is not counts as corrupt.
        """
        from penstock.commitlog.files.files import holds_messages
        from penstock.vfs.real import RealVfs
        from penstock.vfs.unkeyed import UnkeyedVfs

        if log_folder not in self._encrypted:
            self._encrypted[log_folder] = self._is_encrypted(log_folder)
        may_be_plain, path = not self._encrypted[log_folder], str(root.resolve())
        if self._keys is None:
            return UnkeyedVfs(path, None if may_be_plain else holds_messages)
        with needed():
            from penstock.vfs.encrypted import EncryptedVfs
        return EncryptedVfs(RealVfs(path), self._keys, holds_messages, may_be_plain=may_be_plain)

    def _is_encrypted(self, log_folder: Path) -> bool:
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
    """Return the config of each stream and companion log by its id.

    Raise OSError; CorruptionError or RemoteError for invalid files.
    """
    from penstock.metadata.companions import with_companions

    states = (one for state in _image(raft_folder).streams.values() for one in with_companions(state))
    return {int(state.stream_id): state.config for state in states}


def _image(raft_folder: Path) -> ClusterImage:
    from penstock.metadata.commands import decode_command
    from penstock.metadata.effects.apply import apply
    from penstock.metadata.image import ClusterImage
    from penstock.metadata.persistence.snapshot import decode_image
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
