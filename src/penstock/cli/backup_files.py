"""A backup on the disk: files of Arrow, and a manifest that says which there are and what is in each.

    backup/penstock-backup.json                               the manifest, replaced as a whole
    backup/streams/7-orders/0/00000000000000000000.arrows     batches as they lie in a log, as in a segment file
    backup/users/6f1c….json                                   users, what checks their secrets, and what they may do

Rules: a file is written under another name, synced, and renamed before the manifest names it; so what the manifest
names is whole, and what it does not name is nothing. It names nothing outside of its folder, nor behind a link. Files
are never changed; that of users is replaced by another one. Each batch has its CRC-32C, each file its SHA-256. The
format has a number: a reader refuses one that it does not know. All of it is for its owner alone: folders have mode
0700, files 0600.
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
"""What an offset, an id, or a count of rows or bytes can be: who restores a backup may not have written it."""


class File(msgspec.Struct, frozen=True):
    """Batches that follow on each other and cover `[base_offset, end_offset)`; the path is below the backup's."""

    path: str
    base_offset: _Number
    end_offset: _Number
    rows: _Number
    size_bytes: _Number
    sha256: str


class PartitionBackup(msgspec.Struct):
    """One partition: it began at `log_start` and ended at `end` when it was backed up last."""

    partition: _Number
    log_start: _Number = 0
    end: _Number = 0
    leader_epoch: _Number | None = None  # of the last batch
    files: list[File] = msgspec.field(default_factory=list)


class StreamBackup(msgspec.Struct):
    """One stream; one that was deleted and made again is another one."""

    name: str
    stream_id: _Number
    config: StreamConfig
    intake: Intake = Intake.OPEN
    backed_up: str = ""  # when last, RFC 3339
    partitions: list[PartitionBackup] = msgspec.field(default_factory=list)


class GroupBackup(msgspec.Struct, frozen=True):
    """Where a group was in a stream, by partition: the offset of its next message."""

    group: str
    stream_id: _Number
    offsets: dict[Annotated[str, msgspec.Meta(pattern="^(0|[1-9][0-9]{0,5})$")], _Number]


class AccessBackup(msgspec.Struct, frozen=True):
    """The file with users, and what they may do, as they were at that time."""

    path: str
    users: _Number
    size_bytes: _Number
    sha256: str
    backed_up: str  # RFC 3339


class Manifest(msgspec.Struct):
    """What is in a backup. `access` is None where the cluster had no users."""

    format: int = FORMAT
    penstock: str = ""  # the version that wrote it last
    cluster_id: str = ""
    streams: list[StreamBackup] = msgspec.field(default_factory=list)  # by stream id
    groups: list[GroupBackup] = msgspec.field(default_factory=list)
    access: AccessBackup | None = None

    def stream(self, name: str) -> StreamBackup | None:
        """The one of that name; of several, which had it one after the other, the last."""
        return next((one for one in reversed(self.streams) if one.name == name), None)


class _Format(msgspec.Struct):
    format: int


def read_manifest(folder: Path) -> Manifest:
    """OperationalError: there is none, or one that this version cannot read, or whose files are elsewhere."""
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
    """OperationalError: it names a file elsewhere, which is not to be read, nor told of."""
    root = folder.resolve()
    files = [file.path for stream in manifest.streams for part in stream.partitions for file in part.files]
    files += [] if manifest.access is None else [manifest.access.path]
    strange = [stream.name for stream in manifest.streams if "/" in stream.name]  # these become names of folders
    strange += [path for path in files if not _is_below(root, path)]
    if strange:
        raise OperationalError(f"{folder / MANIFEST} names what is not in its folder: {strange[0]!r}")


def _is_below(root: Path, path: str) -> bool:
    """Whether it is there, and not behind a link."""
    place = Path(path)
    is_plain = path and "\0" not in path and ".." not in place.parts and not place.is_absolute()
    return bool(is_plain) and os.path.realpath(root / place) == str(root / place)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace it, durably."""
    part = folder / f"{MANIFEST}.part"
    with private_file(part) as out:
        out.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        sync(out)
    part.replace(folder / MANIFEST)
    sync_folder_if_possible(folder)


def private_file(path: Path) -> IO[bytes]:
    """A new file that only its owner reads, whatever the umask; what has that name, a link among it, gives way."""
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _make_private(number, 0o600)
    except BaseException:
        os.close(number)
        raise
    return os.fdopen(number, "wb")


def private_folder(folder: Path, below: Path | None = None) -> None:
    """Make folders that only their owner reads: a backup, or those in it down to `below`."""
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
        with suppress(PermissionError):  # a file system without modes: whoever mounted it decides who reads
            os.fchmod(number, mode)


def is_open_to_others(folder: Path) -> bool:
    """Whether others than its owner can look into a backup."""
    return bool(folder.stat().st_mode & 0o077)


class FileWriter:
    """Writes one file of a partition; `finish` gives what the manifest says of it."""

    def __init__(self, folder: Path, stream: StreamBackup, partition: int, base_offset: int) -> None:
        place = Path("streams") / f"{stream.stream_id}-{stream.name}" / str(partition)
        self._path = place / f"{base_offset:020}.arrows"
        self._target = folder / self._path
        private_folder(folder, place)
        for left in self._target.parent.glob("*.part"):  # by a run that was killed
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
        """A batch that begins where the one before ended. OperationalError: it does not."""
        if header.base_offset != self._end_offset:
            text = f"offset {header.base_offset} came where {self._end_offset} was to come"
            raise OperationalError(f"{text}: the log changed while {self._path} was written; run the backup again")
        self._write(data)
        self._end_offset = header.end_offset
        self._rows += header.count

    def finish(self) -> File:
        """It is whole, and on the disk."""
        sync(self._out)
        self._out.close()
        self._part.replace(self._target)
        sync_folder_if_possible(self._target.parent)
        sha = self._sha.hexdigest()
        return File(self._path.as_posix(), self._base_offset, self._end_offset, self._rows, self.size_bytes, sha)

    def drop(self) -> None:
        """Nothing of it stays."""
        self._out.close()
        with suppress(FileNotFoundError):
            self._part.unlink()


def check_file(folder: Path, partition: PartitionBackup, file: File) -> None:
    """CorruptionError with the file and the position, if it is not what the manifest says. OSError."""
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
    for header, _ in messages(folder, partition, file):  # says where, if a batch is damaged
        position += header.size_bytes
    if size != file.size_bytes:
        raise CorruptionError(str(path), min(size, position), f"{file.size_bytes} bytes", f"{size} bytes")
    raise CorruptionError(str(path), 0, f"a file with the SHA-256 {file.sha256}", sha.hexdigest())


def messages(folder: Path, partition: PartitionBackup, file: File) -> Iterator[tuple[BatchHeader, bytes]]:
    """The batches of a file, each verified, up to its end. CorruptionError, OSError."""
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
    """The rows of a verified batch from offset `start` on."""
    from penstock.client.batches import Range, rows

    return rows(header, memoryview(data), Range(start, max(start, header.end_offset)), source=file)


def batches(folder: Path, partition: PartitionBackup, start: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The rows from offset `start` on, perhaps none, and up to where they go. CorruptionError, OSError."""
    for file in partition.files:
        if file.end_offset <= start:
            continue
        for header, data in messages(folder, partition, file):
            if header.end_offset > start:
                codec_file = str(folder / file.path)
                yield rows_of(header, data, start, file=codec_file), header.end_offset


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep a second run away. OperationalError: one is under way."""
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
    """Have it on the disk."""
    out.flush()
    os.fsync(out.fileno())
