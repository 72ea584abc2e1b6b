"""What a leader knows of the last sequences of subjects, and how it comes to know them.

Rules: what is known is a function of the log, as of message ids (see `node.dedup`): it is read when the first message
that expects one comes under a leadership, kept up to date while that lasts, and forgotten with it, and after compaction
has taken rows out. A partition of which nobody asks for one never pays for it.

| what is known             | since                               | a message that expects a sequence of a subject |
|---------------------------|-------------------------------------|------------------------------------------------|
| nothing                   | the leadership began                | waits, and has the end of the log read         |
| its end is being read     |                                     | waits                                          |
| all from an offset on     | that is done                        | is looked up                                   |
| the same, not the subject | it has no message from there on     | is refused, and has what is older read         |
| too many subjects         | there are more than are kept        | is refused, where the subject is not known     |

The log is read backwards, batch by batch. Its end is bounded, since messages wait: what is older may take long, and
those who ask for a subject that only lies there are told to try again.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.batch import codec
from penstock.commitlog import LogView
from penstock.hot.last_offsets import LastOffsets
from penstock.ingest.last_sequences import LastSequences, Reading
from penstock.node.step import DiskWork, Lane, Step
from penstock.node.wording import as_remote

if TYPE_CHECKING:
    from penstock.node.partition import Partition


class ReadLasts:
    """Look through a log backwards from `end` for the last offset of each subject; in a disk thread.

    It ends behind the batch with which it has read `bytes_max`, or found more subjects than are kept.
    """

    def __init__(self, view: LogView, end: int, bytes_max: int) -> None:
        self._view = view
        self._bytes_max = bytes_max
        self.found = LastOffsets(limits.LAST_OFFSETS_MAX, min(end, view.log_end))

    def run(self) -> None:
        """Read them; RemoteError corrupt_range, OSError."""
        view, found = self._view, self.found
        log_start, scanned_bytes = view.log_start, 0
        for header, data in view.batches(log_start, max(log_start, found.known_from), reverse=True):
            last = codec.check_values(data).last_of_subjects()
            found.gather(last, codec.offsets(data), max(log_start, header.base_offset))
            scanned_bytes += len(data)
            if scanned_bytes >= self._bytes_max or found.is_full:
                return
        found.gather([], array("q"), log_start)


def read_end(partition: Partition, step: Step) -> None:
    """Have the end of a partition's log read; it knows when it is done."""
    partition.lasts = lasts = LastSequences(partition.log.log_end)
    _read(partition, lasts, Lane.READ, limits.LAST_OFFSETS_READ_BYTES_MAX, step)


def read_older(partition: Partition, lasts: LastSequences, step: Step) -> None:
    """Have more of it read, if there is room for what is found, and unless that is under way."""
    if lasts.reading is Reading.NOTHING and not lasts.is_full(partition.log_start):
        lasts.reading = Reading.OLDER
        _read(partition, lasts, Lane.QUERY, limits.SCAN_BYTES_MAX, step)


def _read(partition: Partition, lasts: LastSequences, lane: Lane, bytes_max: int, step: Step) -> None:
    known_from = lasts.known_from
    work = ReadLasts(partition.view(), known_from, bytes_max)

    def done(error: Exception | None) -> None:
        lasts.reading = Reading.NOTHING
        lasts.failure = "" if error is None else f"the subjects in the log cannot be read: {as_remote(error)}"
        if error is None:
            lasts.found(work.found, known_from)

    step.disk.append(DiskWork(lane, work.run, done))
