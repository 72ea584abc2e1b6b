"""The page on a secured cluster: three brokers with all of it, made by its commands as they stand, and looked at."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.broker.config import tls_settings
from penstock.node.controller import audit
from tests.broker_process import BrokerProcess, broker_environment, running_nats
from tests.extent import needs_time
from tests.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/secure.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SECRETS, USERS, LOOK, API_USER = (block for kind, block in BLOCKS if kind == "sh")
(CONFIG,) = (block for kind, block in BLOCKS if kind == "toml")
NATS_CONFIG, SERVE = (block for kind, block in BLOCKS if kind in ("text", ""))
HOSTS = ("a", "b", "c")
TIMEOUT_S = 300


class Place:
    """A directory in which the page's commands run; its hosts are all this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(HOSTS))]
        programs = folder / "bin"
        programs.mkdir()
        (programs / "penstock").write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error -m penstock "$@"\n')
        (programs / "penstock").chmod(0o755)
        self._environment = broker_environment({"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})

    def here(self, text: str) -> str:
        for host, address in zip(HOSTS, self.addresses, strict=True):
            text = text.replace(f"{host}.example.com:7422", address)
        return re.sub(r"(?:\w+\.example\.com,?)+", "127.0.0.1", text)

    def run(self, block: str, *, code: int = 0) -> str:
        """What a block of commands says."""
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", self.here(block)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, (block, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    @contextmanager
    def brokers(self, nats_port: int) -> Iterator[list[BrokerProcess]]:
        """Those that the page starts."""
        assert SERVE == "penstock serve --config penstock.toml\n"
        with ExitStack() as stack:
            started = []
            for number, address in enumerate(self.addresses, 1):
                text = self.here(CONFIG).replace("id = 1\n", f"id = {number}\n").replace(":4222", f":{nats_port}")
                file = self.folder / f"penstock-{number}.toml"
                file.write_text(text.replace("0.0.0.0:8422", "127.0.0.1:0"))
                broker = BrokerProcess(self.folder / f"data-{number}", "--config", str(file))
                broker.arguments = ["--config", str(file)]
                broker.listen = address
                stack.callback(broker.end)
                broker.launch()
                started.append(broker)
            for broker in started:
                assert broker.stdout is not None
                broker.stdout.wait_for("ready", TIMEOUT_S)
            yield started


@needs_time
def test_a_cluster_as_on_the_page_holds_what_it_says(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.run(SECRETS)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("*.secret")} == {0o600}
    config = NATS_CONFIG.replace('"certs/', f'"{tmp_path}/certs/')
    for name, file in (("$NATS_SECRET", "nats.secret"), ("$SHOP_SECRET", "shop.secret")):
        config = config.replace(name, f'"{(tmp_path / file).read_text().strip()}"')
    (tmp_path / "nats").mkdir()
    with running_nats(tmp_path / "nats", config) as server, place.brokers(server.port) as brokers:
        environment = "".join(line + "\n" for line in USERS.splitlines() if line.startswith("export"))
        place.run(USERS)
        said = place.run(environment + LOOK)
        place.run(environment + API_USER)
        assert "fail" not in re.sub(r"may fail", "", said)
        for well in ("NATS refuses clients without credentials", "publishes on orders.> only", "all are good until"):
            assert well in " ".join(re.sub(r"[│\n]", " ", said).split()), said
        for act in ("create_user", "create_stream", "change_rules", "alter_user"):
            assert act in said
        without = environment.replace("PENSTOCK_TLS_CERT=certs/client.pem PENSTOCK_TLS_KEY=certs/client.key", "")
        place.run(without + "penstock read orders", code=1)
        place.run(environment + "unset PENSTOCK_CREDENTIALS; penstock read orders", code=1)
        place.run(environment + "export PENSTOCK_CREDENTIALS=billing.token; penstock read __audit", code=1)
        assert "not to NATS" not in "".join(broker.said for broker in brokers)


def test_its_ciphers_are_those_that_are_taken() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(tls_settings._CIPHERS)
    named = set(re.findall(r"`((?:ECDHE|TLS)[-_][A-Z0-9_-]+)`", PAGE))
    assert named == {cipher["name"] for cipher in context.get_ciphers()}


def test_the_acts_that_it_names_are_told() -> None:
    source = Path(audit.__file__).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", PAGE[PAGE.index("| `act` |") :], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {"act"}
    assert {"create_user", "truncate"} <= named <= set(re.findall(r'"act": "(\w+)"', source))


@pytest.mark.parametrize("page", ["docs/how-to/secure.md", "SECURITY.md"])
def test_every_linked_file_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert links
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_it_is_linked_where_one_looks() -> None:
    for page in (
        "README.md",
        "docs/README.md",
        "docs/how-to/access.md",
        "docs/how-to/tls.md",
        "docs/how-to/cluster.md",
    ):
        assert "secure.md" in (ROOT / page).read_text(encoding="utf-8"), page


INTO_A_FILE = re.compile(
    r"> *\"?(?:[\w./-]*(?:secret|password|credentials|token|keys|creds)|\w+\.nats)[\w./$-]*[\")]*$"
)
FOR_ITS_OWNER = ("umask 077", "mkdir -m 700 secrets")


def test_no_page_has_a_secret_written_into_a_file_that_others_may_read() -> None:
    """Under the usual umask a shell makes a file for everybody to read, and a broker refuses it."""
    found = []
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]):
        is_private = False
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                is_private |= any(one in line for one in FOR_ITS_OWNER)
                if not is_private and INTO_A_FILE.search(line):
                    found.append(f"{page.name}: {line.strip()}")
    assert found == []
