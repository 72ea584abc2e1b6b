"""Telling systemd, with a real socket in its place."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from penstock.broker.process.systemd import Notifier

TIMEOUT_S = 5.0


def listening(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(TIMEOUT_S)
    receiver.bind(address)
    return receiver


def test_ready_status_and_stopping(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listening(path) as receiver:
        notifier = Notifier({"NOTIFY_SOCKET": path})
        assert notifier.ready("serving on 127.0.0.1:7422")
        assert receiver.recv(1000) == b"READY=1\nSTATUS=serving on 127.0.0.1:7422"
        assert notifier.status("two\nlines")
        assert receiver.recv(1000) == b"STATUS=two lines"
        assert notifier.stopping()
        assert receiver.recv(1000) == b"STOPPING=1"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_an_abstract_socket() -> None:
    name = f"penstock-test-{os.getpid()}"
    with listening(f"\0{name}") as receiver:
        assert Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert receiver.recv(1000) == b"READY=1"


@pytest.mark.parametrize("value", ["", "relative", "/nowhere/notify", "@penstock-nobody-listens"])
def test_nobody_to_tell(value: str) -> None:
    assert not Notifier({"NOTIFY_SOCKET": value}).ready()
    assert not Notifier({}).ready()
