"""A run of the benchmark keeps what it found, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from penstock.base.errors import OperationalError
from penstock_bench.cli.run import BenchPlace, run_experiment, running
from penstock_bench.experiments.experiment import Findings, Said
from penstock_bench.machine.run_folder import place
from penstock_bench.measure.rounds import Measurement
from penstock_bench.results.report import SHARED, STOPPED, Figure, compared, read_json

COMPARISON = compared(
    name="publish",
    title="Publish",
    titles={"a": "A"},
    measurements=[Measurement(system="a", round_number=0, value=30.0)],
    pairs=[],
)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_whole_run_is_written_and_its_folder_is_gone(tmp_path: Path, logs: Path) -> None:
    file, page = tmp_path / "run.json", tmp_path / "run.html"
    with running("throughput", BenchPlace(logs, 1), total=1, json_file=file, html_file=page) as run:
        (run.folder / "log").write_bytes(b"1")
        run.show(COMPARISON)
    report = read_json(file)
    assert report.comparisons == [COMPARISON]
    assert report.notes == (SHARED,)
    assert "Publish" in page.read_text()
    assert list(logs.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OperationalError("no space left")])
def test_what_was_found_before_a_run_ended_too_early_is_written(
    tmp_path: Path, logs: Path, error: BaseException
) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(type(error)):  # noqa: PT012 (what happens inside is what is tested)
        with running("throughput", BenchPlace(logs, 1), total=1, json_file=file) as run:
            run.show(COMPARISON)
            raise error
    report = read_json(file)
    assert report.comparisons == [COMPARISON]
    assert STOPPED in report.notes
    assert list(logs.iterdir()) == []


def test_a_run_that_found_nothing_writes_nothing(tmp_path: Path, logs: Path) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(OperationalError):
        with running("throughput", BenchPlace(logs, 1), total=1, json_file=file):
            raise OperationalError("no nats-server")
    assert not file.exists()


def test_ctrl_c_before_anything_was_found_says_so(
    tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(KeyboardInterrupt), running("throughput", BenchPlace(logs, 1), total=1, json_file=file):
        raise KeyboardInterrupt
    assert "stopped before anything was finished" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("broken", ["json", "html"])
def test_a_file_that_cannot_be_written_costs_neither_the_other_nor_the_tables(
    tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    files = {"json": tmp_path / "run.json", "html": tmp_path / "run.html"}
    whole = next(file for kind, file in files.items() if kind != broken)
    with pytest.raises(typer.Exit) as ended:  # noqa: PT012 (what happens inside is what is tested)
        with running(
            "throughput", BenchPlace(logs, 1), total=1, json_file=files["json"], html_file=files["html"]
        ) as run:
            run.show(COMPARISON)
            files[broken].mkdir()  # as good as a disk that has become full meanwhile
    shown = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert SHARED in " ".join(shown.out.split())
    assert f"{files[broken]} could not be written: Is a directory" in shown.err
    assert whole.stat().st_size > 100


def test_two_reports_do_not_go_to_one_file(tmp_path: Path, logs: Path) -> None:
    file, same = tmp_path / "run.json", tmp_path / "logs" / ".." / "run.json"
    with (
        pytest.raises(typer.BadParameter, match="what --json writes"),
        running("throughput", BenchPlace(logs, 1), total=1, json_file=file, html_file=same),
    ):
        pytest.fail("it is said before anything begins")


def test_a_folder_is_named_so_that_it_can_be_removed_from_anywhere(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = logs / "my disk" / "penstock-bench-killed"
    killed.mkdir(parents=True)
    (killed / "bench.pid").write_text("1\n")
    monkeypatch.chdir(logs)
    with running("throughput", BenchPlace(Path("my disk"), 1), total=1):
        assert f"rm -r '{killed}'\n" in capsys.readouterr().err


def test_a_run_says_beforehand_how_long_it_will_be(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running("throughput", BenchPlace(logs, 1), total=1) as run:
        run.will_take(300)
        assert "about 5 minutes\n" in capsys.readouterr().out


def test_a_folder_that_a_killed_run_left_is_named_and_left_alone(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = logs / "penstock-bench-killed"
    killed.mkdir()
    (killed / "bench.pid").write_text("1\n")
    with place(logs, bytes_needed=1) as alive, running("throughput", BenchPlace(logs, 1), total=1):
        said = capsys.readouterr().err
    assert f"left behind by a bench that was killed: rm -r {killed}\n" in said
    assert str(alive) not in said
    assert list(logs.iterdir()) == [killed]


class Planned:
    """An experiment with known findings."""

    steps, seconds, bytes_needed = 1, 1.0, 1

    def __init__(self, *findings: Figure) -> None:
        self.findings = Findings(list(findings), ("b: 1 of 1 round does not count: it was lost",))

    def run(self, folder: Path, said: Said) -> Findings:
        said("done")
        return self.findings


def test_what_does_not_count_is_in_the_report(tmp_path: Path, logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    run_experiment("tls", Planned(Figure("a", "how long a takes", "s", 1.5)), logs, file)
    report = read_json(file)
    assert [one.name for one in report.figures] == ["a"]
    assert report.notes == (SHARED, "b: 1 of 1 round does not count: it was lost")
    assert "b: 1 of 1 round does not count: it was lost" in capsys.readouterr().out


def test_a_run_of_which_nothing_counts_fails(tmp_path: Path, logs: Path) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(OperationalError, match="nothing could be measured: b: 1 of 1 round does not count"):
        run_experiment("tls", Planned(), logs, file)
    assert not file.exists()
