"""Verifies files: finds the logs in folders, verifies them, and compares replicas.

Rules: it writes nothing. A path is a data directory, the folder of a stream or of a log, or a segment file. Logs of
different data directories are replicas of one partition if they have the same stream id and partition, and the data
directories are not of different clusters. They are compared up to the high watermark (`committed_end`) that each knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import PenstockError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.commitlog.errors import FileMistake
from penstock.commitlog.verify import verifying
from penstock.commitlog.verify.checksums import Row, cuts_of, rows_between
from penstock.commitlog.verify.replica_comparison import ComparedReplica, differences
from penstock.commitlog.verify.verifying import NotALogError, VerifiedLog
from penstock.metadata.companions import marks_key
from penstock.node.data_dir.folders import marker_of
from penstock.node.data_dir.log_creation_markers import MADE_PATH
from penstock.ops.progress import Progress
from penstock.ops.verify.log_folders import LogFolders, stream_configs
from penstock.ops.verify.results import (
    DamagedPlace,
    Differing,
    Verified,
    VerifiedReplica,
    differing,
    judge,
    note_compared,
)
from penstock.vfs import Vfs
from penstock.vfs.keys import EncryptionKeys
from penstock.vfs.real import read_whole

_STREAMS = "streams"
_IDENTITY = "penstock.json"
_SEGMENT_SUFFIX = ".arrows"


class LogFolder(NamedTuple):
    """A log's folder; `data_dir` is None if unknown. `segment`: verify only this file of it."""

    data_dir: Path | None
    folder: Path
    stream: str
    stream_id: int
    partition: int
    segment: str | None = None

    @property
    def ids(self) -> tuple[int, int] | None:
        """(stream id, partition) according to its path; None if it is not in a data directory."""
        return None if self.stream_id < 0 else (self.stream_id, self.partition)

    @property
    def is_made(self) -> bool:
        """True if its data directory has the marker file for this log."""
        if self.stream_id < 0:
            return False
        data_dir = self.folder.resolve().parents[2]
        return (data_dir / MADE_PATH / marker_of(self.stream_id, self.stream, self.partition)).exists()

    @property
    def replica(self) -> str:
        """The replica's name in output."""
        if self.segment is not None:
            return self.segment
        return str(self.folder if self.data_dir is None else self.data_dir)


def logs_of(path: Path) -> list[LogFolder]:
    """Return the logs at a path. Raise ValueError if there is none."""
    if path.is_file():
        if not path.name.endswith(_SEGMENT_SUFFIX):
            raise ValueError(
                f"{path}: neither a folder nor a segment (*{_SEGMENT_SUFFIX}); `penstock dump` shows other files"
            )
        return [_log(path.parent)._replace(segment=path.name)]
    if (path / _STREAMS).is_dir():
        found = sorted((folder for folder in (path / _STREAMS).glob("*/*") if folder.is_dir()), key=_by_number)
        return [_log(folder)._replace(data_dir=path) for folder in found]
    if any(path.glob(f"*{_SEGMENT_SUFFIX}")) or (path / "checkpoint").exists():
        return [_log(path)]
    found = sorted((one for one in path.glob("*") if any(one.glob(f"*{_SEGMENT_SUFFIX}"))), key=_by_number)
    if not found:
        raise ValueError(f"{path} holds no log: give a data directory, the folder of a log, or a segment file")
    return [_log(folder) for folder in found]


def _by_number(folder: Path) -> tuple[Path, int, str]:
    """Return a sort key that has partition 10 behind 9."""
    return folder.parent, int(folder.name) if folder.name.isdecimal() else -1, folder.name


def _log(folder: Path) -> LogFolder:
    whole = folder.resolve()
    stream_id, _, name = whole.parent.name.partition("-")
    partition = int(whole.name) if whole.name.isdecimal() else 0
    if not stream_id.isdecimal() or whole.parent.parent.name != _STREAMS:
        return LogFolder(None, folder, whole.name, -1, partition)
    return LogFolder(None, folder, name, int(stream_id), partition)


