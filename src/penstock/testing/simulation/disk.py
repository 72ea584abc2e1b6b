"""The disk of one broker: work takes time in every lane, and faults are injected.

Rules: `vfs.memory` decides what a power loss leaves: any subset of the unsynced sectors and of the unsynced names
survives. A power cut hits between two operations, also in the middle of a piece of work or of a decision: the surviving
copy is made there, and `PowerCut` ends whatever was running. Work is carried out at one moment and reported to the
broker at a later one: a crash in between loses the answer, not the bytes.

| fault          | the broker sees                                                              |
|----------------|------------------------------------------------------------------------------|
| slow           | work takes up to two seconds                                                 |
| full           | every write fails with ENOSPC; a part of it may be written                   |
| failing sync   | the next sync of a segment, or of any file, fails with EIO; the unsynced     |
|                | data is readable, and reaches the disk only if it is written again           |
| hung sync      | the next write or sync of a thread, or each one, does not return until the   |
|                | hang ends                                                                    |
| flipped bit    | a byte of a sealed segment is changed for ever, or the segment is cut there  |
| damaged end    | a byte that only the newest checkpoint of a log covers is changed for ever,  |
|                | and this checkpoint is torn                                                  |
| harmed index   | indexes of subjects are lost, changed, cut short, or other segments'         |
| empty          | a new, empty disk                                                            |
| older copy     | an earlier state of the disk: a backup, or a snapshot of the machine         |
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from random import Random
from typing import NamedTuple

from penstock.base.errors import PenstockError
from penstock.commitlog.files import checkpoint, files
from penstock.node.step import DiskWork, Lane
from penstock.testing.simulation.scheduler import Call, Scheduler
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperation, FileOperationKind, no_faults
from penstock.vfs.memory import Keep, MemoryVfs

_THREADS = 4  # in each lane
_FAST_US = (60, 900)
_SLOW_US = (20_000, 2_000_000)
_TORN_AT = 40  # byte of a checkpoint's slot
_HARMED_INDEXES = 0.5  # share of the subject indexes of a disk
_CUT_SHORT = 0.25  # share of the corrupted segments that are cut instead of changed


class PowerCut(BaseException):
    """The machine lost its power. Derives from BaseException so that no `except Exception` catches it."""


class _Hang:
    """A hang, and the work that waits for its end."""

    __slots__ = ("only_one", "waiting")

    def __init__(self, *, only_one: bool) -> None:
        self.only_one = only_one
        self.waiting: list[Call] = []


class Disk:
    """The broker's file system and the threads that work on it."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.number = 1  # of the current disk
        self.memory = MemoryVfs()
        self.vfs = FaultyVfs(self.memory)
        self.died: Callable[[], None] = lambda: None  # called if the power is cut while a thread works
        self.is_slow = False
        self._is_full = False
        self._refuses_logs = False
        self._syncs_to_fail = 0
        self.fails_any_sync = False  # False: only a sync of a segment
        self.is_older = False  # set back to an older copy, and not replaced since
        self.faults = 0  # failed operations
        self.open_count = 0
        self._cut_after: int | None = None  # changes until the power is cut
        self._left: MemoryVfs | None = None
        self._scheduler = scheduler
        self._random = random
        self._hangs: list[_Hang] = []
        self._run = 0  # number of the broker's run: work of earlier ones is dropped
        self._free_us = {lane: [0] * _THREADS for lane in Lane}

    def submit(self, work: DiskWork, back: Callable[[DiskWork, Exception | None], None]) -> None:
        """Have a thread run the work; then `back` receives its outcome."""
        run = self._run
        self.open_count += 1
        threads = self._free_us[work.lane]
        thread = threads.index(min(threads))
        run_us = max(self._scheduler.now_us, threads[thread]) + self._time_us()
        back_us = run_us + 20 + int(self._random.random() * 80)
        threads[thread] = run_us

        def execute() -> None:
            if run != self._run:
                return
            if work.lane is Lane.WRITE and (hang := self._hang_of()) is not None:
                hang.append(again)
                return
            error: Exception | None = None
            try:
                work.run()
            except (OSError, PenstockError) as raised:  # any other error is a bug of ours and fails the run
                error = raised
            except PowerCut:
                self.died()
                return
            self._scheduler.at(back_us, partial(tell, error))

        def again() -> None:
            nonlocal back_us
            back_us = max(back_us, self._scheduler.now_us + 20)
            execute()

        def tell(error: Exception | None) -> None:
            if run == self._run:
                self.open_count -= 1
                back(work, error)

        self._scheduler.at(run_us, execute)

    def hang(self, *, only_one: bool) -> Call:
        """From now on no write, or only the next one, returns; return a callback that ends the hang."""
        hang = _Hang(only_one=only_one)
        self._hangs.append(hang)

        return lambda: self._end(hang)

    def _end(self, hang: _Hang) -> None:
        if hang in self._hangs:
            self._hangs.remove(hang)
            for work in hang.waiting:
                self._scheduler.after(0, work)

    def _hang_of(self) -> list[Call] | None:
        """Return the queue of the hang that blocks work now; None if there is none."""
        hang = next((one for one in self._hangs if not (one.only_one and one.waiting)), None)
        return None if hang is None else hang.waiting

    def _time_us(self) -> int:
        low, high = _SLOW_US if self.is_slow else _FAST_US
        chance = self._random.random()
        return low + int(chance * (high - low)) if chance < 0.97 else high * 5

    @property
    def is_full(self) -> bool:
        """True if writes fail with ENOSPC."""
        return self._is_full

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        self._is_full = is_full
        self._look_out()

    @property
    def refuses_logs(self) -> bool:
        """True if writes to logs fail with ENOSPC, while those of the metadata succeed."""
        return self._refuses_logs

    @refuses_logs.setter
    def refuses_logs(self, refuses_logs: bool) -> None:
        self._refuses_logs = refuses_logs
        self._look_out()

    @property
    def syncs_to_fail(self) -> int:
        """Number of the next syncs of segments that fail."""
        return self._syncs_to_fail

    @syncs_to_fail.setter
    def syncs_to_fail(self, count: int) -> None:
        self._syncs_to_fail = count
        self._look_out()

    # Life

    def forget(self) -> None:
        """Drop the pending work of the threads, because the process has ended."""
        self._run += 1
        self.open_count = 0
        self._cut_after = None
        self._look_out()
        self._free_us = {lane: [0] * _THREADS for lane in Lane}

    def cut_power_after(self, changes: int) -> None:
        """Cut the power after so many more changes of the file system."""
        self._cut_after = changes
        self._look_out()

    @property
    def is_off(self) -> bool:
        """True from a power cut to the next `restore`."""
        return self._left is not None

    def power_off(self) -> None:
        if self._left is None:
            self._left = self.memory.crash_clone(Keep.SUBSET, self._random)
            self._look_out()

    def restore(self) -> None:
        """Restore the power: the disk holds what the power loss has left."""
        if self._left is not None:
            left, self._left = self._left, None
            self._use(left)

    def replace(self) -> None:
        """Replace the disk with an empty one."""
        self._left = None
        self.is_older = False
        self.number += 1
        self._use(MemoryVfs())

    def copy(self) -> MemoryVfs:
        """Copy everything on the disk, synced or not."""
        return self.memory.crash_clone(Keep.ALL)

    def set_back(self, copy: MemoryVfs) -> None:
        """Set the same disk back to an earlier copy."""
        self._left = None
        self.is_older = True
        self._use(copy)

    def _use(self, memory: MemoryVfs) -> None:
        self.memory = memory
        self.vfs = FaultyVfs(memory)
        self._look_out()

    def heal(self) -> None:
        """End all faults."""
        self.is_slow = self._is_full = self._refuses_logs = False
        for hang in list(self._hangs):
            self._end(hang)
        self._syncs_to_fail = 0
        self._cut_after = None
        self._look_out()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Inject and count no faults while a check reads."""
        vfs = self.vfs
        vfs.plan, vfs.watcher = no_faults, None
        try:
            yield
        finally:
            self._look_out()

    def harm_a_segment(self) -> str | None:
        """Flip a bit of a sealed segment or cut it short; return its path, None if there is no sealed segment."""
        segments: dict[str, list[str]] = {}
        for path in self.memory.files():
            if path.startswith("streams/") and path.endswith(".arrows"):
                segments.setdefault(path.rpartition("/")[0], []).append(path)
        sealed = [path for paths in segments.values() for path in sorted(paths)[:-1]]
        if not sealed:
            return None
        path = sealed[int(self._random.random() * len(sealed))]
        file = self.memory.open(path)
        position = int(self._random.random() * file.size())
        byte = file.read_at(position, 1)
        if self._random.random() < _CUT_SHORT:
            file.truncate(position)
        else:
            file.write_at(position, bytes([byte[0] ^ (1 << int(self._random.random() * 8))]))
        file.sync()
        file.close()
        return path

    def harm_subject_indexes(self) -> int:
        """Remove, change or cut some indexes of subjects, or put others in their place; return their number."""
        memory = self.memory if self._left is None else self._left
        paths = sorted(path for path in memory.files() if path.endswith(".subjects"))
        harmed = [path for path in paths if self._random.random() < _HARMED_INDEXES]
        contents = [_content(memory, path) for path in paths]
        for path in harmed:
            way, number = (int(self._random.random() * 2**16) for _ in range(2))
            if way % 4 == 0:
                memory.remove(path)
                continue
            with closing(memory.open(path)) as file:
                position = number % max(1, file.size())
                if way % 4 == 1 and file.size():
                    file.write_at(position, bytes([file.read_at(position, 1)[0] ^ (1 << way // 4 % 8)]))
                elif way % 4 == 2:
                    file.truncate(position)
                else:
                    file.truncate(0)
                    file.write_at(0, contents[number % len(contents)])
                file.sync()
        return len(harmed)

    def harm_an_end(self) -> str | None:
        """Flip a bit of a log in a range that only its newest checkpoint covers, and tear that; return its segment.

        None if each log has one checkpoint, or two that cover the same. Works on a running broker and on one that is
        down, also after a power cut.
        """
        memory = self.memory if self._left is None else self._left
        folders = sorted({path.rpartition("/")[0] for path in memory.files() if path.startswith("streams/")})
        ends = [end for folder in folders for end in _covered_once(memory, folder)]
        if not ends:
            return None
        end = ends[int(self._random.random() * len(ends))]
        position = end.begin + int(self._random.random() * (end.end - end.begin))
        slot = f"{end.path.rpartition('/')[0]}/{files.CHECKPOINT}"
        for path, at in ((end.path, position), (slot, end.slot * checkpoint.SLOT_STEP_BYTES + _TORN_AT)):
            with closing(memory.open(path)) as file:
                file.write_at(at, bytes([file.read_at(at, 1)[0] ^ (1 << int(self._random.random() * 8))]))
                file.sync()
        return end.path

    # Hooks of the file system

    def _look_out(self) -> None:
        """Install the hooks only while a fault is possible: usually none is, and calls are costly."""
        is_quiet = self._left is None and not (self._is_full or self._refuses_logs) and not self._syncs_to_fail
        self.vfs.plan = no_faults if is_quiet else self._plan
        self.vfs.watcher = None if self._cut_after is None else self._watch

    def _plan(self, operation: FileOperation) -> FileFault | None:
        if self._left is not None:
            raise PowerCut
        kind = operation.kind
        if (
            kind is FileOperationKind.SYNC
            and self.syncs_to_fail
            and (".arrows" in operation.path or self.fails_any_sync)
        ):
            self.syncs_to_fail -= 1
            self.faults += 1
            self.memory.fail_sync(operation.path)
            return FileFault(errno.EIO)
        is_full = self._is_full or (self._refuses_logs and operation.path.startswith("streams/"))
        if is_full and kind is FileOperationKind.WRITE and operation.length:
            self.faults += 1
            return FileFault(errno.ENOSPC, int(self._random.random() * operation.length))
        return None

    def _watch(self, operation: FileOperation) -> None:
        if self._cut_after is None or operation.kind not in CHANGES:
            return
        self._cut_after -= 1
        if self._cut_after <= 0:
            self._cut_after = None
            self.power_off()
            raise PowerCut


def _content(memory: MemoryVfs, path: str) -> bytes:
    with closing(memory.open(path, read_only=True)) as file:
        return file.read_at(0, file.size())


class _End(NamedTuple):
    """A range of a segment that only the checkpoint in `slot` of its log covers."""

    path: str
    begin: int
    end: int
    slot: int


def _covered_once(memory: MemoryVfs, folder: str) -> Iterator[_End]:
    """Yield what the newest checkpoint of a log covers beyond the older one."""
    found = checkpoint.read(memory, folder)
    if found.newest is None or found.mistakes or found.is_alone:
        return
    with closing(memory.open(f"{folder}/{files.CHECKPOINT}", read_only=True)) as file:
        data = file.read_at((1 - found.slot) * checkpoint.SLOT_STEP_BYTES, checkpoint.SLOT_BYTES)
    older, newest = checkpoint.unpack_slot(data), found.newest
    for name in memory.list(folder):
        base = files.base_offset_of(name)
        if base is None or not older.segment_base <= base <= newest.segment_base:
            continue
        path = f"{folder}/{name}"
        with closing(memory.open(path, read_only=True)) as file:
            end = min(file.size(), newest.segment_position if base == newest.segment_base else file.size())
        begin = older.segment_position if base == older.segment_base else 0
        if begin < end:
            yield _End(path, begin, end, found.slot)
