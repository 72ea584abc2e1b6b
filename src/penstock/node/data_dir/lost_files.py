"""Checks at a start for guard files that a data directory has lost, with advice for the operator.

Rules: a guard is a file without which other corruption goes unnoticed. A start records in `penstock.json` which guards
exist; it goes on without one only if that cannot hide a truncated log. Nothing is deleted, and nothing is written
before the check. A directory of an earlier version has no such record, and starts.

| guard             | detects                        | if missing or zeroed                                            |
|-------------------|--------------------------------|-----------------------------------------------------------------|
| `raft/log`        |                                | refused if `process_history` or the record says that it existed |
| `raft/synced`     | a truncated Raft log           | refused, by `raft/storage.py`                                   |
| `made/`           | a missing log                  | refused if the record says that it existed                      |
| `made/<log>`      | the same, of one log           | noticed, and created again, if the log exists                   |
| `checkpoint`      | a log truncated at its end     | of a log that was made: read-only (`commitlog/recovery`)        |
| `process_history` | an older copy of the directory | noticed                                                         |
"""

from __future__ import annotations

import contextlib

from penstock.base.errors import CorruptionError
from penstock.metadata.persistence.journal import JOURNAL_PATH
from penstock.node.data_dir.known_brokers import read_known_brokers
from penstock.node.data_dir.log_creation_markers import MADE_PATH
from penstock.node.data_dir.process_history import RUNS_PATH
from penstock.node.settings import Settings
from penstock.raft.tasks import FOLDER, LOG_PATH, MARK_PATH
from penstock.vfs import Vfs

GUARDS = (MADE_PATH, MARK_PATH, RUNS_PATH)
"""Guards that `penstock.json` records once they exist."""

_FROM_OTHERS = (
    "Nothing was deleted. While most of the other brokers are up, move this data directory aside, and start the "
    "broker with an empty one, with the same id and flags: the others fill it (docs/how-to/broker-does-not-start.md)"
)
_ALONE = (
    "Nothing was deleted. This broker is alone, so no other one has it: put the data directory back as it was when the "
    "broker stopped last, or start with an empty one and restore a backup with `penstock restore`; any Arrow reader "
    "reads the segments that are in streams/ (docs/how-to/broker-does-not-start.md)"
)


def recovery_advice(vfs: Vfs, settings: Settings) -> str:
    """Return advice on a data directory that lost something without which the broker cannot start."""
    members = frozenset(settings.voters)
    with contextlib.suppress(OSError):
        if (known := read_known_brokers(vfs)) is not None:
            members = known.members
    return _FROM_OTHERS if settings.join or members - {settings.broker_id} else _ALONE


def check_guards(vfs: Vfs, guards: frozenset[str]) -> list[str]:
    """Return notices about missing guards. Raise CorruptionError or OSError."""
    names = set(vfs.list(""))
    has_metadata = JOURNAL_PATH in names or LOG_PATH.rpartition("/")[2] in vfs.list(FOLDER)
    if not has_metadata and (guards or RUNS_PATH in names):
        wanted = "the cluster's metadata and this broker's vote, for it has run on this data directory"
        raise CorruptionError(LOG_PATH, 0, wanted, "no file")
    if MADE_PATH in guards and f"{MADE_PATH}/" not in names:
        wanted = "the creation marks of logs, without which a missing log would be replaced by an empty one"
        advice = f"If no folder is missing in streams/, make an empty folder {MADE_PATH} and start again."
        raise CorruptionError(MADE_PATH, 0, wanted, "no folder", advice=advice)
    if RUNS_PATH in guards and RUNS_PATH not in names:
        text = f"{RUNS_PATH} is missing, which records the starts: whether this is an older copy of the data directory"
        return [f"{text} cannot be checked now; if it is one, stop the broker, and start it with the newer one"]
    return []
