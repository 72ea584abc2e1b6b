"""One broker of the simulation: Raft, its storage on a disk in memory, and an application that can be checked.

It is a driver as the real one has to be: inputs wait while something is being saved, nothing is sent before it is on
the disk, and what the disk had no room for is taken back. A save takes its time; the power may go in any operation.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock.base.errors import RemoteError
from penstock.raft import (
    EntryKind,
    NotWrittenError,
    Raft,
    RaftConfig,
    RaftStorage,
    Read,
    Ready,
    SaveTask,
    Snapshot,
)
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import Keep, MemoryVfs
from tests.sim.raft.application import Application

if TYPE_CHECKING:
    from tests.sim.raft.world import World


class PowerLoss(BaseException):
    """In the middle of an operation of the disk."""


class Broker:
    """May be down; its disk stays."""

    def __init__(self, world: World, broker_id: int, bootstrap: Snapshot | None) -> None:
        self.world = world
        self.id = broker_id
        self.random = Random(world.random.getrandbits(64))
        self.bootstrap = bootstrap
        self.memory = MemoryVfs()
        self.is_up = False
        self.run = 0  # counts its starts: what was under way before means nothing after
        self.is_disk_full = False
        self.save_ms = (1, 4)
        self.operations_left: int | None = None  # until the power goes
        self.older: MemoryVfs | None = None  # a copy of its disk

    def start(self) -> None:
        """Begin from what is on the disk."""
        self.run += 1
        self.is_disk_full = False
        self.operations_left = None
        self.inbox: deque[Callable[[], None]] = deque()
        self.saving: tuple[Ready, SaveTask] | None = None
        self.has_missed_tick = self.has_to_wait = False
        self.proposed: dict[tuple[int, int], bytes] = {}
        self.reads: dict[bytes, int] = {}  # context: what the read must see at least
        self.reads_known: list[Read] = []
        self.vfs = FaultyVfs(self.memory, self._plan, self._watch)
        self.storage = RaftStorage.open(self.vfs, self.bootstrap)
        self.application = Application(self.storage.state.snapshot)
        config = RaftConfig(self.id, **self.world.profile.raft)
        self.raft = Raft(config, Random(self.random.getrandbits(64)), self.storage.state)
        self.is_up = True
        self.world.checks.started(self)

    def crash(self) -> None:
        """The power goes: what was not synced is gone, in whole or in part."""
        self.is_up = False
        keep = self.random.choice((Keep.SYNCED, Keep.SUBSET, Keep.SUBSET, Keep.ALL))
        self.memory = self.memory.crash_clone(keep, self.random if keep is Keep.SUBSET else None)

    def copy_disk(self) -> None:
        """Keep what is on the disk now, as a backup does."""
        self.older = self.memory.crash_clone(Keep.SYNCED)

    def set_back(self) -> None:
        """The copy comes in the place of the disk: what was promised since is forgotten. It must be down."""
        assert not self.is_up
        assert self.older is not None
        self.memory = self.older.crash_clone(Keep.SYNCED)
        self.world.checks.forgets(self)

    def _plan(self, operation: FileOperation) -> FileFault | None:
        if self.is_disk_full and operation.kind is FileOperationKind.WRITE and not operation.path.endswith("synced"):
            return FileFault(errno.ENOSPC, self.random.randrange(operation.length + 1))
        return None

    def _watch(self, operation: FileOperation) -> None:
        if self.operations_left is not None and operation.kind in CHANGES:
            self.operations_left -= 1
            if self.operations_left < 0:
                raise PowerLoss

    # Inputs

    def ask(self, action: Callable[[], None]) -> None:
        """An input, now or once what is being saved is saved."""
        self.inbox.append(action)
        self.pump()

    def tick(self) -> None:
        """One tick."""
        self.has_to_wait = False
        if self.saving is not None:
            self.has_missed_tick = True
        else:
            self.ask(self.raft.tick)

    def propose(self, value: bytes) -> None:
        """Propose, if this is a leader."""
        try:
            self.proposed[self.raft.propose(value)] = value
        except RemoteError:
            self.world.count("refused proposals")

    def read(self, context: bytes, must_see_index: int) -> None:
        """Read what is up to date."""
        try:
            self.raft.read_index(context)
            self.reads[context] = must_see_index
        except RemoteError:
            self.world.count("refused reads")

    # Outputs

    def pump(self) -> None:
        """Do what has to be done, until a save takes time."""
        while self.is_up and self.saving is None:
            while self.inbox:
                self.inbox.popleft()()
                self.world.checks.look(self)
            if self.has_to_wait or not self.raft.has_ready():
                break
            ready = self.raft.ready()
            task = self.storage.save(ready)
            if task is None:
                self._finish(ready)
                continue
            self.saving = (ready, task)
            self.world.after(self.random.randint(*self.save_ms), partial(self._save, self.run))

    def _save(self, run: int) -> None:
        if not self.is_up or self.run != run:
            return
        assert self.saving is not None
        ready, task = self.saving
        if ready.snapshot is not None and self.random.random() < self.world.profile.breaks_snapshots:
            self.operations_left = self.random.randint(5, 12)
        try:
            task.run()
        except NotWrittenError as error:
            self.storage.save_failed(task, error)
            self.saving = None
            self._retract(ready)
        except PowerLoss:
            self.world.crash(self.id)
            return
        else:
            self.saving = None
            self.storage.saved(task)
            self._finish(ready)
        if self.has_missed_tick:
            self.has_missed_tick = False
            self.inbox.appendleft(self.raft.tick)
        self.pump()

    def _retract(self, ready: Ready) -> None:
        self.has_to_wait = True  # until the next tick
        for entry in self.raft.retract(ready):
            self.world.count("retracted")
            value = self.proposed.pop((entry.index, entry.term), None)
            if value is not None:
                self.world.checks.retracted(value)
        self.world.checks.look(self, after_retract=True)

    def _finish(self, ready: Ready) -> None:
        self.world.checks.saved(self, ready)
        self.world.send(ready.messages)
        if ready.snapshot is not None:
            self.application = Application(ready.snapshot)
            self.world.count("snapshots installed")
        for entry in ready.committed:
            self.application.apply(entry)
            value = self.proposed.pop((entry.index, entry.term), None)
            if value is not None and entry.kind is EntryKind.COMMAND:
                assert value == entry.data
                self.world.checks.acked(self, entry)
        self.raft.advance(ready)
        self.reads_known += ready.reads
        self.world.checks.look(self)
        self._serve_reads()

    def _serve_reads(self) -> None:
        waiting = self.reads_known
        self.reads_known = [read for read in waiting if read.index > self.raft.applied]
        for read in waiting:
            if read.index <= self.raft.applied and read.context in self.reads:
                self.world.checks.read(self, read, self.reads.pop(read.context))

    def compact(self) -> None:
        """Take a snapshot of the application; at once, for all that the disk takes time for is a save."""
        index = self.raft.applied
        if self.saving is not None or index <= self.raft.snapshot.index:
            return
        snapshot = self.raft.compact(index, self.application.image(self.random.randrange(3) * 150))
        task = self.storage.save_snapshot(snapshot)
        try:
            task.run()
        except NotWrittenError as error:
            self.storage.save_failed(task, error)
        except PowerLoss:
            self.world.crash(self.id)
        else:
            self.storage.saved(task)
        self.world.count("compactions")
