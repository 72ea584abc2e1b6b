"""The programs of pages in Go and JavaScript, and their calls of `nats`, do what they say.

Rules: README.md, read-from-any-language.md and key-value-and-objects.md. A program runs as it stands, but for the
address of NATS. Where there is no Go, or no Node, its programs are skipped.
"""

from __future__ import annotations

from pathlib import Path

import nats
import pytest

from penstock import aio
from tests.broker_process import BrokerProcess, running_broker
from tests.docs.pages import PAGES, blocks, command_lines
from tests.extent import each_change
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options
from tests.nats_programs import by_go, by_nats, by_node

SAID = {
    ("README", "nats"): ("Item: orders#2 ", "stream: orders seq: 1 ", '{"total": 46}'),
    ("README", "js"): ('orders.eu 2 {"total": 47}\n',),
    ("README", "go"): ('orders.eu {"total": 42}\norders.eu {"total": 48}\n',),
    ("read-from-any-language", "nats"): ("Stream sales was created", "Sequence: 3", "Messages: 3", "sales#3"),
    ("read-from-any-language", "js"): ('sales.eu 1 {"total": 42}\n',),
    ("read-from-any-language", "go"): ('sales.eu 2 {"total": 43}\n',),
    ("key-value-and-objects", "nats"): ("blue\n", "colors > sky", "README.md"),
    ("key-value-and-objects", "js"): ("7\n300000\n",),
    ("key-value-and-objects", "go"): ("10 1\n300000\n",),
}
"""By page and language: what the programs print, among others."""


def programs(page: str, language: str) -> list[str]:
    """The programs of one language, or the commands of `nats`, in order."""
    found = blocks(PAGES[page].read_text(encoding="utf-8"))
    if language != "nats":
        return [text for name, text in found if name == language]
    return [line for name, text in found if not name for line in command_lines(text) if line.startswith("nats ")]


@each_change
@pytest.mark.parametrize(("page", "language"), SAID)
async def test_the_programs_of_a_page_do_what_they_say(tmp_path: Path, page: str, language: str) -> None:
    run = {"js": by_node, "go": by_go, "nats": by_nats}[language]
    (tmp_path / "README.md").write_text("# Read me\n")
    with running_broker(tmp_path / "data", *api_options()) as broker:
        await prepare(broker, page, language)
        said = "".join(run(text, tmp_path, broker.nats_url) for text in programs(page, language))
    for expected in SAID[page, language]:
        assert expected in said


async def prepare(broker: BrokerProcess, page: str, language: str) -> None:
    """Have deliveries work, and store what the page has stored before."""
    connection = await nats.connect(broker.nats_url)
    try:
        await delivering(connection)
    finally:
        await connection.close()
    if page == "README" or (page == "read-from-any-language" and language != "nats"):
        async with aio.connect(broker.client_address) as client:
            name = "orders" if page == "README" else "sales"
            await client.create_stream(name, f"{name}.>")
            await client.publish(f"{name}.eu", b'{"total": 42}')
            if page != "README":
                await client.publish(f"{name}.eu", b'{"total": 43}')
