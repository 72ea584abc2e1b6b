"""What a broker writes is for its user and that user's group at most, also in a directory that others can look into."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import penstock
from tests.broker_process import running_broker
from tests.extent import each_change


@each_change
def test_nothing_in_a_data_directory_is_for_others(tmp_path: Path) -> None:
    data = tmp_path / "volume"
    data.mkdir()
    data.chmod(0o755)
    before = os.umask(0o022)
    try:
        with running_broker(data) as broker:
            with penstock.connect(broker.client_address) as client:
                client.create_stream("orders", "orders", partitions=2)
                client.append("orders", [{"value": b"one"}])
            broker.restart()
    finally:
        os.umask(before)
    modes = {str(one.relative_to(data)): stat.S_IMODE(one.stat().st_mode) for one in data.rglob("*")}
    assert {"LOCK", "penstock.json", "streams"} <= set(modes)
    assert any(name.endswith("nats-server.conf") for name in modes)
    assert any(name.endswith(".arrows") for name in modes)
    allowed = {name: 0o750 if (data / name).is_dir() else 0o640 for name in modes}
    assert {name: oct(mode) for name, mode in modes.items() if mode & ~allowed[name]} == {}
