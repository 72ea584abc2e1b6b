"""Mistakes that the simulator must find: each a patch of one line or two of the source, made as it is imported.

Rules: the text to be replaced must be there exactly once, so that a mutant does not quietly become none when the source
changes. A patch holds only in the process that installed it, before the module was first imported; no file changes.
This module imports nothing of ours but base.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple


class Mutant(NamedTuple):
    """One mistake: `old` becomes `new` in `module`."""

    name: str
    module: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "acks before the sync",
        "penstock.replication.leader",
        "end = self.flushed_end if self.waits_for_own_disk else self.log_end",
        "end = self.log_end",
    ),
    Mutant(
        "says synced what is not",
        "penstock.replication.leader",
        "count, fsynced = 1, self.flushed_end >= end",
        "count, fsynced = 1, True",
    ),
    Mutant(
        "a failed sync counts as one",
        "penstock.node.upkeep",
        "            if error is None:\n                partition.log.flushed(flush)",
        "            if True:\n                partition.log.flushed(flush)",
    ),
    Mutant(
        "leads with the epoch of the last start",
        "penstock.metadata.elections",
        "epoch = LeaderEpoch(partition.leader_epoch + 1)",
        "epoch = LeaderEpoch(max(1, partition.leader_epoch))",
    ),
    Mutant(
        "acks what was pending when the disk failed",
        "penstock.node.partition",
        "            self._refuse(pending.replies, error, step)",
        "            self._ack(pending.replies, pending.base_offset, step, fsynced=True)",
    ),
    Mutant(
        "readers see what is not committed",
        "penstock.node.fetches",
        "end, size_bytes = partition.committed_end, partition.committed_bytes",
        "end, size_bytes = partition.log.log_end, partition.committed_bytes",
    ),
    Mutant(
        "answers a create before it is on the disk",
        "penstock.node.quorum",
        "            self._outbox.work(Lane.WRITE, task.run, done)",
        "            self._outbox.work(Lane.WRITE, task.run, lambda error: None)\n            done(None)",
    ),
)

TO_COME = (
    "a follower truncates to what is committed instead of by lineage",
    "a diverging fetch counts for committed_end",
    "committed_end counts the last known ISR only, not the proposed one",
    "a fetch of a fenced incarnation counts",
    "a leader of an earlier epoch goes on acking",
    "an unclean start stays in the ISR",
    "a broker with another disk leads",
    "Raft commits an entry of an earlier term by counting",
    "Raft votes twice in a term after a restart",
)
"""Mistakes that take more than one broker."""


class _Patched(SourceFileLoader):
    """Compiles a source with one text replaced by another."""

    def __init__(self, mutant: Mutant, path: str) -> None:
        super().__init__(mutant.module, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the patched source; never a cached one."""
        mutant = self._mutant
        source = self.get_data(self.path).decode()
        assert source.count(mutant.old) == 1, f"{mutant.name}: its text is not there once: {mutant.old!r}"
        code: CodeType = self.source_to_code(source.replace(mutant.old, mutant.new).encode(), self.path)
        return code


class _Finder(MetaPathFinder):
    """Finds the one module that is patched."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where the module comes from, if it is that one."""
        if fullname != self._mutant.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Patched(self._mutant, spec.origin)
        return spec


def named(name: str) -> Mutant:
    """The mutant of this name."""
    return next(mutant for mutant in MUTANTS if mutant.name == name)


def install(name: str) -> None:
    """Have a mutant in this process from now on; an empty name is none."""
    if name:
        mutant = named(name)
        assert mutant.module not in sys.modules, f"{mutant.module} is imported already"
        sys.meta_path.insert(0, _Finder(mutant))
