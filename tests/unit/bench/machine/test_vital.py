"""A process that everything depends on ends: whoever waits is told at once, with its last words."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from penstock_bench.machine.processes import child
from penstock_bench.machine.vital import EndedError, check, how, vital
from tests.extent import each_change

PYTHON = [sys.executable, "-S", "-c"]
WAITS = "import sys; sys.stdin.read()"


@each_change
def test_who_waits_for_another_process_is_told() -> None:
    freed: list[str] = []
    with child("other", [*PYTHON, WAITS]) as other, vital() as needed:
        needed.give_up = lambda: freed.append("freed")
        says = f"import sys; print('last words', file=sys.stderr, flush=True); {WAITS}"
        with child("server", [*PYTHON, says], on_end=needed.ended) as server:
            server.next_line(10, of_log=True)
            check()
            os.kill(server.process_id, signal.SIGKILL)
            with pytest.raises(EndedError) as caught:
                other.next_line(30)
            text = "server ended while it was measured (killed by SIGKILL); its log ends with:\nlast words"
            assert str(caught.value) == text
            with pytest.raises(EndedError):
                check(10)
    assert freed == ["freed"]
    check()  # it is not wanted any more


def test_a_process_that_is_stopped_has_not_ended_by_itself() -> None:
    with vital() as needed:
        with child("server", [*PYTHON, WAITS], on_end=needed.ended):
            pass
        check()


def test_a_process_that_ends_by_itself_says_with_what() -> None:
    with vital() as needed, child("server", [*PYTHON, "raise SystemExit(3)"], on_end=needed.ended):
        with pytest.raises(EndedError, match=r"server ended while it was measured \(exit code 3\); it said nothing"):
            check(10)
    assert how(-200) == "killed by signal 200"
