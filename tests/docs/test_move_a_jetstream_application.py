"""The application of move-a-jetstream-application.md runs on JetStream and on Penstock, and says what the page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acked_consumers import SYSTEMS
from tests.broker_process import running_broker, running_nats
from tests.conformance.configs import wait_for_api
from tests.conformance.servers import System
from tests.docs.pages import PAGES, blocks
from tests.extent import each_change
from tests.integration.test_jetstream_streams import api_options

PAGE = "move-a-jetstream-application"
TIMEOUT_S = 120


@each_change
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_application_says_the_same(tmp_path: Path, system: System) -> None:
    found = list(blocks(PAGES[PAGE].read_text(encoding="utf-8")))
    (program,) = [text for language, text in found if language == "python"]
    (said,) = [text for language, text in found if language == "text"]
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    with serving(system, tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "shop.py", url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (done.stdout, done.returncode) == (said, 0), done.stderr


@contextmanager
def serving(system: System, folder: Path) -> Iterator[str]:
    """Run a system in a folder; return the URL of its nats-server."""
    if system is System.NATS_SERVER:
        with running_nats(folder / "nats", f'jetstream {{ store_dir: "{folder / "store"}" }}\n') as nats:
            yield nats.url
        return
    with running_broker(folder / "data", *api_options()) as broker:
        wait_for_api(int(broker.nats_url.rpartition(":")[2]), None)
        yield broker.nats_url