def verify_files(
    paths: Iterable[str | Path],
    stream: str | None = None,
    *,
    keys: EncryptionKeys | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Verify all logs at these paths, or those of one stream. It reads the files; a broker may be running.

        found = ops.verify_files(["disks/1", "disks/2"], "orders")
        assert found.is_sound, found.replicas

    A path is a data directory, the folder of a stream or of a log, or a segment file. Copies of a partition in several
    data directories are compared. `keys` decrypt: `penstock.vfs.keys.parse_keys` makes them. ValueError: there is no
    such log, or the data directories are of different clusters. OSError.
    """
    told = progress or Progress()
    logs = [log for path in paths for log in logs_of(Path(path)) if stream is None or log.stream == stream]
    if not logs:
        raise ValueError("there is no log" if stream is None else f"there is no log of stream {stream!r}")
    _check_cluster({log.data_dir for log in logs if log.data_dir is not None}, told)
    together: dict[object, list[LogFolder]] = {}
    for log in logs:
        is_alone = log.stream_id < 0 or log.segment is not None
        together.setdefault(log if is_alone else (log.stream_id, log.partition), []).append(log)
    done = Verified([], [])
    opener, configs = _Opener(keys), _Configs(told)
    with told.step("verifying", sum(map(opener.size, logs))) as show:
        verified_bytes = 0

        def tell(size_bytes: int) -> None:
            nonlocal verified_bytes
            verified_bytes += size_bytes
            show(verified_bytes)

        for group in together.values():
            made = _Group(group, opener, configs, tell)
            made.verify()
            done.replicas.extend(made.replicas)
            done.differences.extend(made.found)
    return done


def _check_cluster(data_dirs: Iterable[Path], progress: Progress) -> None:
    """Raise ValueError if they belong to different clusters, whose stream ids are unrelated."""
    clusters: dict[str, Path] = {}
    for data_dir in data_dirs:
        file = data_dir / _IDENTITY
        try:
            if cluster_id := _cluster_id(file):
                clusters.setdefault(cluster_id, data_dir)
        except FileNotFoundError:
            continue
        except OSError as error:
            progress.note(f"the cluster of {data_dir} is unknown: {file}: {error.strerror or error}")
        except (ValueError, RecursionError):
            progress.note(f"the cluster of {data_dir} is unknown: {file}: not a valid file of Penstock's")
    if len(clusters) > 1:
        first, second, *_ = clusters.values()
        raise ValueError(f"{first} and {second} are of different clusters: verify them one after the other")


def _cluster_id(file: Path) -> str:
    identity = json.loads(read_whole(file, limits.IDENTITY_BYTES_MAX))
    if not isinstance(identity, dict):
        raise ValueError("not an object")
    return str(identity.get("cluster_id") or "")


class _Opener:
    """Opens the folders that hold the logs' folders."""

    def __init__(self, keys: EncryptionKeys | None) -> None:
        self._folders = LogFolders(keys)

    def vfs(self, log: LogFolder) -> Vfs:
        return self._folders.open(log.folder.resolve().parent, log.folder)

    def size(self, log: LogFolder) -> int:
        if log.segment is not None:
            return (log.folder / log.segment).stat().st_size
        return verifying.size_of(self.vfs(log), log.folder.resolve().name)


@dataclass(slots=True)
class _Looked:
    log: LogFolder
    replica: VerifiedReplica
    compared: ComparedReplica | None


class _Group:
    """The replicas of one partition."""

    def __init__(self, logs: list[LogFolder], opener: _Opener, configs: _Configs, tell: Callable[[int], None]) -> None:
        self._logs = logs
        self._opener = opener
        self._configs = configs
        self._tell = tell
        self.replicas: list[VerifiedReplica] = []
        self.found: list[Differing] = []

    def verify(self) -> None:
        """Verify and compare them."""
        cuts = self._cuts() if len(self._logs) > 1 else ()
        looked = [self._verify(log, cuts) for log in self._logs]
        self.replicas = [one.replica for one in looked]
        compared = [one.compared for one in looked if one.compared is not None]
        for one in looked:
            if one.compared is not None:
                note_compared(one.replica, one.compared, compared)
        by_name = {one.log.replica: one.log for one in looked}

        def rows_of(name: str, begin: int, end: int) -> Iterator[Row]:
            log = by_name[name]
            return rows_between(
                verifying.batches_between(self._opener.vfs(log), log.folder.resolve().name, begin, end), begin, end
            )

        first = self._logs[0]
        may_lack = len(compared) > 1 and self._may_lack()
        try:
            for found in differences(compared, rows_of, may_lack=may_lack):
                self.found.append(differing(first.stream, first.partition, found))
        except (PenstockError, OSError) as error:
            for replica in self.replicas:
                replica.not_verified = replica.not_verified or f"its rows could not be compared: {error}"
        judge(self.replicas, self.found)

    def _may_lack(self) -> bool:
        """True if replicas may erase rows at different times (compaction, TTL, rollup, marks), by any known config."""
        configs = (self._configs.of(log) for log in self._logs)
        return any(self._configs.has_marks(log) for log in self._logs) or any(
            config is not None and (config.compact or config.allow_message_ttl or config.allow_rollup)
            for config in configs
        )

    def _cuts(self) -> tuple[int, ...]:
        extents = []
        for log in self._logs:
            try:
                extents.append(verifying.log_bounds(self._opener.vfs(log), log.folder.resolve().name))
            except (NotALogError, OSError):
                continue
        return cuts_of(extents)

    def _verify(self, log: LogFolder, cuts: tuple[int, ...]) -> _Looked:
        name = log.folder.resolve().name
        try:
            vfs = self._opener.vfs(log)
            if log.segment is not None:
                found = verifying.verify_segment(vfs, f"{name}/{log.segment}", ids=log.ids, tell=self._tell)
            else:
                is_made = log.is_made
                found = verifying.verify_log(vfs, name, ids=log.ids, is_made=is_made, cuts=cuts, tell=self._tell)
        except (NotALogError, OSError) as error:
            replica = VerifiedReplica(
                stream=log.stream, partition=log.partition, replica=log.replica, log_start=0, log_end=0
            )
            replica.not_verified = str(error)
            return _Looked(log, replica, None)
        sums = {one.begin: one for one in found.sums}
        end = min(found.committed_end, found.log_end)
        return _Looked(
            log, _replica(log, found), ComparedReplica(log.replica, found.log_start, end, sums, tuple(found.damaged()))
        )


def _replica(log: LogFolder, found: VerifiedLog) -> VerifiedReplica:
    def place(one: FileMistake) -> DamagedPlace:
        base_offset, end_offset = one.base_offset, one.end_offset
        if base_offset is not None and base_offset == end_offset:
            base_offset = end_offset = None
        return DamagedPlace(
            file=str(log.folder / one.file.rpartition("/")[2]),
            position=one.position,
            base_offset=base_offset,
            end_offset=end_offset,
            expected=one.expected,
            found=one.found,
        )

    return VerifiedReplica(
        stream=log.stream,
        partition=log.partition,
        replica=log.replica,
        log_start=found.log_start,
        log_end=found.log_end,
        committed_end=found.committed_end,
        rows=found.rows,
        size_bytes=found.size_bytes,
        damage=[place(one) for one in found.mistakes],
        unlisted=found.unlisted,
        torn=None if found.torn is None else place(found.torn),
    )


class _Configs:
    """Stream configs from data directories; reads each directory once, and reports its failure once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._known: dict[Path, dict[int, StreamConfig]] = {}

    def of(self, log: LogFolder) -> StreamConfig | None:
        """Return the config of the log's stream; None if its data directory does not have it."""
        return self._all(log).get(log.stream_id)

    def has_marks(self, log: LogFolder) -> bool:
        """True if marks may hide rows of the log."""
        return marks_key(PartitionKey(StreamId(log.stream_id), PartitionId(0))).stream_id in self._all(log)

    def _all(self, log: LogFolder) -> dict[int, StreamConfig]:
        data_dir = log.data_dir or log.folder.resolve().parents[2]
        if data_dir not in self._known:
            self._known[data_dir] = self._configs(data_dir)
        return self._known[data_dir]

    def _configs(self, data_dir: Path) -> dict[int, StreamConfig]:
        try:
            return stream_configs(data_dir / "raft")
        except FileNotFoundError:
            return {}
        except OSError as error:
            why = f"{error.filename or data_dir}: {error.strerror or error}"
        except (PenstockError, msgspec.DecodeError) as error:
            why = str(error)
        self._progress.note(f"the stream configs in {data_dir} cannot be read: {why}")
        return {}
