"""On-disk format of a backup: Arrow files, and a manifest that lists them and their contents.

    backup/penstock-backup.json                               the manifest, replaced as a whole
    backup/streams/7-orders/0/00000000000000000000.arrows     batches in the format of a segment file
    backup/schemas/5f0c….json                                 versions of a stream's schemas
    backup/consumers/9b1d….json                               consumers of a stream, with what is in hand
    backup/users/6f1c….json                                   users, their verifiers, rules and quotas

Rules: a file is written under a temporary name, synced, and renamed before the manifest lists it; so each listed file
is complete, and a file that is not listed does not count. The manifest must not list a path outside of its folder or
behind a symbolic link. Files are immutable; each run replaces the files of users and
consumers by new ones. Each batch has its CRC-32C,
each file its SHA-256. The manifest has a format number; a reader rejects a higher one than it knows. Only the owner can
read a backup: folders have mode 0700, files 0600.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import msgspec

from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import CorruptionError, OperationalError
from penstock.batch.codec import Buffer
from penstock.batch.header import BatchHeader
from penstock.batch.reader import open_segment
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.vfs.real import sync_folder_if_possible

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "penstock-backup.json"
FORMAT = 1
FILE_BYTES = 256 << 20
_READ_BYTES = 1 << 20


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Valid range of offsets, ids and counts; checked because a manifest is untrusted input."""


class BackupFile(msgspec.Struct, frozen=True):
    """A file of contiguous batches for `[base_offset, end_offset)`; the path is relative to the backup's folder."""

    path: str
    base_offset: _Number
    end_offset: _Number
    rows: _Number
    size_bytes: _Number
    sha256: str


class PartitionBackup(msgspec.Struct):
    """One partition; `log_start` and `end` are the offsets at its last backup."""

    partition: _Number
    log_start: _Number = 0
    end: _Number = 0
    leader_epoch: _Number | None = None  # of the last batch
    files: list[BackupFile] = msgspec.field(default_factory=list)


class SchemasBackup(msgspec.Struct, frozen=True):
    """A file with versions of a stream's schemas."""

    path: str
    versions: _Number
    size_bytes: _Number
    sha256: str


class ConsumersBackup(msgspec.Struct, frozen=True):
    """A file with consumers of a stream."""

    path: str
    consumers: _Number
    size_bytes: _Number
    sha256: str


class StreamBackup(msgspec.Struct):
    """One stream, identified by its id: a stream that was deleted and created again has an entry of its own."""

    name: str
    stream_id: _Number
    config: StreamConfig
    intake: Intake = Intake.OPEN
    backed_up: str = ""  # time of the last backup, RFC 3339
    partitions: list[PartitionBackup] = msgspec.field(default_factory=list)
    # Older versions of Penstock ignore these.
    schemas: list[SchemasBackup] = msgspec.field(default_factory=list)
    consumers: list[ConsumersBackup] = msgspec.field(default_factory=list)


class GroupBackup(msgspec.Struct, frozen=True):
    """Committed offsets of a group in a stream, by partition: the offset of the next message to consume."""

    group: str
    stream_id: _Number
    offsets: dict[Annotated[str, msgspec.Meta(pattern="^(0|[1-9][0-9]{0,5})$")], _Number]


class AccessBackup(msgspec.Struct, frozen=True):
    """The file with the users and rules at the time `backed_up`."""

    path: str
    users: _Number
    size_bytes: _Number
    sha256: str
    backed_up: str  # RFC 3339


class Manifest(msgspec.Struct):
    """Contents of a backup. `access` is None if the cluster had no users."""

    format: int = FORMAT
    penstock: str = ""  # the version that wrote it last
    cluster_id: str = ""
    streams: list[StreamBackup] = msgspec.field(default_factory=list)  # by stream id
    groups: list[GroupBackup] = msgspec.field(default_factory=list)
    access: AccessBackup | None = None

    def stream(self, name: str) -> StreamBackup | None:
        """Return the stream with this name, the newest if several had it; None if there is none."""
        return next((one for one in reversed(self.streams) if one.name == name), None)


