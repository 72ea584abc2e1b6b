"""Every piece of disk work of a log can be done again from each of its steps.

Each is run on a disk that refuses one operation of it, or several in a row, and is tried again as a node does; and the
power fails after each operation. In the end the work is done, nothing is lost, nothing is left over, and the log is
sound. A log that is fenced, or that takes a read that failed for damage, is opened again, as by a restart.
"""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property

import pytest

from penstock.base.errors import PenstockError
from penstock.commitlog import Log, LogConfig, LogState
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files.files import LINEAGE, is_unfinished, owner_of, parsed
from penstock.commitlog.verify.verifying import verify_log
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileFault, FileOperation, FileOperationKind, Plan, no_faults
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import flip
from tests.expiring import Told, append_told, offsets_of
from tests.extent import HAS_TIME, IS_LONG, code_seed
from tests.keyed import append_keyed
from tests.logs import DIRECTORY, append, clean_all, flush, open_log, save
from tests.property.test_mending import Donor, find_all, mend

TRIES_MAX = 30
LATER_US = 3_600_000_000
NOW_US = 10**15
REFUSALS = (1, 2, 7)  # in a row
FAULTS = 24 if HAS_TIME else 6  # of each kind of work, where there is no time for all
CLONES = 12 if HAS_TIME else 3
SMALL = LogConfig(segment_bytes=4096)
_FAILURES = (OSError, PenstockError)


class Site:
    """A log on a disk that fails when it is told to, and the time."""

    def __init__(self, disk: MemoryVfs, config: LogConfig) -> None:
        self.disk = disk
        self.vfs = FaultyVfs(disk)
        self.config = config
        self.now_us = NOW_US
        self.log: Log | None = None

    @property
    def opened(self) -> Log:
        assert self.log is not None
        return self.log

    def open(self) -> None:
        """Open it, or open it again. Errors as those of `Log.open`."""
        log, self.log = self.log, None
        if log is not None:
            with contextlib.suppress(*_FAILURES):
                log.supersede()
        self.log = open_log(self.vfs, self.config, now_us=self.now_us, must_exist=True)


class Work:
    """One kind of disk work. `disk` is what it begins with, `rows` are the offsets that there are in the end."""

    config = SMALL
    has_rows_to_go = False  # which ones shows where nothing fails

    def __init__(self) -> None:
        self.disk = MemoryVfs()
        log = open_log(self.disk, self.config)
        self.grow(log)
        log.close()
        self.rows = list(range(log.log_end))

    @cached_property
    def operations(self) -> int:
        """How many there are where nothing fails."""
        site = Site(self.disk.crash_clone(Keep.ALL), self.config)
        self.begin(site)
        seen: list[FileOperation] = []
        site.vfs.watcher = seen.append
        go_on(site, self)
        site.vfs.watcher = None
        if self.has_rows_to_go:
            self.rows = offsets(site)
        check(site, self)
        return len(seen)

    def grow(self, log: Log) -> None:
        """What there is before."""
        log.start_epoch(1)
        for number in range(24):
            append(log, 1, number, size_bytes=300)
        save(log)
        log.note_committed(log.log_end)

    def begin(self, site: Site) -> None:
        """While nothing fails: up to where the work begins."""
        site.open()

    def open(self, site: Site) -> None:
        """Open its log again."""
        site.open()

    def attempt(self, site: Site) -> None:
        """One try, as a node makes it."""
        raise NotImplementedError

    def is_done(self, site: Site) -> bool:
        """Whether it is."""
        raise NotImplementedError

    def fits(self, found: list[int], *, has_lost_power: bool) -> bool:
        """Whether these are the rows that there should be."""
        del has_lost_power
        return found == self.rows


def run_cleaner(site: Site) -> None:
    log = site.opened
    while log.wants_cleaning(site.now_us) and (task := log.clean(site.now_us)) is not None:
        error: Exception | None = None
        try:
            while not task.is_done:
                task.run()
        except _FAILURES as raised:
            error = raised
        log.cleaned(task, site.now_us)
        if error is not None:
            raise error


class Merging(Work):
    def attempt(self, site: Site) -> None:
        run_cleaner(site)

    def is_done(self, site: Site) -> bool:
        return all(generation_of(one.path) == 1 for one in site.opened.view().segments[:-1])


class Compacting(Work):
    config = LogConfig(segment_bytes=4096, compact=True)

    has_rows_to_go = True

    def grow(self, log: Log) -> None:
        log.start_epoch(1)
        for number in range(27):
            append_keyed(log, [(b"%d" % (number % 3), b"." * 300)], number)
        save(log)
        log.note_committed(log.log_end)

    def attempt(self, site: Site) -> None:
        run_cleaner(site)

    def is_done(self, site: Site) -> bool:
        return len(offsets(site)) < 27 and not site.opened.wants_cleaning(site.now_us)


