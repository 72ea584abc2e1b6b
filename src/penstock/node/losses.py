"""What a data directory has lost, as a start finds it: what it protected from, and what to do.

Rules: a guard is a file without which other damage is not found. A start notes in `penstock.json` which guards there
are; it goes on without one only if that hides no log that was cut. Nothing is deleted, and nothing is written before.
A directory of an earlier version has no note, and starts.

| guard         | finds                              | missing or zeroed                                            |
|---------------|------------------------------------|--------------------------------------------------------------|
| `raft/log`    |                                    | refused where `runs` or the note says that it was there      |
| `raft/synced` | a Raft log that was cut            | refused, by `raft/storage.py`                                |
| `made/`       | a log that is gone                 | refused where the note says that it was there                |
| `made/<log>`  | the same, of one log               | told, and made again, where the log is there                 |
| `checkpoint`  | a log that was cut at its end      | of a log that was made: it is read-only (`commitlog/recovery`)|
| `runs`        | an older copy of the directory     | told                                                         |
"""

from __future__ import annotations

import contextlib

from penstock.base.errors import CorruptionError
from penstock.metadata.journal import JOURNAL_PATH
from penstock.node.known import known_brokers
from penstock.node.made import MADE_PATH
from penstock.node.runs import RUNS_PATH
from penstock.node.settings import Settings
from penstock.raft.tasks import FOLDER, LOG_PATH, MARK_PATH
from penstock.vfs import Vfs

GUARDS = (MADE_PATH, MARK_PATH, RUNS_PATH)
"""What `penstock.json` notes, once it is there."""

_FROM_OTHERS = (
    "Nothing was deleted. While most of the other brokers are there, move this data directory aside, and start the "
    "broker with an empty one, with the same id and flags: the others fill it (docs/how-to/repair.md)"
)
_ALONE = (
    "Nothing was deleted. This broker is alone, so no other one has it: put the data directory back as it was when the "
    "broker stopped last, or start with an empty one and restore a backup with `penstock restore`; any Arrow reader "
    "reads the segments that are in streams/ (docs/how-to/repair.md)"
)


def what_to_do(vfs: Vfs, settings: Settings) -> str:
    """With a data directory in which something is lost or damaged that a start cannot do without."""
    members = frozenset(settings.voters)
    with contextlib.suppress(OSError):
        if (known := known_brokers(vfs)) is not None:
            members = known.members
    return _FROM_OTHERS if settings.join or members - {settings.broker_id} else _ALONE


def check_guards(vfs: Vfs, guards: frozenset[str]) -> list[str]:
    """What an operator should know of guards that are missing, of those that were there. CorruptionError, OSError."""
    names = set(vfs.list(""))
    has_metadata = JOURNAL_PATH in names or LOG_PATH.rpartition("/")[2] in vfs.list(FOLDER)
    if not has_metadata and (guards or RUNS_PATH in names):
        wanted = "what the brokers have agreed on, and whom this one has voted for: it has run on this data directory"
        raise CorruptionError(LOG_PATH, 0, wanted, "no file")
    if MADE_PATH in guards and f"{MADE_PATH}/" not in names:
        wanted = "the marks of the logs that were made here, without which one that is gone would be begun anew"
        advice = f"If no folder is missing in streams/, make an empty folder {MADE_PATH} and start again."
        raise CorruptionError(MADE_PATH, 0, wanted, "no folder", advice=advice)
    if RUNS_PATH in guards and RUNS_PATH not in names:
        text = f"{RUNS_PATH} is missing, which notes the starts: whether this is an older copy of the data directory"
        return [f"{text} cannot be found out now; if it is one, stop the broker, and start it with the newer one"]
    return []
