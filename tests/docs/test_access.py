"""The pages on users, permissions and quotas: their commands run in order on a broker that requires a login."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from penstock import aio
from tests.broker_process import running_broker
from tests.extent import needs_time

DOCS = Path(__file__).parents[2] / "docs"
RUN = ("embedded-nats-login", "access", "acl", "rotate-credentials", "quotas", "audit-log")


def text_of(page: str) -> str:
    return (DOCS / "how-to" / f"{page}.md").read_text(encoding="utf-8")


@needs_time
async def test_the_pages_do_what_they_say(tmp_path: Path) -> None:
    said = {}
    with running_broker(tmp_path / "penstock-data", "--auth") as broker:
        credentials = tmp_path / "penstock-data" / "admin.credentials"
        async with aio.connect(broker.client_address, credentials=credentials) as admin:
            await admin.create_stream("orders", "orders.>")
        environment = {**broker.environment, "PENSTOCK_SERVER": broker.client_address}
        blocks = [
            (page, *block)
            for page in RUN
            for block in re.findall(r"```(sh|python)\n(.*?)```", text_of(page), re.DOTALL)
        ]
        environment["PENSTOCK_CREDENTIALS"] = str(credentials)
        for page, language, text in blocks:
            if page == "access" and text.startswith("penstock serve"):
                environment["PENSTOCK_CREDENTIALS"] = ""  # from here on as the pages say
            lines = [dedent(text)] if language == "python" else text.splitlines()
            for line in lines:
                if line.startswith("penstock serve"):
                    continue
                if line.startswith("export"):
                    name, value = line.removeprefix("export ").split("=")
                    environment[name] = value
                    continue
                words = ["-c", line] if language == "python" else ["-m", *shlex.split(line)]
                done = subprocess.run(
                    [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
                )
                said[line.strip()] = done.stdout
                assert done.returncode == (1 if words[1:4] == ["penstock", "acl", "test"] else 0), (line, done.stderr)
                assert "Traceback" not in done.stderr
    assert said["penstock acl test billing append --stream orders --subject orders.us.1"].startswith("denied")
    assert said[next(line for line in said if "client.users" in line)] == "billing\n"
    assert said[next(line for line in said if "token_credential" in line)] == "False\nshipping 1\n"
    assert os.stat(tmp_path / "billing.token").st_mode & 0o777 == 0o600
    told = said["penstock read __audit"]
    assert [act for act in ("create_user", "change_rules", "alter_user", "create_stream") if act not in told] == []
