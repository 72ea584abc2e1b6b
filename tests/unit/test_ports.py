"""Each process that runs tests has ports of its own, below those that the kernel gives to anybody."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.ports import free_ports, ports_in_a_row

ROOT = Path(__file__).resolve().parents[2]
MANY = 400  # of the 500 of a process


def test_no_port_is_given_to_two_processes() -> None:
    here = set(free_ports(MANY))
    program = f"from tests.ports import free_ports; print(*free_ports({MANY}))"
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not here & {int(port) for port in said.split()}


def test_a_port_on_which_somebody_listens_is_passed_over() -> None:
    first = ports_in_a_row(1)
    with socket.create_server(("127.0.0.1", first + 2)):
        assert ports_in_a_row(3) >= first + 3
    assert max(free_ports(10)) < 32_768, "the kernel gives it to nobody unasked"
