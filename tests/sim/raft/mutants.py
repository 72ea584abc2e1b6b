"""Mistakes that implementations of Raft have made, as changes of one place in the source each.

A mutant is the text of a module with one piece replaced; the piece must be there exactly once, so a change of the
source that moves it makes the gate fail, and not pass. Nothing in the source knows of this.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `module`, `old` becomes `new`."""

    module: str
    old: str
    new: str
    mistake: str


MUTANTS = {
    "always_truncate": Mutant(
        "penstock.raft.follower",
        "        if log.term_at(entry.index) != entry.term:\n",
        "        if True:\n",
        "a late append cuts what a later one brought",
    ),
    "commit_unmatched": Mutant(
        "penstock.raft.follower",
        "    log.commit_to(min(message.commit, matched_index))\n",
        "    log.commit_to(min(message.commit, log.last_index))\n",
        "the leader's commit index holds for entries that are not the leader's",
    ),
    "commit_on_snap": Mutant(
        "penstock.raft.follower",
        "    if len(incoming.data) < message.size_bytes:\n",
        "    log.commit_to(min(message.index, log.last_index))\n    if len(incoming.data) < message.size_bytes:\n",
        "a part of a snapshot moves the commit index",
    ),
    "fig8": Mutant(
        "penstock.raft.leader",
        "        if index <= log.commit or log.term_at(index) != self._term:\n",
        "        if index <= log.commit:\n",
        "entries of earlier terms are committed by counting",
    ),
    "nameless_term": Mutant(
        "penstock.raft.terms",
        "DRAWS = 2**16\n_CANDIDATES = 2**16\n",
        "DRAWS = 1\n_CANDIDATES = 1\n",
        "terms that name nobody: who has forgotten its vote has two leaders in one",
    ),
    "commit_unnamed": Mutant(
        "penstock.raft.follower",
        "    is_behind = message.commit > log.commit and log.term_at(message.commit) != message.commit_term\n",
        "    is_behind = message.commit > log.last_index\n",
        "a heartbeat commits whatever lies there, also what was cut off before it was set back",
    ),
    "cut_silently": Mutant(
        "penstock.raft.follower",
        "    if found := _contradiction(log, message, places):\n",
        "    if found := None:\n",
        "who is led by one that has forgotten what is committed does not say so",
    ),
    "vote_stale": Mutant(
        "penstock.raft.election",
        "    return is_free and (message.last_term, message.last_index) >= (log.last_term, log.last_index)\n",
        "    return is_free\n",
        "a vote for a log that is behind",
    ),
    "vote_unsaved": Mutant(
        "penstock.raft.core",
        "        must_sync = bool(entries) or log.new_snapshot is not None or hard_state[:2] != self._saved[:2]\n",
        "        must_sync = bool(entries) or log.new_snapshot is not None\n",
        "a vote that is not on the disk",
    ),
    "conf_guard": Mutant(
        "penstock.raft.core",
        "        if not leader.has_committed:\n",
        "        if False:\n",
        "a change of the membership before the leader has committed anything",
    ),
    "conf_twice": Mutant(
        "penstock.raft.core",
        "        if self._log.membership_index > self._log.commit:\n",
        "        if False:\n",
        "a change of the membership while another one is on its way",
    ),
    "send_before_fsync": Mutant(
        "tests.sim.raft.broker",
        "            task = self.storage.save(ready)\n",
        "            task = self.storage.save(ready)\n            self.world.send(ready.messages)\n",
        "the driver sends what is not on the disk",
    ),
    "no_fsync": Mutant(
        "penstock.raft.tasks",
        "        self.file.sync()\n        if not self.file.has_its_name():\n",
        "        if not self.file.has_its_name():\n",
        "the log is not synced",
    ),
    "stale_wal": Mutant(
        "penstock.raft.storage",
        "            storage._run(storage._rewrite(None, _contents_behind(snapshot, contents, state)))\n",
        "            new = _contents_behind(snapshot, contents, state)\n            storage._contents = new\n",
        "an old log stays behind a newer snapshot, and new entries are added to it",
    ),
    "log_before_snapshot": Mutant(
        "penstock.raft.tasks",
        "NEW_SNAPSHOT_PATH, SNAPSHOT_PATH)\n                self.vfs.sync_dir(FOLDER)\n",
        "NEW_SNAPSHOT_PATH, SNAPSHOT_PATH)\n",
        "a log may be on the disk before the snapshot that it needs",
    ),
    "read_no_quorum": Mutant(
        "penstock.raft.reads",
        "            if round_ > self.round or not is_majority(voters, behind):\n",
        "            if round_ > self.round:\n",
        "a leader that may be none answers reads",
    ),
    "read_early": Mutant(
        "penstock.raft.leader",
        "        self._reads.add(requester, context, self._log.commit if self.has_committed else None)\n",
        "        self._reads.add(requester, context, self._log.commit)\n",
        "a new leader answers reads before it knows what is committed",
    ),
    "chunk_counted_back": Mutant(
        "penstock.raft.progress",
        "        if position >= self.chunk_end:  # or beyond: an earlier response was lost\n",
        "        if position == self.chunk_end:\n",
        "a snapshot that never arrives once an answer to a chunk is lost",
    ),
    "removed_is_silent": Mutant(
        "penstock.raft.core",
        "        return self.id in self.membership.voters or self.id in self._log.committed_membership.voters\n",
        "        return self.id in self.membership.voters\n",
        "who is on its way out does not stand, and nobody else can win",
    ),
}


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str):  # without the cache of compiled files
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: str) -> bytes:
        text = super().get_data(path).decode()
        found = text.count(self._mutant.old)
        if found != 1:
            raise AssertionError(f"{path} holds the text to change {found} times")
        return text.replace(self._mutant.old, self._mutant.new).encode()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path, target: ModuleType | None = None):
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        return importlib.util.spec_from_loader(fullname, _Loader(fullname, spec.origin, self._mutant))


def plant(name: str) -> None:
    """From now on the module is imported with the mistake; it must not have been imported yet."""
    mutant = MUTANTS[name]
    assert mutant.module not in sys.modules
    sys.meta_path.insert(0, _Finder(mutant))
