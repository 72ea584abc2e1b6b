"""The page on copies: its commands run in order, and do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.broker_process import running_broker
from tests.cli_process import command
from tests.extent import needs_time
from tests.integration.test_backup import rows_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/copy.md").read_text(encoding="utf-8")


@needs_time
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    named, away, moved = (text.splitlines() for text in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL))
    with running_broker(tmp_path / "old") as old, running_broker(tmp_path / "new") as new:
        async with await old.client() as here, await new.client() as there:
            await here.create_stream("orders", "orders.*.*")
            rows = [{"subject": f"orders.{'eu' if n % 2 else 'us'}.{n}", "value": f"{n}"} for n in range(1_200)]
            await here.append("orders", rows)
            for line in (*named, *away, *moved):
                words = shlex.split(line.replace("other:7422", new.client_address))
                await command(old.client_address, *words[1:])
            whole = await rows_of(here, "orders")
            assert await rows_of(here, "orders-copy") == whole
            assert await rows_of(here, "orders-eu") == [one for one in whole[:1_000] if ".eu." in str(one[2])]
            assert await rows_of(there, "orders") == whole
            assert (await there.publish("orders.eu.x", b"here")).offset == 1_200
