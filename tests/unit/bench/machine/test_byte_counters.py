"""What the kernel counts: of files, of what was written to them, and of connections."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from penstock_bench.machine.byte_counters import traffic

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def test_bytes_of_connections_count_once_and_both_ways(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        port = listener.getsockname()[1]
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as server:
            before = traffic([tmp_path], [os.getpid()], {port})
            client.sendall(bytes(10_000))
            received = 0
            while received < 10_000:
                received += len(server.recv(10_000))
            server.sendall(bytes(2_000))
            while received < 12_000:
                received += len(client.recv(2_000))
            now = traffic([tmp_path], [os.getpid()], {port})
            assert now.since(before).network_bytes in (10_000, 12_000), "what was sent counts once it is acked"
            assert traffic([tmp_path], [os.getpid()], {other.getsockname()[1]}).network_bytes == 0


def test_a_connection_that_ends_does_not_reduce_what_the_others_carried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports = {listener.getsockname()[1]}
        with socket.create_connection(listener.getsockname()) as staying, listener.accept()[0] as server:
            with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as ending:
                client.sendall(bytes(50_000))
                ending.recv(50_000, socket.MSG_WAITALL)
                before = traffic([], [], ports)
            staying.sendall(bytes(7_000))
            server.recv(7_000, socket.MSG_WAITALL)
            now = traffic([], [], ports)
    assert now.network_bytes < before.network_bytes
    assert now.since(before).network_bytes == 7_000


def test_a_deleted_file_does_not_reduce_what_others_grew_by(tmp_path: Path) -> None:
    for name, size in (("deleted", 1_000), ("cut", 500), ("grown", 10)):
        (tmp_path / name).write_bytes(bytes(size))
    before = traffic([tmp_path], [], ())
    (tmp_path / "deleted").unlink()
    (tmp_path / "cut").write_bytes(bytes(100))
    (tmp_path / "grown").write_bytes(bytes(30))
    assert traffic([tmp_path], [], ()).since(before).disk_bytes == 20


def test_files_of_folders_within_count(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(bytes(100))
    (tmp_path / "a" / "b" / "two").write_bytes(bytes(11))
    assert traffic([tmp_path / "a"], [], ()).disk_bytes == 111
    assert traffic([tmp_path / "a" / "b"], [], ()).disk_bytes == 11


def test_what_a_process_writes_counts_unless_it_lies_in_memory(tmp_path: Path) -> None:
    before = traffic([], [os.getpid()], ())
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    written = traffic([], [os.getpid()], ()).since(before).written_bytes
    assert written == 0 or 1 << 20 <= written < (1 << 20) + (1 << 16)  # the file system may write a page of its own
