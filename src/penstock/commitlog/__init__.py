"""The log of one partition on a file system: append, flush, recover, look up, retain.

| module       | what it knows                                             |
|--------------|-----------------------------------------------------------|
| `log`        | `Log`: what its owner decides about it                    |
| `writer`     | the writing end: append, flush, rest                      |
| `state`      | what may be done with a log                               |
| `view`       | `LogView`: lookups and slices, for any thread             |
| `validity`   | what of a view is still there, once the log is cut        |
| `lookups`    | which batches of a segment hold what                      |
| `segments`   | those that a log has, and when it rolls                   |
| `segment`    | one of them, active or sealed                             |
| `flushing`   | what is not on the disk yet                               |
| `fetched`    | what a leader sent: is it sound, does it go on here       |
| `index`      | one entry per batch                                       |
| `resumed`    | entries of a segment that goes on after a start or a rest |
| `open_files` | how many logs hold a file open                            |
| `checkpoint` | flushed_end, committed_end and log_start on the disk      |
| `lineage`    | which leader epoch began where                            |
| `recovery`   | what to make of the files at start                        |
| `scan`, `rebuild` | verify a segment from its beginning                  |
| `known_damage` | what is damaged, and what readers have found since      |
| `remains`    | what of the bytes that recovery cuts may go               |
| `retention`  | from which offset on messages are kept                    |
| `keeper`     | when that is looked up, and what then waits to be removed |
| `truncation` | how a log is cut, or begins anew                          |
| `cleaning`   | how small batches become large ones                       |
| `expiry`     | which messages go because their time to live is over      |
| `mending`    | how what is damaged is written anew                       |
| `scrubbing`  | how damage is looked for                                  |
| `tasks`      | what runs in a disk thread                                |
| `files`      | names of files                                            |
| `dump`       | all of it as rows, for people                             |
| `verifying`, `segment_check` | whether its files are sound               |
| `checksums`, `comparing` | what replicas differ in                       |
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
from penstock.commitlog.fetched import Appended
from penstock.commitlog.lineage import LineageEntry
from penstock.commitlog.log import Log
from penstock.commitlog.mended_file import MendingError
from penstock.commitlog.mending import Hole, Mending
from penstock.commitlog.open_files import OpenFiles
from penstock.commitlog.recovery import Cut
from penstock.commitlog.retention import LogConfig, Retention
from penstock.commitlog.scrubbing import Scrub
from penstock.commitlog.segment import Damage
from penstock.commitlog.state import LogState
from penstock.commitlog.tasks import Flush, Removal
from penstock.commitlog.truncation import Truncation
from penstock.commitlog.view import LogView, Slice

__all__ = [
    "Appended",
    "CleanerTask",
    "Cleaning",
    "Cut",
    "Damage",
    "Disposal",
    "ExpirySurvey",
    "Flush",
    "Hole",
    "LineageEntry",
    "Log",
    "LogConfig",
    "LogCutError",
    "LogMissingError",
    "LogState",
    "LogView",
    "Mending",
    "MendingError",
    "NotWritableError",
    "OpenFiles",
    "RangeRefusedError",
    "Removal",
    "Retention",
    "Scrub",
    "ShortageError",
    "Slice",
    "StorageFailedError",
    "StorageFullError",
    "Survey",
    "Truncation",
]
