"""The log of one partition on a file system: append, flush, recovery, lookup, retention, compaction.

| module                            | purpose                                                               |
|-----------------------------------|-----------------------------------------------------------------------|
| `log`                             | `Log`: the interface to the log's owner                               |
| `writer`                          | the write path: append, flush, close the file when idle               |
| `state`                           | states of a log                                                       |
| `view`                            | `LogView`: lookups and slices, for any thread                         |
| `view_validity`                   | offsets that views may still read after a truncation                  |
| `lookups`                         | binary search over a segment's index entries                          |
| `segments`                        | the segments of a log, and when the active one rolls                  |
| `segment`                         | one segment, active or sealed                                         |
| `flush_state`                     | tracks what is not yet synced to disk                                 |
| `fetched`                         | validates batches fetched from the leader                             |
| `index`                           | one entry per batch                                                   |
| `resumed_index`                   | index entries of a segment reopened after a restart or an idle period |
| `open_files`                      | limits the open segment files of a broker                             |
| `checkpoint`                      | persists flushed_end, committed_end and log_start                     |
| `lineage`                         | leader epoch history (Kafka's leader epoch cache)                     |
| `recovery`                        | recovery at start                                                     |
| `scan`, `rebuild`                 | verify a segment from its beginning; rebuild its index                |
| `known_damage`                    | known corruption, including what readers report                       |
| `torn_tail`                       | which of the bytes that recovery cuts off may be deleted              |
| `retention`                       | computes the log start offset from the limits                         |
| `retention_tracker`               | when retention runs, and which files await removal                    |
| `truncation`                      | truncates or resets a log                                             |
| `cleaning`                        | merges small batches into large ones                                  |
| `compaction`, `compactor`         | keeps the last message of each key                                    |
| `expiry`, `expirer`               | removes messages whose time to live is over                           |
| `segment_repair`                  | repairs corrupt segments from other replicas                          |
| `scrubbing`                       | reads everything to find corruption                                   |
| `tasks`                           | tasks for a disk thread                                               |
| `files`                           | file names                                                            |
| `dump`                            | files as rows, for people                                             |
| `verifying`, `segment_check`      | verify the files of a log                                             |
| `checksums`, `replica_comparison` | compare replicas                                                      |
"""

from penstock.commitlog.cleaning import CleanerTask, Cleaning, Disposal
from penstock.commitlog.compaction import Survey
from penstock.commitlog.errors import (
    LogCutError,
    LogMissingError,
    NotWritableError,
    RangeRefusedError,
    ShortageError,
    StorageFailedError,
    StorageFullError,
)
from penstock.commitlog.expiry import ExpirySurvey
from penstock.commitlog.fetched import FetchedAppend
from penstock.commitlog.lineage import LineageEntry
from penstock.commitlog.log import Log
from penstock.commitlog.open_files import OpenFiles
from penstock.commitlog.recovery import CutTail
from penstock.commitlog.repaired_file import RepairError
from penstock.commitlog.retention import LogConfig, Retention
from penstock.commitlog.scrubbing import Scrub
from penstock.commitlog.segment import Damage
from penstock.commitlog.segment_repair import MissingRange, SegmentRepair
from penstock.commitlog.state import LogState
from penstock.commitlog.tasks import Flush, Removal
from penstock.commitlog.truncation import TruncationTask
from penstock.commitlog.view import LogView, Slice

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
