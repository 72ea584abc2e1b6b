"""A run of the benchmark keeps what it found, however it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.bench.report import SHARED, STOPPED, compared, read_json
from penstock.bench.rounds import Measurement
from penstock.cli.bench_run import Place, running

COMPARISON = compared(
    name="publish",
    title="Publish",
    titles={"a": "A"},
    measurements=[Measurement(system="a", round_number=0, value=30.0)],
    pairs=[],
)


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_a_whole_run_is_written_and_its_folder_is_gone(tmp_path: Path) -> None:
    file, page = tmp_path / "run.json", tmp_path / "run.html"
    with running("throughput", Place(tmp_path / "logs", 1), total=1, json_file=file, html_file=page) as run:
        (run.folder / "log").write_bytes(b"1")
        run.show(COMPARISON)
    report = read_json(file)
    assert report.comparisons == [COMPARISON]
    assert report.notes == (SHARED,)
    assert "Publish" in page.read_text()
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OperationalError("no space left")])
def test_what_was_found_before_a_run_ended_too_early_is_written(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(type(error)):  # noqa: PT012 (what happens inside is what is tested)
        with running("throughput", Place(tmp_path / "logs", 1), total=1, json_file=file) as run:
            run.show(COMPARISON)
            raise error
    report = read_json(file)
    assert report.comparisons == [COMPARISON]
    assert STOPPED in report.notes
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_run_that_found_nothing_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(OperationalError):
        with running("throughput", Place(tmp_path / "logs", 1), total=1, json_file=file):
            raise OperationalError("no nats-server")
    assert not file.exists()
