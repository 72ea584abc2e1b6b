"""The disk of a simulated broker, and every way in which it fails."""

from __future__ import annotations

import errno
from random import Random

import pytest

from penstock.commitlog.files import checkpoint
from penstock.commitlog.files.files import segment_path
from penstock.node.step import DiskWork, Lane
from penstock.testing.simulation.disk import Disk, PowerCut
from penstock.testing.simulation.scheduler import Scheduler
from tests.logs import DIRECTORY, append, flush, open_log


class Stage:
    """A disk, and what came back from it."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.disk = Disk(self.scheduler, Random(1))
        self.back: list[Exception | None] = []
        self.deaths = 0
        self.disk.died = self._died

    def _died(self) -> None:
        self.deaths += 1

    def submit(self, run) -> None:
        self.disk.submit(DiskWork(Lane.WRITE, run, lambda _error: None), lambda _work, error: self.back.append(error))

    def wait(self, us: int = 10_000_000) -> None:
        self.scheduler.run_until(self.scheduler.now_us + us)

    def write(self, path: str = "a", data: bytes = b"x" * 600) -> None:
        file = self.disk.vfs.open(path, create=True)
        file.write_at(0, data)
        file.sync()
        file.close()
        self.disk.vfs.sync_dir("")


def test_work_is_done_and_told_of_later() -> None:
    stage = Stage()
    stage.submit(stage.write)
    assert stage.disk.open_count == 1
    assert not list(stage.disk.memory.files())
    stage.wait()
    assert stage.back == [None]
    assert stage.disk.open_count == 0
    assert list(stage.disk.memory.files()) == ["a"]


def test_work_of_a_run_that_is_over_is_not_done() -> None:
    stage = Stage()
    stage.submit(stage.write)
    stage.disk.forget()
    stage.wait()
    assert stage.back == []
    assert not list(stage.disk.memory.files())


def test_a_full_disk_and_a_failing_sync() -> None:
    stage = Stage()
    stage.disk.is_full = True
    with pytest.raises(OSError, match="No space") as full:
        stage.write()
    assert full.value.errno == errno.ENOSPC
    stage.disk.heal()
    stage.disk.syncs_to_fail = 1
    with pytest.raises(OSError, match="Input/output error"):
        stage.write("0.arrows")
    stage.write("0.arrows")


def test_the_power_is_cut_between_two_operations() -> None:
    stage = Stage()
    stage.write("kept")
    stage.disk.cut_power_after(2)  # the file is made, its bytes are written
    with pytest.raises(PowerCut):
        stage.write("lost")
    assert stage.disk.is_off
    with pytest.raises(PowerCut):  # whatever is tried behind it
        stage.write("later")
    stage.disk.restore()
    assert stage.disk.vfs.open("kept").read_at(0, 1_000) == b"x" * 600
    assert "later" not in stage.disk.memory.files()


def test_the_power_is_cut_while_a_thread_works() -> None:
    stage = Stage()
    stage.disk.cut_power_after(1)
    stage.submit(stage.write)
    stage.wait()
    assert stage.deaths == 1
    assert stage.back == []


def test_a_sealed_segment_is_harmed_and_no_other_file() -> None:
    stage = Stage()
    assert stage.disk.harm_a_segment() is None
    found = set()
    for _ in range(40):
        for name in ("0.arrows", "1.arrows", "0.index"):
            stage.write(f"streams/1/0/{name}")
        assert stage.disk.harm_a_segment() == "streams/1/0/0.arrows"
        data = stage.disk.vfs.open("streams/1/0/0.arrows").read_at(0, 1_000)
        found.add((len(data) < 600, sum(byte != ord("x") for byte in data)))
        assert stage.disk.vfs.open("streams/1/0/1.arrows").read_at(0, 1_000) == b"x" * 600
    assert found == {(True, 0), (False, 1)}


@pytest.mark.parametrize("is_off", [False, True], ids=["running", "after a power cut"])
def test_the_end_of_a_log_is_harmed_where_only_its_newest_checkpoint_covers_it(is_off: bool) -> None:
    for seed in range(20):
        disk = Disk(Scheduler(), Random(seed))
        log = open_log(disk.vfs)
        assert disk.harm_an_end() is None, "there is one checkpoint"
        for rows in (1, 3):
            append(log, rows)
            flush(log)
            log.checkpoint()
        if is_off:
            disk.power_off()
        path = disk.harm_an_end()
        assert path == segment_path(DIRECTORY, 0)
        disk.restore()
        assert len(checkpoint.read(disk.memory, DIRECTORY).mistakes) == 1
        again = open_log(disk.memory)
        assert (again.log_end, len(again.cuts)) == (1, 1), "it looks like a torn tail"


def test_another_disk_is_empty() -> None:
    stage = Stage()
    stage.write()
    stage.disk.replace()
    assert not list(stage.disk.memory.files())


@pytest.mark.parametrize("only_one", [True, False])
def test_what_hangs_is_done_when_the_hang_is_over(only_one: bool) -> None:
    stage = Stage()
    end = stage.disk.hang(only_one=only_one)
    stage.submit(lambda: stage.write("a"))
    stage.wait()
    stage.submit(lambda: stage.write("b"))
    stage.wait()
    assert list(stage.disk.memory.files()) == (["b"] if only_one else [])
    end()
    stage.wait()
    assert sorted(stage.disk.memory.files()) == ["a", "b"]
    assert stage.back == [None, None]


def test_what_hangs_in_a_run_that_is_over_is_not_done() -> None:
    stage = Stage()
    end = stage.disk.hang(only_one=False)
    stage.submit(stage.write)
    stage.wait()
    stage.disk.forget()
    end()
    stage.wait()
    assert not list(stage.disk.memory.files())


def test_nothing_hangs_once_all_is_mended() -> None:
    stage = Stage()
    stage.disk.hang(only_one=False)
    stage.submit(stage.write)
    stage.wait()
    stage.disk.heal()
    stage.submit(stage.write)
    stage.wait()
    assert stage.back == [None, None]


def test_a_disk_that_is_set_back_has_what_was_copied_and_keeps_its_number() -> None:
    stage = Stage()
    stage.write("a")
    copy = stage.disk.copy()
    stage.write("b")
    stage.disk.power_off()
    stage.disk.set_back(copy)
    assert (list(stage.disk.memory.files()), stage.disk.number) == (["a"], 1)
    assert stage.disk.is_older
    assert not stage.disk.is_off
    stage.disk.replace()
    assert (list(stage.disk.memory.files()), stage.disk.number) == ([], 2)
    assert not stage.disk.is_older
