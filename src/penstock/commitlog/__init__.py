"""The log of one partition on a file system: append, flush, recovery, lookup, retention, compaction.

`log.Log` is the interface to the log's owner; `writer` is the write path, `truncation` the cut, `tasks` what disk
threads do for it. The sub-packages, each of which may import those below it:

| package    | purpose                                                                |
|------------|------------------------------------------------------------------------|
| `verify`   | verifies files, compares replicas, shows files to people               |
| `repair`   | repairs corrupt segments from other replicas                           |
| `cleaner`  | merges, compresses, compacts and expires (Kafka's log cleaner)         |
| `recovery` | recovery at the start: torn tail, lost files                           |
| `view`     | lookups and byte ranges, for any thread; retention limits              |
| `segment`  | one segment, active or sealed, and its index                           |
| `files`    | index, checkpoint, lineage (leader epoch cache), file names, scan      |
"""

from penstock.commitlog.cleaner.cleaning import CleanerTask, Cleaning, Disposal
from penstock.commitlog.cleaner.compaction import Survey
from penstock.commitlog.cleaner.expiry import ExpirySurvey
from penstock.commitlog.errors import (
    LogCutError,
    LogMissingError,
    NotWritableError,
    RangeRefusedError,
    ShortageError,
    StorageFailedError,
    StorageFullError,
)
from penstock.commitlog.fetched import FetchedAppend
from penstock.commitlog.files.lineage import LineageEntry
from penstock.commitlog.files.open_files import OpenFiles
from penstock.commitlog.log import Log
from penstock.commitlog.recovery.recovery import CutTail
from penstock.commitlog.repair.repaired_file import RepairError
from penstock.commitlog.repair.segment_repair import MissingRange, SegmentRepair
from penstock.commitlog.segment.segment import Damage
from penstock.commitlog.state import LogState
from penstock.commitlog.tasks import Flush, Removal
from penstock.commitlog.truncation import TruncationTask
from penstock.commitlog.verify.scrubbing import Scrub
from penstock.commitlog.view.retention import LogConfig, Retention
from penstock.commitlog.view.view import LogView, Slice

__all__ = [
    "CleanerTask",
    "Cleaning",
    "CutTail",
    "Damage",
    "Disposal",
    "ExpirySurvey",
    "FetchedAppend",
    "Flush",
    "LineageEntry",
    "Log",
    "LogConfig",
    "LogCutError",
    "LogMissingError",
    "LogState",
    "LogView",
    "MissingRange",
    "NotWritableError",
    "OpenFiles",
    "RangeRefusedError",
    "Removal",
    "RepairError",
    "Retention",
    "Scrub",
    "SegmentRepair",
    "ShortageError",
    "Slice",
    "StorageFailedError",
    "StorageFullError",
    "Survey",
    "TruncationTask",
]