class Expiring(Work):
    config = LogConfig(segment_bytes=4096, expires=True)
    has_rows_to_go = True

    def grow(self, log: Log) -> None:
        log.start_epoch(1)
        for number in range(27):
            append_told(log, [Told({"Nats-TTL": "1s"} if number % 2 else {}, value=b"." * 300)], number)
        save(log)
        log.note_committed(log.log_end)

    def attempt(self, site: Site) -> None:
        run_cleaner(site)

    def is_done(self, site: Site) -> bool:
        return len(offsets(site)) < 27 and not site.opened.wants_cleaning(site.now_us)


class Disposing(Merging):
    """What the cleaner has left is removed."""

    def begin(self, site: Site) -> None:
        site.open()
        assert clean_all(site.opened, site.now_us) > 1

    def attempt(self, site: Site) -> None:
        log = site.opened
        if (disposal := log.dispose()) is None:
            return
        try:
            disposal.run()
        except OSError:
            log.disposed(has_failed=True)
            raise
        log.disposed()

    def is_done(self, site: Site) -> bool:
        return max(Counter(map(owner_of, arrows(site.disk))).values()) == 1


class Retaining(Work):
    config = LogConfig(segment_bytes=4096, max_messages=10)

    def __init__(self) -> None:
        super().__init__()
        self.rows = list(range(14, 24))

    def attempt(self, site: Site) -> None:
        log = site.opened
        if (retention := log.tick(site.now_us)) is None:
            return
        with contextlib.suppress(*_FAILURES):
            retention.run()
        if (removal := log.apply_retention(retention)) is not None:
            try:
                removal.run()
            except OSError:
                log.removal_failed(removal)
                raise
            log.removed(removal)
        flush(log)

    def is_done(self, site: Site) -> bool:
        bases = sorted(owner_of(name) or 0 for name in arrows(site.disk))
        return site.opened.log_start == 14 and bases[0] == site.opened.view().segments[0].base_offset


class Rolling(Work):
    config = LogConfig(segment_bytes=100_000, segment_age_us=LATER_US)

    def begin(self, site: Site) -> None:
        site.open()
        assert site.opened.segment_count == 1

    def grow(self, log: Log) -> None:
        for number in range(24):
            append(log, 1, NOW_US + number, size_bytes=300)
        save(log)

    def attempt(self, site: Site) -> None:
        log = site.opened
        log.tick(site.now_us)
        run_flush(log)

    def is_done(self, site: Site) -> bool:
        return site.opened.segment_count == 2


def run_flush(log: Log) -> None:
    if (task := log.flush()) is None:
        return
    try:
        task.run()
    except OSError as error:
        log.flush_failed(task, error)
        raise
    log.flushed(task)
    log.note_flushed()


class Checkpointing(Work):
    def begin(self, site: Site) -> None:
        site.open()
        append(site.opened, 1, 100)

    def __init__(self) -> None:
        super().__init__()
        self.rows.append(24)

    def attempt(self, site: Site) -> None:
        log = site.opened
        if log.log_end == 24:  # it was opened again, without what was not flushed
            append(log, 1, 100)
        run_flush(log)
        log.tick(site.now_us)
        run_flush(log)

    def is_done(self, site: Site) -> bool:
        newest = checkpoints.read(site.disk.crash_clone(Keep.SYNCED), DIRECTORY).newest
        return newest is not None and newest.flushed_end == 25


class BeginningAnEpoch(Checkpointing):
    """The lineage gets an entry, and a batch follows it."""

    def begin(self, site: Site) -> None:
        site.open()

    def attempt(self, site: Site) -> None:
        if site.opened.leader_epoch == 1:
            site.opened.start_epoch(2)
        super().attempt(site)


class Truncating(Work):
    CUT = 13

    def attempt(self, site: Site) -> None:
        log = site.opened
        if (task := log.truncate(self.CUT)) is None:
            return
        try:
            task.run()
        except _FAILURES as error:
            log.truncate_failed(task, error)
            raise
        log.truncated(task)

    def is_done(self, site: Site) -> bool:
        return site.opened.log_end <= self.CUT

    def fits(self, found: list[int], *, has_lost_power: bool) -> bool:
        """A merged batch goes as a whole. What was cut may come back, where the sync of that has failed: it is beyond
        flushed_end, and is compared with the leader's log again.
        """
        whole = self.rows[: len(found)] == found
        return whole and 12 <= len(found) <= (len(self.rows) if has_lost_power else self.CUT)


class TruncatingCleaned(Truncating):
    """Older files of what is cut are there still."""

    def begin(self, site: Site) -> None:
        site.open()
        assert clean_all(site.opened, site.now_us) > 1


