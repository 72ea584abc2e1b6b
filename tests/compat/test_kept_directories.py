"""Data directories of released versions: a broker of this version starts on each, and finds all that is in it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.broker_process import running_broker
from tests.compat import kept_directory
from tests.extent import each_change

KEPT = sorted((Path(__file__).parent / "golden").glob("[0-9]*.tar.bz2"))


def test_there_is_one() -> None:
    assert [path.name for path in KEPT][:1] == ["0.3.0.tar.bz2"]


@each_change
@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
async def test_a_broker_goes_on_with_what_a_released_version_left(kept: Path, tmp_path: Path) -> None:
    with tarfile.open(kept) as archive:
        archive.extractall(tmp_path, filter="data")
    with running_broker(tmp_path / "data", "--auth") as broker:
        await kept_directory.check(broker)
        assert broker.stop() == 0, broker.said
        broker.start()
        assert broker.stop() == 0, broker.said
