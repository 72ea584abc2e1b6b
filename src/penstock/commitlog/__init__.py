"""The log of one partition on a file system: append, flush, recovery, lookup, retention, compaction.

`log.Log` is the interface to the log's owner, `view.LogView` that of readers, in any thread. Disk threads run tasks:
`flush`, `retention`, `truncation`, `repair` (from other replicas), `cleaner`. A start begins with `recovery`, which
cuts a torn tail and restores lost files. The sub-packages, each of which may import those below it:

| package    | purpose                                                                |
|------------|------------------------------------------------------------------------|
| `verify`   | verifies files, compares replicas, shows files to people               |
| `cleaner`  | merges, compresses, compacts and expires (Kafka's log cleaner)         |
| `segment`  | one segment, active or sealed: its batches, index check, corruption    |
| `subjects` | the subject index of a sealed segment; queries: `subject_queries`      |
| `files`    | index, checkpoint, lineage (leader epoch cache), names, batch walk     |
"""

from penstock.commitlog.cleaner.cleaner import CleanerTask, FoundHidden
from penstock.commitlog.cleaner.cleaning import Cleaning
from penstock.commitlog.cleaner.compaction import Survey
from penstock.commitlog.cleaner.expiry import ExpirySurvey
from penstock.commitlog.cleaner.indexing import SubjectIndexing
from penstock.commitlog.cleaner.retained_rows import FoundRows
from penstock.commitlog.config import Deciding, LogConfig
from penstock.commitlog.errors import (
    LogCutError,
    LogMissingError,
    NotWritableError,
    RangeRefusedError,
    ShortageError,
    StorageFailedError,
    StorageFullError,
)
from penstock.commitlog.files.checkpoint import is_whole as is_checkpoint_whole
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.lineage import LineageEntry
from penstock.commitlog.files.open_files import OpenFiles
from penstock.commitlog.flush import Flush
from penstock.commitlog.live_counts import LiveCounts, LiveState, TooManyRowsError, start_of_newest
from penstock.commitlog.live_subjects import LiveSubjectQueries
from penstock.commitlog.log import Log, LogState
from penstock.commitlog.repair import MissingRange, RepairError, SegmentRepair
from penstock.commitlog.retention import Removal, Retention
from penstock.commitlog.single_rows import FoundRow, batches_at, row_at, rows_at
from penstock.commitlog.subject_queries import SubjectQueries, check_subject_indexes, subject_rows
from penstock.commitlog.subject_reads import SubjectRanges
from penstock.commitlog.subjects.blocks import SubjectRow
from penstock.commitlog.subjects.kept_filters import FilterBudget
from penstock.commitlog.truncation import TruncationTask
from penstock.commitlog.verify.scrubbing import Scrub
from penstock.commitlog.view import LogView, Masked, Slice

__all__ = [
    "CleanerTask",
    "Cleaning",
    "Deciding",
    "ExpirySurvey",
    "FilterBudget",
    "Flush",
    "FoundHidden",
    "FoundRow",
    "FoundRows",
    "LineageEntry",
    "LiveCounts",
    "LiveState",
    "LiveSubjectQueries",
    "Log",
    "LogConfig",
    "LogCutError",
    "LogFolder",
    "LogMissingError",
    "LogState",
    "LogView",
    "Masked",
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
    "SubjectIndexing",
    "SubjectQueries",
    "SubjectRanges",
    "SubjectRow",
    "Survey",
    "TooManyRowsError",
    "TruncationTask",
    "batches_at",
    "check_subject_indexes",
    "is_checkpoint_whole",
    "row_at",
    "rows_at",
    "start_of_newest",
    "subject_rows",
]
