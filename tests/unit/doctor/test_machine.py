"""What is thought of a machine, from what Linux tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.doctor.findings import Result
from penstock.doctor.machine import (
    Limits,
    Mount,
    disk_space,
    file_system,
    judge_limits,
    judge_machine,
    limits_of,
    mount_of,
)

GIB = 2**30
DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("free", "each_day", "expected"),
    [
        (50 * GIB, None, Result.OK),
        (50 * GIB, 1 * GIB, Result.OK),
        (50 * GIB, 10 * GIB, Result.WARN),
        (50 * GIB, 60 * GIB, Result.FAIL),
        (8 * GIB, None, Result.WARN),
        (2 * GIB, None, Result.FAIL),
    ],
)
def test_a_disk_that_fills_up(free: int, each_day: int | None, expected: Result) -> None:
    rate = None if each_day is None else each_day / DAY_US
    assert disk_space("d", free, 100 * GIB, rate).result is expected


def test_a_rate_is_told_with_the_time_that_is_left() -> None:
    assert (
        "with 10.0 GiB a day, as since its start, that is 5d, "
        in disk_space("d", 50 * GIB, 100 * GIB, 10 * GIB / DAY_US).found
    )
    assert "more than 1" in disk_space("d", 50 * GIB, 100 * GIB, 1 / DAY_US).found


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ext4", Result.OK),
        ("xfs", Result.OK),
        ("nfs4", Result.WARN),
        ("fuse.anything", Result.WARN),
        ("overlay", Result.WARN),
        ("tmpfs", Result.FAIL),
    ],
)
def test_kinds_of_file_systems(kind: str, expected: Result) -> None:
    assert file_system("d", Mount(kind, "/")).result is expected


def test_the_mount_is_the_innermost_and_the_last_one(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 8:2 / /var rw shared:1 - xfs /dev/sdb1 rw\n"
        "3 2 0:9 / /var/lib\\040x rw - nfs4 server:/x rw\n"
        "4 2 0:8 / /var rw - tmpfs tmpfs rw\n"
        "nonsense\n"
    )
    assert mount_of(Path("/var/lib x/penstock"), mounts) == Mount("nfs4", "/var/lib x")
    assert mount_of(Path("/var/other"), mounts) == Mount("tmpfs", "/var")
    assert mount_of(Path("/variable"), mounts) == Mount("ext4", "/")
    assert mount_of(Path("/"), tmp_path / "none") is None


def _machine(root: Path, memory_max: str) -> None:
    proc = root / "proc" / "7"
    proc.mkdir(parents=True)
    (proc / "limits").write_text(
        "Limit  Soft Limit  Hard Limit Units\nMax open files            1024      4096     files\n"
    )
    (proc / "status").write_text("VmRSS:\t  100 kB\nVmSwap:\t      8 kB\n")
    (proc / "cgroup").write_text("0::/system.slice/penstock.service\n")
    (root / "proc" / "meminfo").write_text("MemTotal:       16777216 kB\n")
    group = root / "sys/fs/cgroup/system.slice/penstock.service"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(memory_max)


def test_limits_are_those_of_the_process_and_its_control_groups(tmp_path: Path) -> None:
    _machine(tmp_path, "536870912\n")
    assert limits_of(7, tmp_path) == Limits(1024, 512 * 2**20, 8 * 1024)
    assert limits_of(8, tmp_path) == Limits(None, 16 * GIB, None)


@pytest.mark.parametrize(
    ("limits", "in_flight", "found"),
    [
        (Limits(1_024, None, None), None, "may open 1024 files"),
        (Limits(None, GIB, 0), 600 * 2**20, "600.0 MiB may be in flight, of 1.0 GiB of memory"),
        (Limits(None, None, 4_096), None, "4.0 KiB of it are swapped out"),
    ],
)
def test_limits_that_are_too_low(limits: Limits, in_flight: int | None, found: str) -> None:
    assert [(one.result, one.found) for one in judge_limits("d", limits, in_flight)] == [(Result.WARN, f"d: {found}")]


def test_limits_that_do_are_told() -> None:
    found = judge_limits("d", Limits(65_536, 16 * GIB, 0), 256 * 2**20)
    assert [(one.result, one.found) for one in found] == [(Result.OK, "d: 65536 open files, 16.0 GiB of memory")]


def test_a_folder_that_is_no_brokers_is_named(tmp_path: Path) -> None:
    found = list(judge_machine(tmp_path, {}))
    assert [one.result for one in found] == [Result.UNKNOWN]
    assert str(tmp_path) in found[0].found


def test_of_a_broker_that_does_not_run_here_the_disk_is_looked_at(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "penstock.json").write_text('{"format": 1, "id": "x", "broker_id": 2}')
    (tmp_path / "proc").mkdir()
    found = list(judge_machine(data, {}, tmp_path))
    assert [one.check for one in found] == ["disk", "limits"]
    assert found[-1].found.startswith(f"broker 2, {data}: ")
