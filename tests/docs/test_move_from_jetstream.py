"""The page on moving from JetStream: its commands run in order, on a real JetStream, and the stream goes on here."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

from tests.cli_process import command
from tests.extent import needs_time
from tests.integration.test_import_jetstream import both, check_same, filled

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/move-from-jetstream.md").read_text(encoding="utf-8")


@needs_time
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    blocks = [text.splitlines() for text in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)]
    copy, again, switch, see, reset, several = blocks
    (skip,) = re.findall(r"^penstock import .* --skip-unstorable$", PAGE, flags=re.MULTILINE)
    async with both(tmp_path) as (js, broker, client):
        await filled(js, 50)
        await js.add_stream(name="MIXED", subjects=["eu.*", "us.*"])
        await asyncio.gather(*(js.publish(f"{where}.x", b"1") for where in ("eu", "us", "eu")))

        async def run(line: str) -> str:
            said, _ = await command(broker.client_address, *shlex.split(line)[1:])
            return said

        assert (await run(copy[0])).startswith("imported 50 messages")
        await js.publish("orders.x", b"since")
        assert (await run(again[0])).startswith("imported 1 message of")
        assert (await run(skip)).startswith("imported 0 messages of")
        assert (await run(switch[0])).endswith("stream orders stores orders.> from now on\n")
        await check_same(js, client, "ORDERS", "orders", list(range(1, 52)))
        assert (await js.publish("orders.x", b"here")).seq == 52
        assert "51" in [await run(line) for line in see][1]
        assert "it begins in orders at offset 42" in await run(reset[0])
        assert [(await run(line)).split(";")[0] for line in several] == [
            "imported 2 messages of MIXED",
            "imported 1 message of MIXED",
        ]
