"""Commands that are forked from a warm process: each is a process of its own, and ends as a started one does."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.broker_process import broker_environment


def forked(*arguments: str, cwd: Path | None = None, **variables: str) -> warm.Forked:
    return warm.Forked(
        ["penstock", *arguments],
        env=broker_environment(variables),
        cwd=cwd,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_it_has_its_own_output_and_exit_code(tmp_path: Path) -> None:
    with forked("--version") as good, forked("no-such-command") as wrong:
        assert good.pid != wrong.pid
        said, errors = good.communicate(timeout=60)
        assert (good.returncode, errors) == (0, "")
        assert said.startswith("penstock ")
        said, errors = wrong.communicate(timeout=60)
        assert (wrong.returncode, said) == (2, "")
        assert "no-such-command" in errors


def test_it_has_its_own_variables_and_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with forked("verify", "here", cwd=tmp_path, PENSTOCK_SERVER="127.0.0.1:1") as running:
        _, errors = running.communicate(timeout=60)
        assert running.returncode
        assert "here" in errors
    with forked("status", PENSTOCK_SERVER="127.0.0.1:1") as running:
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 1
        assert "127.0.0.1:1" in errors


def test_it_is_killed_and_waited_for(tmp_path: Path) -> None:
    places = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--nats-port", "0"]
    before_s = warm.cpu_s()
    with forked("serve", *places) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline().startswith("ready ")
        assert broker.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            broker.wait(timeout=0)
        broker.kill()
        assert broker.wait(timeout=60) == -signal.SIGKILL
    assert warm.cpu_s() > before_s


@pytest.mark.parametrize(
    ("variables", "fits"),
    [
        ({"PENSTOCK_SERVER": "127.0.0.1:1"}, True),
        ({"PENSTOCK_PLAIN": "1"}, False),
        ({"PYTHONHASHSEED": "1"}, False),
        ({"LC_ALL": "C"}, False),
    ],
)
def test_what_an_interpreter_reads_when_it_starts_cannot_be_given(variables: dict[str, str], *, fits: bool) -> None:
    assert warm.fits(broker_environment(variables)) is fits
