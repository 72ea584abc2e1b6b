"""A short run of real brokers under real faults, and one with a planted mistake, which must be found."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.base.ids import BrokerId, LeaderEpoch, PartitionId
from penstock.messages import PartitionInfo
from tests.chaos import __main__ as chaos_main
from tests.chaos import checker, faults, run
from tests.chaos.history import Kept, Place
from tests.extent import needs_time

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "chaos.md").read_text()
NO_NAMESPACES = 2
CUTS = {"cut off", "cut from brokers", "cut one way", "cut from NATS", "slow link"}
RUN_S_MAX = 400.0  # of which nearly all is for a machine that others use as well


def chaos(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run it as `make chaos` does; its exit code, and what it says."""
    command = [sys.executable, "-m", "tests.chaos", "--keep", "--folder", str(folder / "run"), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    return done.returncode, done.stdout + done.stderr


def report(folder: Path) -> dict:
    """What a run has written down."""
    return json.loads((folder / "run" / "report.json").read_text())  # type: ignore[no-any-return]


def struck_once(folder: Path, names: str, *arguments: str) -> None:
    """A run strikes each of these faults once, as far as this machine can, and finds nothing."""
    asked = names.split(",")
    # The first strikes of a plan are each of its faults once, and no time ends it before.
    code, said = chaos(folder, "--faults", names, "--strikes", str(len(asked)), "--minutes", "5", *arguments)
    assert code == 0, said
    found = report(folder)
    assert found["mistakes"] == {}
    assert found["acked"] > 100
    assert found["struck"].keys() | found["left_out"].keys() == set(asked), said
    assert found["left_out"].keys() <= (CUTS if found["network"] == "Loopback" else set()), said


@needs_time
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    struck_once(tmp_path, "kill,pause,power loss of all,cut from brokers", "--seed", "3", "--nats", "3")


@needs_time
def test_a_short_run_of_five_brokers_and_three_nats_servers_finds_nothing(tmp_path: Path) -> None:
    some = "flipped bit,truncated file,empty disk,step the clock,roll"
    struck_once(tmp_path, some, "--seed", "5", "--brokers", "5", "--nats", "3")


@needs_time
def test_a_log_that_is_synced_too_late_is_found(tmp_path: Path) -> None:
    some = ("--seed", "2", "--strikes", "1", "--faults", "power loss of all", "--mutant", "no background sync")
    code, said = chaos(tmp_path, *some, "--no-majority-damage", "--recovery", "10")
    assert code == 1, said
    assert report(tmp_path)["mistakes"].keys() >= {"late sync"}


@needs_time
def test_a_planted_mistake_is_found(tmp_path: Path) -> None:
    mistake = "committed_end counts nobody of the ISR but the leader"
    some = ("--seed", "1", "--minutes", "0.2", "--faults", "cut from brokers", "--network", "namespaces")
    code, said = chaos(tmp_path, *some, "--mutant", mistake, "--no-majority-damage", "--recovery", "60")
    if code == NO_NAMESPACES:
        pytest.skip(said.strip())
    assert code == 1, said
    assert report(tmp_path)["mistakes"].keys() >= {"lost write", "inconsistent offset"}


def test_nothing_goes_of_a_damaged_log() -> None:
    before = {"0.arrows": b"half", "0.index": b"1", "lineage": b"ab", "checkpoint": b"end 9", "0.arrows.cut-3": b"x"}
    assert run.gone(before, before) == []
    more = {"0.arrows": b"half and more", "lineage": b"abc", "checkpoint": b"9", "0.arrows.cut-3": b"x", "new": b""}
    assert run.gone(before, more) == []
    assert run.gone(before, {}) == [
        f"{name} was deleted" for name in ("0.arrows", "0.arrows.cut-3", "checkpoint", "lineage")
    ]
    for name in ("0.arrows", "lineage", "0.arrows.cut-3"):
        assert run.gone(before, {**more, name: b"h"}) == [f"{name} was cut or changed"]
    assert run.gone({"0.1.arrows": b"x"}, {"0.arrows": b"x"}) == ["0.1.arrows was deleted"], "another file"
    mended = {"0.2.arrows": b"header and more", "0.1.arrows.cut-6": b" and"}
    assert run.gone({"0.1.arrows": b"header and"}, mended) == []
    for wrong in ("0.1.arrows.cut-6", "0.2.arrows"):
        left = {name: content for name, content in mended.items() if name != wrong}
        assert run.gone({"0.1.arrows": b"header and"}, left) == ["0.1.arrows was deleted"]
    assert run.gone({"0.1.arrows": b"header or"}, mended) == ["0.1.arrows was deleted"], "other bytes are kept"
    assert run.gone({"1.1.arrows": b"header and"}, mended) == ["1.1.arrows was deleted"], "of another segment"


def test_bits_flip_in_segments_and_in_what_lies_beside_them(tmp_path: Path) -> None:
    names = ("0.arrows", "7.arrows", "0.index", "7.index", "lineage", "checkpoint", "0.arrows.cut-3", "empty.index")
    for name in names:
        (tmp_path / name).write_bytes(b"" if name == "empty.index" else b"1")
    segments = [tmp_path / "0.arrows", tmp_path / "7.arrows"]
    struck = [faults.to_flip(segments, random.Random(seed)).name for seed in range(200)]
    assert set(struck) == {"0.arrows", "7.arrows", "0.index", "7.index", "lineage", "checkpoint"}
    assert struck.count("lineage") > 10
    for name in names[2:]:
        (tmp_path / name).unlink()
    assert {faults.to_flip(segments, random.Random(seed)).suffix for seed in range(9)} == {".arrows"}


def test_a_disk_that_has_nothing_is_told_too(tmp_path: Path) -> None:
    part = PartitionInfo(
        partition=PartitionId(0), leader_epoch=LeaderEpoch(1), replicas=(BrokerId(1), BrokerId(3)), isr=(BrokerId(1),)
    )
    place = Place("orders", 0)
    empty = tmp_path / "streams" / "1-orders" / "0"
    empty.mkdir(parents=True)
    kept = run.kept_on_disks(place, part, lambda number, _: [empty] if number == 1 else [])
    assert list(kept) == [Kept("disk of broker 1", place, {}), Kept("disk of broker 3", place, {})]


def test_a_seed_gives_one_plan_with_each_fault_in_it() -> None:
    plan = faults.plan(7, 3, 40)
    assert plan == faults.plan(7, 3, 40)
    assert plan != faults.plan(8, 3, 40)
    assert {strike.fault for strike in plan[: len(faults.FAULTS)]} == faults.FAULTS.keys()
    assert all(strike.broker != strike.other for strike in plan)


def test_the_page_has_every_fault_and_every_class() -> None:
    assert [name for name in (*faults.FAULTS, *checker.CLASSES) if f"| {name} |" not in PAGE] == []


def test_what_is_printed_runs_the_same_plan_again() -> None:
    wanted = "--seed 7 --brokers 5 --nats 3 --faults 'kill,cut from brokers' --strikes 9 --network loopback"
    wanted += " --mutant 'no background sync' --lying-disks --no-majority-damage --recovery 30 --minutes 0.5"
    given = chaos_main._parsed(shlex.split(wanted))
    command = chaos_main._again(given, chaos_main._options(given))
    found = re.fullmatch(r'make chaos MINUTES=(\S+) ARGS="(.*)"', command)
    assert found is not None, command
    again = chaos_main._parsed(["--minutes", found[1], *shlex.split(found[2])])
    assert chaos_main._options(again) == chaos_main._options(given)
    assert again.network == given.network


@pytest.mark.parametrize("wrong", ["--minutes=-1", "--minutes=0", "--strikes=0", "--folder=/tmp", "--mutant=nonsense"])
def test_what_cannot_be_run_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chaos_main.main([wrong])
    assert "error:" in capsys.readouterr().err
