"""Children that die with us, and a Ctrl-C that waits until a child has a name."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from penstock.broker.process.parent_death_signal import dying_with_parent, uninterrupted

TIMEOUT_S = 20.0
PARENT = """
import subprocess, sys
from penstock.broker.process.parent_death_signal import dying_with_parent
child = subprocess.Popen(dying_with_parent([sys.executable, "-S", "-c", "input()"]), stdin=subprocess.PIPE)
sys.stdout.write(f"{child.pid}\\n")
sys.stdout.flush()
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_child_does_not_outlive_a_parent_that_was_killed() -> None:
    # The child holds this pipe open, so its end is the end of the pipe.
    command = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    reader = threading.Thread(target=parent.stdout.read, daemon=True)
    reader.start()
    parent.kill()
    reader.join(TIMEOUT_S)
    assert not reader.is_alive()
    parent.communicate()


def test_a_child_becomes_the_command() -> None:
    command = dying_with_parent([sys.executable, "-S", "-c", "import sys; sys.exit(7)"])
    assert subprocess.run(command, timeout=TIMEOUT_S, check=False).returncode == 7


def test_a_ctrl_c_waits_until_the_child_has_a_name() -> None:
    name = ""
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (what happens inside is what is tested)
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            name = "child"
        pytest.fail("it was forgotten")
    assert name == "child"


def test_without_one_nothing_happens_and_the_handlers_are_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_take_no_signals() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT_S)
    assert done == [True]