class Resetting(Work):
    def __init__(self) -> None:
        super().__init__()
        self.rows = []

    def attempt(self, site: Site) -> None:
        log = site.opened
        if (log.log_start, log.log_end) == (50, 50):
            return
        task = log.reset(50)
        try:
            task.run()
        except _FAILURES as error:
            log.truncate_failed(task, error)
            raise
        log.truncated(task)

    def is_done(self, site: Site) -> bool:
        return (site.opened.log_start, site.opened.log_end) == (50, 50)


class Opening(Work):
    """After a crash: a torn tail, a segment of which retention has taken what is before, and one of two generations."""

    def __init__(self) -> None:
        super().__init__()
        log = open_log(self.disk, LogConfig(segment_bytes=4096, max_messages=10), must_exist=True)
        clean_all(log, NOW_US)
        retention = log.tick(NOW_US)
        assert retention is not None
        retention.run()
        assert log.apply_retention(retention) is not None  # and is not run
        log.checkpoint()
        append(log, 1, NOW_US)
        path = log.view().segments[-1].path
        self.disk = self.disk.crash_clone(Keep.ALL)
        file = self.disk.open(path)
        file.truncate(file.size() - 5)
        self.disk.remove(f"{DIRECTORY}/{arrows(self.disk)[-2].replace('.arrows', '.index')}")
        self.rows = list(range(14, 24))

    def begin(self, site: Site) -> None:
        """It is the opening itself."""

    def attempt(self, site: Site) -> None:
        if site.log is None:
            site.open()

    def is_done(self, site: Site) -> bool:
        return site.opened.state is LogState.WRITABLE