class _Format(msgspec.Struct):
    format: int


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest. Raise OperationalError if it is missing, unreadable, too new, or lists unsafe paths."""
    file = folder / MANIFEST
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        raise OperationalError(f"{folder} is no backup: it has no {MANIFEST}") from None
    try:
        version = msgspec.json.decode(text, type=_Format).format
        if version > FORMAT:
            raise OperationalError(f"{file} has format {version}; this Penstock reads up to {FORMAT}: upgrade it")
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise OperationalError(f"{file} is damaged: {error}") from None
    _check_paths(folder, manifest)
    return manifest


def _check_paths(folder: Path, manifest: Manifest) -> None:
    """Raise OperationalError if the manifest lists a path outside of the folder: such a file must not be read."""
    root = folder.resolve()
    files = [file.path for stream in manifest.streams for part in stream.partitions for file in part.files]
    files += [file.path for stream in manifest.streams for file in stream.schemas]
    files += [file.path for stream in manifest.streams for file in stream.consumers]
    files += [] if manifest.access is None else [manifest.access.path]
    strange = [stream.name for stream in manifest.streams if "/" in stream.name]  # stream names become folder names
    strange += [path for path in files if not _is_below(root, path)]
    if strange:
        raise OperationalError(f"{folder / MANIFEST} names a path that is not in its folder: {strange[0]!r}")


def _is_below(root: Path, path: str) -> bool:
    """True if the relative path stays below `root` and has no symbolic link in it."""
    place = Path(path)
    is_plain = path and "\0" not in path and ".." not in place.parts and not place.is_absolute()
    return bool(is_plain) and os.path.realpath(root / place) == str(root / place)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically and durably."""
    part = folder / f"{MANIFEST}.part"
    with private_file(part) as out:
        out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        sync(out)
    part.replace(folder / MANIFEST)
    sync_folder_if_possible(folder)


def write_whole(folder: Path, path: Path, data: bytes) -> None:
    """Write a file of the backup, complete and durable before it has its name; `path` is relative to the folder."""
    private_folder(folder, path.parent)
    for left in (folder / path.parent).glob("*.part"):  # left by a run that was killed
        left.unlink()
    part = (folder / path).with_suffix(".part")
    with private_file(part) as out:
        out.write(data)
        sync(out)
    part.replace(folder / path)
    sync_folder_if_possible(part.parent)


def read_whole(folder: Path, file: AccessBackup | ConsumersBackup | SchemasBackup) -> bytes:
    """Return a file's content. Raise CorruptionError if it differs from its manifest entry. Raise OSError."""
    path = folder / file.path
    if not path.is_file():
        raise CorruptionError(str(path), 0, f"a file of {file.size_bytes} bytes", "none")
    with path.open("rb") as opened:
        data = opened.read(file.size_bytes + 1)
    if (sha := hashlib.sha256(data).hexdigest()) != file.sha256:
        raise CorruptionError(str(path), 0, f"a file with the SHA-256 {file.sha256}", sha)
    return data


def private_file(path: Path) -> IO[bytes]:
    """Open a new file with mode 0600, whatever the umask; an existing file or link of that name is removed first."""
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _make_private(number, 0o600)
    except BaseException:
        os.close(number)
        raise
    return os.fdopen(number, "wb")


def private_folder(folder: Path, below: Path | None = None) -> None:
    """Create folders with mode 0700: the backup's folder, or with `below` the folders in it down to that path."""
    if below is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
    places = [folder] if below is None else [folder / one for one in reversed([below, *below.parents]) if one.name]
    for place in places:
        place.mkdir(mode=0o700, exist_ok=True)
        number = os.open(place, os.O_RDONLY | os.O_DIRECTORY | (0 if below is None else os.O_NOFOLLOW))
        try:
            _make_private(number, 0o700)
        finally:
            os.close(number)


def _make_private(number: int, mode: int) -> None:
    if stat.S_IMODE(os.fstat(number).st_mode) != mode:
        with suppress(PermissionError):  # a file system without modes: its mount options decide
            os.fchmod(number, mode)


def is_open_to_others(folder: Path) -> bool:
    """True if users other than the owner have any permission on the backup's folder."""
    return bool(folder.stat().st_mode & 0o077)


