"""The pages on backups and restores: their commands and their program run in order, and do what they say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.broker_process import broker_environment, running_broker
from tests.extent import needs_time
from tests.integration.test_backup import rows_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("backup.md", "restore.md")
PAGE = "".join((DOCS / "how-to" / page).read_text(encoding="utf-8") for page in PAGES)


@needs_time
async def test_the_pages_do_what_they_say(tmp_path: Path) -> None:
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "sh", "sh", "python", "sh", "sh"]
    said = []
    with running_broker(tmp_path / "old") as old, running_broker(tmp_path / "new") as new:
        async with await old.client() as here, await new.client() as there:
            await here.create_stream("orders", "orders.>")
            await here.append("orders", [{"subject": "orders.eu", "value": f"{n}"} for n in range(100)])

            def run(*arguments: str) -> str:
                more = {"PENSTOCK_SERVER": old.client_address}
                done = subprocess.run(
                    [sys.executable, *arguments],
                    env=broker_environment(more),
                    cwd=tmp_path,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert done.returncode == 0, (arguments, done.stderr)
                return done.stdout

            for language, text in blocks:
                if language == "python":
                    said.append(run("-c", text))
                    continue
                for line in text.splitlines():
                    words = shlex.split(line.replace("other:7422", new.client_address))
                    said.append(run("-m", "penstock", *words[1:]))
                    if len(said) == 2:
                        await here.append("orders", [{"subject": "orders.eu", "value": "since"}])
            assert "backup has 100 rows more" in said[0]
            assert "backup has 1 row more" in said[2]
            assert "Sound: a backup of 101 rows." in said[3]
            assert await rows_of(there, "orders") == await rows_of(here, "orders")
            assert await rows_of(here, "orders-of-monday") == await rows_of(here, "orders")
            assert said[4] == "100\n1\n"