class Mending(Work):
    """`harm` is what has happened to its files; `end`: the leader has nothing from there on."""

    def __init__(self, harm: str) -> None:
        super().__init__()
        self.other = self.disk.crash_clone(Keep.ALL)
        self.end = 24
        names = arrows(self.disk)
        path = f"{DIRECTORY}/{names[1]}"
        if harm == "flipped":
            flip(self.disk, path, self.disk.open(path).size() // 2)
        elif harm == "gone":
            self.disk.remove(f"{DIRECTORY}/{names[0]}")
            self.disk.remove(path)
        elif harm == "flipped, with the lineage":
            flip(self.disk, path, self.disk.open(path).size() // 2)
            flip(self.disk, f"{DIRECTORY}/{LINEAGE}", 3)
        else:
            flip(self.disk, path, self.disk.open(path).size() // 2)
            log = open_log(self.disk.crash_clone(Keep.ALL), self.config, must_exist=True)
            find_all(log)
            self.end = log.damage[0].base_offset
        self.disk.remove(path.replace(".arrows", ".index"))
        self.disk = self.disk.crash_clone(Keep.ALL)
        self.rows = list(range(self.end))

    def begin(self, site: Site) -> None:
        site.open()
        find_all(site.opened)
        assert site.opened.state is LogState.READ_ONLY

    def attempt(self, site: Site) -> None:
        log = site.opened
        find_all(log)
        if log.state is LogState.WRITABLE:
            return
        refused: Exception | None = None
        if not log.awaits_opening:
            other = open_log(self.other, self.config, must_exist=True)
            mending = mend(log, Donor(other, self.other, self.end, 2_000))
            log.supersede()
            try:
                mending.place()
            except _FAILURES as error:
                refused = error
        self.open(site)
        if refused is not None:
            raise refused

    def open(self, site: Site) -> None:
        """What was renamed is brought to the disk first."""
        site.log = None
        site.vfs.sync_dir(DIRECTORY)
        super().open(site)

    def is_done(self, site: Site) -> bool:
        find_all(site.opened)
        return site.opened.state is LogState.WRITABLE


WORKS = {
    "merging": Merging,
    "compacting": Compacting,
    "expiring": Expiring,
    "disposing": Disposing,
    "retaining": Retaining,
    "rolling": Rolling,
    "checkpoint": Checkpointing,
    "lineage": BeginningAnEpoch,
    "truncating": Truncating,
    "truncating what was cleaned": TruncatingCleaned,
    "resetting": Resetting,
    "opening": Opening,
}
MENDED = ("flipped", "gone", "flipped, with the lineage", "flipped, and the leader ends before")


@cache
def work_of(name: str) -> Work:
    return WORKS[name]() if name in WORKS else Mending(name)


def generation_of(path: str) -> int:
    found = parsed(path.rpartition("/")[2])
    assert found is not None
    return found.generation


def arrows(disk: MemoryVfs) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(".arrows")]


def offsets(site: Site) -> list[int]:
    view = site.opened.view()
    return [offset for offset in offsets_of(view) if offset >= view.log_start]


def go_on(site: Site, work: Work) -> None:
    """As a node does: what has failed is tried again later."""
    for _ in range(TRIES_MAX):
        site.now_us += LATER_US
        try:
            is_to_open = site.log is None or site.log.state is LogState.FENCED
            if is_to_open or (site.opened.state is LogState.READ_ONLY and not isinstance(work, Mending)):
                work.open(site)
            work.attempt(site)
            if work.is_done(site):
                return
        except _FAILURES:
            continue
    raise AssertionError("it is never done")


def check(site: Site, work: Work) -> None:
    """All is as it should be, now, after a stop, and after a power loss; and the log goes on."""
    assert site.opened.state is LogState.WRITABLE
    assert work.fits(offsets(site), has_lost_power=False)
    site.opened.close()
    for disk, has_lost_power in ((site.disk.crash_clone(Keep.SYNCED), True), (site.disk, False)):
        again = Site(disk, work.config)
        again.open()
        assert (again.opened.state, again.opened.damage) == (LogState.WRITABLE, ())
        found, log_end = offsets(again), again.opened.log_end
        assert work.fits(found, has_lost_power=has_lost_power)
        names = disk.list(DIRECTORY)
        assert not [name for name in names if is_unfinished(name) or name.endswith(".new")]
        assert max(Counter(map(owner_of, arrows(disk))).values()) == 1, arrows(disk)
        copies = [disk.open(f"{DIRECTORY}/{name}").read_at(0, 10**6) for name in names if ".cut-" in name]
        assert len(copies) == len(set(copies)), "what is kept aside is kept once"
        if not again.opened.lineage:
            again.opened.start_epoch(again.opened.leader_epoch + 1)
        append(again.opened, 1, again.now_us + LATER_US)
        run_flush(again.opened)
        assert offsets(again) == [*found, log_end]
        again.opened.close()
        assert not verify_log(disk, DIRECTORY).mistakes


def _every(count: int, wanted: int) -> int:
    """The step between those that are tried: with --long all are, else others with every change of the code."""
    return 1 if IS_LONG else max(1, count // wanted)


def faults(count: int) -> Iterator[tuple[int, int, int]]:
    """Which operation fails first, how many in a row, and why: all, or as many of them as there is time for."""
    every = _every(count * len(REFUSALS), FAULTS)
    for number in range(code_seed() % every, count * len(REFUSALS), every):
        yield number // len(REFUSALS), REFUSALS[number % len(REFUSALS)], errno.EIO if number % 2 else errno.ENOSPC


def failing(disk: MemoryVfs, first: int, end: int, error_number: int, failed: list[FileOperation]) -> Plan:
    """The plan in which the operations from `first` up to `end` fail; a sync gives up what it was to write."""
    count = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal count
        count += 1
        if not first < count <= end:
            return None
        failed.append(operation)
        if operation.kind is FileOperationKind.SYNC and disk.find(operation.path) is not None:
            disk.fail_sync(operation.path)
        return FileFault(error_number, operation.length // 2)

    return plan


@pytest.mark.parametrize("name", [*WORKS, *MENDED])
def test_what_fails_is_done_again(name: str) -> None:
    work = work_of(name)
    for first, times, error_number in faults(work.operations):
        site = Site(work.disk.crash_clone(Keep.ALL), work.config)
        work.begin(site)
        failed: list[FileOperation] = []
        site.vfs.plan = failing(site.disk, first, first + times, error_number, failed)
        try:
            go_on(site, work)
            site.vfs.plan = no_faults
            check(site, work)
        except BaseException as error:
            error.add_note(f"{name}: {times} from number {first} on, {errno.errorcode[error_number]}: {failed}")
            raise
        assert failed


@pytest.mark.parametrize("keep", [Keep.ALL, Keep.SYNCED])
@pytest.mark.parametrize("name", [*WORKS, *MENDED])
def test_what_is_cut_short_is_done_again(name: str, keep: Keep) -> None:
    work = work_of(name)
    assert work.operations > 5
    site = Site(work.disk.crash_clone(Keep.ALL), work.config)
    work.begin(site)
    clones: list[tuple[FileOperation, MemoryVfs]] = []

    def watch(operation: FileOperation) -> None:
        if operation.kind in CHANGES:
            clones.append((operation, site.disk.crash_clone(keep)))

    site.vfs.watcher = watch
    go_on(site, work)
    assert clones
    every = _every(len(clones), CLONES)
    for operation, clone in clones[code_seed() % every :: every]:
        again = Site(clone, work.config)
        try:
            go_on(again, work)
            check(again, work)
        except BaseException as error:
            error.add_note(f"{name}, after {operation}")
            raise
