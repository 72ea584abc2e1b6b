"""The page on messages that expire: its commands and its program run in order, as they stand."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from textwrap import indent

import penstock
from tests.broker_process import running_broker
from tests.docs.test_consumer_groups import run
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/message-ttl.md").read_text(encoding="utf-8")
PROGRAM = """
import asyncio
async def main():
{text}
    print(ack.seq)
asyncio.run(main())
"""


def run_page(page: str, folder: Path) -> tuple[list[str], list[penstock.Message], str]:
    """What its commands and programs say, what is in their stream then, and how that is shown."""
    blocks = re.findall(r"```(sh|python)\n(.*?)```", page, flags=re.DOTALL)
    said: list[str] = []
    stream = ""
    with running_broker(folder) as broker:
        for language, text in blocks:
            if language == "python":
                program = PROGRAM.format(
                    text=indent(text.replace("connect()", f"connect({broker.nats_url!r})"), "    ")
                )
                said.append(run(broker.client_address, "-c", program))
                continue
            for line in text.splitlines():
                words = shlex.split(line)
                assert words[0] == "penstock"
                stream = words[3] if words[1:3] == ["stream", "create"] else stream
                said.append(run(broker.client_address, "-m", "penstock", *words[1:]))
        with penstock.connect(broker.client_address) as client:
            found = list(client.messages(stream))
        return said, found, run(broker.client_address, "-m", "penstock", "stream", "show", stream, "--json")


@needs_time
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    said, found, shown = run_page(PAGE, tmp_path / "data")
    assert said[2] == "2\n"
    assert [(one.value, one.headers["Nats-TTL"]) for one in found] == [(b"token-4711", "1h"), (b"token-4711", "30m")]
    config = json.loads(shown)["config"]
    assert (config["allow_message_ttl"], config["subject_delete_marker_ttl_ms"]) == (True, 60_000)
