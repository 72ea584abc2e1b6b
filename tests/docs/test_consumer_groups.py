"""The page on consumer groups: its commands and programs run in order, as they stand, and do what it says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import penstock
from tests.broker_process import running_broker
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/consumer-groups.md").read_text(encoding="utf-8")
TIMEOUT_S = 60


def environment(server: str) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_SERVER": server, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}


def run(server: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(server),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def followed(server: str, program: str, value: str) -> str:
    """What a program says that goes on until Ctrl-C, of one message that comes while it runs."""
    running = subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", program],
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        run(server, "-m", "penstock", "publish", "orders.eu", value)
        assert running.stdout is not None
        first = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        rest, error = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
    assert error.splitlines()[-1:] == ["KeyboardInterrupt"]
    return first + rest


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "python", "sh", "python", "sh"]
    said: list[str] = []
    with running_broker(tmp_path / "data") as broker:
        with penstock.connect(broker.client_address) as client:
            client.create_stream("orders", "orders.>")
        for language, text in blocks:
            if language == "python" and "follow=True" in text:
                said.append(followed(broker.client_address, text, "4"))
                continue
            if language == "python":
                said.append(run(broker.client_address, "-W", "error", "-c", text))
                continue
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "penstock"
                said.append(run(broker.client_address, "-m", "penstock", *words[1:]))
    reads = [text.count('"offset"') for text in said[:5]]
    assert (reads[2], reads[4]) == (2, 1)  # the second time only what came since
    assert said[5].splitlines() == ["0 b'1'", "1 b'2'", "2 b'3'", "3 {0: 0}"]
    assert said[6].splitlines() == ["partition 0 offset 3"]  # what came then; it had all the others
    assert "billing" in said[7]
    assert "orders" in said[9]
    assert said[10] in ("0 4 0 None\n", "0 3 1 None\n")  # Ctrl-C came once the last message was done, or in its midst
    assert f"would go on in orders at offset 0; it was at {said[10].split()[1]}" in said[11]
    assert "goes on in orders at offset 2; it was at 0" in said[13]