class FileWriter:
    """Writes one file of a partition; `finish` returns its manifest entry."""

    def __init__(self, folder: Path, stream: StreamBackup, partition: int, base_offset: int) -> None:
        place = Path("streams") / f"{stream.stream_id}-{stream.name}" / str(partition)
        self._path = place / f"{base_offset:020}.arrows"
        self._target = folder / self._path
        private_folder(folder, place)
        for left in self._target.parent.glob("*.part"):  # left by a run that was killed
            left.unlink()
        self._part = self._target.with_suffix(".part")
        self._out: IO[bytes] = private_file(self._part)
        self._sha = hashlib.sha256()
        self._base_offset = self._end_offset = base_offset
        self._rows = 0
        self.size_bytes = 0
        self._write(schema_message(stream.stream_id, partition))

    def _write(self, data: Buffer) -> None:
        self._out.write(data)
        self._sha.update(data)
        self.size_bytes += len(data)

    def add(self, header: BatchHeader, data: Buffer) -> None:
        """Append a batch. Raise OperationalError if it does not begin at the end of the last one."""
        if header.base_offset != self._end_offset:
            text = f"received offset {header.base_offset}, expected {self._end_offset}"
            raise OperationalError(f"{text}: the log changed while {self._path} was written; run the backup again")
        self._write(data)
        self._end_offset = header.end_offset
        self._rows += header.count

    def finish(self) -> BackupFile:
        """Sync and rename the file; return its manifest entry."""
        sync(self._out)
        self._out.close()
        self._part.replace(self._target)
        sync_folder_if_possible(self._target.parent)
        sha = self._sha.hexdigest()
        return BackupFile(self._path.as_posix(), self._base_offset, self._end_offset, self._rows, self.size_bytes, sha)

    def drop(self) -> None:
        """Delete the unfinished file."""
        self._out.close()
        with suppress(FileNotFoundError):
            self._part.unlink()


def check_file(folder: Path, partition: PartitionBackup, file: BackupFile) -> None:
    """Raise CorruptionError with file and position if the file differs from its manifest entry. Raise OSError."""
    path = folder / file.path
    if not path.is_file():
        raise CorruptionError(str(path), 0, f"a file of {file.size_bytes} bytes", "none")
    sha, size = hashlib.sha256(), 0
    with path.open("rb") as data:
        while size <= file.size_bytes and (part := data.read(_READ_BYTES)):
            sha.update(part)
            size += len(part)
    if size == file.size_bytes and sha.hexdigest() == file.sha256:
        return
    position = SCHEMA_BYTES
    for header, _ in messages(folder, partition, file):  # raises with the position of a corrupt batch
        position += header.size_bytes
    if size != file.size_bytes:
        raise CorruptionError(str(path), min(size, position), f"{file.size_bytes} bytes", f"{size} bytes")
    raise CorruptionError(str(path), 0, f"a file with the SHA-256 {file.sha256}", sha.hexdigest())


def messages(folder: Path, partition: PartitionBackup, file: BackupFile) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the file's batches, each verified. Raise CorruptionError if it does not cover its range. Raise OSError."""
    path = folder / file.path
    end, position = file.base_offset, SCHEMA_BYTES
    with open_segment(path) as segment:
        if segment.partition != partition.partition:
            raise CorruptionError(str(path), 0, f"partition {partition.partition}", f"partition {segment.partition}")
        for header, data in segment.messages():
            if header.base_offset != end:
                raise CorruptionError(str(path), position, f"a batch from offset {end}", f"from {header.base_offset}")
            end, position = header.end_offset, position + header.size_bytes
            yield header, data
    if end != file.end_offset:
        raise CorruptionError(str(path), position, f"batches up to offset {file.end_offset}", f"up to {end}")


def rows_of(header: BatchHeader, data: bytes, start: int, *, file: str = "") -> pa.RecordBatch:
    """Return the rows of a verified batch from offset `start` on."""
    from penstock.client.read.batches import OffsetRange, rows

    return rows(header, memoryview(data), OffsetRange(start, max(start, header.end_offset)), source=file)


def batches(folder: Path, partition: PartitionBackup, start: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield (rows from offset `start` on, perhaps none; end offset) per batch. Raise CorruptionError or OSError."""
    for file in partition.files:
        if file.end_offset <= start:
            continue
        for header, data in messages(folder, partition, file):
            if header.end_offset > start:
                codec_file = str(folder / file.path)
                yield rows_of(header, data, start, file=codec_file), header.end_offset


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock the folder against a concurrent run. Raise OperationalError if another run holds the lock."""
    number = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperationalError(f"another backup into {folder} is under way: let it end") from None
        yield
    finally:
        os.close(number)


def sync(out: IO[bytes]) -> None:
    """Flush the buffer and fsync the file."""
    out.flush()
    os.fsync(out.fileno())
