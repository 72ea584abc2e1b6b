"""The page on bridging JetStream: its command and its code run, and what JetStream has comes into the stream."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import textwrap
from pathlib import Path

from nats.js.api import StreamConfig

from tests.cli_process import command
from tests.extent import each_change
from tests.integration.test_jetstream_push import bridge

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/bridge-jetstream.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return [textwrap.dedent(text) for text in re.findall(rf" *```{language}\n(.*?) *```", PAGE, flags=re.DOTALL)]


async def run(code: str, js: object) -> str:
    """Run a block; `js` stands for the connection that it makes."""
    names: dict[str, object] = {"js": js}
    code = code.replace("js = (await nats.connect()).jetstream()\n", "")
    exec(f"async def block():\n{textwrap.indent(code, ' ')}", names)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        await names["block"]()  # type: ignore[operator]
    return said.getvalue()


@each_change
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    ((create,), (add, look)) = blocks("sh"), blocks("python")
    async with bridge(tmp_path) as there:
        await there.js.add_stream(StreamConfig(name="ORDERS", subjects=["orders.>"]))
        for number in range(3):
            await there.js.publish("orders.eu", b"%d" % number)
        await command(there.broker.client_address, *shlex.split(create)[1:])
        await run(add, there.js)
        await there.until_acked(3, "ORDERS", "penstock")
        assert await run(look, there.js) == "3 0\n"
        found = [(one.subject, one.value) async for one in there.client.messages("orders-bridge")]
        assert found == [("orders.eu", b"0"), ("orders.eu", b"1"), ("orders.eu", b"2")]
