"""The page on streams that wait for archives: its commands and its programs run in order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import penstock
from tests.broker_process import running_broker
from tests.docs.test_consumer_groups import environment, run
from tests.docs.test_message_ttl import DOCS
from tests.extent import needs_time

PAGE = (DOCS / "how-to/keep-until-archived.md").read_text(encoding="utf-8")


def command(server: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        env=environment(server),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    commands, reported, sure, forgotten = re.findall(r"```(?:sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        for line in commands.splitlines():
            run(broker.client_address, "-m", "penstock", *shlex.split(line)[1:])
        show = ("-m", "penstock", "stream", "show", "trades")
        assert "no archive has reported yet: nothing is deleted" in run(broker.client_address, *show)
        client.append("trades", [{"subject": "trades.a", "value": b"x"}] * 5)
        run(broker.client_address, "-c", reported.replace("120_000", "3"))
        assert re.search(r"archived up to +3 \(lake 3\)", run(broker.client_address, *show))
        run(broker.client_address, "-c", sure)
        assert client.stream("trades").partitions[0].archived_end == 5
        (forget,) = forgotten.splitlines()
        unknown = command(broker.client_address, *shlex.split(forget)[1:-1], "lak", "--yes")
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert "stream trades waits for no archive 'lak': it waits for lake" in unknown.stderr
        nobody = command(broker.client_address, *shlex.split(forget)[1:])
        assert nobody.returncode == 1
        assert "Stream trades knows no other archive, and deletes nothing until one reports. Forget" in nobody.stderr
        assert client.stream("trades").partitions[0].archived_end == 5
        said = run(broker.client_address, "-m", "penstock", *shlex.split(forget)[1:], "--yes")
        assert said == "stream trades waits for archive lake no longer\n"
        assert client.stream("trades").partitions[0].archived_end is None
