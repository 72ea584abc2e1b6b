"""Children that end with their context, and what a process has cost."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.generator import Load
from penstock_bench.machine import worker
from penstock_bench.machine.processes import child, children_of, cpu_seconds, cpu_seconds_of, listening_on

PYTHON = [sys.executable, "-S", "-c"]


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_clock_of_a_process_is_that_of_its_cpu() -> None:
    before = cpu_seconds("we", os.getpid())
    assert abs(before - time.process_time()) < 1.0
    sum(range(200_000))
    assert cpu_seconds("we", os.getpid()) > before


def test_a_process_that_is_gone_has_no_cost_and_that_is_an_error() -> None:
    with child("short", [*PYTHON, "pass"]) as process:
        process_id = process.process_id
    with pytest.raises(OperationalError, match=r"^nats-server ended while it was measured$"):
        cpu_seconds_of({"we": os.getpid(), "nats-server": process_id})
    assert children_of(process_id) == []


def test_a_child_is_ended_by_the_context_whatever_happens() -> None:
    context = child("long", [*PYTHON, "input()"])
    process_id = context.__enter__().process_id
    assert process_id in children_of(os.getpid())
    assert not context.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not is_running(process_id)


def test_a_child_that_does_not_want_to_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.base.limits.BENCH_STOP_S", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    with child("deaf", [*PYTHON, deaf]) as process:
        process.next_line(10)
    assert not is_running(process.process_id)


def test_what_a_child_says_is_found_and_told_when_it_fails() -> None:
    code = "import sys; sys.stderr.write('port 42\\nserves\\n'); sys.exit('no luck')"
    with child("unlucky", [*PYTHON, code]) as process:
        assert process.wait_for(re.compile(rb"port (\d+)"), 10)[1] == b"42"
        with pytest.raises(OperationalError, match="unlucky ended too early:\nport 42\nserves\nno luck"):
            process.wait_for(re.compile(rb"never"), 10)


def test_a_child_that_says_nothing_is_not_waited_for_longer_than_asked() -> None:
    with child("silent", [*PYTHON, "input()"]) as process, pytest.raises(OperationalError, match="said nothing"):
        process.next_line(0.05)


def double(task: Load) -> Iterator[Load]:
    """A worker."""
    yield Load(size=2 * task.size)


def refuse(task: Load) -> Iterator[Load]:
    """A worker that fails."""
    yield from ()
    raise OperationalError(f"{task.size} is too much")


def test_a_worker_runs_a_function_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", "not-for-a-worker:1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert worker.run(double, Load(size=21), timeout_s=20) == Load(size=42)


def test_a_worker_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with pytest.raises(OperationalError, match="OperationalError: 5 is too much"):
        worker.run(refuse, Load(size=5), timeout_s=20)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_listens_on_an_address_of_this_machine_is_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        address = Address(host, server.getsockname()[1])
        assert listening_on(address) == os.getpid()
    assert listening_on(address) != os.getpid()


def test_a_listener_on_another_address_of_the_port_is_not_meant() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        assert listening_on(Address("127.0.0.1", port)) != os.getpid()
        assert listening_on(Address("127.0.0.2", port)) == os.getpid()


@pytest.mark.parametrize("host", ["::", "0.0.0.0", "::ffff:127.0.0.1"])
def test_a_listener_on_all_addresses_is_found_by_each(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        if ":" in host:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, 0))
        server.listen()
        assert listening_on(Address("127.0.0.1", server.getsockname()[1])) == os.getpid()


def test_who_listens_elsewhere_is_not_looked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listening_on(Address("192.0.2.1", server.getsockname()[1])) is None
