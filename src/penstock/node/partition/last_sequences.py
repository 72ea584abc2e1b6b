"""Reads the last sequences of subjects from a leader's log (expected-last-sequence checks).

Rules: the state is a function of the log, like message ids (see `node.partition.dedup`): a leadership reads the log
when the first message states an expected last sequence, keeps the state current, and drops it at its end, after
compaction has removed rows, or when rows are hidden: a hidden row is no last one. A partition without such messages
does no work for it.

| known                     | since                               | a message with an expected last sequence       |
|---------------------------|-------------------------------------|------------------------------------------------|
| nothing                   | the leadership began                | waits, and has the end of the log read         |
| its end is being read     |                                     | waits                                          |
| all from an offset on     | that is done                        | is checked                                     |
| the same, not the subject | it has no message from there on     | is refused, and has older offsets read         |
| too many subjects         | there are more than are kept        | is refused, if its subject is not known        |

The log is read backwards, batch by batch. The read of its end is bounded, because messages wait for it. Older offsets
may take long: publishers to a subject found only there are told to retry.
"""

from __future__ import annotations

from array import array

from penstock.base import limits
from penstock.batch import codec
from penstock.commitlog import LogView
from penstock.hot.last_offsets import LastOffsets
from penstock.ingest.last_sequences import LastSequences, ReadState
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.step import DiskWork, Lane, Step


class ReadLasts:
    """Finds the last offset of each subject, backwards from `end`, in a disk thread.

    It stops after the batch with which it has read `bytes_max`, or found more subjects than are kept.
    """

    def __init__(self, view: LogView, end: int, bytes_max: int) -> None:
        self._view = view
        self._bytes_max = bytes_max
        self.found = LastOffsets(limits.LAST_OFFSETS_MAX, min(end, view.log_end))

    def run(self) -> None:
        """Raise RemoteError (corrupt_range) or OSError."""
        view, found = self._view, self.found
        log_start, scanned_bytes = view.log_start, 0
        for header, data in view.batches(log_start, max(log_start, found.known_from), reverse=True):
            last = codec.check_values(data).last_of_subjects()
            found.gather(last, codec.offsets(data), max(log_start, header.base_offset))
            scanned_bytes += len(data)
            if scanned_bytes >= self._bytes_max or found.is_full:
                return
        found.gather([], array("q"), log_start)


def read_end(view: LogView, log_end: int, step: Step) -> LastSequences:
    """Have the end of a log read in a disk thread; return what is known of it so far."""
    lasts = LastSequences(log_end)
    _read(lasts, view, Lane.READ, limits.LAST_OFFSETS_READ_BYTES_MAX, step)
    return lasts


def read_older(lasts: LastSequences, view: LogView, log_start: int, step: Step) -> None:
    """Have older offsets read, if there is room for more subjects and no read is under way."""
    if lasts.reading is ReadState.NOTHING and not lasts.is_full(log_start):
        lasts.reading = ReadState.OLDER
        _read(lasts, view, Lane.QUERY, limits.SCAN_BYTES_MAX, step)


def _read(lasts: LastSequences, view: LogView, lane: Lane, bytes_max: int, step: Step) -> None:
    known_from = lasts.known_from
    work = ReadLasts(view, known_from, bytes_max)

    def done(error: Exception | None) -> None:
        lasts.reading = ReadState.NOTHING
        lasts.failure = "" if error is None else f"the subjects in the log cannot be read: {as_remote_error(error)}"
        if error is None:
            lasts.found(work.found, known_from)

    step.disk.append(DiskWork(lane, work.run, done))
