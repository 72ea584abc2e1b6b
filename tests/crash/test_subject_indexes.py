"""The power fails at every operation of indexing, and of what takes indexes away: no query is answered wrongly."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from penstock.commitlog import Log, LogConfig, LogState, SubjectQueries
from penstock.vfs.faulty import CHANGES, FaultyVfs, FileOperation
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import each_change
from tests.logs import DIRECTORY, clean_all, give_up_before, open_log, retain, run, save
from tests.property.test_subject_queries import rows_of, table
from tests.subjects import append_on

pytestmark = [pytest.mark.usefixtures("at_rest"), each_change]

CONFIG = LogConfig(segment_bytes=4_000, indexes_subjects=True)


def filled(vfs: FaultyVfs) -> Log:
    log = open_log(vfs, replace(CONFIG, indexes_subjects=False))
    log.start_epoch(1)
    for number in range(10):
        append_on(log, ["common", f"own.{number}", f"some.{number % 3}"])
    save(log)
    log.note_committed(log.log_end)
    log.configure(CONFIG)
    return log


def indexed(log: Log) -> None:
    clean_all(log)
    if (disposal := log.dispose()) is not None:
        disposal.run()
        log.disposed()


def truncated(log: Log) -> None:
    run(log, log.truncate(13))
    append_on(log, ["other"] * 40)
    append_on(log, ["other"] * 40)
    save(log)
    log.note_committed(log.log_end)
    indexed(log)


def retained(log: Log) -> None:
    removal = give_up_before(log, 20)
    assert removal is not None
    removal.run()
    log.removed(removal)


def check(disk: MemoryVfs, where: str) -> None:
    log = open_log(disk, CONFIG, must_exist=True)
    assert (log.state, log.damage, log.notices) == (LogState.WRITABLE, (), ()), where
    view = log.view()
    rows = rows_of(view, view.log_end)
    for _ in range(2):  # from what was left, then from what the cleaner made
        queries = SubjectQueries(view, view.log_end)
        assert queries.matching([">"], limit=1_000) == table(rows), where
        assert [queries.of(row.subject) for row in table(rows)[::3]] == table(rows)[::3], where
        assert not view.wrong_indexes, where
        indexed(log)
        view = log.view()
    if (removal := retain(log, 10**16)) is not None:  # what the crash interrupted
        removal.run()
        log.removed(removal)
    names = [name for name in disk.list(DIRECTORY) if ".subjects" in name]
    wanted = [one.path.rpartition("/")[2].replace(".arrows", ".subjects") for one in view.segments[:-1]]
    assert names == wanted, where
    log.close()


@pytest.mark.parametrize(
    "steps", [[indexed], [indexed, retained], [indexed, truncated]], ids=lambda steps: steps[-1].__name__
)
def test_a_crash_at_any_operation_leaves_right_answers(steps: list) -> None:  # type: ignore[type-arg]
    disk = MemoryVfs()
    vfs = FaultyVfs(disk)
    log = filled(vfs)
    for step in steps[:-1]:
        step(log)
    clones: list[tuple[MemoryVfs, str]] = []

    def after(operation: FileOperation) -> None:
        if operation.kind in CHANGES:
            clones.append((disk.crash_clone(Keep.SYNCED), f"synced after {operation}"))
            clones.append((disk.crash_clone(Keep.ALL), f"all after {operation}"))
            clones.append((disk.crash_clone(Keep.SUBSET, Random(len(clones))), f"subset after {operation}"))

    vfs.watcher = after
    steps[-1](log)
    vfs.watcher = None
    assert len(clones) > 20
    for clone, where in clones:
        check(clone, where)
